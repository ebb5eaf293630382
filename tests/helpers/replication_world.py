"""The world of the replication model.

What producers send, what the history table holds, what a run does, and what must come out.

A run drives the product's own `jobs.run.runner` loops, `History`, `Stream`, `LaneSource`, `KafkaStream`,
`EpochCoordinator`, `Ledger` and SQL compiler over the fakes of `replication_fakes`. The oracle knows nothing
of them: it replays what producers sent.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from headrace.connectors.kafka.growth import TopicGrowth
from headrace.connectors.kafka.sizes import SizeEstimator
from headrace.connectors.kafka.source import KafkaStream
from headrace.jobs.run import runner as run_module
from headrace.jobs.run.epoch_writer import EpochWriter
from headrace.jobs.run.events import Until
from headrace.jobs.run.file_check import check_file
from headrace.jobs.run.history import HistoryLoad
from headrace.jobs.sources.handoff import Handoff
from headrace.jobs.sources.pipeline_source import PipelineSource
from headrace.jobs.sources.snapshots import drop_stale_snapshots, keep_opening, open_sources, snapshot_owner
from headrace.jobs.sources.source_batch import SourceBatch
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import FencedError, HeadraceError, RetentionError, SinkStateError, UserError
from headrace.pipeline.file.loader import PipelineFile, from_compiled, hash_of, parse_pipeline
from headrace.pipeline.lineage.retractions import Retractions, retractions
from headrace.pipeline.protocol import positions
from headrace.pipeline.protocol.coordinator import EpochCoordinator, Pending
from headrace.pipeline.protocol.epochs import CommitRecord, Json, SinkKey, WriteCounts
from headrace.pipeline.protocol.ledger import PipelineState
from headrace.pipeline.protocol.table_offsets import Range
from headrace.pipeline.sql import statements
from headrace.pipeline.sql.filter_marking import FAILED
from headrace.pipeline.sql.system_columns import HIDDEN
from helpers.model_fakes import Clock, Crash, Interrupt, MemoryStore, Probe, process_ledger
from helpers.replication_fakes import (
    Frame,
    Message,
    ModelPeeker,
    ModelTable,
    ModelTarget,
    Row,
    SqlEngine,
    TableServer,
    TopicServer,
)

LANE = "main"
COLUMNS = ("id", "day", "amount", "at")
DAYS = ("2024-01-05", "2024-01-25", "2024-02-10", "2024-03-03")


@dataclass(frozen=True)
class FileVersion:
    """What of the pipeline file the model varies."""

    name: str = "orders"
    keyed: bool = True
    source: str = "src"
    offset_table: bool = True
    limit: int | None = None
    """Only rows with `amount` above it pass the transform."""
    source_limit: int | None = None
    """The same in the stream's own filter."""
    partitions: str | None = None
    """`month` or `day`."""
    first_day: str = "2024-01-01"
    sinks: tuple[str, ...] = ("one", "two")
    tables: tuple[str, ...] = ("history",)
    epoch_rows: int = 3

    def text(self) -> str:
        """Return the file as a user writes it."""
        narrowed = f", filter: 'amount > {self.source_limit}'" if self.source_limit is not None else ""
        phases = "".join(
            f"\n      - {{source_type: clickhouse, table_name: db.{table}{narrowed}}}"
            for table in self.tables
        )
        key = "\n    primary_key: id" if self.keyed else ""
        where = [] if self.limit is None else [f"amount > {self.limit}"]
        where += [] if self.keyed else ["_gs_op <> 'd'"]
        condition = f" where {' and '.join(where)}" if where else ""
        sinks = "".join(f"\n  {name}: {{type: postgres, from: shaped, table: {name}}}" for name in self.sinks)
        text = f"""
name: {self.name}
sources:
  {self.source}:
    type: hybrid{key}
    bounded_sources:{phases}
    unbounded_source: {{source_type: kafka, topic: orders, schema: {{id: int64, day: date32, amount: int64, at: timestamp}}{narrowed}}}
    {"offset_table: {allow_missing: true}" if self.offset_table else "handoff_lag: 1h"}
transforms:
  shaped: {{type: sql, sql: "select id, day, amount from {self.source}{condition}"}}
sinks:{sinks}
epoch: {{stream_rows: {self.epoch_rows}, history_rows: 4, interval: 0s}}
"""
        if self.partitions:
            text += (
                f"partitions: {{column: day, any_order: true, every: {self.partitions}, start: {self.first_day}, end:"
                f" 2024-04-01}}\n"
            )
        return text


class ModelSink:
    """A fenced sink over a `ModelTarget`: rows and record change together."""

    supports_fencing = True
    stores_record = True

    def __init__(self, world: World, name: str, key: SinkKey, probe: Probe) -> None:
        self.target = world.targets[name]
        self._state = world.sink_states.setdefault(name, {})
        self._fences = world.sink_fences.setdefault(name, {})
        self.key = key
        self.probe = probe
        self.generation = 0

    @property
    def is_idempotent(self) -> bool:
        return self.target.keyed

    def prepare(self, generation: int) -> None:
        self.probe.step()
        if self._fences.get(self.key, 0) > generation:
            msg = "fenced in prepare"
            raise FencedError(msg)
        self._fences[self.key] = self.generation = generation

    def record(self) -> CommitRecord | None:
        return self._state.get(self.key)

    def find_conflicting_record(self) -> CommitRecord | None:
        others = [
            record
            for key, record in self._state.items()
            if key.name == self.key.name and key.pipeline != self.key.pipeline
        ]
        return others[0] if others else None

    def refuse_rivals(self) -> None:
        if rivals := [key.name for key in self._state if key.pipeline != self.key.pipeline]:
            msg = f"the target belongs to pipeline {rivals[0]}"
            raise SinkStateError(msg, hint="headrace accept-target --take-over", node=self.key.sink)

    def release_rivals(self) -> list[Any]:
        return []

    def register(self, record: CommitRecord) -> CommitRecord:
        written = replace(record, baseline=len(self.target.rows))
        self.probe.step()
        self._state[self.key] = written
        self.probe.step()
        return written

    def write_rows(self, plan: Any, rows: list[Row]) -> WriteCounts:
        """Write an epoch's rows and its record."""
        self.probe.step()
        before = self._state[self.key]
        assert self._fences[self.key] == self.generation
        assert before.epoch == plan.number - 1, f"epoch {plan.number} is written over epoch {before.epoch}"
        counts = WriteCounts(len(rows), len(rows), 0, 0)
        self.target.put(rows)
        self._state[self.key] = before.after_epoch(plan, self.generation, counts)
        self.probe.step()
        return counts

    def read_row_count(self) -> tuple[CommitRecord | None, int] | None:
        return self.record(), len(self.target.rows)

    def truncate(self) -> None:
        self.probe.step()
        self.target.rows = []
        self.probe.step()

    def close(self) -> None:
        pass


class ModelStream(KafkaStream):
    """The real Kafka source over a `TopicServer`. Only reading messages is replaced."""

    def __init__(
        self, name: str, node: Any, settings: Settings, ordinal: int, server: TopicServer, engine: SqlEngine
    ) -> None:
        super().__init__(name, node, settings, ordinal)
        self._ordinal = ordinal
        self._server = server
        self._engine = engine
        cluster: Any = server
        peeker: Any = ModelPeeker(server)
        self._cluster, self._peeker = cluster, peeker
        self._growth, self._sizes = TopicGrowth(name, cluster, peeker), SizeEstimator(peeker)

    def find_filled_gaps(self, gaps: Mapping[str, Sequence[Range]]) -> dict[str, int]:
        result: dict[str, int] = {}
        for part, listed in gaps.items():
            messages = self._server.partitions[int(part)]
            stable = self._server.stable_end([int(part)])[int(part)]
            filled = [
                at
                for at, (low, high) in enumerate(listed)
                if high > stable or any(one.row is not None for one in messages[low:high])
            ]
            result |= {part: filled[0]} if filled else {}
        return result

    def read_table(self, spark: Any, start: Json, end: Json) -> None:
        """Leave every range to `read`: the driver would ask a broker at the default address."""

    def read(self, spark: Any, start: Json, end: Json) -> Any:
        del spark
        self.check_range(start, end)
        rows = []
        for part, stop in end["offsets"].items():
            for offset in range(start["offsets"].get(part, 0), stop):
                assert offset >= self._server.earliest_offsets.get(int(part), 0), (
                    "an epoch reads offsets that retention has passed"
                )
                message = self._server.partitions[int(part)][offset]
                if message.row is not None:
                    position = {"source": self._ordinal, "part": int(part), "off": offset, "sub": 0}
                    rows.append(
                        {name: message.row.get(name) for name in COLUMNS}
                        | {"_gs_op": message.op, "_gs_pos": position}
                    )
        result = Frame(self._engine, (*COLUMNS, *HIDDEN), rows)
        if not self._node.filter:
            return result
        passed = result.where(self._node.filter)
        if not self.marks:
            return passed
        places = [row["_gs_pos"] for row in passed.rows]
        return replace(result, rows=[row if row["_gs_pos"] in places else _marked(row) for row in rows])


@dataclass
class World:
    """Everything outside of runs, and what producers sent."""

    file: FileVersion
    split_rows: int = 2
    sorted_by: str = "id"
    producer_time: bool = False
    """Whether messages have times of their producers, which lie hours back."""
    clock: Clock = field(default_factory=Clock)
    topic: TopicServer = field(default_factory=lambda: TopicServer({0: [], 1: []}))
    tables: dict[str, TableServer] = field(default_factory=dict)
    targets: dict[str, ModelTarget] = field(default_factory=dict)
    sink_states: dict[str, dict[SinkKey, CommitRecord]] = field(default_factory=dict)
    sink_fences: dict[str, dict[SinkKey, int]] = field(default_factory=dict)
    sequence: int = 0
    base: list[Row] = field(default_factory=list)
    """Rows that the table held before the topic existed."""
    ingested: dict[int, set[int]] = field(default_factory=dict)
    """The offsets of each partition that the table's loader has read. It reads none of them again."""
    deleted: dict[int, int] = field(default_factory=dict)
    """The sequence number of the last delete of a key that the table's loader has read."""
    sent: list[Message] = field(default_factory=list)
    excuses: set[str] = field(default_factory=set)
    """Why a run may be refused now, apart from edits of the file."""
    exact_after: int = -1
    """Messages up to this sequence number went through another filter.

    Their keys are not compared. -1: there are none.
    """
    engine: SqlEngine = field(default_factory=SqlEngine)
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.topic.timestamps = "CreateTime" if self.producer_time else "LogAppendTime"
        self.accepted: FileVersion | None = None
        """The last version of the file that a run worked with."""
        self.start_is_final = False
        """Whether an epoch was committed since the start or the last reset."""
        self.keeps_versions = not self.file.keyed or (
            self.sorted_by == "id" and self.file.source_limit is None
        )
        """Whether the table keeps every version of a key.

        Versions of one key are in order only where the sorting key starts with it.
        """
        self.statements: dict[tuple[str, bool], str] = {}
        """Compiled SQL by version of the file.

        Compiling it for each epoch takes half of the time of an example.
        """
        self.retractions: dict[str, Retractions] = {}
        self.store = MemoryStore(self.clock)
        self.ledger = process_ledger(self.store, Probe(), proofs=False)
        for table in ("history", "older"):
            self.tables.setdefault(table, TableServer())
        for sink in ("one", "two"):
            self.targets.setdefault(sink, ModelTarget(keyed=self.file.keyed))

    # --- producers and the table

    def load_base(self, keys: list[int]) -> None:
        """Put rows without offsets into the history table."""
        for key in keys:
            row = {"id": key, "day": DAYS[key % len(DAYS)], "amount": key % 5 * 10, "at": None}
            self.base.append(row)
            self.tables["history"].rows.append(row | {"_kafka_partition": None, "_kafka_offset": None})

    def send(self, op: str, key: int, amount: int) -> None:
        """Send one message: i, u, d (with all columns) or k (a delete with the key alone).

        A pipeline without a key has inserts only.
        """
        op = op if self.file.keyed else "i"
        part = self._partition_of(key)
        row: Row = {"id": key, "day": DAYS[key % len(DAYS)], "amount": amount, "at": None}
        if op == "k":
            op, row = "d", {"id": key}
        self.sequence += 1
        message = Message(self.sequence, op, row, self._now_ms())
        self.topic.partitions[part].append(message)
        self.sent.append(message)

    def send_marker(self, part: int) -> None:
        """Let a transaction end: its marker takes an offset."""
        part %= len(self.topic.partitions)
        self.topic.partitions[part].append(Message(self.sequence, "i", None, self._now_ms()))

    def add_partition(self) -> None:
        """Add a partition: keys move to other partitions.

        The order of a key that moved is exact only if the start is final. Until the first epoch, each run
        takes another start. The table may hold the row of the new partition by then, but not the older one.

        A row goes to the new partition first: its time is what orders keys that move between old partitions.
        """
        if self.start_is_final and len(self.topic.partitions) < 4:
            part = len(self.topic.partitions)
            self.topic.partitions[part] = []
            self.send("u", part, 30)

    def hang_transaction(self, part: int) -> None:
        """Let a transaction begin and not end: what follows in its partition is not readable yet."""
        part %= len(self.topic.partitions)
        self.topic.open_transactions.setdefault(part, len(self.topic.partitions[part]))

    def end_transactions(self) -> None:
        """Abort all open transactions.

        The table takes at once what waited for them for longer than `handoff_lag`.
        """
        oldest = int(time.time() * 1000) - 3_600_000
        for part in list(self.topic.open_transactions):
            del self.topic.open_transactions[part]
            if not self.producer_time:
                self.ingest(part, sum(message.sent_ms < oldest for message in self.topic.partitions[part]))
            self.send_marker(part)

    def pass_retention(self, part: int, keep: int) -> None:
        """Let the topic drop the oldest messages of a partition, which the table holds."""
        part %= len(self.topic.partitions)
        if part in self.topic.open_transactions:
            return
        self.ingest(part, 10_000)
        end = len(self.topic.partitions[part])
        self.topic.earliest_offsets[part] = max(self.topic.earliest_offsets.get(part, 0), end - keep)
        self.excuses.add("retention")

    def age(self) -> None:
        """Let two hours pass in which the table takes everything that is readable."""
        for part in self.topic.partitions:
            self.ingest(part, 10_000)
            self.topic.partitions[part] = [
                replace(message, sent_ms=message.sent_ms - 7_200_000)
                for message in self.topic.partitions[part]
            ]

    def _now_ms(self) -> int:
        """Return the time of the next message: they are a second apart, and all of the last minutes."""
        behind = 4 * 3_600_000 if self.producer_time else 0
        return int(time.time() * 1000) + (self.sequence - 300) * 1000 - behind

    def _partition_of(self, key: int) -> int:
        return key % len(self.topic.partitions)

    def ingest(self, part: int, count: int, skip: int = 0) -> None:
        """Let the table take messages of one partition. `skip` leaves a hole that a later call fills."""
        part %= len(self.topic.partitions)
        rows = self.tables["history"].rows
        ingested = self.ingested.setdefault(part, set())
        waiting = [
            (offset, message)
            for offset, message in enumerate(self.topic.partitions[part])
            if offset not in ingested
            and message.row is not None
            and offset < self.topic.stable_end([part])[part]
        ]
        for offset, message in waiting[skip : skip + count]:
            ingested.add(offset)
            key = (message.row or {})["id"]
            if message.op == "d":
                # The table's own loader deletes the key's earlier rows, and drops those that come later. The
                # delete itself leaves no row with its offset.
                self.deleted[key] = max(message.sequence, self.deleted.get(key, 0))
                rows[:] = [row for row in rows if row["id"] != key or self._is_later(row, message)]
                continue
            if message.sequence < self.deleted.get(key, 0):
                continue
            if not self.keeps_versions:
                if any(row["id"] == key and self._is_later(row, message) for row in rows):
                    continue
                rows[:] = [row for row in rows if row["id"] != key]
            rows.append(
                {name: (message.row or {}).get(name) for name in COLUMNS}
                | {"_kafka_partition": part, "_kafka_offset": offset}
            )

    def _is_later(self, row: Row, message: Message) -> bool:
        if row["_kafka_partition"] is None:
            return False
        return (
            self.topic.partitions[row["_kafka_partition"]][row["_kafka_offset"]].sequence > message.sequence
        )

    # --- the oracle

    def expected(self) -> list[Row]:
        """Return the rows of each target once everything that was sent has been replicated."""
        if not self.file.keyed:
            rows = [*self.base, *(message.row for message in self.sent if message.op != "d")]
            return [_visible_columns(row) for row in rows if row is not None and self._passes(row)]
        by_key = {row["id"]: row for row in self.base}
        for message in self.sent:
            row = message.row or {}
            by_key.pop(row["id"], None)
            if message.op != "d":
                by_key[row["id"]] = row
        return [_visible_columns(row) for row in by_key.values() if self._passes(row)]

    def _passes(self, row: Row) -> bool:
        limits = [limit for limit in (self.file.limit, self.file.source_limit) if limit is not None]
        return all(row["amount"] is not None and row["amount"] > limit for limit in limits)

    def check_targets(self) -> None:
        """Raise AssertionError where a target differs from the oracle."""
        last = {(message.row or {}).get("id"): message.sequence for message in self.sent}
        inexact = {key for key in range(100) if last.get(key, 0) <= self.exact_after}
        expected = Counter(tuple(row.items()) for row in self.expected() if row["id"] not in inexact)
        for name in self.file.sinks:
            result = Counter(
                tuple(_visible_columns(row).items())
                for row in self.targets[name].rows
                if row["id"] not in inexact
            )
            missing, extra = expected - result, result - expected
            assert result == expected, (
                f"sink {name}: missing {sorted(missing.elements())}, too many {sorted(extra.elements())}"
            )

    # --- operators

    def edit(self, **change: Any) -> None:
        """Edit the file.

        A change that a new pipeline may make too is only interesting once the pipeline has begun.
        """
        if self.accepted is None:
            return
        if not self.file.keyed and not change.keys().isdisjoint({"limit", "offset_table"}):
            return  # rows that went through another filter cannot be told apart
        if "limit" in change and change["limit"] != self.file.limit:
            self.exact_after = self.sequence
        self.file = replace(self.file, **change)

    def run_other_pipeline(self) -> None:
        """Start another pipeline on a target of this one."""
        if self.accepted is None:
            return
        mine, accepted, excuses = self.file, self.accepted, set(self.excuses)
        self.file, self.accepted = replace(mine, name="other", sinks=("one",)), None
        self.excuses.add("the target belongs to another pipeline")
        self.run()
        self.file, self.accepted, self.excuses = mine, accepted, excuses

    def run(self, *, epochs: int = 30, interrupt: Interrupt | None = None) -> str:
        """Run the file as it is and judge the result: `caught up`, `stopped`, `crashed`, or `refused: …`."""
        probe = Probe()
        probe.arm(interrupt)
        run = ModelRun(self, parse_pipeline(self.file.text(), "orders.yaml"), probe, epochs)
        try:
            result = run.execute()
        except Crash:
            result = "crashed"
        except HeadraceError as error:
            result = f"refused: {type(error).__name__}: {error}"
            run.close()
        self.clock.sleep(1000.0)
        self.log.append(f"run of {self.file}: {result}")
        if run.began and not result.startswith("refused"):
            self.accepted = self.file
        if result == "caught up":
            hidden = {
                part
                for part, first in self.topic.open_transactions.items()
                if first < len(self.topic.partitions[part])
            }
            assert not hidden, f"caught up, and partitions {hidden} hold rows behind an open transaction"
            self.check_targets()
        if result.startswith("refused"):
            assert self._may_be_refused(), f"refused without a reason: {result}"
        return result

    def _may_be_refused(self) -> bool:
        return bool(self.excuses) or (self.accepted is not None and self.file != self.accepted)

    def finish(self) -> None:
        """Bring everything to an end: whatever happened, printed commands lead to the right rows."""
        self.end_transactions()
        for _ in range(8):
            result = self.run(epochs=10_000)
            if result == "caught up":
                return
            if result.startswith("refused"):
                self._follow(result)
        raise AssertionError("\n".join(self.log[-10:]))

    def _follow(self, refusal: str) -> None:
        """Do what a refusal proposes."""
        if command := re.search(r"headrace replay \S+ --sink (\w+) --from (\d+)", refusal):
            if refused := self.replay(command[1], int(command[2])):
                self._follow(refused)
        elif "headrace reset" in refusal:
            self.reset()
        else:
            raise AssertionError(f"no way out of: {refusal}")

    def reset(self) -> None:
        """Run `headrace reset --empty-targets`, once the table has taken what the topic has."""
        for part in self.topic.partitions:
            self.ingest(part, 10_000)
        holder = {"host": "elsewhere", "file": "orders.yaml"}
        lease = self.ledger.acquire(self.file.name, LANE, holder, 10.0)
        self.ledger.reset(lease, dict.fromkeys(self.file.sinks, True))
        self.ledger.release(lease)
        self.accepted, self.excuses, self.start_is_final = self.file, set(), False
        # Rows of a key that moved before a start have no order between the table and the topic; see
        # docs/concepts/order.md.
        self.exact_after = self.sequence if len(self.topic.partitions) > 2 else -1

    def replay(self, sink: str, first: int) -> str:
        """Run `headrace replay --sink SINK --from FIRST`.

        Return an empty string, or the refusal if retention has passed rows that it must read.
        """
        run = ModelRun(self, parse_pipeline(self.file.text(), "orders.yaml"), Probe(), 0)
        refusal = ""
        try:
            run.replay(sink, first)
        except RetentionError as error:
            refusal = str(error)
            run.close()
        self.clock.sleep(1000.0)
        assert not refusal or "retention" in self.excuses, f"refused without a reason: {refusal}"
        return refusal


def _visible_columns(row: Row) -> Row:
    return {name: row[name] for name in ("id", "day", "amount")}


class ModelSource(PipelineSource):
    """The real source of a lane. Only Spark's casts are left out."""

    def _cast(self, frame: Any, schema: Any) -> Any:
        del schema
        return frame


class ModelRun:
    """What `jobs.run.runner` needs of a `LaneRun`, over the fakes."""

    def __init__(self, world: World, file: PipelineFile, probe: Probe, epochs: int) -> None:
        self.world = world
        self.file = file
        self.probe = probe
        self.settings = Settings()
        self.session = SimpleNamespace(translate_errors=contextlib.nullcontext, is_started=False)
        self._epochs_left = epochs
        self._versions: dict[str, PipelineFile] = {file.hash: file}
        self._sources: dict[str, dict[str, PipelineSource]] = {}
        self.reporter = SimpleNamespace(
            epochs=0,
            last_seconds=0.0,
            enter=_ignore,
            report_stream_start=_ignore,
            idle=_ignore,
            publish=_ignore,
        )
        self.began = False
        """Whether the lane was opened."""
        self.coordinator: EpochCoordinator = None  # pyright: ignore[reportAttributeAccessIssue]

    def execute(self) -> str:
        """Open the lane, finish the open epoch, then run history and stream."""
        self._open()
        if self.coordinator.has_open_epoch:
            self._finish_epoch()
        windows = positions.windows_of(self.file.model)
        HistoryLoad(self, windows, refresh=False).run()  # pyright: ignore[reportArgumentType]
        caught_up = False
        if not self.stopping and positions.history_complete(self.file.model, self.coordinator.position):
            caught_up = run_module._stream(self, Until.CAUGHT_UP)  # pyright: ignore[reportArgumentType]
        self.coordinator.close()
        return "caught up" if caught_up else "stopped"

    def replay(self, sink: str, first: int) -> None:
        """Write epochs again into one sink."""
        self._open((sink,))
        self.coordinator.replay(sink, self._write, first)
        self.coordinator.close()

    def _open(self, repair: tuple[str, ...] = ()) -> None:
        ledger = self.lane_ledger = process_ledger(self.world.store, self.probe, proofs=True)
        self.coordinator = EpochCoordinator.open(
            ledger,
            self.file.name,
            LANE,
            {"host": "elsewhere", "file": "orders.yaml"},
            self._open_sinks,
            self.file.compiled(),
            self.file.hash,
            initial=self._initial,
            ttl=10.0,
            commit_timeout=30.0,
            clock=self.world.clock,
            sleep=self.world.clock.sleep,
            threaded=False,
            check_file=self._check_file,
            repair=repair,
        )
        self.began = True
        if not self.coordinator.committed:
            drop_stale_snapshots(
                self._sources_of(self.file), self.coordinator.lease, self.coordinator.position
            )

    def close(self) -> None:
        """Give the lane back after an error."""
        if self.coordinator is not None:
            with contextlib.suppress(HeadraceError, Crash):
                self.coordinator.close()

    # --- what the loops ask for

    @property
    def stopping(self) -> bool:
        return self._epochs_left <= 0

    @property
    def assembly(self) -> Any:
        return SimpleNamespace(sources=self._sources_of(self.file), planner=SimpleNamespace(spark=None))

    def run_epoch(self, step: Any, backlog: Any = None) -> None:
        del backlog
        self.coordinator.plan(step.end, step.phase, window=step.window, splits=step.splits)
        self._finish_epoch()
        self.reporter.epochs += 1
        self._epochs_left -= 1

    def idle(self, backlog: int | None) -> None:
        del backlog

    def wait(self, seconds: float) -> None:
        del seconds
        self._epochs_left -= 1  # a run that waits for ever ends here

    # --- parts

    def _finish_epoch(self) -> None:
        pending = self.coordinator.begin()
        if pending is not None:
            self.coordinator.commit(self._write(pending) if pending.sinks else {})
            self.world.start_is_final = True

    def _version(self, compiled: Json) -> PipelineFile:
        stored = hash_of(compiled)
        if stored not in self._versions:
            self._versions[stored] = from_compiled(compiled, self.file.path, self.file)
        return self._versions[stored]

    def _sources_of(self, file: PipelineFile) -> dict[str, PipelineSource]:
        if file.hash not in self._sources:
            self._sources[file.hash] = {
                name: self._source(file, name, node, index)
                for index, (name, node) in enumerate(file.model.sources.items())
            }
        return self._sources[file.hash]

    def _source(self, file: PipelineFile, name: str, node: Any, index: int) -> PipelineSource:
        source, world = ModelSource(name, node, self.settings, index), self.world
        source.contents = self.lane_ledger.content
        tables = [part.table_name.partition(".")[2] for part in node.bounded_sources]
        source.bounded = [
            ModelTable(
                world.tables[table],
                world.engine,
                index * 10 + rank,
                world.split_rows,
                world.sorted_by,
                part.filter,
            )
            for rank, (table, part) in enumerate(zip(tables, node.bounded_sources, strict=True))
        ]
        source.unbounded = ModelStream(
            name, node.unbounded_source.node(), self.settings, index * 10 + 9, world.topic, world.engine
        )
        source.unbounded.marks = name in self._retractions(file).marked
        source.handoff = Handoff(name, node, source.bounded, source.unbounded)
        return source

    def _check_file(self, state: PipelineState) -> None:
        check_file(self.file, state, self.lane_ledger)

    def _retractions(self, file: PipelineFile) -> Retractions:
        if file.hash not in self.world.retractions:
            self.world.retractions[file.hash] = retractions(file.model, lambda _: True)
        return self.world.retractions[file.hash]

    def _initial(self) -> Json:
        state = self.world.ledger.state(self.file.name, LANE)
        assert state is not None
        token = f"{snapshot_owner(state.pipeline)}_{state.generation}_{len(self.world.log)}"
        result = open_sources(self._sources_of(self.file), None, token, self.file.model)  # pyright: ignore[reportArgumentType]
        nodes = self.file.model.sources
        return {name: keep_opening(self.lane_ledger, nodes[name], here) for name, here in result.items()}

    def _open_sinks(self, uuid: str, compiled: Json) -> Mapping[str, ModelSink]:
        file = self._version(compiled)
        return {
            name: ModelSink(self.world, name, SinkKey(uuid, file.name, LANE, name), self.probe)
            for name in file.model.sinks
        }

    def _write(self, pending: Pending) -> Mapping[str, WriteCounts]:
        file = self._version(pending.compiled)
        sources = self._sources_of(file)
        planner: Any = SimpleNamespace(
            spark=object(),
            source_schemas=dict.fromkeys(sources, SimpleNamespace(names=list(COLUMNS))),
            file=file,
        )
        readings: dict[str, SourceBatch] = {}
        EpochWriter(planner, sources, {})._read(pending.plan, readings)
        rows = self._compile(file, {name: reading.frame for name, reading in readings.items()}, pending)
        result: dict[str, WriteCounts] = {}
        for name in pending.sinks:
            sink = self.coordinator.sinks[name]
            assert isinstance(sink, ModelSink)
            result[name] = sink.write_rows(pending.plan, rows)
        return result

    def _compile(self, file: PipelineFile, frames: Mapping[str, Any], pending: Pending) -> list[Row]:
        """Run the transform as the planner compiles it."""
        empty = Frame(self.world.engine, (*COLUMNS, *HIDDEN), [])
        views = {name: frames.get(name, empty) for name in file.model.sources}
        names = {name: f"hr_{name}" for name in views}
        retractions = self._retractions(file)
        marked = not retractions.marked.isdisjoint(views)
        if (file.hash, marked) not in self.world.statements:
            self.world.statements[file.hash, marked] = self._compile_statement(
                file, names, retractions.marking("shaped", marked=marked), pending
            )
        text = self.world.statements[file.hash, marked]
        rows = self.world.engine.query(text, {names[name]: frame for name, frame in views.items()}).rows
        if not retractions.sinks:
            return [row for row in rows if row["_gs_pos"]["sub"] >= 0]
        return [row if row["_gs_pos"]["sub"] >= 0 else row | {"_gs_op": "d"} for row in rows]

    def _compile_statement(
        self, file: PipelineFile, names: dict[str, str], marking: Any, pending: Pending
    ) -> str:
        """Return the SQL of the transform.

        It does not ask for the time, so it is the same for every epoch of a file.
        """
        node: Any = file.model.transforms["shaped"]
        return statements.compile_statement(
            node.query("shaped"),
            HIDDEN,
            now=pending.plan.planned_at,
            rename=dict(names),
            node="shaped",
            sources={name: frozenset({name}) for name in names},
            marking=marking,
        )


def _marked(row: Row) -> Row:
    return row | {"_gs_pos": row["_gs_pos"] | {"sub": FAILED}}


def _ignore(*_: Any, **__: Any) -> None:
    """Stand for what a run reports."""


__all__ = ("FileVersion", "UserError", "World")

"""Bases of sinks that plugins write on: the rows of an epoch as Arrow, in order, on the driver."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any, ClassVar

import pyarrow as pa

from headrace.connectors.fencing import fencing_error
from headrace.connectors.frame import EpochFrame
from headrace.connectors.keys import canonical
from headrace.connectors.plugins.pickling import contract_error
from headrace.connectors.sink_base import Sink, SinkContext
from headrace.connectors.transactional_sink import CommitKind, SinkCommit, SinkState, TransactionalSink
from headrace.pipeline.errors import DataError, GuaranteeError, TransientError
from headrace.pipeline.model.capabilities import Delivery, SinkCapabilities, Visibility
from headrace.pipeline.plugins.runtime import PluginContext
from headrace.pipeline.protocol.claims import Claim
from headrace.pipeline.protocol.epochs import CommitRecord, EpochPlan, Json, SinkKey, WriteCounts
from headrace.pipeline.sql.system_columns import OP, POS

BATCH_ROWS = 10_000


class ArrowSink(Sink):
    """A sink that takes batches: at least once.

    After a crash the rows of the epoch that was open come again, with the same number.
    """

    capabilities: ClassVar[SinkCapabilities] = SinkCapabilities(
        delivery=Delivery.AT_LEAST_ONCE,
        upsert=True,
        delete=True,
        visibility=Visibility.ROW,
        without_spark=True,
    )

    def __init__(self, context: SinkContext) -> None:
        """Store the context without opening a connection."""
        super().__init__(context)
        self.context: PluginContext = context.plugin
        self.options: Any = self.context.options
        self.key: tuple[str, ...] = tuple(context.extra.get("key", ()))

    @abstractmethod
    def send(self, batch: pa.RecordBatch, epoch: int) -> None:
        """Write rows of an epoch, in order: the payload and `_gs_op`. Return when they are in the target."""

    def prepare(self, schema: pa.Schema, generation: int) -> None:
        """Check the connection. The default does nothing."""

    def record(self) -> CommitRecord | None:
        """Return None: the target stores no record."""
        return None

    def register(self, record: CommitRecord) -> CommitRecord:
        """Return the record without storing it."""
        return replace(record, baseline=None)

    def write(self, plan: EpochPlan, frame: EpochFrame) -> WriteCounts:
        """Send the epoch's rows in order, even if they were sent before."""
        table = canonical(in_order(frame), frame.key)
        for batch in table.to_batches(max_chunksize=BATCH_ROWS):
            self.send(batch, plan.number)
        return WriteCounts(table.num_rows, None, None, None)


class ArrowTransactionalSink(TransactionalSink):
    """A sink that swaps a note together with the rows: exactly once.

    The target keeps one small JSON note per sink. `compare_and_swap` replaces it and writes the rows in one
    atomic step, if the note is still the one that is expected. The base class does the rest: generations,
    epochs, crashes between any two steps.
    """

    capabilities: ClassVar[SinkCapabilities] = SinkCapabilities(
        delivery=Delivery.EXACTLY_ONCE,
        upsert=True,
        delete=True,
        visibility=Visibility.EPOCH,
        creates_target=True,
        fences=True,
        without_spark=True,
    )

    def __init__(self, context: SinkContext) -> None:
        """Store the context without opening a connection."""
        super().__init__(context)
        self.context: PluginContext = context.plugin
        self.options: Any = self.context.options
        self.key: tuple[str, ...] = tuple(context.extra.get("key", ()))
        self._note_of = context.key.text

    @abstractmethod
    def load_note(self) -> Json | None:
        """Read the note under `self.note_key` from the target system; return None if there is none."""

    @abstractmethod
    def compare_and_swap(self, expected: Json | None, note: Json, rows: pa.Table | None) -> bool:
        """Write rows and note in one atomic step if the target's note is `expected`, else return False.

        `rows` are payload and `_gs_op`, in order. With a primary key there is one row per key: upsert i and
        u, delete d. Without one all rows are appended. With None only the note changes.
        """

    def count_rows(self) -> int | None:
        """Return the target's row count, or None if unknown. Checks compare the counts with it."""
        return None

    @property
    def note_key(self) -> str:
        """The name under which the note is stored: that of one sink, or of the claims to one target."""
        return self._note_of

    @property
    def target_id(self) -> str | None:
        """The target's id among the targets whose notes are in the same store.

        With None, two pipelines that write to one target are not detected.
        """
        return None

    @property
    def target(self) -> str:
        """The target as messages name it."""
        return f"the target `{self.target_id}`" if self.target_id is not None else "the target"

    def prepare_target(self, schema: pa.Schema) -> None:
        """Check the connection, and create or check the target. The default does nothing."""

    def read_state(self) -> SinkState:
        """Return generation and record of the note. `version` is the note."""
        note = self.load_note()
        if note is None:
            return SinkState()
        return SinkState(
            note["generation"], CommitRecord.from_json(note["record"]) if note["record"] else None, note
        )

    def commit(self, expected: SinkState, change: SinkCommit) -> SinkState:
        """Swap the note. A note that changed in the meantime means that another process has the target."""
        record, rows = change.record, None
        if change.frame is not None:
            rows = changes(change.frame)
            record = change.complete(WriteCounts(rows.num_rows, None, None, None))
        elif change.kind is CommitKind.REGISTER and record is not None:
            record = replace(record, baseline=self.count_rows())
        self._swap(
            expected.version,
            {"generation": change.generation, "record": record.to_json() if record else None},
            rows,
        )
        return SinkState(change.generation, record)

    def claims(self) -> Sequence[Claim]:
        """Return the claims in the target's note, if `target_id` is set."""
        return self._claims()[1]

    def release(self, claims: Sequence[Claim]) -> None:
        """Fence each sink with a note of the generation after its own, then remove its claim."""
        for claim in claims:
            with self._noting(claim.key.text):
                if state := self.load_note():
                    self._swap(state, {"generation": state["generation"] + 1, "record": None}, None)
        note, there = self._claims()
        self._put_claims(note, [claim for claim in there if claim not in claims])

    def claim_target(self) -> None:
        """Add this sink's claim to the note of the claims, if `target_id` is set."""
        if not self._claim_key:
            return
        owner, (note, there) = self._context.owner, self._claims()
        owner.refuse(there, self.target)
        mine, former = Claim(owner.key, owner.share), owner.former(there)
        wanted = [*(claim for claim in there if claim.key != owner.key and claim not in former), mine]
        if wanted != there:
            self._put_claims(note, wanted)

    def _claims(self) -> tuple[Json | None, list[Claim]]:
        """Return the note of the claims and the claims in it."""
        if not self._claim_key:
            return None, []
        with self._noting(self._claim_key):
            note = self.load_note()
        return note, [
            Claim(SinkKey(**claim["key"]), claim["share"]) for claim in (note or {}).get("claims", [])
        ]

    def _put_claims(self, expected: Json | None, claims: Sequence[Claim]) -> None:
        """Replace the note of the claims if it is still `expected`."""
        note = {
            "generation": 0,
            "claims": [{"key": asdict(claim.key), "share": claim.share} for claim in claims],
        }
        with self._noting(self._claim_key):
            swapped = self.compare_and_swap(expected, note, None)
        if not swapped:
            msg = f"the claims to {self.target} were changed by another process at the same moment"
            raise TransientError(msg, node=self._context.key.sink)

    @property
    def _claim_key(self) -> str:
        return f"headrace-claim/{self.target_id}" if self.target_id is not None else ""

    @contextmanager
    def _noting(self, key: str) -> Iterator[None]:
        """Make `load_note` and `compare_and_swap` use the note of this name inside the block."""
        self._note_of = key
        try:
            yield
        finally:
            self._note_of = self._context.key.text

    def _swap(self, expected: Json | None, note: Json, rows: pa.Table | None) -> None:
        swapped = self.compare_and_swap(expected, note, rows)
        if not isinstance(swapped, bool):
            what = f"`compare_and_swap` returned {type(swapped).__name__}, and not True or False"
            raise contract_error(self.context.found, what, self.context.name)
        if not swapped:
            now = self.load_note()
            raise fencing_error(
                now["generation"] if now else None, note["generation"], target=self.target, sink=self._name
            )


def in_order(frame: EpochFrame) -> pa.Table:
    """Return the epoch's rows in the order of their positions, as payload and `_gs_op`."""
    table = frame.rows.toArrow()
    place = table.column(POS).combine_chunks()
    names = [field.name for field in place.type]
    numbers = [*(place.field(name) for name in names), pa.array(range(table.num_rows), pa.int64())]
    order = (
        pa.table(numbers, names=[*names, "at"]).sort_by([(name, "ascending") for name in names]).column("at")
    )
    return table.drop_columns([POS]).take(order)


def changes(frame: EpochFrame) -> pa.Table:
    """Return the rows in order, or only the last row per key with a primary key.

    Raise DataError for a null in the key, and GuaranteeError for a delete without a primary key.
    """
    table = canonical(in_order(frame), frame.key)
    if not frame.key:
        if "d" in table.column(OP).unique().to_pylist():
            msg = "a delete arrived, and a target without a key cannot apply it"
            raise GuaranteeError(
                msg, hint="Set `primary_key` on the sink, or filter `_gs_op <> 'd'` in a transform."
            )
        return table
    for column in frame.key:
        if table.column(column).null_count:
            msg = f"key column '{column}' is null in a row"
            raise DataError(msg, hint="Filter such rows out in a transform, or choose another `primary_key`.")
    at = "_headrace_at"
    numbered = table.select(list(frame.key)).append_column(at, pa.array(range(table.num_rows), pa.int64()))
    last = numbered.group_by(list(frame.key)).aggregate([(at, "max")]).column(f"{at}_max")
    return table.take(last.combine_chunks().sort())

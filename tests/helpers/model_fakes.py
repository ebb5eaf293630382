"""Fake sinks, clock and ledger of the model.

Whole outside systems in a few dictionaries, and processes that die or pause anywhere.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from headrace.pipeline.errors import FencedError, SinkStateError, TransientError
from headrace.pipeline.protocol.claims import Claim, TargetClaimant
from headrace.pipeline.protocol.epochs import CommitRecord, EpochPlan, Json, SinkKey, WriteCounts
from headrace.pipeline.protocol.ledger.sqlite import SqliteStore
from headrace.pipeline.protocol.ledger.writer import Ledger

Token = tuple[int, str, str, str]
"""What an epoch's rows depend on: number, the compiled SQL, the planned time (`now()`), the splits."""
Row = tuple[int, Token]
"""One row: its offset and its content."""


class Crash(BaseException):
    """The process died here."""


class Clock:
    """A clock that moves only when told, and lands late commits as it does."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0
        self.late: list[tuple[float, Callable[[], None]]] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        until = self.now + max(0.0, seconds)
        due = sorted((one for one in self.late if one[0] <= until), key=lambda one: one[0])
        self.late = [one for one in self.late if one[0] > until]
        for moment, land in due:
            self.now = max(self.now, moment)
            land()
        self.now = max(self.now, until)


class Strand:
    """One operation of one process in a thread of its own, so that it can be parked in the middle.

    Never two run at once.
    """

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self._go = threading.Semaphore(0)
        self._back = threading.Semaphore(0)
        self._error: BaseException | None = None
        self.done = False
        self._thread = threading.Thread(target=self._main, daemon=True)
        self._thread.start()

    def resume(self) -> None:
        """Lets it run until it parks or ends; raises what it raised."""
        self._go.release()
        self._back.acquire()
        if self.done:
            self._thread.join()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def park(self) -> None:
        """Called inside: stops here until somebody resumes it."""
        self._back.release()
        self._go.acquire()

    def _main(self) -> None:
        self._go.acquire()
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - `resume` raises it again
            self._error = error
        self.done = True
        self._back.release()


@dataclass
class Interrupt:
    """What befalls a process at its `at`-th step.

    "crash", "fail" (an error that passes by itself) or "pause".

    `late`: what the step was about to do in a sink that does not fence lands that many seconds later all the
    same.
    """

    kind: str
    at: int
    late: float | None = None


class Probe:
    """One process as the outside sees it. Every step that others can notice goes through `step`."""

    def __init__(self) -> None:
        self.dead = False
        self.strand: Strand | None = None
        self._interrupt: Interrupt | None = None
        self._count = 0

    def arm(self, interrupt: Interrupt | None) -> None:
        """The next operation, or the rest of the one that is parked, will meet this."""
        self._interrupt, self._count = interrupt, 0

    def step(self, late: Callable[[float], None] | None = None) -> None:
        """Passes, raises, or parks the process. `late` schedules what this step was about to do."""
        if self.dead:
            raise Crash
        self._count += 1
        interrupt = self._interrupt
        if interrupt is None or self._count != interrupt.at:
            return
        self._interrupt = None
        if interrupt.kind == "pause":
            if self.strand is not None:
                self.strand.park()
            if self.dead:
                raise Crash
            return
        if late is not None and interrupt.late is not None:
            late(interrupt.late)
        if interrupt.kind == "fail":
            msg = "an outside system failed in passing"
            raise TransientError(msg)
        self.dead = True
        raise Crash


class Presences:
    """The fake of lock files: a generation's lock is free once its process is dead."""

    def __init__(self, probe: Probe, holders: dict[tuple[str, str, int], Probe], *, proofs: bool) -> None:
        self._probe = probe
        self._holders = holders
        self._proofs = proofs

    def present(self, pipeline: str, lane: str, generation: int) -> Presences:
        self._holders[pipeline, lane, generation] = self._probe
        return self

    def release(self) -> None:
        pass

    def is_owner_dead(self, pipeline: str, lane: str, generation: int) -> bool:
        holder = self._holders.get((pipeline, lane, generation))
        return self._proofs and holder is not None and holder.dead


class MemoryStore(SqliteStore):
    """The real SQL on an in-memory database under the model's clock."""

    def __init__(self, clock: Clock) -> None:
        self._fake = clock
        self.holders: dict[tuple[str, str, int], Probe] = {}
        super().__init__(":memory:", None)

    def clock(self) -> float:
        return self._fake.now

    def copy(self) -> MemoryStore:
        """A backup of the database, as it is now."""
        made = MemoryStore(self._fake)
        self._connection.backup(made._connection)
        return made


class ProcessStore:
    """The shared store as one process reaches it.

    It can die before and after every transaction that changes something.
    """

    def __init__(self, shared: MemoryStore, probe: Probe, *, proofs: bool) -> None:
        self._shared = shared
        self._probe = probe
        locks = Presences(probe, shared.holders, proofs=proofs)
        self.present, self.is_owner_dead = locks.present, locks.is_owner_dead

    @contextmanager
    def write(self):
        self._probe.step()
        with self._shared.write() as tx:
            yield tx
        self._probe.step()

    def read(self):
        if self._probe.dead:
            raise Crash
        return self._shared.read()

    def trim(self) -> None:
        self._shared.trim()

    def close(self) -> None:
        pass


def process_ledger(shared: MemoryStore, probe: Probe, *, proofs: bool, kind: type[Ledger] = Ledger) -> Ledger:
    return kind(ProcessStore(shared, probe, proofs=proofs))


def token(plan: EpochPlan, sql: str) -> Token:
    return plan.number, sql, plan.planned_at.isoformat(), str(plan.splits)


def epoch_rows(plan: EpochPlan, sql: str) -> list[Row]:
    return [(offset, token(plan, sql)) for offset in range(plan.start["src"], plan.end["src"])]


@dataclass
class Target:
    """An outside system, which outlives processes.

    `expected` is what the model says that it must hold; see `World`.
    """

    name: str
    fences: bool
    upserts: bool
    rows: list[Row] = field(default_factory=list)
    records: dict[SinkKey, CommitRecord] = field(default_factory=dict)
    fence: dict[SinkKey, int] = field(default_factory=dict)
    base: list[Row] = field(default_factory=list)
    since: int = 0

    def put(self, rows: list[Row]) -> None:
        if self.upserts:
            self.rows = sorted((dict(self.rows) | dict(rows)).items())
        else:
            self.rows = self.rows + rows

    def copy(self) -> Target:
        return replace(self, rows=list(self.rows), records=dict(self.records), fence=dict(self.fence))

    def restore(self, old: Target) -> None:
        copy = old.copy()
        self.rows, self.records, self.base, self.since = copy.rows, copy.records, copy.base, copy.since


class FakeSink:
    """A handle of one process on a target.

    The fencing kind compares generations and epochs in its atomic act, like Postgres.

    The other kind compares the version only, like Delta: what is under way when its process dies may land
    later.
    """

    def __init__(
        self, target: Target, key: SinkKey, probe: Probe, clock: Clock, *, joins: Callable[[str], None]
    ) -> None:
        self.target = target
        self.key = key
        self.probe = probe
        self.clock = clock
        self.generation = 0
        self._joins = joins

    stores_record = True

    @property
    def supports_fencing(self) -> bool:
        return self.target.fences

    @property
    def is_idempotent(self) -> bool:
        return self.target.upserts

    def prepare(self, generation: int) -> None:
        self.probe.step()
        if self.supports_fencing:
            self.raise_fence(generation)
        self.generation = generation
        self.probe.step()

    def raise_fence(self, generation: int) -> None:
        if self.target.fence.get(self.key, 0) > generation:
            msg = "fenced in prepare"
            raise FencedError(msg)
        self.target.fence[self.key] = generation

    def record(self) -> CommitRecord | None:
        self.probe.step()
        return self.target.records.get(self.key)

    def find_conflicting_record(self) -> CommitRecord | None:
        mine = (self.key.name, self.key.lane, self.key.sink)
        for key, record in self.target.records.items():
            if (key.name, key.lane, key.sink) == mine and key.pipeline != self.key.pipeline:
                return record
        return None

    def claims(self) -> list[Claim]:
        return [Claim(key, share=False, epoch=record.epoch) for key, record in self.target.records.items()]

    def refuse_rivals(self) -> None:
        self.probe.step()
        TargetClaimant(self.key, share=False).refuse(self.claims(), self.target.name)

    def release_rivals(self) -> list[Claim]:
        rivals = TargetClaimant(self.key, share=False).rivals(self.claims())
        for claim in rivals:
            self.target.records.pop(claim.key)
            self.target.fence[claim.key] = self.target.fence.get(claim.key, 0) + 1
        return rivals

    def register(self, record: CommitRecord) -> CommitRecord:
        TargetClaimant(self.key, share=False).refuse(self.claims(), self.target.name)
        seen = self.target.records.get(self.key)
        written = replace(record, baseline=len(self.target.rows))

        def act() -> None:
            self._own()
            if self.target.records.get(self.key) != seen or (
                seen is not None and seen.generation > record.generation
            ):
                msg = "a newer generation joined or wrote already"
                raise FencedError(msg)
            self.target.records[self.key] = written
            self._joins(self.target.name)

        self._atomic(act)
        return written

    def truncate(self) -> None:
        def act() -> None:
            self._own()
            self.target.rows = []

        self._atomic(act)

    def write(self, plan: EpochPlan, compiled: Json) -> WriteCounts:
        rows = epoch_rows(plan, compiled["sql"])
        counts = WriteCounts(len(rows), len(rows), 0, 0)

        def act() -> None:
            self._own()
            self.compare(plan)
            self.target.put(rows)
            self.target.records[self.key] = self.target.records[self.key].after_epoch(
                plan, self.generation, counts
            )

        record = self.target.records.get(self.key)
        if not self.supports_fencing and record is not None and record.epoch == plan.number:
            return self._skipped(record, plan)
        self._atomic(act)
        return counts

    def compare(self, plan: EpochPlan) -> None:
        record = self.target.records.get(self.key)
        if record is None or record.epoch != plan.number - 1:
            msg = f"the sink is at epoch {record and record.epoch}, not at {plan.number - 1}"
            raise SinkStateError(msg)

    def read_row_count(self):
        return self.target.records.get(self.key), len(self.target.rows)

    def close(self) -> None:
        pass

    def _skipped(self, record: CommitRecord, plan: EpochPlan) -> WriteCounts:
        if not record.is_of(plan):
            msg = "the sink holds another epoch under this number"
            raise SinkStateError(msg)
        return record.counts

    def _own(self) -> None:
        if self.supports_fencing and self.target.fence.get(self.key, 0) != self.generation:
            msg = "fenced in the act"
            raise FencedError(msg)

    def _atomic(self, act: Callable[[], None]) -> None:
        def land_later(delay: float) -> None:
            def land() -> None:
                try:
                    act()
                except (FencedError, SinkStateError):
                    return

            self.clock.late.append((self.clock.now + delay, land))

        self.probe.step(None if self.supports_fencing else land_later)
        act()
        self.probe.step()

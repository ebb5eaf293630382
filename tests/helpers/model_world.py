"""The world of the model.

Processes that run the real Lane over fake sinks, and what must hold at all times.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from headrace.pipeline.errors import (
    FencedError,
    HeadraceError,
    LeaseHeldError,
    PipelineStateError,
    SinkStateError,
    TransientError,
)
from headrace.pipeline.protocol.coordinator import EpochCoordinator, Pending
from headrace.pipeline.protocol.epochs import CommitRecord, EpochPlan, Json, Phase, SinkKey, WriteCounts
from headrace.pipeline.protocol.ledger import Ledger, PipelineState
from headrace.pipeline.protocol.ledger.leases import next_generation
from helpers.model_fakes import (
    Clock,
    Crash,
    FakeSink,
    Interrupt,
    MemoryStore,
    Probe,
    Row,
    Strand,
    Target,
    epoch_rows,
    process_ledger,
)

NAME, LANE = "orders", "main"
TTL, COMMIT_TIMEOUT = 10.0, 30.0
FILES: tuple[Json, ...] = (
    {"sql": "v1", "sinks": ["pg", "delta"]},
    {"sql": "v2", "sinks": ["delta", "pg"]},
    {"sql": "v1", "sinks": ["log", "keyed"]},
    {"sql": "v2", "sinks": ["lake", "log", "keyed"]},
)


def hash_of(file: Json) -> str:
    return f"{file['sql']}:{','.join(file['sinks'])}"


@dataclass
class Process:
    """One process, perhaps with a lane, perhaps parked in the middle of an operation."""

    sinks: frozenset[str]
    probe: Probe = field(default_factory=Probe)
    lane: EpochCoordinator | None = None
    generation: int = 0
    """What it gets if nobody comes before it."""

    @property
    def parked(self) -> bool:
        return self.probe.strand is not None

    @property
    def idle(self) -> bool:
        return self.lane is not None and not self.parked


class World:
    """Everything outside of processes, and the truth to check it against."""

    lane_class: type[EpochCoordinator] = EpochCoordinator
    sink_class: type[FakeSink] = FakeSink
    ledger_class: type[Ledger] = Ledger

    def __init__(self, *, proofs: bool = True, jvm_dies: bool = False) -> None:
        self.clock = Clock()
        self.proofs = proofs
        self.host = socket.gethostname() if jvm_dies else "elsewhere"
        self.jvm_dies = jvm_dies
        self.store = MemoryStore(self.clock)
        self.ledger = process_ledger(self.store, Probe(), proofs=False)
        self.targets = {
            "pg": Target("pg", fences=True, upserts=False),
            "keyed": Target("keyed", fences=True, upserts=True),
            "delta": Target("delta", fences=False, upserts=False),
            "lake": Target("lake", fences=False, upserts=True),
            "log": Target("log", fences=True, upserts=False),
        }
        self.processes: list[Process] = []
        self.history: dict[int, EpochPlan] = {}
        self.members: dict[int, frozenset[str]] = {}
        self.broken: set[str] = set()
        """Targets whose record was taken away or set back behind the lane's back.

        Refusals are right for them.
        """
        self.tampered: dict[str, int] = {}
        """Keyed targets that lost a row behind the lane's back, and the epoch that it came from."""
        self.harms = 0
        self.unheard_of: set[str] = set()
        """Targets that a rebuilt ledger did not find in its file.

        Those that had left, or were about to join.
        """
        self.adopting: set[str] = set()
        self.before_adoption: dict[str, tuple[list[Row], int]] = {}
        """What a sink answered for, and since when, before an adoption that has begun."""
        self.joined: set[str] = set()
        """Targets that have joined once."""
        self.absent: set[str] = set()
        """Targets that left the file and missed epochs since."""
        self.snapshots: dict[str, Target] = {}
        self.ledger_backup: MemoryStore | None = None
        self.file = FILES[0]
        self.log: list[str] = []

    # --- what processes do

    def open(
        self, file: Json, interrupt: Interrupt | None = None, repair: frozenset[str] = frozenset()
    ) -> Process:
        """A new process opens the lane with this version of the file.

        It has no lane where it was refused, or died.
        """
        known = self.ledger.state(NAME, LANE)
        self.clock.sleep(1.0)  # a process takes a moment to start
        process = Process(
            frozenset(file["sinks"]),
            generation=next_generation(known.generation if known else 0, self.clock.now),
        )
        self.processes.append(process)
        state, harms = self._live_holder(), self.harms
        strict = interrupt is None or interrupt.kind != "pause"
        returning = frozenset(
            name
            for name in file["sinks"]
            if known and name in known.sinks and known.sinks[name].state == "left"
        )

        def work() -> None:
            process.lane = self._opened(process.probe, file, repair | returning)
            self._bring_back(process.lane, returning - repair)
            assert not (state and strict), "two live processes hold the lane"
            if self.state().generation != process.lane.generation:
                return  # it was overtaken while it was paused, and every write of it is refused
            for name in (
                self.broken & process.lane.sinks.keys() & self._members() - self.tampered.keys() - repair
            ):
                assert harms != self.harms or self._level(name), (
                    f"opened over the record of {name}, which was lost or set back"
                )
            self.file = file

        self._operate(process, work, interrupt, has_holder=state or not strict)
        return process

    def step(
        self, process: Process, size: int, interrupt: Interrupt | None = None, *, patience: int = 2
    ) -> None:
        """One epoch: the open one, else the next.

        What fails in passing is tried again, or the process gives up.
        """
        splits = ({"id": size},) if size % 2 else ()

        def attempt(lane: EpochCoordinator) -> None:
            if not lane.has_open_epoch:
                self._bring_back(lane, frozenset(self._left_behind()))
                lane.plan(
                    {"src": lane.position["src"] + size},
                    Phase.HISTORY if splits else Phase.LIVE,
                    splits=splits,
                )
            self.finish_epoch(lane)

        def work() -> None:
            lane = process.lane
            assert lane is not None
            for _ in range(patience):
                try:
                    attempt(lane)
                except TransientError as error:
                    lane.record_failure("sink", error)
                else:
                    return
            lane.close()
            self._end_process(process)

        self._operate(process, work, interrupt)

    def repair(self, name: str, *, accept: bool, interrupt: Interrupt | None = None) -> bool:
        """The user mends a broken sink with the file as it is; whether that worked."""
        process = self.open(self.file, repair=frozenset(self.broken))
        # An epoch of an earlier file may be open; the sink comes into view once that is finished.
        if (
            process.lane is not None
            and name not in process.lane.sinks
            and process.lane.has_open_epoch
            and not self.broken & process.lane.sinks.keys()
        ):
            self.step(process, 1)
        if process.lane is None:
            return False
        lane, first, harms = process.lane, self.tampered.get(name), self.harms

        def work() -> None:
            if name not in lane.sinks or name not in self.broken:
                return
            if accept and first is None:
                self.adopting.add(name)
                if not self._half_adopted(name):
                    self.before_adoption.pop(name, None)
                lane.accept_target(name)
                self.before_adoption.pop(name, None)
            else:
                self.adopting.discard(name)
                self._answers_from_where_it_joined(name)
                lane.replay(name, self._writer(lane), first=first)
            if self.harms == harms:  # else it was harmed again while the repair was paused
                self._mended(name)

        self._operate(process, work, interrupt)
        if process.idle:
            self.close(process)
        return name not in self.broken

    def _bring_back(self, lane: EpochCoordinator, names: frozenset[str]) -> None:
        """The user replays sinks that were out of the file for some epochs.

        An appending one without a record is adopted.
        """
        for name in names & lane.sinks.keys():
            if lane.has_open_epoch or name not in [finding.sink for finding in lane._problems()]:
                continue
            harms = self.harms
            self.broken.add(name)
            self.adopting.discard(name)
            self._answers_from_where_it_joined(name)
            try:
                lane.replay(name, self._writer(lane), first=self.tampered.get(name))
            except SinkStateError:
                self.adopting.add(name)
                lane.accept_target(name)
            if self.harms == harms:
                self._mended(name)

    def _left_behind(self) -> set[str]:
        """Sinks that left the file before the last epoch: a file that has them again is rightly refused."""
        state = self.ledger.state(NAME, LANE)
        rows = state.sinks.items() if state else ()
        return {name for name, row in rows if row.state == "left"}

    def close(self, process: Process, interrupt: Interrupt | None = None) -> None:
        lane = process.lane
        assert lane is not None

        def work() -> None:
            lane.close()
            self._end_process(process)

        self._operate(process, work, interrupt)

    def resume(self, process: Process, interrupt: Interrupt | None = None) -> None:
        """A parked process wakes and goes on as if nothing had happened."""
        strand = process.probe.strand
        assert strand is not None
        process.probe.arm(interrupt)
        strand.resume()
        self.check()

    def kill(self, process: Process) -> None:
        process.probe.dead = True
        if process.probe.strand is not None:
            process.probe.strand.resume()
        self._end_process(process)

    def _operate(
        self,
        process: Process,
        work: Callable[[], object],
        interrupt: Interrupt | None,
        *,
        has_holder: bool = False,
    ) -> None:
        """Runs an operation of a process through to its end, its refusal or its death; or until it parks."""
        probe = process.probe

        def whole() -> None:
            try:
                work()
            except HeadraceError as error:
                self._refused(process, error, has_holder=has_holder)
            except Crash:
                self._end_process(process)
            finally:
                probe.strand = None

        if self.jvm_dies and interrupt is not None and interrupt.kind == "crash":
            interrupt = replace(interrupt, late=None)
        probe.arm(interrupt)
        if interrupt is not None and interrupt.kind == "pause":
            probe.strand = Strand(whole)
            probe.strand.resume()
        else:
            whole()
        if not process.parked:
            probe.arm(None)
        self.check()

    def _opened(self, probe: Probe, file: Json, repair: frozenset[str] = frozenset()) -> EpochCoordinator:
        return self.lane_class.open(
            self._process_ledger(probe),
            NAME,
            LANE,
            {"host": self.host},
            self._factory(probe),
            file,
            hash_of(file),
            initial={"src": 0},
            ttl=TTL,
            commit_timeout=COMMIT_TIMEOUT,
            repair=repair,
            clock=self.clock,
            sleep=self.clock.sleep,
            threaded=False,
        )

    def _process_ledger(self, probe: Probe) -> Ledger:
        return process_ledger(self.store, probe, proofs=self.proofs, kind=self.ledger_class)

    # --- what happens to targets and to the ledger

    def expire(self, name: str) -> None:
        """The record is lost, the rows stay."""
        target, record = self.targets[name], self._record(name)
        # Of an appending sink that held the open epoch nobody could say later that it did: no repair would be
        # right.
        if record is not None and (target.upserts or record.epoch <= self.state().committed):
            del target.records[self._key(name)]
            self._harmed(name)

    def recreate(self, name: str) -> None:
        """Somebody dropped and made the target anew."""
        target = self.targets[name]
        if self._record(name) is not None:
            target.rows, target.base = [], []
            if name in self.before_adoption:
                self.before_adoption[name] = ([], self.before_adoption[name][1])
            del target.records[self._key(name)]
            self.tampered.pop(name, None)
            self._harmed(name)

    def snapshot(self, name: str) -> None:
        """A backup is taken."""
        if self._record(name) is not None and name not in self.broken:
            self.snapshots[name] = self.targets[name].copy()

    def restore(self, name: str) -> None:
        """The target comes back from a backup, record and rows.

        Not while a process is paused in the middle of a write.
        """
        if name not in self.snapshots or any(process.parked for process in self.processes):
            return
        self.targets[name].restore(self.snapshots[name])
        self.before_adoption.pop(name, None)
        self._mended(name)
        record, state = self._record(name), self.state()
        if (
            name not in state.sinks
            or record is None
            or record.epoch not in (state.committed, state.committed + (state.open_plan is not None))
        ):
            self._harmed(name)

    def tamper(self, name: str) -> None:
        """A row of a keyed target is deleted behind its back."""
        target = self.targets[name]
        first = next(self.ledger.epochs(NAME, LANE), None)
        stored = first.plan.number if first else 10**9
        mine = [
            row
            for row in target.rows
            if row not in target.base and max(target.since + 1, stored) <= row[1][0] <= self.state().committed
        ]
        if target.upserts and mine and name not in self.broken and name in self._members():
            target.rows.remove(mine[0])
            self.tampered[name] = mine[0][1][0]
            self._harmed(name)

    def can_lose_ledger(self) -> bool:
        """Not while a process is paused on the old ledger, nor with a sink that has lost its record.

        Both truths would be gone.
        """
        if self.broken or not self.history or any(process.parked for process in self.processes):
            return False
        return set(self.file["sinks"]) == {
            name for name, row in self.state().sinks.items() if row.state == "joined"
        }

    def back_up_ledger(self) -> None:
        """A backup of the ledger is taken, also while processes work."""
        self.ledger_backup = self.store.copy()

    def lose_ledger(self, *, backup: bool = False) -> None:
        """The ledger's file is gone, with no process alive. The last backup, or an empty ledger, replaces it.

        It is rebuilt from the sinks, or brought back when that is refused. A backup that no sink is ahead of
        goes on. One with an open epoch of an earlier file opens the sinks of that file first.
        """
        for process in list(self.processes):
            self.kill(process)
        if backup:
            # The backup has the lease of its owner. Late writes of the killed belong to the ledger that is lost.
            self.clock.sleep(TTL + COMMIT_TIMEOUT)
        state, old = self.state(), self.store
        records = [record for name in self.file["sinks"] if (record := self._record(name))]
        self._use(self.ledger_backup.copy() if backup and self.ledger_backup else MemoryStore(self.clock))
        known = self.ledger.state(NAME, LANE)
        newest = known.committed + (known.open_plan is not None) if known else -1
        ahead = any(record.epoch > newest for record in records)
        opened = self._first_opened(known)
        met = any(record.epoch > newest for record in records if record.key.sink in opened)
        refused = self._refuses(self.file)
        assert refused or (backup and not met), "a ledger met sinks that are ahead of it and went on"
        if not ahead or not refused:  # the same epochs, or others of the same numbers
            self._use(old)
            self.clock.sleep(TTL + COMMIT_TIMEOUT)  # generations are seconds
            self.check()
            return
        probe = Probe()
        try:
            self.lane_class.rebuild(
                self._process_ledger(probe),
                NAME,
                LANE,
                {"host": self.host},
                self._factory(probe),
                self.file,
                hash_of(self.file),
                ttl=TTL,
                commit_timeout=COMMIT_TIMEOUT,
                sleep=self.clock.sleep,
            )
        except SinkStateError:
            assert state.open_plan is not None, "a rebuild was refused though the sinks agree"
            assert state.open_plan.pipeline_hash != hash_of(self.file)
            self._use(old)
        else:
            self.before_adoption.clear()  # the new ledger has no epoch from before
            self.unheard_of = set(self.targets) - self._members()
            self._note_unheard_of()
            if state.open_plan is not None and self.state().committed == state.open_plan.number:
                self.history[state.open_plan.number] = state.open_plan
        self.check()

    def _first_opened(self, known: PipelineState | None) -> set[str]:
        """The sinks of the file of the open epoch, if any. Later sinks join after that epoch."""
        plan = known.open_plan if known else None
        return {
            name
            for file in FILES
            if hash_of(file) == (plan.pipeline_hash if plan else hash_of(self.file))
            for name in file["sinks"]
        }

    def _note_unheard_of(self) -> None:
        """Records of such targets are rightly refused, also one that was still on its way when the ledger was lost."""
        if self.unheard_of:
            self.unheard_of -= self.state().sinks.keys()
        self.broken |= {name for name in self.unheard_of if self._record(name) is not None}

    def _refuses(self, file: Json) -> bool:
        try:
            self._opened(Probe(), file)
        except SinkStateError:
            return True
        return False

    def _use(self, store: MemoryStore) -> None:
        self.store = store
        self.ledger = process_ledger(store, Probe(), proofs=False)

    def _harmed(self, name: str) -> None:
        self.broken.add(name)
        self.harms += 1

    def _half_adopted(self, name: str) -> bool:
        """Whether an adoption died before the ledger knew of it."""
        row = self.state().sinks.get(name)
        return name in self.before_adoption and row is not None and row.epoch < self.targets[name].since

    def _answers_from_where_it_joined(self, name: str) -> None:
        """A replay without a record goes on from where the ledger says that the sink joined.

        That is before an adoption which the ledger never knew, and behind a backup from before the sink
        joined for the last time.
        """
        target, row = self.targets[name], self.state().sinks.get(name)
        if row is None or self._record(name) is not None:
            return
        if self._half_adopted(name):
            target.base, target.since = self.before_adoption.pop(name)
        if target.since < row.epoch:
            target.base, target.since = list(target.rows), row.epoch

    def _mended(self, name: str) -> None:
        self.broken.discard(name)
        self.tampered.pop(name, None)
        self.adopting.discard(name)

    def recover(self) -> None:
        """However it came to this.

        With everybody dead and all commits landed, the lane can be brought to go on.
        """
        for process in list(self.processes):
            self.kill(process)
        self.clock.sleep(100.0)
        # Twice: a sink may come into view only when another is mended and an earlier file's epoch is
        # finished.
        for name in sorted(self.broken) * 2:
            if name in self.broken and name in self._members() | set(self.file["sinks"]):
                mended = self.repair(name, accept=False)
                if not mended:
                    self.repair(name, accept=True)
        for _ in range(2):
            process, before = self.open(self.file), self.state().committed
            assert process.lane is not None, (
                f"the lane cannot be opened: {self.log[-1:]}, broken: {self.broken}"
            )
            for size in (1, 2):
                self.step(process, size)
            assert self.state().committed == before + 2, f"the lane does not go on: {self.log[-1:]}"
            self.close(process)

    # --- what must hold

    def state(self) -> PipelineState:
        state = self.ledger.state(NAME, LANE)
        assert state is not None
        return state

    def check(self) -> None:
        """The ledger is gapless and never changes its mind.

        Every target holds exactly the epochs that its record says.
        """
        state = self.ledger.state(NAME, LANE)
        if state is None:
            return
        self._check_ledger(state)
        records = {name: self._record(name) for name in self._left_behind()}
        self.absent = {
            name for name, record in records.items() if record is None or record.epoch < state.committed
        }
        self._note_unheard_of()
        for name, target in self.targets.items():
            record = target.records.get(SinkKey(state.pipeline, NAME, LANE, name))
            if record is not None and name not in self.broken:
                assert self._holds(state, target, record.epoch), (
                    f"{name} holds other rows than epochs up to {record.epoch}"
                )

    def _holds(self, state: PipelineState, target: Target, epoch: int) -> bool:
        rows = target.rows
        if target.upserts and state.open_plan is not None and epoch < state.open_plan.number:
            # A record that was lost came back by a replay; the open epoch, which it did hold, is about to be
            # written again.
            again = set(epoch_rows(state.open_plan, state.open_plan.pipeline_hash.split(":")[0])) - set(
                target.base
            )
            rows = [row for row in rows if row not in again]
        return rows == self._expected(state, target, epoch)

    def _level(self, name: str) -> bool:
        """A repair that died after its last write: the sink is as it should be."""
        state, target, record = self.state(), self.targets[name], self._record(name)
        if record is None or record.epoch < state.committed or not self._holds(state, target, record.epoch):
            return False
        self._mended(name)
        return True

    def _check_ledger(self, state: PipelineState) -> None:
        for row in self.ledger.epochs(NAME, LANE, max(self.history, default=0)):
            if row.committed_at is None:
                continue
            number = row.plan.number
            before = self.history.get(number - 1)
            assert self.history.setdefault(number, row.plan) == row.plan, (
                f"epoch {number} was committed twice, differently"
            )
            self.members[number] = frozenset(row.counts)
            assert row.plan.start == (before.end if before else {"src": 0}), (
                f"epoch {number} does not follow on the one before"
            )
        assert state.committed == max(self.history, default=0), "the ledger went back, or has a gap"

    def _expected(self, state: PipelineState, target: Target, epoch: int) -> list[Row]:
        rows = Target(target.name, target.fences, target.upserts, list(target.base))
        for number in range(target.since + 1, epoch + 1):
            plan = self.history.get(number)
            if plan is None:
                plan = state.open_plan
                assert plan is not None, f"{target.name} holds epoch {number}, which the ledger does not know"
                assert plan.number == number
            written = next((row for row in target.rows if row[1][0] == number), None)
            was_member = number not in self.members or target.name in self.members[number]
            sql = plan.pipeline_hash.split(":")[0]
            # An epoch from before the sink was there is replayed by today's file.
            rows.put(epoch_rows(plan, sql if was_member or written is None else written[1][1]))
        return rows.rows

    # --- parts

    def _factory(self, probe: Probe):
        def factory(pipeline: str, compiled: Json) -> dict[str, FakeSink]:
            def sink(name: str) -> FakeSink:
                return self.sink_class(
                    self.targets[name],
                    SinkKey(pipeline, NAME, LANE, name),
                    probe,
                    self.clock,
                    joins=self._joins,
                )

            return {name: sink(name) for name in compiled["sinks"]}

        return factory

    def _joins(self, name: str) -> None:
        """A sink joins: it answers for what comes from now on. What it holds already is taken as it is."""
        state, target = self.state(), self.targets[name]
        row, record = state.sinks.get(name), target.records[self._key(name)]
        # Its process was paused before the join, and the sink left the file meanwhile: it missed what came
        # since, as its record says.
        overtaken = (
            row is not None
            and (row.state, row.epoch) == ("left", record.epoch)
            and record.generation < state.generation
            and name not in self.joined
        )
        if row is not None and (row.state == "joining" or name in self.adopting or overtaken):
            assert overtaken or name not in self.absent or name in self.adopting, (
                f"{name} joined without the epochs that it missed"
            )
            self.joined.add(name)
            # The process may die before it learns of this and join the sink again.
            self.absent.discard(name)
            if name in self.adopting:
                self.before_adoption.setdefault(name, (target.base, target.since))
            target.base, target.since = list(target.rows), record.epoch
            self._mended(name)

    def finish_epoch(self, lane: EpochCoordinator) -> Mapping[str, WriteCounts]:
        """Writes and commits the open epoch as `PipelineRun` does; returns the counts of all sinks."""
        pending = lane.begin()
        if pending is None:
            return {}
        return lane.commit(self._writer(lane)(pending) if pending.sinks else {})

    def _writer(self, lane: EpochCoordinator) -> Callable[[Pending], dict[str, WriteCounts]]:
        def write(work: Pending) -> dict[str, WriteCounts]:
            counts = {}
            for name in work.sinks:
                sink = lane.sinks[name]
                assert isinstance(sink, FakeSink)
                lane.check()
                counts[name] = sink.write(work.plan, work.compiled)
            return counts

        return write

    def _refused(self, process: Process, error: HeadraceError, *, has_holder: bool) -> None:
        """Ends a process that was told no; asserts that this was right."""
        self.log.append(f"{type(error).__name__}: {error.message}")
        self._note_unheard_of()
        state = self.ledger.state(NAME, LANE)
        # One that was paused after its last look at the ledger, in opening too, tells what it had seen.
        overtaken = state is not None and state.generation > (
            process.lane.generation if process.lane else process.generation
        )
        if isinstance(error, LeaseHeldError):
            assert has_holder or not self.proofs, f"refused without a holder: {error}"
        elif isinstance(error, SinkStateError):
            wrong = self.broken & (self._members() | process.sinks) or self._left_behind() & process.sinks
            assert wrong or overtaken, f"refused though nothing was wrong: {error}"
        elif not isinstance(error, TransientError) and not (
            isinstance(error, PipelineStateError) and (self.broken or self._left_behind() or overtaken)
        ):
            assert isinstance(error, FencedError), f"neither a refusal nor a fence: {error!r}"
        if process.lane is not None:
            with suppress(Crash):
                process.lane.close()
        self._end_process(process)

    def _end_process(self, process: Process) -> None:
        process.probe.dead = True
        if process in self.processes:
            self.processes.remove(process)

    def _live_holder(self) -> bool:
        """Whether a process that is alive has an unexpired lease."""
        state = self.ledger.state(NAME, LANE)
        if state is None or state.holder is None:
            return False
        holder = self.store.holders.get((state.pipeline, LANE, state.generation))
        return holder is not None and not holder.dead

    def _members(self) -> set[str]:
        state = self.ledger.state(NAME, LANE)
        return (
            set()
            if state is None
            else {name for name, row in state.sinks.items() if row.state in ("joined", "replaying")}
        )

    def _key(self, name: str) -> SinkKey:
        return SinkKey(self.state().pipeline, NAME, LANE, name)

    def _record(self, name: str) -> CommitRecord | None:
        return (
            self.targets[name].records.get(self._key(name))
            if self.ledger.state(NAME, LANE) is not None
            else None
        )

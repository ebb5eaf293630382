"""Switches each rule of the protocol off. The model must notice it.

A rule whose absence it does not notice is not tested.

The search is a plain random walk over the model's rules, from fixed seeds and weighted towards trouble:
hypothesis explores more evenly, which is right for the model and slow for finding one certain hole.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from helpers.depth import FULL
from helpers.model_fakes import FakeSink, Interrupt
from helpers.model_machine import Machine
from helpers.model_world import COMMIT_TIMEOUT, FILES, TTL, World

from headrace.pipeline.protocol.coordinator import EpochCoordinator, Pending
from headrace.pipeline.protocol.coordinator.reconcile import ReconcileStatus
from headrace.pipeline.protocol.epochs import WriteCounts
from headrace.pipeline.protocol.ledger import Ledger
from headrace.pipeline.protocol.ledger import writer as ledger_module


class Anybody(Ledger):
    """Rule 1: the lease is taken by compare-and-set. Here a live holder is ignored."""

    def _follow(self, tx, name, lane):
        monkey: Any = self._store
        monkey.is_owner_dead = lambda *_: True
        return super()._follow(tx, name, lane)


class Everybody(Ledger):
    """Rule 1: what an older generation still writes to the ledger is refused. Here it is not."""

    def _hold(self, tx, lease):
        row = tx.one(
            "select committed, position from headrace_ledger_lane where uuid = :uuid and lane = :lane",
            uuid=lease.pipeline,
            lane=lease.lane,
        )
        assert row is not None
        return row[0], ledger_module.json.loads(row[1] or "{}")


class FirstForEver(FakeSink):
    """Rule 1: the generation grows. Here sinks are fenced with the same one each time."""

    def raise_fence(self, generation):  # noqa: ARG002
        self.target.fence[self.key] = 1

    def prepare(self, generation):
        super().prepare(generation)
        self.generation = 1


class Unfenced(FakeSink):
    """Rule 3: only its own generation writes. Here the atomic act does not compare it."""

    def _own(self):
        pass


class FencedLate(EpochCoordinator):
    """Rule 1: the fence comes before the record is read. Here after."""

    def _open_version(self, compiled, pipeline_hash):
        prepare, self._prepare = self._prepare, lambda: None
        super()._open_version(compiled, pipeline_hash)
        del self._prepare
        prepare()


class NoWait(EpochCoordinator):
    """Rule 1: what a former run began at a sink that does not fence is waited out. Here it is not."""

    def _wait_out(self):
        if not self.lease.settled:
            self.lease = self.ledger.settle(self.lease)


class CleanLie(EpochCoordinator):
    """Rule 1: a lane is given back clean only with no write under way. Here always."""

    def close(self, *, clean=None):  # noqa: ARG002
        super().close(clean=True)


class AbsenceGoesAhead(EpochCoordinator):
    """Rule 1: a missing record is never a go-ahead. Here the sink joins anew, in silence."""

    def _reconcile_sinks(self):
        state = self._load_state()
        for name, sink in self.sinks.items():
            if state.open_plan is None and name in state.sinks and sink.record() is None:
                self._write_join(name, state.committed, state.ended)
        super()._reconcile_sinks()


class OlderGoesAhead(EpochCoordinator):
    """Rule 1: a sink that holds less than the ledger is refused. Here it is set level, in silence."""

    def _reconcile_sinks(self):
        state = self._load_state()
        for name, sink in self.sinks.items():
            record = sink.record()
            if state.open_plan is None and record is not None and record.epoch < state.committed:
                self._write_join(name, state.committed, state.ended)
        super()._reconcile_sinks()


class PlannedLate(EpochCoordinator):
    """Rule 2: the plan is in the ledger before any sink is touched. Here it follows with the commit."""

    def plan(self, end, phase, *, window=None, splits=()):
        self._ensure_writable()
        plan = self._draft(end, phase, window=window, splits=splits)
        self._state, self._findings, self._doubtful = replace(self._state, open_plan=plan), {}, False
        return plan

    def commit(self, counts):
        assert self._state.open_plan is not None
        self.ledger.plan(self.lease, self._state.open_plan, self.compiled)
        return super().commit(counts)


class TodaysFile(EpochCoordinator):
    """Rule 2: an open epoch is finished by what it stores. Here by the file as it is now."""

    def pending(self):
        work = super().pending()
        return work and Pending(work.plan, self.compiled | {"sinks": work.compiled["sinks"]}, work.sinks)


class DropsHeld(EpochCoordinator):
    """Rule 2: only an epoch that no sink holds is dropped. Here any that the file no longer means."""

    def _apply_sink_changes(self):
        original, self._open_epoch_records = self._open_epoch_records, dict
        super()._apply_sink_changes()
        self._open_epoch_records = original


class DropsBeforePaused(EpochCoordinator):
    """Rule 2: not dropped while a paused process knows the plan. Here it is."""

    def _may_drop(self):
        return True


class NoStep(FakeSink):
    """Rule 3: only from N-1 to N. Here the sink takes any epoch."""

    def compare(self, plan):
        if self.key not in self.target.records:
            super().compare(plan)


class TwoActs(FakeSink):
    """Rule 3: rows and record are one act. Here two."""

    def write(self, plan, compiled):
        self.target.put([])
        rows = list(self.target.rows)
        counts = super().write(plan, compiled)
        written = self.target.rows
        if written != rows:
            self.target.rows, record = rows, self.target.records[self.key]
            self.probe.step()
            self.target.rows = written
            self.target.records[self.key] = record
        return counts


class CommitsEarly(World):
    """Rule 4: all sinks have returned before the commit. Here the first is enough."""

    def finish_epoch(self, lane):
        work, write = lane.begin(), self._writer(lane)
        if work is None:
            return {}
        counts = write(work._replace(sinks=work.sinks[:1]))
        done = lane.commit(dict.fromkeys(work.sinks, next(iter(counts.values()), WriteCounts())))
        write(work._replace(sinks=tuple(name for name in work.sinks[1:] if name in lane.sinks)))
        return done


class NobodySkipped(EpochCoordinator):
    """Rule 5: sinks that hold the open epoch are skipped. Here it is written again."""

    def _open_epoch_records(self):
        return {}

    def _may_drop(self):
        return False


class ForgetsFailures(EpochCoordinator):
    """Rule 5: after a failure the sinks are asked again who holds the epoch.

    Here it is assumed that none does.
    """

    def record_failure(self, node, error):
        attempts = super().record_failure(node, error)
        self._doubtful, self._findings = False, {}
        return attempts


class JoinsFirst(EpochCoordinator):
    """A sink that joins is noted before it is touched. Here after."""

    def _join(self, name, epoch, position, data=None):
        self._write_join(name, epoch, position)
        super()._join(name, epoch, position, data)


class ComesBackAnew(EpochCoordinator):
    """Rule 5: a sink that was out of the file for some epochs lacks them. Here it joins as if it were new."""

    def _reconcile_sinks(self):
        super()._reconcile_sinks()
        for name in self._newcomers():
            if name in self._findings and self._state.open_plan is None:
                self._findings[name] = replace(self._findings[name], status=ReconcileStatus.LEVEL)
                self._state = replace(
                    self._state, sinks={sink: row for sink, row in self._state.sinks.items() if sink != name}
                )


class StartsAnew(EpochCoordinator):
    """Rule 5: a new ledger never starts anew at sinks of a lost one. Here it does."""

    def _reconcile_sinks(self):
        for sink in self.sinks.values():
            sink.find_conflicting_record = lambda: None
        super()._reconcile_sinks()


class RebuildsAnything(Ledger):
    """Rule 5: a ledger is rebuilt only to a state that all records lead to. Here the newest wins."""

    def rebuild(self, lease, records, compiled, pipeline_hash):
        newest = max(records.values(), key=lambda record: record.epoch)
        level = {name: replace(newest, key=record.key) for name, record in records.items()}
        return super().rebuild(lease, level, compiled, pipeline_hash)


class ReplaysOverRows(EpochCoordinator):
    """A replay over rows needs a key or an empty target. Here it is let through."""

    def _set_back(self, sink, row, start, record_epoch):
        pass


MUTATIONS = [
    value for value in list(globals().values()) if isinstance(value, type) and value.__module__ == __name__
]
PARTS = {EpochCoordinator: "lane_class", Ledger: "ledger_class", FakeSink: "sink_class"}
WALKS = 4_000
FIRST_SEEDS = {FencedLate: 1_439}
"""The seed with which a long search begins: a walk that finds the violation. The search from 0 takes minutes."""
STEPS = 12


def mutated(mutation: type) -> type[Machine]:
    if issubclass(mutation, World):
        return type(mutation.__name__, (Machine,), {"world_class": mutation})
    part = next(part for kind, part in PARTS.items() if issubclass(mutation, kind))
    return type(
        mutation.__name__, (Machine,), {"world_class": type("MutatedWorld", (World,), {part: mutation})}
    )


def accident(dice: random.Random, steps: int) -> Interrupt | None:
    kind = dice.choice((None, "crash", "fail", "pause", "pause"))
    # The third step of an epoch is the first sink's act; an open fences sinks and reads records within its
    # first dozen.
    at = dice.choice((3, dice.randint(4, 10), dice.randint(1, steps)))
    return kind and Interrupt(kind, at, dice.choice((None, 1.0, 12.0, 25.0)))


def move(machine: Machine, dice: random.Random) -> None:
    """One rule of the model, by weight."""
    broken = sorted(machine.world.broken)
    luck = dice.random()
    if luck < 0.5:
        machine.harm(dice.choice(machine.world.file["sinks"]), "snapshot")
    if luck < 0.1:
        machine.back_up_ledger()
    luck = dice.random()
    if broken and not machine.world.processes and luck < 0.4:
        machine.world.repair(dice.choice(broken), accept=dice.random() < 0.3, interrupt=accident(dice, 12))
    elif machine.parked() and luck < 0.3:
        machine.resume(dice.randrange(3), accident(dice, 20) if luck < 0.1 else None)
    elif machine.world.can_lose_ledger() and luck < 0.1:
        machine.lose_ledger(dice.random() < 0.5)
    elif luck < 0.2:
        machine.harm(
            dice.choice(machine.world.file["sinks"]),
            dice.choice(("expire", "recreate", "restore", "restore", "tamper")),
        )
    elif luck < 0.6:
        machine.step([2] * dice.randrange(2), accident(dice, 8), dice.randint(1, 2))
    elif luck < 0.65:
        machine.open(dice.randrange(len(FILES)), accident(dice, 30))
    else:
        follower = accident(dice, 30) if luck < 0.8 else None
        machine.follow(
            accident(dice, 8),
            dice.randrange(len(FILES)),
            follower,
            dice.choice((0.0, TTL + 1, COMMIT_TIMEOUT + 1)),
            2,
        )


def walk(kind: type[Machine], seed: int) -> None:
    """Runs the model once; raises what it finds."""
    dice = random.Random(seed)
    machine = kind()
    machine.begin(dice.random() < 0.7, dice.random() < 0.2)
    try:
        for _ in range(STEPS):
            move(machine, dice)
        machine.teardown()
    finally:
        for process in list(machine.world.processes):
            machine.world.kill(process)


def walks(kind: type[Machine], count: int, first: int = 0) -> None:
    """Walk from each of `count` seeds, beginning with `first`. Raise the first violation."""
    for seed in range(count):
        walk(kind, (first + seed) % count)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_the_model_notices(mutation):
    kind = mutated(mutation)
    with pytest.raises(AssertionError):
        walks(kind, WALKS, FIRST_SEEDS.get(mutation, 0))


def test_the_walk_finds_nothing_where_nothing_is_wrong():
    walks(Machine, 5_000 if FULL else 100)

"""The protocol's model: thousands of interleavings of the real Lane and Ledger over fake sinks.

A process can die or be paused before and after every step that others can notice. While it is paused others
run, open the lane with another version of the file, finish its epoch; then it wakes and goes on as if nothing
had happened.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from helpers.model_fakes import Interrupt
from helpers.model_world import COMMIT_TIMEOUT, FILES, TTL, World

TARGETS = ("pg", "keyed", "delta", "lake", "log")

files = st.sampled_from(range(len(FILES)))
targets = st.sampled_from(TARGETS)
late = st.sampled_from((None, 1.0, 12.0, 25.0))


def within(steps):
    """Nothing, or something that befalls a process within so many of its steps."""
    at = st.integers(1, steps)
    return st.one_of(
        st.none(),
        st.builds(Interrupt, st.just("crash"), at, late),
        st.builds(Interrupt, st.just("fail"), at, late),
        st.builds(Interrupt, st.just("pause"), at),
    )


class Machine(RuleBasedStateMachine):
    """Rules are what processes and the world do; `world_class` is what mutations replace."""

    world_class = World

    @initialize(proofs=st.booleans(), jvm_dies=st.booleans())
    def begin(self, proofs, jvm_dies):
        self.world = self.world_class(proofs=proofs, jvm_dies=jvm_dies)

    @rule(file=st.one_of(st.none(), files), interrupt=within(30))
    def open(self, file, interrupt):
        self.world.open(self.world.file if file is None else FILES[file], interrupt)

    @rule(sizes=st.lists(st.integers(1, 3), max_size=2), interrupt=within(10), patience=st.integers(1, 2))
    def step(self, sizes, interrupt, patience):
        if not self.idle():
            self.world.open(self.world.file)
        for size in sizes:
            self.one(size)
        self.one(1, interrupt, patience)

    @rule(
        accident=within(8),
        file=files,
        interrupt=within(30),
        seconds=st.sampled_from((0.0, TTL + 1, COMMIT_TIMEOUT + 1)),
        wakes=st.integers(0, 2),
    )
    def follow(self, accident, file, interrupt, seconds, wakes):
        """Something befalls the holder in the middle of an epoch.

        Another run follows with its own file; the first may wake up.
        """
        self.step([], accident, 1)
        self.kill()
        self.world.clock.sleep(TTL + 1)
        self.world.open(FILES[file], interrupt)
        self.one(2)
        self.world.clock.sleep(seconds)
        for process in self.parked()[:wakes]:
            if process.parked:
                self.world.resume(process)

    @precondition(lambda self: self.parked())
    @rule(which=st.integers(0, 2), interrupt=within(20))
    def resume(self, which, interrupt):
        parked = self.parked()
        self.world.resume(parked[which % len(parked)], interrupt)

    @precondition(lambda self: self.idle())
    @rule(interrupt=within(3))
    def close(self, interrupt):
        self.world.close(self.idle()[-1], interrupt)

    def kill(self):
        if idle := self.idle():
            self.world.kill(idle[-1])

    @rule(name=targets, how=st.sampled_from(("expire", "recreate", "snapshot", "restore", "tamper")))
    def harm(self, name, how):
        getattr(self.world, how)(name)

    @precondition(lambda self: self.world.broken and not self.world.processes)
    @rule(data=st.data(), accept=st.booleans(), interrupt=within(12))
    def repair(self, data, accept, interrupt):
        name = data.draw(st.sampled_from(sorted(self.world.broken)))
        self.world.repair(name, accept=accept, interrupt=interrupt)

    @rule()
    def back_up_ledger(self):
        self.world.back_up_ledger()

    @precondition(lambda self: self.world.can_lose_ledger())
    @rule(backup=st.booleans())
    def lose_ledger(self, backup):
        self.world.lose_ledger(backup=backup)

    def idle(self):
        return [process for process in self.world.processes if process.idle]

    def parked(self):
        return [process for process in self.world.processes if process.parked]

    def one(self, size, interrupt=None, patience=2):
        if idle := self.idle():
            self.world.step(idle[-1], size, interrupt, patience=patience)

    def teardown(self):
        if hasattr(self, "world"):
            self.world.recover()

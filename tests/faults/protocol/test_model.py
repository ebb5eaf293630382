"""The protocol's model: thousands of interleavings of the real coordinator and ledger over fake sinks."""

from __future__ import annotations

import pytest
from helpers.depth import FULL
from helpers.model_fakes import Interrupt, Probe
from helpers.model_machine import Machine
from helpers.model_world import COMMIT_TIMEOUT, FILES, TTL, World
from hypothesis import HealthCheck, Phase, settings

from headrace.pipeline.errors import SinkStateError
from headrace.pipeline.protocol.epochs import Phase as EpochPhase

PROFILE = settings(
    max_examples=8_000 if FULL else 200,
    stateful_step_count=40 if FULL else 25,
    deadline=None,
    # Not explain: before Python 3.12 it traces every line, and the model then takes ten times as long.
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
    suppress_health_check=(HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large),
    print_blob=True,
)

TestModel = Machine.TestCase
TestModel.settings = PROFILE


def test_a_backup_with_an_open_epoch_of_an_earlier_file_refuses_the_sinks_that_joined_later():
    """The open epoch goes to the sinks of its file. The others are ahead of the backup and do not join."""
    world = World()
    first = world.open(FILES[0])
    assert first.lane is not None
    first.lane.plan({"src": 1}, EpochPhase.LIVE, splits=())
    world.back_up_ledger()
    world.kill(first)
    later = world.open(FILES[2])
    for _ in range(3):
        world.step(later, 1)
    world.kill(later)

    assert world.ledger_backup is not None
    world._use(world.ledger_backup)
    world.clock.sleep(TTL + COMMIT_TIMEOUT)
    lane = world._opened(Probe(), FILES[2])
    assert set(lane.sinks) == set(FILES[0]["sinks"])
    with pytest.raises(SinkStateError, match="older"):
        world.finish_epoch(lane)


@pytest.mark.parametrize("has_backup", [True, False])
def test_a_registration_that_lands_late_belongs_to_the_ledger_that_is_lost(has_backup: bool) -> None:
    """A backup, or an empty ledger, does not know the sink whose registration is still on its way."""
    machine = Machine()
    machine.begin(proofs=False, jvm_dies=False)
    machine.follow(accident=None, file=0, interrupt=None, seconds=0.0, wakes=0)
    if has_backup:
        machine.back_up_ledger()
    machine.lose_ledger(backup=False)
    machine.open(file=3, interrupt=Interrupt("crash", 25, 25.0))
    machine.follow(accident=None, file=2, interrupt=Interrupt("pause", 1), seconds=0.0, wakes=1)
    machine.lose_ledger(backup=True)
    machine.teardown()

"""The protocol's model: thousands of interleavings of the real coordinator and ledger over fake sinks."""

from __future__ import annotations

from helpers.depth import FULL
from helpers.model_machine import Machine
from hypothesis import HealthCheck, Phase, settings

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

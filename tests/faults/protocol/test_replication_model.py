"""The replication model: history, handoff, stream, filters and edits of the file against an oracle.

`test_model` covers sinks, crashes and takeovers. This machine covers what an epoch reads: partitions of the
history, splits that share keys, holes below the handoff position, deletes under filters, partitions added to
the topic, edits of the file between two runs, two pipelines on one target, retention, and hanging
transactions. Whatever happens, a run either ends with the right rows or refuses with a next command.
"""

from __future__ import annotations

import re

import pytest
from helpers.depth import FULL
from helpers.model_fakes import Interrupt
from helpers.replication_world import FileVersion, World
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

keys = st.integers(0, 7)
crashes = st.one_of(st.none(), st.none(), st.builds(Interrupt, st.just("crash"), st.integers(1, 40)))
edits = st.sampled_from(
    (
        {"partitions": "month"},
        {"partitions": "day"},
        {"partitions": None},
        {"first_day": "2023-12-01"},
        {"limit": 20},
        {"limit": None},
        {"source": "renamed"},
        {"tables": ("older", "history")},
        {"sinks": ("one",)},
        {"sinks": ("one", "two")},
        {"epoch_rows": 1},
    )
)


class Machine(RuleBasedStateMachine):
    """Rules are what producers, operators and processes do. `world_class` is what mutations replace."""

    world_class = World

    @initialize(
        keyed=st.booleans(),
        limit=st.sampled_from((None, None, 20)),
        source_limit=st.sampled_from((None, None, 10)),
        partitions=st.sampled_from((None, None, "month")),
        sorted_by=st.sampled_from(("id", "amount")),
        base=st.lists(keys, unique=True, max_size=6),
        by_offsets=st.sampled_from((True, True, False)),
        producer_time=st.booleans(),
    )
    def begin(self, keyed, limit, source_limit, partitions, sorted_by, base, by_offsets, producer_time):
        by_offsets = by_offsets or not keyed
        file = FileVersion(
            keyed=keyed,
            limit=limit,
            source_limit=source_limit,
            partitions=partitions,
            offset_table=by_offsets,
        )
        self.world = self.world_class(
            file, sorted_by=sorted_by, producer_time=producer_time and not by_offsets
        )
        self.world.load_base(base)

    @rule(
        messages=st.lists(
            st.tuples(st.sampled_from("iuudk"), keys, st.integers(0, 6)), min_size=1, max_size=4
        )
    )
    def send(self, messages):
        for op, key, amount in messages:
            self.world.send(op, key, amount * 10)

    @rule(part=st.integers(0, 3))
    def end_transaction(self, part):
        self.world.send_marker(part)

    @rule(part=st.integers(0, 3), count=st.integers(1, 4), skip=st.integers(0, 1))
    def ingest(self, part, count, skip):
        self.world.ingest(part, count, skip)

    @rule()
    def add_partition(self):
        self.world.add_partition()

    @rule(part=st.integers(0, 3))
    def hang_transaction(self, part):
        self.world.hang_transaction(part)

    @rule()
    def end_transactions(self):
        self.world.end_transactions()

    @rule(part=st.integers(0, 3), keep=st.integers(0, 2))
    def pass_retention(self, part, keep):
        self.world.pass_retention(part, keep)

    @rule()
    def age(self):
        self.world.age()

    @rule(change=edits)
    def edit_file(self, change):
        self.world.edit(**change)

    @rule()
    def share_target(self):
        self.world.run_other_pipeline()

    @rule(epochs=st.integers(0, 4), interrupt=crashes)
    def run_some(self, epochs, interrupt):
        self.world.run(epochs=epochs, interrupt=interrupt)

    @rule()
    def run_to_the_end(self):
        self.world.run()

    def teardown(self):
        if hasattr(self, "world"):
            self.world.finish()


TestReplication = Machine.TestCase
TestReplication.settings = settings(
    max_examples=5_000 if FULL else 50,
    stateful_step_count=25 if FULL else 15,
    deadline=None,
    derandomize=not FULL,
    suppress_health_check=(HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large),
    phases=(Phase.explicit, Phase.generate) if FULL else (Phase.generate,),
)


def test_a_sink_of_a_start_that_was_pinned_again_comes_back_by_the_printed_command():
    """Sink two joins at epoch 0, and leaves the file before the first epoch. The next start pins again."""
    world = World(FileVersion())
    world.load_base([0])
    world.run(epochs=0)
    world.edit(sinks=("one",))
    world.send("i", 5, 60)
    assert world.run() == "caught up"
    world.edit(sinks=("one", "two"))
    assert "headrace replay orders.yaml --sink two --from 1" in world.run()
    world.finish()


def test_a_replay_of_rows_that_retention_has_passed_proposes_a_reset():
    """Sink two is out of the file while the stream goes on, and comes back after its rows have left the topic."""
    world = World(FileVersion())
    world.load_base([0])
    world.send("i", 1, 10)
    world.run()
    world.edit(sinks=("one",))
    world.send("i", 5, 60)
    assert world.run() == "caught up"
    world.edit(sinks=("one", "two"))
    command = re.search(r"headrace replay orders.yaml --sink two --from (\d+)", world.run())
    assert command
    for part in range(3):
        world.pass_retention(part, keep=0)
    assert "headrace reset" in world.replay("two", int(command[1]))
    world.finish()


def test_the_table_does_not_get_a_deleted_row_back_from_an_earlier_message():
    """The loader of the model reads each message once. Retention passes the delete after it was read."""
    world = World(FileVersion(offset_table=False))
    world.load_base([3])
    world.send("i", 3, 20)
    world.ingest(1, 1)
    world.send("k", 3, 0)
    world.pass_retention(1, keep=0)
    world.ingest(1, 1)
    assert not world.tables["history"].rows
    world.finish()


@pytest.mark.parametrize(
    ("key", "last"),
    [
        pytest.param(4, ("d", 4, 0), id="between-old-partitions"),
        pytest.param(5, ("i", 5, 40), id="from-a-new-partition-to-an-old-one"),
    ],
)
def test_a_key_that_moves_at_the_second_of_two_growths_keeps_its_order(key, last):
    """Both growths are seen at once.

    Key 4 is in partition 1 of three, and in partition 0 of four. Key 5 is in partitions 2 and 1.
    """
    world = World(FileVersion())
    world.load_base([0])
    world.run()
    world.add_partition()
    world.send("i", key, 10)
    world.add_partition()
    world.send(*last)
    world.finish()

"""Switches off each rule about the rows of an epoch. The replication model must notice it.

The search is a random walk from fixed seeds over the actions that the repair is about: hypothesis explores
more evenly, which is slow for finding one certain hole.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from helpers import replication_world
from helpers.depth import FULL
from helpers.replication_world import FileVersion, ModelSink, ModelStream, World

from headrace.connectors.kafka.growth import TopicGrowth
from headrace.connectors.kafka.source import KafkaStream
from headrace.jobs.sources import handoff
from headrace.pipeline.file import changes as file_changes
from headrace.pipeline.lineage.retractions import Retractions
from headrace.pipeline.protocol.coordinator import reconcile
from headrace.pipeline.protocol.coordinator.reconcile import ReconcileResult, ReconcileStatus
from headrace.pipeline.protocol.table_offsets import HandoffFilter, HandoffPosition, TableOffsets

WALKS = 60
RAW_ERRORS = (AssertionError, IndexError, KeyError)
"""A broken rule shows as wrong rows, as a refusal without a way out, or as an error no user may see."""

Patch = pytest.MonkeyPatch


def keep_nothing_of_filtered_rows(patch: Patch) -> None:
    """A row that a filter leaves out becomes a delete of its key. Here it vanishes."""
    patch.setattr(replication_world, "retractions", lambda *_: Retractions())


def follow_any_partitions(patch: Patch) -> None:
    """Partitions are fixed once a window has begun. Here the file is followed."""
    patch.setattr(file_changes, "_partitions", lambda *_: iter(()))


def follow_any_source(patch: Patch) -> None:
    """A source keeps what it was at the first start. Here the file is followed."""
    patch.setattr(file_changes, "_sources", lambda *_: iter(()))


def ignore_gaps(patch: Patch) -> None:
    """The stream starts at the first message that history lacks.

    Here after the largest offset in the table.
    """

    def find_handoff_position(
        have: TableOffsets, earliest: dict[str, int], find_filled_gaps: Any
    ) -> HandoffPosition:
        del find_filled_gaps
        ends = {part: mine.end for part, mine in have.partitions.items()}
        return HandoffPosition({part: ends.get(part, offset) for part, offset in earliest.items()}, {})

    patch.setattr(handoff, "find_handoff_position", find_handoff_position)


def drop_rows_without_offset(patch: Patch) -> None:
    """Rows of the table without an offset are history's. Here the handoff drops them."""
    keeps = HandoffFilter.keeps
    patch.setattr(
        HandoffFilter, "keeps", lambda cut, row: row[cut.offset_column] is not None and keeps(cut, row)
    )


def let_sinks_come_back(patch: Patch) -> None:
    """A sink that was out of the file lacks epochs. Here it goes on where the others are."""
    patch.setattr(
        reconcile,
        "_judge_return",
        lambda *args: ReconcileResult(args[2].sink, ReconcileStatus.LEVEL, args[3]),
    )


def read_new_partitions_at_once(patch: Patch) -> None:
    """A new partition is read after the known ones have reached a barrier. Here at once."""

    def follow(_: TopicGrowth, after: Any, partitions: Any, ends: Any) -> Any:
        return after | {
            "offsets": {str(part): after["offsets"].get(str(part), 0) for part in partitions}
        }, dict(ends)

    patch.setattr(TopicGrowth, "follow", follow)
    patch.setattr(TopicGrowth, "first_position", lambda _, position: position)


def share_every_target(patch: Patch) -> None:
    """A target belongs to one pipeline. Here any pipeline writes to it."""
    patch.setattr(ModelSink, "refuse_rivals", lambda _: None)


def measure_lag_to_the_stable_end(patch: Patch) -> None:
    """Rows behind an open transaction are backlog. Here the stream ends before them."""
    patch.setattr(ModelStream, "lags", lambda _, at: dict.fromkeys(at["offsets"], 0))
    patch.setattr(ModelStream, "high_watermarks", lambda self: self.end_offsets())


def trust_times_of_producers(patch: Patch) -> None:
    """Times that producers set say nothing about when a message was appended. Here they do."""
    patch.setattr(replication_world.TopicServer, "has_broker_time", lambda _: True)
    patch.setattr(KafkaStream, "_no_later", lambda _, fence, __: fence)


def _send(world: World, rand: random.Random) -> None:
    for _ in range(rand.randint(1, 4)):
        world.send(rand.choice("iuudk"), rand.randint(0, 7), rand.randint(0, 6) * 10)


def _ingest(world: World, rand: random.Random) -> None:
    world.ingest(rand.randint(0, 3), rand.randint(1, 4), rand.randint(0, 1))


def _run(world: World, rand: random.Random) -> None:
    world.run(epochs=rand.choice((0, 1, 3, 30)))


Action = Callable[[World, random.Random], None]
COMMON: tuple[Action, ...] = (_send, _send, _send, _ingest, _ingest, _run, _run)


def _edit(*changes: dict[str, Any]) -> Action:
    return lambda world, rand: world.edit(**rand.choice(changes))


CASES: dict[Callable[[Patch], None], tuple[FileVersion, tuple[Action, ...], dict[str, Any]]] = {
    keep_nothing_of_filtered_rows: (FileVersion(limit=20), (), {}),
    follow_any_partitions: (
        FileVersion(keyed=False),
        (_edit({"partitions": "month"}, {"partitions": "day"}, {"partitions": None}),),
        {},
    ),
    follow_any_source: (FileVersion(), (_edit({"source": "renamed"}, {"tables": ("older", "history")}),), {}),
    ignore_gaps: (FileVersion(keyed=False), (), {}),
    drop_rows_without_offset: (FileVersion(keyed=False), (), {}),
    let_sinks_come_back: (FileVersion(), (_edit({"sinks": ("one",)}), _edit({"sinks": ("one", "two")})), {}),
    read_new_partitions_at_once: (FileVersion(), (lambda world, _: world.add_partition(),), {}),
    share_every_target: (FileVersion(keyed=False), (lambda world, _: world.run_other_pipeline(),), {}),
    measure_lag_to_the_stable_end: (
        FileVersion(),
        (lambda world, rand: world.hang_transaction(rand.randint(0, 1)),),
        {},
    ),
    trust_times_of_producers: (FileVersion(offset_table=False), (), {"producer_time": True}),
}


def walk(file: FileVersion, actions: tuple[Action, ...], options: dict[str, Any], seed: int) -> None:
    rand = random.Random(seed)
    world = World(replace(file), **options)
    world.load_base(rand.sample(range(8), rand.randint(0, 5)))
    for _ in range(rand.randint(5, 14)):
        rand.choice((*COMMON, *actions, *actions))(world, rand)
    world.finish()


def search(mutation: Callable[[Patch], None], walks: int) -> None:
    """Walk until something is wrong; that is raised."""
    for seed in range(walks):
        walk(*CASES[mutation], seed)


@pytest.mark.parametrize("mutation", CASES, ids=lambda mutation: mutation.__name__)
def test_the_model_notices(mutation: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mutation(monkeypatch)
    with pytest.raises(RAW_ERRORS):
        search(mutation, WALKS)


@pytest.mark.parametrize("mutation", CASES, ids=lambda mutation: mutation.__name__)
def test_the_walk_finds_nothing_where_nothing_is_wrong(mutation: Callable[[Patch], None]) -> None:
    search(mutation, WALKS if FULL else 3)

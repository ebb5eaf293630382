"""Repairs: a skipped epoch, a new start, an earlier position.

And that every state has one.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace

import pytest
from helpers.model_fakes import Crash, FakeSink, Interrupt, Probe
from helpers.model_world import FILES, LANE, NAME, World

from headrace.pipeline.errors import FencedError, HeadraceError, PipelineStateError, SinkStateError
from headrace.pipeline.protocol.coordinator import EpochCoordinator
from headrace.pipeline.protocol.epochs import Phase
from headrace.pipeline.protocol.ledger.interventions import skipped_epochs, skipped_ranges

COMMAND = re.compile(r"`headrace (replay|accept-target|recover|reset|run) FILE")
FILE = FILES[2]  # log appends, keyed has a key; both fence


@pytest.fixture
def world():
    return World()


def opened(world: World, repair: frozenset[str] = frozenset(), file=FILE) -> EpochCoordinator:
    world.clock.sleep(100.0)
    return world._opened(Probe(), file, repair)


def run(world: World, lane: EpochCoordinator, epochs: int = 1) -> None:
    for _ in range(epochs):
        if not lane.has_open_epoch:
            lane.plan({"src": lane.position["src"] + 2}, Phase.LIVE)
        world.finish_epoch(lane)


def half(world: World) -> EpochCoordinator:
    """A lane whose epoch 3 is at `keyed` only."""
    lane = opened(world)
    run(world, lane, 2)
    plan = lane.plan({"src": 6}, Phase.LIVE)
    sink = lane.sinks["keyed"]
    assert isinstance(sink, FakeSink)
    sink.write(plan, FILE)
    return lane


def offsets(world: World, name: str) -> list[int]:
    return [offset for offset, _ in world.targets[name].rows]


def test_an_open_epoch_is_skipped_at_the_sinks_that_lack_it(world):
    old = half(world)
    old_log = old.sinks["log"]
    work = old.pending()
    assert work is not None
    lane = opened(world)
    assert lane.skip_open() == (3, ("log",))
    assert isinstance(old_log, FakeSink)
    with pytest.raises(FencedError):  # a process of the former run cannot write it later
        old_log.write(work.plan, FILE)
    run(world, lane)
    assert offsets(world, "keyed") == list(range(8))
    assert offsets(world, "log") == [0, 1, 2, 3, 6, 7]
    events = world.ledger.events(NAME, LANE)
    (event,) = skipped_epochs(events, "log")
    assert event["data"]["sinks"] == ["log"]
    assert not skipped_epochs(events, "keyed")
    with pytest.raises(PipelineStateError, match="no epoch is open"):
        lane.skip_open()


def test_a_skipped_epoch_is_no_longer_lacking_once_it_was_replayed(world):
    lane = opened(world)
    run(world, lane)
    lane.plan({"src": 4}, Phase.LIVE)
    lane.close()
    lane = opened(world)
    assert lane.skip_open() == (2, ("log", "keyed"))
    lane.replay("keyed", world._writer(lane), first=2)
    assert not skipped_epochs(world.ledger.events(NAME, LANE), "keyed")
    assert skipped_epochs(world.ledger.events(NAME, LANE), "log")
    assert offsets(world, "keyed") == [0, 1, 2, 3]


@pytest.mark.parametrize(("after", "lacks"), [(1, False), (2, True)])
def test_a_skipped_epoch_is_no_longer_lacking_once_a_rewind_reads_it_again(world, after, lacks):
    lane = opened(world)
    run(world, lane)
    lane.plan({"src": 4}, Phase.LIVE)
    lane.close()
    lane = opened(world)
    lane.skip_open()
    lane.ledger.rewind(lane.lease, {"src": 2}, after=after)
    assert bool(skipped_epochs(world.ledger.events(NAME, LANE), "keyed")) is lacks


def test_what_a_skipped_epoch_carried_is_in_words():
    start, end = ({"src": {"stream": {"offsets": {"0": at, "1": 4}}}} for at in (3, 9))
    assert (
        skipped_ranges({"data": {"start": start, "end": end, "splits": []}})
        == "src partition 0: offsets 3 to 8"
    )
    assert (
        skipped_ranges({"data": {"start": {}, "end": {"src": {}}, "splits": [{}, {}]}})
        == "2 pieces of history"
    )


@pytest.mark.parametrize("step", range(1, 40))
def test_a_skip_that_dies_anywhere_is_done_or_not(world, step):
    half(world).close()
    world.clock.sleep(100.0)
    probe = Probe()
    try:
        lane = world._opened(probe, FILE)
        probe.arm(Interrupt("crash", step))
        lane.skip_open()
    except Crash:
        pass
    lane = opened(world)
    if lane.has_open_epoch:
        lane.skip_open()
    run(world, lane)
    assert offsets(world, "log") == [0, 1, 2, 3, 6, 7]
    assert offsets(world, "keyed") == list(range(8))


def reset(world: World, sinks: dict[str, bool]) -> None:
    world.clock.sleep(100.0)
    lease = world.ledger.acquire(NAME, LANE, {}, 1.0)
    world.ledger.reset(lease, sinks)
    world.ledger.release(lease)


@pytest.mark.parametrize("step", [None, *range(1, 40)])
def test_a_reset_that_dies_anywhere_is_finished_by_the_next_run(world, step):
    old = half(world)
    work = old.pending()
    reset(world, {"log": True, "keyed": True})
    probe = Probe()
    if step is not None:
        probe.arm(Interrupt("crash", step))
        with suppress(Crash):
            world._opened(probe, FILE)
    lane = opened(world)
    assert work is not None
    for name in ("log", "keyed"):
        sink = old.sinks[name]
        assert isinstance(sink, FakeSink)
        with pytest.raises((FencedError, SinkStateError)):
            sink.write(work.plan, FILE)
        with pytest.raises(FencedError):
            sink.truncate()
    run(world, lane, 2)
    assert offsets(world, "log") == offsets(world, "keyed") == [0, 1, 2, 3]
    assert [row.plan.number for row in world.ledger.epochs(NAME, LANE)] == [1, 2, 3, 4, 5]


def test_a_reset_keeps_targets_with_a_key(world):
    lane = opened(world)
    run(world, lane, 2)
    lane.close()
    reset(world, {"log": True, "keyed": False})
    lane = opened(world)
    run(world, lane)
    assert offsets(world, "log") == [0, 1]
    assert offsets(world, "keyed") == [0, 1, 2, 3]


@pytest.mark.parametrize("epochs", [0, 2])
@pytest.mark.parametrize("emptied", [True, False])
@pytest.mark.parametrize(("name", "other"), [("log", "keyed"), ("keyed", "log")])
def test_a_sink_that_was_out_of_the_file_in_a_reset_needs_an_empty_target(
    world, name, other, emptied, epochs
):
    """Its rows are of the earlier start.

    Epochs of the two starts must not meet, and no epoch may be left out.
    """
    lane = opened(world)
    run(world, lane, 2)
    lane.close()
    reset(world, {"log": True, "keyed": True} if emptied else {other: True})
    lane = opened(world, file={"sql": "v1", "sinks": [other]})
    run(world, lane, epochs)
    lane.close()
    with pytest.raises(SinkStateError, match="before the last reset") as refused:
        opened(world)
    printed = re.search(
        r"`headrace (replay|accept-target) FILE --sink (\w+)(?: --from (\d+))?`", refused.value.hint
    )
    assert printed
    assert printed[2] == name
    lane = opened(world, repair=frozenset({name}))
    if epochs:
        with pytest.raises(SinkStateError, match="4 rows from before the last reset"):
            lane.replay(name, world._writer(lane), first=3)
        with pytest.raises(SinkStateError, match="cannot be replayed"):
            lane.replay(name, world._writer(lane), first=2)
        with pytest.raises(SinkStateError, match="leave out epochs 3 to 3"):
            lane.replay(name, world._writer(lane), first=4)
    world.targets[name].rows = []
    if printed[1] == "replay":
        lane.replay(name, world._writer(lane), first=int(printed[3]))
    else:
        lane.accept_target(name)
    run(world, lane)
    assert offsets(world, "log") == offsets(world, "keyed") == list(range(2 * epochs + 2))


def test_a_replay_does_not_go_back_to_before_a_reset(world):
    lane = opened(world)
    run(world, lane, 2)
    lane.close()
    reset(world, {"log": True, "keyed": True})
    lane = opened(world)
    run(world, lane)
    with pytest.raises(SinkStateError, match="epochs before 3 are from before the last reset"):
        lane.replay("keyed", world._writer(lane), first=1)
    lane.replay("keyed", world._writer(lane), first=3)
    assert offsets(world, "log") == offsets(world, "keyed") == [0, 1]


def test_a_first_run_that_failed_before_its_first_epoch_starts_with_a_new_position(world):
    starts = iter([{"src": 0}, {"src": 50}])
    lease = world.ledger.acquire(NAME, LANE, {}, 1.0)
    world.ledger.begin(lease, lambda: next(starts))
    world.ledger.set_sink(lease, "log", "joined", 0)
    world.ledger.release(lease)
    lease = world.ledger.acquire(NAME, LANE, {}, 1.0)
    world.ledger.begin(lease, lambda: next(starts))
    state = world.ledger.state(NAME, LANE)
    assert state is not None
    assert (state.position, state.ended, state.sinks["log"].state) == ({"src": 50}, {"src": 50}, "joining")


# --- every state has a way out


def no_record(world: World, name: str) -> None:
    del world.targets[name].records[world._key(name)]


def older(world: World, name: str) -> None:
    key = world._key(name)
    world.targets[name].records[key] = replace(world.targets[name].records[key], epoch=1)


def newer(world: World, name: str) -> None:
    key = world._key(name)
    world.targets[name].records[key] = replace(world.targets[name].records[key], epoch=9)


def different(world: World, name: str) -> None:
    key = world._key(name)
    record = world.targets[name].records[key]
    world.targets[name].records[key] = replace(
        record, end={"src": 99}, end_digest="0" * len(record.end_digest)
    )


def foreign(world: World, name: str) -> None:
    key = world._key(name)
    other = replace(key, pipeline="other")
    world.targets[name].records[other] = replace(world.targets[name].records.pop(key), key=other)


def sound(world: World, name: str) -> None:
    del world, name


SINK_STATES = ("joined", "joining", "replaying", "left")
STATES = [*((False, state) for state in (*SINK_STATES, "unknown")), (True, "joined"), (True, "replaying")]
"""Whether an epoch is open, and the sink's state. An epoch is planned only once all sinks have joined."""
RECORDS = (sound, no_record, older, newer, different, foreign)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
@pytest.mark.parametrize(("busy", "state"), STATES)
@pytest.mark.parametrize("name", ["log", "keyed"])
def test_every_state_has_a_way_out(world, record, state, busy, name):
    """What a refusal prints is a command; `reset` at the latest leads to a lane that goes on."""
    lane = opened(world)
    run(world, lane, 3)
    if busy:
        lane.plan({"src": 8}, Phase.LIVE)
    record(world, name)
    if state == "unknown":
        with world.store.write() as tx:
            tx.run("delete from headrace_ledger_sink where sink = :sink", sink=name)
    else:
        world.ledger.set_sink(lane.lease, name, state, 0)
    lane.close()
    try:
        lane = opened(world)
        run(world, lane, 2)
    except HeadraceError as error:
        assert COMMAND.search(f"{error.hint} {error.message}"), error  # noqa: PT017
        reset(world, {"log": True, "keyed": True})
        lane = opened(world)
        run(world, lane, 2)
        assert offsets(world, "log") == offsets(world, "keyed") == [0, 1, 2, 3]

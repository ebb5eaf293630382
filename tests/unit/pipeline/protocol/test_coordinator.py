"""Messages of the coordinator, and its parts that the model does not cover."""

from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import suppress
from dataclasses import replace

import pytest
from helpers.model_fakes import FakeSink, MemoryStore, Probe, Target
from helpers.model_world import FILES, World, hash_of

from headrace.pipeline.errors import (
    BlockedError,
    DataError,
    FencedError,
    InternalError,
    LeaseHeldError,
    PipelineStateError,
    SinkStateError,
    TransientError,
)
from headrace.pipeline.protocol.coordinator import EpochCoordinator
from headrace.pipeline.protocol.coordinator.blocking import find_block
from headrace.pipeline.protocol.epochs import CommitRecord, Phase
from headrace.pipeline.protocol.ledger import open_sqlite

PG, LOG, LAKE = FILES[0], FILES[2], FILES[3]


@pytest.fixture
def world():
    return World()


def opened(world: World, file=PG, **more) -> EpochCoordinator:
    process = world.open(file, **more)
    assert process.lane is not None, world.log
    return process.lane


def run(world: World, lane: EpochCoordinator, epochs: int = 1) -> None:
    for _ in range(epochs):
        lane.plan({"src": lane.position["src"] + 2}, Phase.LIVE)
        world.finish_epoch(lane)
    world.check()


def refused(world: World, file=PG) -> SinkStateError:
    with pytest.raises(SinkStateError) as error:
        world._opened(Probe(), file)
    return error.value


def ran(world: World, epochs: int = 3, file=PG) -> None:
    lane = opened(world, file)
    run(world, lane, epochs)
    lane.close()
    world.processes.clear()


def test_a_missing_record_offers_replay_and_adopt(world):
    ran(world)
    del world.targets["pg"].records[world._key("pg")]
    error = refused(world)
    assert error.node == "pg"
    assert "holds no record" in error.message
    assert "epoch 3" in error.message
    assert "headrace replay FILE --sink pg --from 1" in error.hint
    assert "headrace accept-target FILE --sink pg" in error.hint


def test_an_older_sink_offers_to_go_on_from_what_it_holds(world):
    lane = opened(world)
    run(world, lane)
    world.snapshot("pg")
    run(world, lane, 2)
    lane.close()
    world.processes.clear()
    world.targets["pg"].restore(world.snapshots["pg"])
    error = refused(world)
    assert "holds epoch 1" in error.message
    assert "--sink pg --from 2" in error.hint


def test_a_restored_ledger_is_refused(world, tmp_path):
    lane = opened(world)
    run(world, lane)
    with sqlite3.connect(tmp_path / "backup.db") as backup:
        world.store._connection.backup(backup)
        run(world, lane, 2)
        lane.close()
        backup.backup(world.store._connection)
    world.processes.clear()
    world.clock.sleep(100)
    assert "The ledger is older than the sinks" in str(refused(world))


def test_a_ledger_that_lost_its_last_commits_gives_out_no_generation_twice(world, tmp_path):
    with sqlite3.connect(tmp_path / "backup.db") as backup:
        opened(world, LOG).close()
        world.store._connection.backup(backup)
        first = opened(world, LOG)
        backup.backup(world.store._connection)
    world.processes.clear()
    second = opened(world, LOG)
    assert second.generation > first.generation
    with pytest.raises(FencedError):
        first.plan({"src": 5}, Phase.LIVE)
    with pytest.raises(FencedError):
        first.sinks["log"].register(
            CommitRecord.for_registration(world._key("log"), first.generation, 0, {"src": 0}, "", None)
        )
    run(world, second)


def returned(world: World, name: str, between: int = 2) -> None:
    """A sink leaves the file for some epochs, and is put back."""
    ran(world, 2, LOG)
    without = LOG | {"sinks": [other for other in LOG["sinks"] if other != name]}
    ran(world, between, without)


@pytest.mark.parametrize("name", ["log", "keyed"])
def test_a_sink_that_was_out_of_the_file_for_some_epochs_is_refused_until_it_has_them(world, name):
    returned(world, name)
    error = refused(world, LOG)
    assert "was not in the file during epochs 3 to 4: it holds epoch 2" in error.message
    assert f"headrace replay FILE --sink {name} --from 3" in error.hint
    assert f"headrace accept-target FILE --sink {name}" in error.hint
    lane = world._opened(Probe(), LOG, frozenset([name]))
    assert lane.replay(name, world._writer(lane)) == range(3, 5)
    run(world, lane)
    rows = world.targets[name].rows
    assert [offset for offset, _ in rows] == list(range(10))


def test_a_sink_that_was_out_of_the_file_can_be_adopted(world):
    returned(world, "log")
    lane = world._opened(Probe(), LOG, frozenset(["log"]))
    world.adopting.add("log")
    lane.accept_target("log")
    run(world, lane)
    assert [offset for offset, _ in world.targets["log"].rows] == [0, 1, 2, 3, 8, 9]


def test_a_sink_that_comes_back_without_its_record_is_refused(world):
    returned(world, "keyed")
    del world.targets["keyed"].records[world._key("keyed")]
    error = refused(world, LOG)
    assert "holds no record" in error.message
    assert "headrace replay FILE --sink keyed --from 1" in error.hint


def test_a_sink_that_missed_no_epoch_comes_back_without_a_word(world):
    returned(world, "log", between=0)
    before = world.targets["log"].records[world._key("log")]
    ran(world, 1, LOG)
    after = world.targets["log"].records[world._key("log")]
    assert (after.epoch, after.totals.rows, after.baseline) == (3, before.totals.rows + 2, before.baseline)


def test_a_replay_waits_for_the_open_epoch_of_the_file_without_the_sink(world):
    returned(world, "keyed", between=1)
    lane = opened(world, LOG | {"sinks": ["log"]})
    lane.plan({"src": lane.position["src"] + 1}, Phase.LIVE)
    log = lane.sinks["log"]
    assert isinstance(log, FakeSink)
    work = lane.pending()
    assert work is not None
    log.write(work.plan, {"sql": "v1"})
    lane.close()
    world.processes.clear()
    lane = world._opened(Probe(), LOG, frozenset(["keyed"]))
    with pytest.raises(PipelineStateError, match="without this sink") as error:
        lane.replay("keyed", world._writer(lane))
    assert "headrace run FILE" in error.value.hint


def test_an_open_epoch_is_not_dropped_after_a_replay_of_a_sink_that_had_its_rows(world):
    """The target keeps the rows of the epoch under a record that was lost.

    Another file might never overwrite them.
    """
    ran(world, 2, LOG)
    lane = opened(world, LOG)
    lane.plan({"src": lane.position["src"] + 1}, Phase.LIVE)
    work, keyed = lane.pending(), lane.sinks["keyed"]
    assert work is not None
    assert isinstance(keyed, FakeSink)
    keyed.write(work.plan, {"sql": "v1"})
    lane.close()
    world.processes.clear()
    del world.targets["keyed"].records[world._key("keyed")]
    changed = LOG | {"sql": "v2"}
    lane = world._opened(Probe(), changed, frozenset(["keyed"]))
    lane.replay("keyed", world._writer(lane))
    lane.close()
    lane = world._opened(Probe(), changed)
    assert lane.has_open_epoch
    world.finish_epoch(lane)
    assert (lane.committed, {row.state for row in world.state().sinks.values()}) == (3, {"joined"})


def test_every_sink_that_disagrees_is_named_at_once(world):
    ran(world)
    for name in ("pg", "delta"):
        del world.targets[name].records[world._key(name)]
    error = refused(world)
    assert "node 'pg'" in error.message
    assert "node 'delta'" in error.message


def test_a_new_ledger_is_refused_by_the_sinks_of_a_lost_one(world):
    ran(world)
    world._use(MemoryStore(world.clock))
    error = refused(world)
    assert "another pipeline named 'orders'" in error.message
    assert "headrace recover" in error.message
    assert world.state().sinks == {}, "nobody joined before all were asked"


def test_a_rebuild_needs_a_record_in_every_sink_of_the_file(world):
    ran(world)
    world._use(MemoryStore(world.clock))
    with pytest.raises(SinkStateError, match="sink log holds no record"):
        EpochCoordinator.rebuild(
            world._process_ledger(Probe()),
            "orders",
            "main",
            {},
            world._factory(Probe()),
            {"sql": "v1", "sinks": ["pg", "log"]},
            "h",
            sleep=world.clock.sleep,
        )


def test_a_rebuild_does_not_ask_sinks_that_keep_nothing(world):
    ran(world)
    world._use(MemoryStore(world.clock))
    file = {"sql": "v1", "sinks": ["pg", "delta", "log"]}

    def sinks(pipeline, compiled):
        result = world._factory(Probe())(pipeline, compiled)
        result["log"].stores_record = False
        return result

    ledger = world._process_ledger(Probe())
    EpochCoordinator.rebuild(ledger, "orders", "main", {}, sinks, file, "h", sleep=world.clock.sleep)
    lane = EpochCoordinator.open(
        ledger,
        "orders",
        "main",
        {},
        sinks,
        file,
        "h",
        initial={"src": 0},
        sleep=world.clock.sleep,
        threaded=False,
    )
    assert (lane.committed, lane.position) == (3, {"src": 6})
    assert {name: row.epoch for name, row in world.state().sinks.items()} == {"pg": 0, "delta": 0, "log": 3}


def test_three_equal_failures_block_the_epoch_and_those_that_pass_do_not(world):
    lane = opened(world)
    lane.plan({"src": 2}, Phase.LIVE)
    for attempt in range(5):
        assert lane.record_failure("pg", TransientError("the server is away")) == attempt + 1
    assert find_block(world.ledger, world.state(), 3, "orders.yaml") is None
    assert lane.record_failure("pg", DataError("value 17 does not fit")) == 1
    assert lane.record_failure("pg", DataError("value 18 does not fit")) == 2
    with pytest.raises(
        BlockedError, match=r"blocked at epoch 1, node 'pg', after 3 equal failures: DataError: value 19"
    ) as error:
        lane.record_failure("pg", DataError("value 19 does not fit"))
    assert "goes on with this epoch" in error.value.hint
    result = find_block(world.ledger, world.state(), 3, "FILE")
    assert result is not None
    assert str(result) == str(error.value)
    world.finish_epoch(lane)
    assert lane.record_failure("pg", DataError("too late")) == 0
    assert find_block(world.ledger, world.state(), 3, "FILE") is None


def test_an_epoch_is_not_committed_without_counts_of_every_sink(world):
    lane = opened(world)
    lane.plan({"src": 2}, Phase.LIVE)
    with pytest.raises(InternalError, match="cannot be committed"):
        lane.commit({})
    with pytest.raises(InternalError, match="still open"):
        lane.plan({"src": 3}, Phase.LIVE)


def test_counts_of_a_sink_that_held_the_epoch_come_from_its_record(world):
    lane = opened(world)
    plan = lane.plan({"src": 3}, Phase.LIVE)
    lane.sinks["pg"].write(plan, PG)  # type: ignore[attr-defined]
    world.processes[0].probe.dead = True
    again = opened(world)
    work = again.pending()
    assert work is not None
    assert work.sinks == ("delta",)
    counts = world.finish_epoch(again)
    assert {name: count.rows for name, count in counts.items()} == {"pg": 3, "delta": 3}


@pytest.mark.parametrize("vouched", [False, True])
def test_an_epoch_that_a_paused_process_knows_is_dropped_only_if_the_user_vouches_for_its_death(
    world, vouched
):
    lane = opened(world, LAKE)
    lane.plan({"src": 2}, Phase.LIVE)
    world.clock.sleep(11)
    again = EpochCoordinator.open(
        world._process_ledger(Probe()),
        "orders",
        "main",
        {"host": "elsewhere"},
        world._factory(Probe()),
        PG,
        hash_of(PG),
        initial={"src": 0},
        vouched=vouched,
        clock=world.clock,
        sleep=world.clock.sleep,
        threaded=False,
    )
    assert again.has_open_epoch is not vouched


@pytest.mark.parametrize("written", [False, True])
def test_a_run_drops_an_open_epoch_only_if_no_sink_has_it(world, written):
    ran(world, 2)
    lane = opened(world)
    plan = lane.plan({"src": 9}, Phase.LIVE)
    if written:
        lane.sinks["pg"].write(plan, PG)  # type: ignore[attr-defined]
    world.processes[0].probe.dead = True
    again = opened(world)
    assert again.drop_open_epoch("it failed") is not written
    assert again.has_open_epoch is written
    if written:
        world.finish_epoch(again)
    else:
        run(world, again)
    assert again.committed == 3


def test_a_run_does_not_drop_an_epoch_that_it_writes_or_that_a_paused_process_can_write(world):
    lane = opened(world, LAKE)
    lane.plan({"src": 2}, Phase.LIVE)
    lane.begin()
    assert lane.drop_open_epoch("it failed") is False
    world.clock.sleep(11)
    again = opened(world, LAKE)
    assert again.drop_open_epoch("it failed") is False
    assert again.has_open_epoch


def test_a_row_that_was_removed_is_replayed_and_the_baseline_taken_anew(world):
    ran(world, 4, LOG)
    target = world.targets["keyed"]
    removed = target.rows.pop(3)
    world.broken.add("keyed")
    assert removed[1][0] == 2
    lane = opened(world, LOG, repair=frozenset({"keyed"}))
    assert lane.replay("keyed", world._writer(lane), first=2) == range(2, 5)
    record = lane.sinks["keyed"].record()
    assert record is not None
    assert (record.epoch, record.baseline, record.totals.rows) == (4, 7, 6)
    assert removed in target.rows
    world.broken.clear()
    run(world, lane)
    assert [
        event["data"].get("first") for event in world.ledger.events("orders") if event["kind"] == "replaying"
    ] == [2]


def test_rows_are_not_replayed_over_rows_without_a_key(world):
    ran(world)
    lane = opened(world, repair=frozenset({"pg"}))
    with pytest.raises(SinkStateError, match=r"no key and its target holds 6 rows") as error:
        lane.replay("pg", world._writer(lane), first=2)
    assert "Empty the target and replay from epoch 1" in error.value.hint
    world.targets["pg"].rows = []
    with pytest.raises(SinkStateError, match="no key"):
        lane.replay("pg", world._writer(lane), first=2)
    assert lane.replay("pg", world._writer(lane), first=1) == range(1, 4)
    assert len(world.targets["pg"].rows) == 6


def test_a_sink_that_joined_late_can_have_the_whole_history(world):
    ran(world, 3, PG)
    lane = opened(world, LOG)
    assert world.targets["keyed"].rows == []
    world.targets["keyed"].since = 0
    world.broken.add("keyed")
    lane.replay("keyed", world._writer(lane), first=1)
    assert [row[0] for row in world.targets["keyed"].rows] == list(range(6))
    assert world.state().sinks["keyed"].epoch == 0
    world.broken.clear()
    run(world, lane)


def test_what_cannot_be_replayed_or_adopted_is_refused(world):
    ran(world)
    lane = opened(world)
    write = world._writer(lane)
    assert list(lane.replay("pg", write)) == []
    for act, says in (
        (lambda: lane.replay("nobody", write), "no such sink"),
        (lambda: lane.replay("pg", write, first=0), "are to be replayed, and the ledger has epochs 1 to 3"),
        (lambda: lane.replay("pg", write, first=9), "on are to be replayed, and the last one is 3"),
        (lambda: lane.accept_target("nobody"), "nothing to accept"),
    ):
        with pytest.raises(PipelineStateError, match=says):
            act()


def test_rows_that_another_program_changed_are_accepted(world):
    ran(world)
    target = world.targets["pg"]
    del target.rows[0]
    world.broken.add("pg")
    world.tampered["pg"] = 1
    lane = opened(world)
    lane.accept_target("pg")
    record = target.records[world._key("pg")]
    assert (record.epoch, record.baseline) == (3, len(target.rows))
    assert world.state().sinks["pg"].epoch == 3
    lane.plan({"src": lane.position["src"] + 2}, Phase.LIVE)
    lane.close()
    with pytest.raises(PipelineStateError, match="epoch 4 is open"):
        opened(world).accept_target("pg")


def test_a_lane_under_repair_does_nothing_else(world):
    ran(world)
    del world.targets["pg"].records[world._key("pg")]
    lane = opened(world, repair=frozenset({"pg"}))
    for act in (lambda: lane.plan({"src": 9}, Phase.LIVE), lane.pending, lane.begin):
        with pytest.raises(PipelineStateError, match="'pg' must be replayed or adopted first"):
            act()
    lane.accept_target("pg")
    world._mended("pg")
    run(world, lane)
    assert any(event["data"].get("why") == "missing" for event in world.ledger.events("orders"))


def test_a_sink_that_holds_more_than_the_ledger_is_not_adopted(world):
    ran(world)
    key = world._key("delta")
    record = world.targets["delta"].records[key]
    world.targets["delta"].records[key] = replace(record, epoch=9)
    world.broken.add("delta")
    lane = opened(world, repair=frozenset({"delta"}))
    with pytest.raises(SinkStateError, match="holds epoch 9"):
        lane.accept_target("delta")


def test_opening_waits_for_late_commits_only_where_a_sink_does_not_fence(world):
    opened(world, LOG)
    world.kill(world.processes[0])
    before = world.clock.now
    opened(world, LOG)
    assert world.clock.now - before < 5
    world.kill(world.processes[0])
    opened(world, LAKE)
    assert world.clock.now - before > 30


def test_the_heartbeat_thread_keeps_the_lease_and_notices_its_loss(tmp_path):
    ledger = open_sqlite(tmp_path / "ledger.db")
    target = Target("pg", fences=True, upserts=False)
    world = World()
    world.targets["pg"] = target
    world.ledger = ledger
    how = {
        "sinks": world._factory(Probe()),
        "compiled": {"sql": "v1", "sinks": ["pg"]},
        "pipeline_hash": "h",
        "initial": {"src": 0},
    }
    lane = EpochCoordinator.open(ledger, "orders", "main", {}, ttl=0.6, **how)
    details = {"rows": 7, "waiting": "a service"}
    lane.heartbeat.details = lambda: details
    other = open_sqlite(tmp_path / "ledger.db")
    until(
        lambda: (
            (state := other.state("orders")) is not None
            and state.progress == {"rows": 7, "waiting": "a service"}
        )
    )
    del details["waiting"]
    until(lambda: (state := other.state("orders")) is not None and state.progress == {"rows": 7})
    (tmp_path / "ledger.db.locks").rename(tmp_path / "gone")  # from now on only expiry counts
    deadline = time.monotonic() + 1.5
    while time.monotonic() < deadline:
        with pytest.raises(LeaseHeldError):
            other.acquire("orders", "main", {}, 5)
        time.sleep(0.05)
    lane.heartbeat.stop()
    until(lambda: can_acquire(other))
    with pytest.raises(FencedError):
        until(lane.check)
    with pytest.raises(FencedError):
        lane.plan({"src": 3}, Phase.LIVE)
    lane.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("headrace-lease")]


def can_acquire(ledger) -> bool:
    with suppress(LeaseHeldError):
        ledger.acquire("orders", "main", {}, 30)
        return True
    return False


def until(holds, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)

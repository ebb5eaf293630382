"""The ledger on both stores: leases, plans, commits, and refusals."""

from __future__ import annotations

import sqlite3
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from headrace.pipeline.errors import (
    FencedError,
    InternalError,
    LeaseHeldError,
    PipelineStateError,
    SettingsError,
    SinkStateError,
    TransientError,
)
from headrace.pipeline.protocol.epochs import CommitRecord, EpochPlan, Phase, SinkKey, WriteCounts
from headrace.pipeline.protocol.ledger import describe_owner, open_sqlite, sqlite
from headrace.pipeline.protocol.ledger.store import SCHEMA_VERSION

HOLDER = {"host": "elsewhere", "pid": 1, "run_id": "r1", "launched_by": "cli"}
BODY = {"sinks": ["a"], "sql": "select 1"}


def plan(number: int, start: int, end: int, **more) -> EpochPlan:
    return EpochPlan(
        number,
        more.pop("phase", Phase.LIVE),
        {"k": start},
        {"k": end},
        more.pop("hash", "h1"),
        datetime.now(UTC),
        **more,
    )


def begun(ledger, name="orders", lane="main", **more):
    lease = ledger.acquire(name, lane, more.get("holder", HOLDER), more.get("ttl", 30.0))
    ledger.begin(lease, lambda: {"k": 0})
    return lease


def test_a_pipeline_keeps_its_uuid_and_each_holder_gets_a_higher_generation(open_ledger):
    one, two = open_ledger(), open_ledger()
    first = begun(one)
    one.release(first)
    second = two.acquire("orders", "main", HOLDER, 30)
    other = two.acquire("orders", "side", HOLDER, 30)
    assert second.generation > first.generation
    assert first.pipeline == second.pipeline == other.pipeline
    assert two.acquire("clicks", "main", HOLDER, 30).pipeline != first.pipeline
    assert (first.clean, second.clean, second.settled) == (True, True, True)


def test_a_held_lane_names_its_holder(open_ledger):
    one, two = open_ledger(), open_ledger()
    lease = one.acquire("orders", "main", describe_owner("run-7", "dagster"), 30)
    with pytest.raises(
        LeaseHeldError, match=r"host .*, pid \d+, run run-7, launched by dagster, since 20"
    ) as refused:
        two.acquire("orders", "main", HOLDER, 30)
    assert refused.value.retriable
    assert "expires in" in refused.value.hint
    state = two.state("orders")
    assert state is not None
    assert state.holder is not None
    assert state.holder["run_id"] == "run-7"
    one.release(lease)
    state = two.state("orders")
    assert state is not None
    assert state.holder is None


def test_an_expired_lease_is_taken_over_and_its_holder_fenced(open_ledger):
    one, two = open_ledger(), open_ledger()
    old = begun(one, ttl=0.05)
    one.plan(old, plan(1, 0, 5), BODY)
    new = until_taken(two)
    assert new.generation > old.generation
    assert (new.clean, new.settled) == (False, False)
    state = two.state("orders")
    assert state is not None
    assert not state.droppable, "the former holder may only be paused, and knows the plan"
    late = {
        "heartbeat": lambda: one.heartbeat(old, 30),
        "commit": lambda: one.commit(old, 1, {}),
        "plan": lambda: one.plan(old, plan(1, 0, 5), BODY),
        "drop": lambda: one.drop_plan(old, 1, "late"),
        "failed": lambda: one.record_failure(old, 1, "a", "late"),
        "sink": lambda: one.set_sink(old, "a", "joined", 0),
        "event": lambda: one.event(old, "late", {}),
        "rewind": lambda: one.rewind(old, {"k": 0}, after=0),
        "holder": lambda: one.set_holder(old, {}),
        "settle": lambda: one.settle(old),
        "rebuild": lambda: one.rebuild(old, {"a": joined("u", "a", 1, 0)}, BODY, "h1"),
        "release": lambda: one.release(old),
    }
    for name, act in late.items():
        with pytest.raises(FencedError):
            pytest.fail(f"{name} of a fenced holder went through: {act()}")
    two.commit(new, 1, {"a": WriteCounts(5, 5, 0, 0)})


def test_what_was_left_unsettled_stays_so_until_somebody_settles_it(open_ledger):
    ledger = open_ledger()
    ledger.release(begun(ledger), clean=False)
    second = ledger.acquire("orders", "main", HOLDER, 30)
    assert (second.clean, second.settled) == (True, False)
    ledger.release(second)
    third = ledger.acquire("orders", "main", HOLDER, 30)
    assert not third.settled, "a clean holder that did not wait settles nothing"
    ledger.release(ledger.settle(third))
    assert ledger.acquire("orders", "main", HOLDER, 30).settled


def test_epochs_are_gapless_and_plans_immutable(open_ledger):
    ledger = open_ledger()
    lease = begun(ledger)
    first = plan(1, 0, 5, window="2013-01", splits=({"id": 3},), phase=Phase.HISTORY)
    ledger.plan(lease, first, BODY)
    ledger.plan(lease, first, BODY)
    for wrong in (replace(first, planned_at=datetime.now(UTC)), plan(2, 5, 6), plan(1, 1, 5), plan(3, 0, 5)):
        with pytest.raises(InternalError):
            ledger.plan(lease, wrong, BODY)
    with pytest.raises(InternalError, match="not the open one"):
        ledger.commit(lease, 2, {})
    second = plan(2, 5, 9, hash="h2")
    ledger.commit(lease, 1, {"a": WriteCounts(5, 4, 1, 0), "b": WriteCounts(5, None, None, None)})
    ledger.plan(lease, second, BODY | {"sql": "select 2"})
    state = ledger.state("orders")
    assert state is not None
    assert (state.committed, state.position, state.ended, state.open_plan, state.pipeline_hash) == (
        1,
        {"k": 5},
        {"k": 5},
        second,
        "h1",
    )
    assert ledger.compiled("h2")["sql"] == "select 2"
    with pytest.raises(InternalError, match="nope"):
        ledger.compiled("nope")
    ledger.commit(lease, 2, {"a": WriteCounts(4, 4, 0, 0)})
    with pytest.raises(InternalError, match="none is"):
        ledger.commit(lease, 2, {})
    rows = list(ledger.epochs("orders"))
    assert [row.plan for row in rows] == [first, second]
    assert rows[0].counts == {"a": WriteCounts(5, 4, 1, 0), "b": WriteCounts(5, None, None, None)}
    assert all(row.committed_at for row in rows)
    assert [row.plan.number for row in ledger.epochs("orders", first=2)] == [2]
    assert [row.plan.number for row in ledger.epochs("orders", last=1)] == [1]
    assert list(ledger.epochs("unknown")) == []


def test_epochs_are_read_page_by_page(open_ledger, monkeypatch):
    monkeypatch.setattr("headrace.pipeline.protocol.ledger.reader._PAGE", 3)
    ledger = open_ledger()
    lease = begun(ledger)
    for number in range(1, 9):
        ledger.plan(lease, plan(number, number - 1, number), BODY)
        ledger.commit(lease, number, {})
    assert [row.plan.number for row in ledger.epochs("orders")] == list(range(1, 9))


def test_a_commit_is_whole_or_not_at_all(open_ledger, monkeypatch):
    """Its second statement fails: the first has no effect."""
    ledger = open_ledger()
    lease = begun(ledger)
    ledger.plan(lease, plan(1, 0, 5), BODY)
    with monkeypatch.context() as broken:
        broken.delattr("headrace.pipeline.protocol.ledger.interventions.normalize_position")
        with pytest.raises(NameError):
            ledger.commit(lease, 1, {"a": WriteCounts()})
    (row,) = ledger.epochs("orders")
    assert row.committed_at is None
    state = ledger.state("orders")
    assert state is not None
    assert (state.committed, state.open_plan and state.open_plan.number) == (0, 1)


def test_equal_failures_are_counted_over_restarts(open_ledger):
    ledger = open_ledger()
    lease = begun(ledger)
    ledger.plan(lease, plan(1, 0, 5), BODY)
    assert ledger.record_failure(lease, 1, "a", "no row 17 at port 4711") == 1
    assert ledger.record_failure(lease, 1, "a", "no row 18 at port 4712") == 2
    assert ledger.record_failure(lease, 1, "b", "no row 18 at port 4712") == 1
    ledger.release(lease)
    lease = open_ledger().acquire("orders", "main", HOLDER, 30)
    assert ledger.record_failure(lease, 1, "b", "no row 0 at port 1") == 2
    (row,) = ledger.epochs("orders")
    assert (row.attempts, row.error) == (4, "b: no row 0 at port 1")


def test_sinks_events_and_progress(open_ledger):
    ledger = open_ledger()
    lease = begun(ledger)
    ledger.set_sink(lease, "a", "joining", 0)
    ledger.set_sink(lease, "a", "joined", 0, {"baseline": 3})
    with pytest.raises(InternalError, match="cannot be"):
        ledger.set_sink(lease, "a", "lost", 0)
    ledger.heartbeat(lease, 30, {"phase": "live", "rows": 3})
    ledger.heartbeat(lease, 30)
    state = ledger.state("orders")
    assert state is not None
    assert state.progress == {"phase": "live", "rows": 3}
    assert (state.sinks["a"].state, state.sinks["a"].epoch) == ("joined", 0)
    assert [event["kind"] for event in ledger.events("orders")] == ["opened", "began", "joining", "joined"]
    assert ledger.events("orders")[-1]["data"] == {"sink": "a", "epoch": 0, "baseline": 3}
    assert [(lane.name, lane.lane) for lane in ledger.lanes()] == [("orders", "main")]
    assert ledger.state("unknown") is None


def test_a_dropped_plan_leaves_an_event_and_its_number_to_the_next(open_ledger):
    ledger = open_ledger()
    lease = begun(ledger)
    ledger.plan(lease, plan(1, 0, 5), BODY)
    ledger.drop_plan(lease, 1, "the file changed")
    ledger.plan(lease, plan(1, 0, 7, hash="h2"), BODY)
    assert [event["data"]["why"] for event in ledger.events("orders") if event["kind"] == "dropped"] == [
        "the file changed"
    ]


def test_a_rewind_moves_the_next_start_only(open_ledger):
    ledger = open_ledger()
    lease = begun(ledger)
    ledger.plan(lease, plan(1, 0, 5), BODY)
    with pytest.raises(PipelineStateError, match="open epoch"):
        ledger.rewind(lease, {"k": 0}, after=0)
    ledger.commit(lease, 1, {})
    ledger.rewind(lease, {"k": 2}, after=0)
    state = ledger.state("orders")
    assert state is not None
    assert (state.position, state.ended, state.committed) == ({"k": 2}, {"k": 5}, 1)
    ledger.plan(lease, plan(2, 2, 6), BODY)
    ledger.commit(lease, 2, {})
    state = ledger.state("orders")
    assert state is not None
    assert state.ended == {"k": 6}


def joined(uuid: str, sink: str, epoch: int, at: int, generation: int = 4) -> CommitRecord:
    return CommitRecord.for_registration(
        SinkKey(uuid, "orders", "main", sink), generation, epoch, {"k": at}, "h1", 0
    )


def test_a_lost_ledger_is_rebuilt_from_level_sinks(open_ledger):
    ledger = open_ledger()
    lease = ledger.acquire("orders", "main", HOLDER, 30)
    seventh = plan(7, 20, 30)
    at = joined("old-uuid", "a", 6, 20).after_epoch(seventh, 5, WriteCounts(10, 10, 0, 0))
    fresh = ledger.rebuild(lease, {"a": at, "b": joined("old-uuid", "b", 7, 30)}, BODY, "h1")
    assert fresh.pipeline == "old-uuid"
    assert fresh.generation > 5
    state = ledger.state("orders")
    assert state is not None
    assert (state.pipeline, state.committed, state.position, state.open_plan) == (
        "old-uuid",
        7,
        {"k": 30},
        None,
    )
    assert {name: row.state for name, row in state.sinks.items()} == {"a": "joined", "b": "joined"}
    with pytest.raises(FencedError):
        ledger.heartbeat(lease, 30)
    with pytest.raises(SinkStateError, match="no target is ahead of it"):
        ledger.rebuild(fresh, {"a": at}, BODY, "h1")
    ledger.release(fresh, clean=False)
    assert not ledger.acquire("orders", "main", HOLDER, 30).settled


@pytest.mark.parametrize("was_open", [False, True])
def test_an_older_ledger_is_rebuilt_from_newer_records(open_ledger, was_open):
    """It was restored from a backup of epoch 1, perhaps with epoch 2 open. The sinks are at epoch 2 or 3."""
    ledger = open_ledger()
    lease = begun(ledger)
    ledger.plan(lease, plan(1, 0, 5), BODY)
    ledger.commit(lease, 1, {})
    if was_open:
        ledger.plan(lease, plan(2, 5, 9), BODY)
    before = ledger.state("orders")
    for records in (
        {"a": joined(lease.pipeline, "a", 1, 5)},  # not older
        {"a": joined(lease.pipeline, "a", 0, 0)},  # newer than the records
        {"a": joined("another", "a", 3, 9)},
        {"a": joined(lease.pipeline, "a", 2, 9)} if was_open else {},  # a run decides about an open epoch
    ):
        with pytest.raises(SinkStateError):
            ledger.rebuild(lease, records, BODY, "h1")
        assert ledger.state("orders") == before
    newest = 3 if was_open else 2
    fresh = ledger.rebuild(
        lease, {"b": joined(lease.pipeline, "b", newest, 30, lease.generation + 9)}, BODY, "h1"
    )
    assert fresh.generation > lease.generation + 9
    state = ledger.state("orders")
    assert state is not None
    assert (state.committed, state.position, state.open_plan) == (newest, {"k": 30}, None)
    assert {name: (row.state, row.epoch) for name, row in state.sinks.items()} == {"b": ("joined", 0)}
    assert [row.plan.number for row in ledger.epochs("orders", "main")] == []
    ledger.plan(fresh, plan(newest + 1, 30, 31), BODY)
    ledger.commit(fresh, newest + 1, {})


def test_a_lost_ledger_is_rebuilt_with_the_epoch_that_was_open(open_ledger):
    ledger = open_ledger()
    seventh = plan(7, 20, 30, splits=({"id": 1}, {"id": 2}), phase=Phase.HISTORY, window="2013-02")
    behind = joined("old", "b", 6, 20)
    ahead = joined("old", "a", 6, 20).after_epoch(seventh, 5, WriteCounts())
    lease = ledger.acquire("orders", "main", HOLDER, 30)
    with pytest.raises(SinkStateError, match="another version of the file"):
        ledger.rebuild(lease, {"a": ahead, "b": behind}, BODY, "h2")
    ledger.rebuild(lease, {"a": ahead, "b": behind}, BODY, "h1")
    state = ledger.state("orders")
    assert state is not None
    assert (state.committed, state.position, state.open_plan) == (6, {"k": 20}, seventh)


@pytest.mark.parametrize(
    ("records", "says"),
    [
        ({}, "nothing to rebuild"),
        ({"a": joined("u1", "a", 3, 9), "b": joined("u2", "b", 3, 9)}, "different pipelines"),
        ({"a": joined("u1", "a", 3, 9), "b": joined("u1", "b", 1, 2)}, "are not consecutive"),
        ({"a": joined("u1", "a", 3, 9), "b": joined("u1", "b", 3, 8)}, "different contents"),
        ({"a": joined("u1", "b", 3, 9)}, "sink 'b'"),
    ],
)
def test_records_that_lead_nowhere_are_refused(records, says, tmp_path):
    ledger = open_sqlite(tmp_path / "ledger.db")
    lease = ledger.acquire("orders", "main", HOLDER, 30)
    with pytest.raises(SinkStateError, match=says):
        ledger.rebuild(lease, records, BODY, "h1")
    state = ledger.state("orders")
    assert state is not None
    assert state.sinks == {}


def test_records_survive_json_and_newer_formats_are_refused():
    record = joined("u", "a", 6, 20).after_epoch(
        plan(7, 20, 30, splits=({"id": 1},)), 5, WriteCounts(1, None, 0, 0)
    )
    assert CommitRecord.from_json(record.to_json()) == record
    assert CommitRecord.from_json(joined("u", "a", 6, 20).to_json()).is_registration
    with pytest.raises(InternalError, match="format 99"):
        CommitRecord.from_json(record.to_json() | {"format": 99})


def test_a_newer_schema_is_refused(tmp_path):
    path = tmp_path / "ledger.db"
    open_sqlite(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"pragma user_version={SCHEMA_VERSION + 1}")
    with pytest.raises(InternalError, match="schema version"):
        open_sqlite(path)


def test_a_newer_schema_in_postgres_is_refused(postgres):
    import psycopg

    from headrace.connectors.ledger.postgres import open_postgres

    open_postgres(postgres).close()
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("update headrace_ledger_version set version = version + 1")
        with pytest.raises(InternalError, match="schema version"):
            open_postgres(postgres)
        connection.execute("update headrace_ledger_version set version = version - 1")


def test_a_schema_of_the_users_name_that_comes_later_hides_no_ledger(postgres):
    """A Postgres sink makes the schema `headrace`.

    For a user of this name it is the first one of the search path.
    """
    import psycopg
    from psycopg.conninfo import make_conninfo

    from headrace.connectors.ledger.postgres import open_postgres

    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("create schema later_first")
        connection.execute("create schema later_second")
        connection.execute("drop schema later_first")
    address = make_conninfo(postgres, options="-csearch_path=later_first,later_second")
    ledger = open_postgres(address)
    ledger.release(lease := ledger.acquire("orders", "main", {}, 1.0))
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("create schema later_first")
    ledger.acquire("orders", "main", {}, 1.0)  # a connection that is open goes on, too
    ledger.close()
    again = open_postgres(address)
    state = again.state("orders")
    assert state is not None
    assert state.pipeline == lease.pipeline
    again.close()
    open_postgres(make_conninfo(postgres, options="-csearch_path=later_first")).close()
    with pytest.raises(SettingsError, match="two ledgers, in the schemas later_first and later_second"):
        open_postgres(address)


def test_a_lost_connection_is_passing_and_the_next_try_connects_again(postgres):
    import psycopg

    from headrace.connectors.ledger.postgres import open_postgres

    ledger = open_postgres(postgres)
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'headrace"
            " ledger'"
        )
    with pytest.raises(TransientError) as failed:
        ledger.lanes()
    assert failed.value.retriable
    assert ledger.lanes() == []


def test_a_process_that_stopped_inside_a_transaction_does_not_stop_others_for_ever(postgres, monkeypatch):
    from headrace.connectors.ledger import postgres as module

    monkeypatch.setattr(module, "_STALLED", "1s")
    one, two = module.open_postgres(postgres), module.open_postgres(postgres)
    old = one.acquire("stalled", "main", HOLDER, 0.01)
    taken = []

    def stall() -> None:
        with one._store.write() as transaction:
            one._hold(transaction, old)
            taken.append(until_taken(two, "stalled"))
            one._hold(transaction, old)

    with pytest.raises(TransientError):
        stall()
    assert taken[0].generation > old.generation
    with pytest.raises(FencedError):
        one.heartbeat(old, 30)


def test_network_file_systems_are_refused(tmp_path, monkeypatch):
    class Mount:
        mountpoint, fstype = str(tmp_path), "nfs4"

    monkeypatch.setattr(sqlite.psutil, "disk_partitions", lambda **_: [Mount])
    with pytest.raises(SettingsError, match="nfs4"):
        open_sqlite(tmp_path / "deep" / "ledger.db")


def test_a_heartbeat_thread_and_the_coordinator_share_a_ledger(open_ledger):
    ledger = open_ledger()
    lease = begun(ledger)
    stop, errors = threading.Event(), []

    def beat() -> None:
        try:
            while not stop.is_set():
                ledger.heartbeat(lease, 30, {"alive": True})
        except Exception as error:  # noqa: BLE001 - reported below
            errors.append(error)

    thread = threading.Thread(target=beat)
    thread.start()
    for number in range(1, 30):
        ledger.plan(lease, plan(number, number - 1, number), BODY)
        ledger.commit(lease, number, {"a": WriteCounts(1, 1, 0, 0)})
    stop.set()
    thread.join()
    assert errors == []
    state = ledger.state("orders")
    assert state is not None
    assert (state.committed, state.progress) == (29, {"alive": True})


def until_taken(ledger, name="orders", seconds=20.0):
    """Acquires as soon as the lease has expired."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return ledger.acquire(name, "main", HOLDER, 30)
        except (LeaseHeldError, TransientError):
            assert time.monotonic() < deadline, "the lease never expired"
            time.sleep(0.01)

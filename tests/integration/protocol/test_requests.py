"""Requests to stop and pause, on both stores: which runs end, and which may start."""

from __future__ import annotations

import sqlite3
import threading

import pytest

from headrace.pipeline.errors import PausedError
from headrace.pipeline.protocol.coordinator.heartbeat import Heartbeat
from headrace.pipeline.protocol.ledger import LeaseStatus, StopAction, describe_owner, open_sqlite
from headrace.pipeline.protocol.ledger.store import SCHEMA_VERSION

HOLDER = {"host": "elsewhere", "pid": 1, "launched_by": "cli", "file": "orders.yaml"}


def test_a_stop_is_for_the_present_run_alone_and_stays_the_first(open_ledger):
    one, two = open_ledger(), open_ledger()
    lease = one.acquire("orders", "main", HOLDER, 30)
    first = two.request_stop("orders", StopAction.STOP, by="ann@a", reason="maintenance")
    again = two.request_stop("orders", StopAction.STOP, by="bob@b", reason="me too")
    assert first == again == one.read_requests("orders")[0] == one.state("orders").request
    assert (first.generation, first.by, first.reason) == (lease.generation, "ann@a", "maintenance")
    assert two.lease_status("orders", lease.generation) is LeaseStatus.ACTIVE
    one.release(lease)
    assert two.lease_status("orders", lease.generation) is LeaseStatus.RELEASED
    later = one.acquire("orders", "main", HOLDER, 30, refuse_if_paused=True)
    assert later.generation > first.generation
    newer = two.request_stop("orders", StopAction.STOP, by="bob@b", reason="now this one")
    assert (newer.generation, newer.by) == (later.generation, "bob@b")


def test_a_stop_without_a_run_stores_nothing(open_ledger):
    one = open_ledger()
    assert one.request_stop("orders", StopAction.STOP, by="ann@a") is None
    assert one.state("orders") is None
    one.release(one.acquire("orders", "main", HOLDER, 30))
    assert one.request_stop("orders", StopAction.STOP, by="ann@a") is None
    assert one.read_requests("orders")[0] is None


def test_an_owner_whose_lease_expired_may_only_be_suspended_and_is_asked(open_ledger):
    one, two = open_ledger(), open_ledger()
    lease = one.acquire("orders", "main", describe_owner("r", "cli"), 0.0)
    assert two.state("orders").holder is None
    request = two.request_stop("orders", StopAction.STOP, by="ann@a")
    assert request.generation == lease.generation
    assert two.lease_status("orders", lease.generation) is LeaseStatus.EXPIRED
    one.heartbeat(lease, 30)
    assert two.lease_status("orders", lease.generation) is LeaseStatus.ACTIVE


def test_a_pause_refuses_runs_until_it_ends_and_lets_repairs_work(open_ledger):
    one, two = open_ledger(), open_ledger()
    pause = two.request_stop("orders", StopAction.PAUSE, by="ann@a", reason="schema change")
    assert pause.is_pause
    with pytest.raises(PausedError, match=r"'orders' is paused by ann@a, 20.* UTC: schema change") as refused:
        one.acquire("orders", "main", HOLDER, 30, refuse_if_paused=True)
    assert refused.value.hint == "End the pause with: headrace resume orders.yaml."
    assert one.state("orders").holder is None
    assert one.state("orders").generation == 0, "the refused run left no lease"

    repair = one.acquire("orders", "main", HOLDER, 30)
    stop = two.request_stop("orders", StopAction.STOP, by="bob@b")
    assert (stop.is_pause, stop.by, stop.generation) == (True, "ann@a", repair.generation)
    one.release(repair)

    assert two.end_pause("orders").by == "ann@a"
    assert two.end_pause("orders") is None
    one.release(one.acquire("orders", "main", HOLDER, 30, refuse_if_paused=True))


def test_a_resume_does_not_cancel_a_stop(open_ledger):
    one = open_ledger()
    one.acquire("orders", "main", HOLDER, 30)
    one.request_stop("orders", StopAction.STOP, by="ann@a")
    assert one.end_pause("orders") is None
    assert one.read_requests("orders")[0] is not None


@pytest.mark.parametrize("action", list(StopAction))
def test_the_heartbeat_of_the_owner_reads_the_request_once(open_ledger, action):
    one, two = open_ledger(), open_ledger()
    former = one.acquire("orders", "main", HOLDER, 30)
    two.request_stop("orders", StopAction.STOP, by="ann@a")
    one.release(former)
    lease = one.acquire("orders", "main", HOLDER, 30)
    seen, arrived = [], threading.Event()

    def on_request(request):
        seen.append(request)
        arrived.set()

    heartbeat = Heartbeat(one, lease, 30, lambda: 0.0, on_request=on_request)
    heartbeat.read_request()
    assert seen == [], "the request was for the generation before"
    heartbeat.start()
    two.request_stop("orders", action, by="ann@a")
    assert arrived.wait(30)
    heartbeat.stop()
    heartbeat.read_request()
    assert [(request.action, request.generation) for request in seen] == [(action, lease.generation)]


def test_a_ledger_of_the_version_before_is_upgraded(tmp_path):
    path = tmp_path / "ledger.db"
    former = open_sqlite(path)
    lease = former.acquire("orders", "main", HOLDER, 30)
    former.close()
    with sqlite3.connect(path) as connection:
        connection.execute("drop table headrace_ledger_request")
        connection.execute("drop table headrace_ledger_refresh")
        connection.execute("pragma user_version=3")
    upgraded = open_sqlite(path)
    state = upgraded.state("orders")
    assert state
    assert state.generation == lease.generation
    assert upgraded.request_stop("orders", StopAction.PAUSE, by="ann@a")
    upgraded.close()
    with sqlite3.connect(path) as connection:
        assert connection.execute("pragma user_version").fetchone() == (SCHEMA_VERSION,)


def test_a_ledger_in_postgres_of_the_version_before_is_upgraded(postgres):
    import psycopg
    from psycopg.conninfo import make_conninfo

    from headrace.connectors.ledger.postgres import open_postgres

    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("create schema former")
    address = make_conninfo(postgres, options="-csearch_path=former")
    open_postgres(address).close()
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("drop table headrace_ledger_request")
        connection.execute("drop table headrace_ledger_refresh")
        connection.execute("update headrace_ledger_version set version = 3")
    upgraded = open_postgres(address)
    assert upgraded.request_stop("orders", StopAction.PAUSE, by="ann@a")
    assert upgraded.request_refresh("orders", ["2024-01-01"], by="ann@a")
    upgraded.close()

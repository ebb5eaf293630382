"""Requests for a refresh, on both stores: who makes them, who ends them, and which of them are equal."""

from __future__ import annotations

import sqlite3
import threading

import pytest

from headrace.pipeline.errors import FencedError, PipelineStateError
from headrace.pipeline.protocol.coordinator.heartbeat import Heartbeat
from headrace.pipeline.protocol.ledger import RefreshState, StopAction, open_sqlite
from headrace.pipeline.protocol.ledger.refreshes import KEPT_REFRESHES

HOLDER = {"host": "elsewhere", "pid": 1, "launched_by": "cli", "file": "orders.yaml"}
JANUARY, FEBRUARY = "2024-01-01", "2024-02-01"


def test_equal_requests_are_one_until_the_owner_has_begun_it(open_ledger):
    one, two = open_ledger(), open_ledger()
    lease = one.acquire("orders", "main", HOLDER, 30)
    first = two.request_refresh("orders", [FEBRUARY, JANUARY], by="ann@a")
    again = two.request_refresh("orders", [JANUARY, FEBRUARY, JANUARY], by="bob@b")
    assert first == again
    assert (first.number, first.partitions, first.by) == (1, (JANUARY, FEBRUARY), "ann@a")
    other = two.request_refresh("orders", [JANUARY], by="bob@b")
    assert one.pending_refreshes("orders") == [first, other]
    assert two.pending_refreshes("shop") == []

    one.begin_refresh(lease, first.number, 7)
    later = two.request_refresh("orders", [JANUARY, FEBRUARY], by="bob@b")
    assert later.number == 3, "rows that came after the snapshot of the first request need another refresh"
    assert [request.first_epoch for request in two.pending_refreshes("orders")] == [7, None, None]


def test_the_owner_stores_a_result_once(open_ledger):
    one, two = open_ledger(), open_ledger()
    lease = one.acquire("orders", "main", HOLDER, 30)
    done = two.request_refresh("orders", [JANUARY], by="ann@a").number
    refused = two.request_refresh("orders", [FEBRUARY], by="ann@a").number
    one.begin_refresh(lease, done, 7)
    one.end_refresh(lease, done, 8)
    one.refuse_refresh(lease, refused, "the topic is compacted", "Start over.")
    one.end_refresh(lease, refused, 9)
    assert two.pending_refreshes("orders") == []
    result = two.refresh_request("orders", done)
    assert (result.state, result.first_epoch, result.last_epoch) == (RefreshState.DONE, 7, 8)
    result = two.refresh_request("orders", refused)
    assert (result.state, result.last_epoch) == (RefreshState.REFUSED, None)
    assert (result.message, result.hint) == ("the topic is compacted", "Start over.")
    assert two.refresh_request("orders", 3) is None


def test_a_requester_withdraws_its_own_request_until_the_owner_has_begun_it(open_ledger):
    one, two = open_ledger(), open_ledger()
    lease = one.acquire("orders", "main", HOLDER, 30)
    first = two.request_refresh("orders", [JANUARY], by="ann@a")
    assert two.requested_refresh("orders", "bob@b") is None
    assert not two.withdraw_refresh("orders", first.number, by="bob@b")
    assert two.withdraw_refresh("orders", first.number, by="ann@a")
    assert not two.withdraw_refresh("orders", first.number, by="ann@a")
    assert two.requested_refresh("orders", "ann@a").state is RefreshState.WITHDRAWN
    assert one.pending_refreshes("orders") == []
    assert one.begin_refresh(lease, first.number, 7) is False
    one.end_refresh(lease, first.number, 8)
    assert two.refresh_request("orders", first.number).state is RefreshState.WITHDRAWN

    second = two.request_refresh("orders", [JANUARY], by="ann@a")
    assert second.number == 2
    assert two.requested_refresh("orders", "ann@a") == second
    assert one.begin_refresh(lease, second.number, 7) is True
    assert not two.withdraw_refresh("orders", second.number, by="ann@a")
    assert [request.number for request in one.pending_refreshes("orders")] == [2]


def test_a_request_stays_for_the_next_owner_and_a_former_one_cannot_end_it(open_ledger):
    one, two = open_ledger(), open_ledger()
    former = one.acquire("orders", "main", HOLDER, 0.0)
    request = two.request_refresh("orders", [JANUARY], by="ann@a")
    lease = two.acquire("orders", "main", HOLDER, 30)
    for change in (one.begin_refresh, one.end_refresh):
        with pytest.raises(FencedError):
            change(former, request.number, 3)
    assert two.pending_refreshes("orders") == [request]
    two.end_refresh(lease, request.number, 4)
    assert two.pending_refreshes("orders") == []


def test_a_pipeline_that_never_ran_has_no_requests(open_ledger):
    one = open_ledger()
    with pytest.raises(PipelineStateError, match="`orders` never ran"):
        one.request_refresh("orders", [JANUARY], by="ann@a")
    assert one.state("orders") is None


def test_a_reset_refuses_the_requests_that_wait(open_ledger):
    one = open_ledger()
    lease = one.acquire("orders", "main", HOLDER, 30)
    one.begin(lease, lambda: {"k": 0})
    number = one.request_refresh("orders", [JANUARY], by="ann@a").number
    one.reset(lease, {})
    result = one.refresh_request("orders", number)
    assert (result.state, result.message) == (
        RefreshState.REFUSED,
        "the pipeline was reset, and reads all history again",
    )


def test_only_the_newest_results_are_kept_and_all_that_wait(open_ledger):
    one = open_ledger()
    lease = one.acquire("orders", "main", HOLDER, 30)
    waits = one.request_refresh("orders", ["2023-01-01"], by="ann@a")
    number = waits.number
    for _ in range(KEPT_REFRESHES + 5):
        number = one.request_refresh("orders", [JANUARY], by="ann@a").number
        one.end_refresh(lease, number, number)
    assert one.pending_refreshes("orders") == [waits]
    kept = [at for at in range(1, number + 1) if one.refresh_request("orders", at)]
    assert kept == [waits.number, *range(number - KEPT_REFRESHES + 1, number + 1)]


def test_the_heartbeat_reports_that_requests_wait(open_ledger):
    one, two = open_ledger(), open_ledger()
    lease = one.acquire("orders", "main", HOLDER, 30)
    waits, stops = threading.Event(), []
    heartbeat = Heartbeat(one, lease, 30, lambda: 0.0, on_request=stops.append)
    heartbeat.on_refresh = waits.set
    heartbeat.read_request()
    assert not waits.is_set()
    heartbeat.start()
    request = two.request_refresh("orders", [JANUARY], by="ann@a")
    assert waits.wait(30)
    heartbeat.stop()
    one.end_refresh(lease, request.number, 1)
    waits.clear()
    heartbeat.read_request()
    assert not waits.is_set()
    assert stops == []
    two.request_stop("orders", StopAction.STOP, by="ann@a")
    heartbeat.read_request()
    assert [stop.by for stop in stops] == ["ann@a"]


def test_a_ledger_of_the_version_before_is_upgraded(tmp_path):
    path = tmp_path / "ledger.db"
    former = open_sqlite(path)
    former.acquire("orders", "main", HOLDER, 30)
    former.close()
    with sqlite3.connect(path) as connection:
        connection.execute("drop table headrace_ledger_refresh")
        connection.execute("pragma user_version=4")
    upgraded = open_sqlite(path)
    assert upgraded.request_refresh("orders", [JANUARY], by="ann@a").number == 1
    upgraded.close()

"""Requests of a handler's task: sends, retries, failures, and responses.

Against a real server, without Spark.
"""

from __future__ import annotations

import json
import pickle
import re
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from helpers.web_server import Service as Web
from helpers.web_server import WebRequest, served
from pyspark.accumulators import Accumulator

from headrace.connectors.http import client as calls
from headrace.connectors.http.call_metrics import (
    CallCounter,
    CallMetrics,
    call_accumulator,
    drain_call_metrics,
)
from headrace.connectors.http.circuit_breaker import Breaker
from headrace.connectors.http.client import Service
from headrace.connectors.http.decode import ResponseDecoder
from headrace.connectors.row_errors import explain_failure
from headrace.connectors.spark_types import POS_ARROW
from headrace.jobs.staging.pending_calls import PendingCall, read_pending_calls
from headrace.jobs.transforms.http.task import HandlerTask
from headrace.pipeline.errors import DataError, HeadraceError, TransientError, UserError
from headrace.pipeline.sql.system_columns import FAN_OUT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


class Count:
    """Stands for Spark's accumulator."""

    def __init__(self) -> None:
        self.calls = CallMetrics({}, 0)

    def add(self, calls: CallMetrics) -> None:
        self.calls = calls


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    yield
    while calls._callers:
        calls._callers.popitem()[1].close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_FIRST_PAUSE", 0.01)


def task(
    web: Web,
    *,
    size: int = 10,
    single: bool = False,
    version: int = 0,
    schema: pa.Schema = SCHEMA,
    key: Any = (0,),
    **more: Any,
) -> HandlerTask:
    service = Service(
        **{
            "node": "ask",
            "url": web.url,
            "shown": "http://service/rows",
            "headers": {"Content-Type": "application/json", "X-Token": "s3cret"},
            "secrets": ("s3cret",),
            "timeout": 20.0,
            "retry_timeout": 60.0,
            "max_attempts": None,
            "concurrency": 1,
            "circuit_failures": 0,
            "circuit_reset_after": 0.05,
            **more,
        }
    )
    return HandlerTask(service, ResponseDecoder(schema, version, single), size, "uuid/ask/7", key, Count())


def batch(
    count: int, *, start: int = 0, wrap: Callable[[dict[str, Any]], Any] = lambda row: row
) -> pa.RecordBatch:
    rows = [{"id": n, "name": f"n{n}", "_gs_op": "i"} for n in range(start, start + count)]
    places = [{"source": 0, "part": 1, "off": row["id"], "sub": 0} for row in rows]
    columns = [
        pa.array([json.dumps(wrap(row)) for row in rows]),
        pa.array(["i"] * count),
        pa.array(places, POS_ARROW),
    ]
    return pa.RecordBatch.from_arrays(
        [*columns, pa.array([row["id"] for row in rows], pa.int64())], names=["c0", "c1", "c2", "c3"]
    )


def run(made: HandlerTask, *batches: pa.RecordBatch) -> list[dict[str, Any]]:
    result = pa.Table.from_batches(list(made(batches or (batch(25),)))).to_pylist()
    return [
        {
            "id": row["c0"],
            "name": row["c1"],
            "op": row["c2"],
            "off": row["c3"]["off"],
            "sub": row["c3"]["sub"],
        }
        for row in result
    ]


def failure(made: HandlerTask, *batches: pa.RecordBatch) -> HeadraceError:
    with pytest.raises(RuntimeError) as caught:
        run(made, *batches)
    result = explain_failure(caught.value)
    assert result is not None
    return result


def test_rows_go_in_requests_of_a_size_and_come_back_in_order() -> None:
    with served() as web:
        result = run(task(web), batch(7), batch(0), batch(18, start=7))
    assert [(row["id"], row["off"]) for row in result] == [(n, n) for n in range(25)]
    assert [len(one.rows) for one in web.requests] == [10, 10, 5]
    assert web.requests[0].body.startswith(b'[{"id": 0, "name": "n0", "_gs_op": "i"},\n{')
    assert web.requests[0].body.endswith(b"}]\n")
    assert web.requests[0].headers["content-type"] == "application/json"
    assert web.connections == 1


def test_idempotency_keys_do_not_change_with_the_batches_that_spark_makes(quick: None) -> None:
    with served() as web:
        run(task(web), batch(25))
        first, web.requests[:] = web.keys, []
        web.faults = [500]
        run(task(web), batch(3), batch(22, start=3))
    assert first == web.keys[1:]
    assert web.keys[0] == web.keys[1]
    assert len(set(first)) == 3
    assert all(key.startswith("uuid/ask/7/") for key in first)


def test_equal_rows_at_two_places_have_keys_of_their_own() -> None:
    same = batch(2, wrap=lambda row: {**row, "id": 1, "name": "n"})
    with served() as web:
        run(task(web, single=True), same)
    assert web.requests[0].body == web.requests[1].body
    assert web.keys[0] != web.keys[1]


@pytest.mark.parametrize("fault", [500, 503, 408, 429, "reset", "torn", "hang"])
def test_what_may_pass_is_tried_again(quick: None, fault: Any) -> None:
    hangs = (
        fault == "hang"
    )  # only this fault needs a short timeout, which a busy machine can miss at other requests
    with served(faults=[fault, fault]) as web:
        made = task(web, timeout=0.5 if hangs else 20.0)
        assert len(run(made)) == 25
    retries = made.count.calls.retries
    assert retries >= 2 if hangs else retries == 2
    assert len(web.requests) == 3 + retries
    status = {"reset": "network_error", "torn": "body_read_error", "hang": "timeout"}.get(
        fault
    ) or f"{fault // 100}xx"
    assert len(made.count.calls.latencies["retriable_error", status]) == retries
    assert len(made.count.calls.latencies["success", "2xx"]) == 3


@contextmanager
def dripping(before: bytes, drops: bytes) -> Iterator[Any]:
    """A service whose answer comes byte by byte, each well within a timeout of 0.3 s, and whole after 5 s; gives web's `url`."""
    content = b"[]".rjust(50)
    whole = before % {b"length": len(content), b"drops": drops} + content
    ended = threading.Event()

    class Drops(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(65536)
            with suppress(OSError):
                for at in range(len(whole)):
                    if ended.wait(0.0 if at < len(whole) - 50 and not drops else 0.1):
                        return
                    self.request.sendall(whole[at : at + 1])

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Drops) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield SimpleNamespace(url=f"http://127.0.0.1:{server.server_address[1]}/rows")
        finally:
            ended.set()
            server.shutdown()


@pytest.mark.parametrize(
    ("before", "drops", "message", "status"),
    [
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: %(length)d\r\n\r\n",
            b"",
            "HTTP 200, and the body was not there within 0.3 s",
            "body_read_error",
        ),
        (
            b"HTTP/1.1 200 OK\r\nX: %(drops)s\r\nContent-Length: %(length)d\r\n\r\n",
            b"x" * 50,
            "no answer within 0.3 s",
            "timeout",
        ),
    ],
    ids=["body", "headers"],
)
def test_an_answer_that_drips_is_late_as_a_whole(
    before: bytes, drops: bytes, message: str, status: str
) -> None:
    with dripping(before, drops) as web:
        made = task(web, timeout=0.3, max_attempts=1)
        error = failure(made)
    assert isinstance(error, TransientError)
    assert error.message.endswith(f"the last: {message}")
    assert made.count.calls.latencies.keys() == {("retriable_error", status)}


def test_a_service_is_left_alone_for_as_long_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[Any] = []
    monkeypatch.setattr(threading.Event, "wait", lambda _, timeout=None: waits.append(timeout) or False)
    with served(faults=[(429, b"", {"Retry-After": "7"})]) as web:
        calls.HttpCaller(task(web).service).send(
            calls.RequestBatch(batch(1), b"[]", "k"), threading.Event(), CallCounter()
        )
    assert 7.0 in waits


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("3", 3),
        ("0.5", 0.5),
        ("-1", 0),
        ("inf", 3600),
        ("nan", 0),
        ("soon", None),
        ("", None),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0),
    ],
)
def test_retry_after_by_number_and_by_date(header: str, seconds: float | None) -> None:
    assert calls._retry_after(header) == seconds


@pytest.mark.parametrize("status", [400, 401, 404, 422])
def test_a_refusal_is_final_and_told_without_secrets(status: int) -> None:
    with served(lambda _: (status, b'{"error": "token s3cret\\nis wrong"}', {})) as web:
        error = failure(task(web))
    assert isinstance(error, UserError)
    assert (
        error.message
        == f'POST http://service/rows: non-retriable HTTP {status}: {{"error": "token ***\\nis wrong"}}'
    )
    assert error.node == "ask"
    assert len(web.requests) == 1


def test_a_redirect_is_not_followed() -> None:
    with served(lambda _: (302, b"", {"Location": "/other"})) as web:
        assert "HTTP 302" in failure(task(web)).message


def test_it_gives_up_after_a_number_of_attempts(quick: None) -> None:
    with served(lambda _: (503, b"busy", {})) as web:
        error = failure(task(web, max_attempts=3))
    assert isinstance(error, TransientError)
    assert "given up after 3 attempts" in error.message
    assert error.message.endswith("the last: HTTP 503: busy")
    assert len(web.requests) == 3


def test_it_gives_up_after_a_time(quick: None) -> None:
    with served(lambda _: (503, b"", {})) as web:
        error = failure(task(web, retry_timeout=0.3))
    assert "given up after" in error.message
    assert len(web.requests) > 1


def test_nobody_listening_is_told(quick: None) -> None:
    with served() as web:
        pass
    error = failure(task(web, max_attempts=2))
    assert "ConnectError" in error.message


def test_who_looks_at_the_run_is_told_of_a_service_that_does_not_answer(
    quick: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A task's own words reach the driver only when it has ended."""
    monkeypatch.setattr(calls, "_PATIENCE", 0.0)
    seen: list[dict[str, str]] = []

    def answer(request: WebRequest) -> Any:
        seen.append(read_pending_calls(tmp_path))
        return (503, b"busy, s3cret", {}) if len(seen) < 4 else json.loads(request.body)

    with served(answer) as web:
        assert len(run(task(web, wait=PendingCall(tmp_path, "ask")), batch(5))) == 5
    assert seen[0] == {}
    assert re.fullmatch(
        r"POST http://service/rows: tried 3 times in \d s, and again; the last: HTTP 503: busy, \*\*\*",
        seen[3]["ask"],
    )
    assert read_pending_calls(tmp_path) == {}
    with served(lambda _: (503, b"", {})) as web:
        failure(task(web, wait=PendingCall(tmp_path, "ask"), retry_timeout=0.3))
    assert read_pending_calls(tmp_path) == {}


def test_a_request_that_was_given_up_at_once_leaves_no_word(tmp_path: Path) -> None:
    """The service asks for longer than the request may take."""
    with served(lambda _: (503, b"", {"Retry-After": "60"})) as web:
        failure(task(web, wait=PendingCall(tmp_path, "ask"), retry_timeout=0.3))
    assert len(web.requests) == 1
    assert read_pending_calls(tmp_path) == {}


def test_nobody_believes_the_word_of_a_worker_that_was_killed(tmp_path: Path) -> None:
    PendingCall(tmp_path, "a node").note("a service", -1)
    PendingCall(tmp_path, "other").note("another", 60)
    (tmp_path / "torn.json").write_text("{")
    assert read_pending_calls(tmp_path) == {"other": "another"}
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".json"]
    PendingCall(tmp_path, "other").over()
    assert read_pending_calls(tmp_path) == read_pending_calls(tmp_path / "nowhere") == {}
    (tmp_path / "file").touch()
    PendingCall(tmp_path / "file", "ask").note("nothing that a task may fail by", 60)


def test_an_open_circuit_sends_one_probe_at_a_time(quick: None) -> None:
    with served(lambda _: (500, b"", {})) as web:
        error = failure(
            task(
                web,
                single=True,
                concurrency=4,
                circuit_failures=3,
                circuit_reset_after=0.05,
                retry_timeout=1.0,
            ),
            batch(8),
        )
        many = len(web.requests)
    assert "the circuit is open after 3 failures in a row" in error.message
    assert many < 4 + 1.0 / 0.05 + 4


def test_a_circuit_closes_when_the_probe_comes_back(quick: None) -> None:
    with served(faults=[500] * 4) as web:
        result = run(
            task(web, single=True, concurrency=2, circuit_failures=2, circuit_reset_after=0.02), batch(6)
        )
    assert [row["id"] for row in result] == [0, 1, 2, 3, 4, 5]
    assert len(web.requests) == 10


def test_a_breaker_by_its_clock() -> None:
    now = [0.0]
    breaker, stop = Breaker("ask", 2, 10.0, lambda: now[0]), threading.Event()
    breaker.record_failure()
    assert breaker.enter(None, stop)
    breaker.record_failure()
    assert breaker.open
    assert not breaker.enter(-1.0, stop)
    now[0] = 10.0
    assert breaker.enter(None, stop)
    assert not breaker.enter(-1.0, stop), "one probe at a time"
    breaker.record_failure()
    assert not breaker.enter(-1.0, stop), "the pause begins anew"
    now[0] = 20.0
    assert breaker.enter(None, stop)
    breaker.record_success()
    assert not breaker.open
    assert breaker.enter(None, stop)


def test_a_probe_that_breaks_in_an_unforeseen_way_keeps_nobody_waiting(
    quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served() as web:
        caller = calls.HttpCaller(task(web, circuit_failures=1, circuit_reset_after=0.0).service)
    caller.breaker.record_failure()
    monkeypatch.setattr(caller, "_send_once", lambda *_, **__: 1 / 0)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            caller.send(calls.RequestBatch(batch(1), b"[]", "k"), threading.Event(), CallCounter())
    caller.close()


def test_no_more_requests_at_a_time_than_allowed() -> None:
    with served(slow=0.05) as web:
        result = run(task(web, single=True, concurrency=3), batch(12))
    assert [row["id"] for row in result] == list(range(12))
    assert web.busiest == 3
    assert web.connections == 3


def with_rows(change: Callable[[list[dict[str, Any]]], Any]) -> Callable[[WebRequest], Any]:
    return lambda request: change(request.rows)


def test_fewer_rows_keep_the_places_of_their_keys() -> None:
    with served(with_rows(lambda rows: [row for row in rows if row["id"] % 3 == 0])) as web:
        result = run(task(web))
    assert [(row["id"], row["off"]) for row in result] == [(n, n) for n in range(0, 25, 3)]


def test_reordered_rows_keep_the_places_of_their_keys() -> None:
    with served(with_rows(lambda rows: rows[::-1])) as web:
        result = run(task(web))
    assert {row["id"]: row["off"] for row in result} == {n: n for n in range(25)}


def test_more_rows_are_numbered_at_their_places() -> None:
    with served(with_rows(lambda rows: [{**row, "name": name} for row in rows for name in "ab"])) as web:
        result = run(task(web), batch(3))
    assert [(row["name"], row["off"], row["sub"]) for row in result] == [
        ("a", 0, 0), ("b", 0, 1), ("a", 1, 2), ("b", 1, 3), ("a", 2, 4), ("b", 2, 5)
    ]  # fmt: skip


def test_rows_with_new_keys_stand_behind_their_request() -> None:
    with served(with_rows(lambda rows: [{**rows[0], "id": 99}, rows[1]])) as web:
        result = run(task(web), batch(3))
    assert [(row["id"], row["off"], row["sub"]) for row in result] == [(99, 2, 0), (1, 1, 1)]


def test_of_equal_keys_the_last_one_is_meant() -> None:
    sent = batch(4)
    sent = sent.set_column(3, "c3", pa.array([5, 6, 5, 6], pa.int64()))
    with served(lambda _: [{"id": 6, "name": "x", "_gs_op": "u"}]) as web:
        assert [(row["off"], row["sub"]) for row in run(task(web), sent)] == [(3, 0)]


def test_without_a_key_rows_stand_in_the_order_of_the_answer() -> None:
    with served(with_rows(lambda rows: rows[:2])) as web:
        result = run(task(web, key=()), batch(3))
    assert [(row["id"], row["off"], row["sub"]) for row in result] == [(0, 2, 0), (1, 2, 1)]


def test_positions_nest() -> None:
    sent = batch(2)
    places = pa.array(
        [{"source": 0, "part": 0, "off": 5, "sub": 3}, {"source": 0, "part": 0, "off": 5, "sub": 4}],
        POS_ARROW,
    )
    with served() as web:
        result = run(task(web), sent.set_column(2, "c2", places))
    assert [row["sub"] for row in result] == [3 * FAN_OUT, 4 * FAN_OUT + 1]


def test_single_rows_may_vanish_or_multiply() -> None:
    def answer(request: WebRequest) -> Any:
        row = request.rows
        return [[], row, [row, {**row, "_gs_op": "d"}]][row["id"]]

    with served(answer) as web:
        result = run(task(web, single=True), batch(3))
    assert [(row["id"], row["op"], row["off"], row["sub"]) for row in result] == [
        (1, "i", 1, 0),
        (2, "i", 2, 0),
        (2, "d", 2, 1),
    ]


def test_the_operation_is_the_answers_else_the_requests() -> None:
    def answer(request: WebRequest) -> Any:
        first, second = request.rows
        del second["_gs_op"]
        return [{**first, "_gs_op": "d"}, second]

    with served(answer) as web:
        assert [row["op"] for row in run(task(web), batch(2))] == ["d", "i"]


def test_version_1_wraps_and_unwraps() -> None:
    wrapped = batch(2, wrap=lambda row: {"metadata": {"op": row["_gs_op"]}, "data": row})
    with served() as web:
        assert [row["id"] for row in run(task(web, version=1), wrapped)] == [0, 1]
    with served(lambda _: [{"metadata": {"op": "u"}, "data": {"id": 1, "name": "x"}}]) as web:
        assert [row["op"] for row in run(task(web, version=1), wrapped)] == ["u"]
    with served(lambda _: [{"metadata": {"op": "u"}}]) as web:
        assert "field 'data' not found in JSON object" in failure(task(web, version=1), wrapped).message


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"", "the body is empty"),
        (b"<html>starting</html>", ("failed to parse JSON in batch mode: expected an array of objects, found"
                                   " no JSON")),
        (b'{"id": 1}', "failed to parse JSON in batch mode: expected an array of objects, found an object"),
        (b"null", "expected an array of objects, found null"),
        (b'[{"id": 1', "failed to parse JSON in batch mode"),
        (b"[1]", "row 0 is a number, an object is expected"),
        (b"[null]", "row 0 is null, an object is expected"),
        ((b'[{"id": "one", "name": "x", "_gs_op":'
         b' "i"}]'), "row 0, column `id` is declared as int64, found a text \"one\""),
        ((b'[{"id": 1.5, "name": "x", "_gs_op":'
         b' "i"}]'), 'row 0, column `id` is declared as int64, found a number "1.5"'),
        (b'[{"id": true, "_gs_op": "i"}]', "row 0, column `id` is declared as int64, found a boolean true"),
        ((b'[{"id": 9223372036854775808, "_gs_op":'
         b' "i"}]'), "row 0, column `id` is declared as int64, found a number"),
        ((b'[{"id": 1, "name": {"a": 1}, "_gs_op":'
         b' "i"}]'), "row 0, column `name` is declared as string, found an object"),
        (b'[{"id": 1, "name": "x", "_gs_op": "x"}]', "`_gs_op` is `x` in 1 rows; allowed: i, u, d"),
        (b'[{"id": 1, "name": "x", "_gs_op": 5}]', "row 0: `_gs_op` is a number; allowed: i, u, d"),
        (b'[{"id": 99, "name": "x"}]', "1 of 1 rows lack `_gs_op`"),
        (b'[{"name": "x", "_gs_op": "i"}]', "1 of 1 rows lack `id`, which is a column of the key"),
        (b'[{"id": NaN, "_gs_op": "i"}]', "NaN is no JSON"),
        (b'[{"id": 1, "_gs_op": "i"}] [', "failed to parse JSON in batch mode"),
    ],
)  # fmt: skip
def test_an_answer_that_is_none_is_told(answer: bytes, message: str) -> None:
    with served(lambda _: answer) as web:
        error = failure(task(web), batch(2))
    assert isinstance(error, DataError)
    assert error.message.startswith("POST http://service/rows answered HTTP 200, but ")
    assert message in error.message
    if answer:
        assert answer.decode()[:20] in error.message


def test_a_task_is_picklable_and_shows_no_secret() -> None:
    with served() as web:
        made = replace(task(web), count=None)
    assert "s3cret" not in repr(made)
    assert web.url not in repr(made)
    assert pickle.loads(pickle.dumps(made)) == made


def test_calls_that_nobody_asks_for_are_not_kept_for_ever() -> None:
    class Context:
        """A session, as far as counting is concerned."""

        def __init__(self) -> None:
            self.sparkContext = self

        def accumulator(self, value: CallMetrics, param: Any) -> Accumulator[CallMetrics]:
            return Accumulator(2**40, value, param)

    spark = cast("SparkSession", Context())
    for _ in range(30):
        call_accumulator(spark, "unwatched").add(CallMetrics({("success", "2xx"): [1.0] * 1000}, 0))
    assert len(drain_call_metrics()["unwatched"].latencies["success", "2xx"]) <= 12_000

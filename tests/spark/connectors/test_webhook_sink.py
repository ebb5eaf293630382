"""The webhook sink: requests, keys, retries, refusals and secrets."""

from __future__ import annotations

import json
import logging
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from helpers.ports import free_port
from helpers.sink_makers import KEYED, frame, plan
from helpers.web_server import Service, WebRequest, served
from helpers.webhook_sink import KEY, Receiver, webhook_sink
from pyspark.sql import SparkSession

from headrace.connectors.http import client
from headrace.jobs.staging.pending_calls import read_pending_calls
from headrace.pipeline.errors import HeadraceError, SchemaError, TransientError, UserError

SECRET = "t0p-secret-value"


def people(*pairs: tuple[int, str | None]) -> list[dict[str, object]]:
    return [{"id": key, "name": name} for key, name in pairs]


FIVE = people((1, "a"), (2, None), (1, "b"), (3, 'c"\n'), (2, None))


def keys(epoch: int, *numbers: int) -> list[str]:
    return [f"{KEY.text}/{epoch}/{number}" for number in numbers]


@pytest.mark.parametrize("estimate", [5, 10**9], ids=["driver", "spark"])
def test_changes_are_sent_in_batches_in_their_order(
    spark: SparkSession, tmp_path: Path, estimate: int
) -> None:
    with served(Receiver()) as service:
        sink = webhook_sink(spark, service.url, tmp_path, KEYED, batch_size=2)
        sink.prepare(KEYED, 7)
        counts = sink.write(plan(1), frame(spark, KEYED, FIVE, "iiuid", (), estimate=estimate))
        sink.write(plan(2), frame(spark, KEYED, [], "", ()))
        sink.close()
    assert counts.rows == 5
    assert counts.inserted is None
    assert service.keys == keys(1, 0, 1, 2)
    assert service.requests[0].body == (
        b'[{"id":1,"name":"a","_gs_op":"i"},\n{"id":2,"name":null,"_gs_op":"i"}]\n'
    )
    assert [row["_gs_op"] for requests in service.requests for row in requests.rows] == list("iiuid")
    assert service.requests[2].rows == [{"id": 2, "name": None, "_gs_op": "d"}]
    assert {requests.headers["headrace-generation"] for requests in service.requests} == {"7"}
    assert {requests.headers["content-type"] for requests in service.requests} == {"application/json"}
    assert service.busiest == 1


def test_rows_of_the_driver_are_sent_like_those_of_a_frame(spark: SparkSession, tmp_path: Path) -> None:
    with served(Receiver()) as service:
        sink = webhook_sink(spark, service.url, tmp_path, KEYED)
        sink.prepare(KEYED, 1)
        inputs = frame(spark, KEYED, FIVE, "iiuid", ())
        local = type(inputs)(inputs.node_rows, KEYED, (), 5, spark, table=inputs.rows.toArrow())
        sink.write(plan(1), local)
        sink.write(plan(1), inputs)
        sink.close()
    assert len(service.requests) == 1, "the second attempt has the same request, which was accepted"


@pytest.mark.parametrize("single", [False, True])
def test_version_1_puts_rows_under_data(spark: SparkSession, tmp_path: Path, single: bool) -> None:
    with served(Receiver()) as service:
        node = {"payload_version": 1, "one_row_per_request": single}
        sink = webhook_sink(spark, service.url, tmp_path, KEYED, **node)
        sink.prepare(KEYED, 1)
        sink.write(plan(3), frame(spark, KEYED, people((1, "a"), (2, "b")), "ud", ()))
        sink.close()
    first = {"metadata": {"op": "u"}, "data": {"id": 1, "name": "a", "_gs_op": "u"}}
    if single:
        assert service.keys == keys(3, 0, 1)
        assert service.requests[0].rows == first
    else:
        assert service.keys == keys(3, 0)
        assert service.requests[0].rows[0] == first


@pytest.mark.parametrize("fault", [500, 503, 408, 429, "reset", "torn", "hang"])
def test_a_failed_request_is_sent_again_with_its_key(spark: SparkSession, tmp_path: Path, fault: Any) -> None:
    receiver = Receiver()
    timeout = "1s" if fault == "hang" else "20s"  # a busy machine can miss a short timeout
    with served(receiver, faults=[fault]) as service:
        sink = webhook_sink(spark, service.url, tmp_path, KEYED, batch_size=3, timeout=timeout)
        sink.prepare(KEYED, 1)
        sink.write(plan(1), frame(spark, KEYED, FIVE, "iiuid", ()))
        sink.close()
    if fault == "hang":
        assert list(dict.fromkeys(service.keys)) == keys(1, 0, 1)
        assert service.keys.count(keys(1, 0)[0]) >= 2
    else:
        assert service.keys == keys(1, 0, 0, 1)
    assert len(receiver.rows()) == 5


def test_after_the_limit_the_epoch_fails_and_continues(spark: SparkSession, tmp_path: Path) -> None:
    rows = frame(spark, KEYED, FIVE, "iiuid", ())
    with served(Receiver()) as service:
        sink = webhook_sink(spark, service.url, tmp_path, KEYED, batch_size=2)
        sink.prepare(KEYED, 1)
        service.answer = lambda request: (
            [] if request.headers["idempotency-key"].endswith("/0") else (503, b"busy", {})
        )
        with pytest.raises(TransientError, match=r"given up after 4 attempts .* HTTP 503: busy") as caught:
            sink.write(plan(1), rows)
        assert caught.value.node == "out"
        assert service.keys == keys(1, 0, 1, 1, 1, 1)
        service.answer = Receiver()
        service.requests.clear()
        assert sink.write(plan(1), rows).rows == 5
        assert service.keys == keys(1, 1, 2)
        sink.close()
        # Another process does not know what was accepted, and sends the same bytes under the same keys.
        before = {requests.headers["idempotency-key"]: requests.body for requests in service.requests}
        service.requests.clear()
        again = webhook_sink(spark, service.url, tmp_path, KEYED, batch_size=2)
        again.prepare(KEYED, 2)
        again.write(plan(1), rows)
        again.close()
    assert service.keys == keys(1, 0, 1, 2)
    assert all(
        before[key] == requests.body
        for requests in service.requests
        if (key := requests.headers["idempotency-key"]) in before
    )


def test_the_heartbeat_sees_a_service_that_does_not_answer(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_PATIENCE", 0.0)
    notes: list[dict[str, str]] = []

    def answer(request: WebRequest) -> Any:
        notes.append(read_pending_calls(tmp_path))
        return (503, b"busy", {}) if len(notes) < 3 else []

    with served(answer) as service:
        sink = webhook_sink(spark, service.url, tmp_path, KEYED)
        sink.prepare(KEYED, 1)
        assert sink.write(plan(1), frame(spark, KEYED, FIVE, "iiuid", ())).rows == 5
        sink.close()
    assert notes[0] == {}
    assert ["tried 1 times" in notes[1]["out"], "tried 2 times" in notes[2]["out"]] == [True, True]
    assert "HTTP 503: busy" in notes[2]["out"]
    assert read_pending_calls(tmp_path) == {}


def refuse_second(request: WebRequest) -> Any:
    return (422, b"id 1 is unknown", {}) if request.headers["idempotency-key"].endswith("/1") else []


def test_a_refused_request_stops_the_run(spark: SparkSession, tmp_path: Path) -> None:
    with served(refuse_second) as service:
        sink = webhook_sink(spark, service.url, tmp_path, KEYED, batch_size=2)
        sink.prepare(KEYED, 1)
        with pytest.raises(UserError, match="non-retriable HTTP 422: id 1 is unknown") as caught:
            sink.write(plan(1), frame(spark, KEYED, FIVE, "iiuid", ()))
        sink.close()
    assert caught.value.node == "out"
    assert service.keys == keys(1, 0, 1)


@pytest.mark.parametrize("status", [403, 301, 503])
def test_skip_on_error_logs_and_skips_a_refused_request(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    def answer(request: WebRequest) -> Any:
        return (status, b"no", {}) if request.headers["idempotency-key"].endswith("/1") else []

    with served(answer) as service, caplog.at_level(logging.WARNING):
        sink = webhook_sink(spark, service.url, tmp_path, KEYED, batch_size=2, skip_on_error=True)
        sink.prepare(KEYED, 1)
        assert sink.write(plan(1), frame(spark, KEYED, FIVE, "iiuid", ())).rows == 3
        sink.close()
    assert service.keys == keys(1, 0, *[1] * (4 if status == 503 else 1), 2)
    (line,) = [one.getMessage() for one in caplog.records if "request_skipped" in one.getMessage()]
    assert f"key={KEY.text}/1/1 rows=2" in line
    assert f"HTTP {status}" in line


@pytest.mark.parametrize("status", [400, 413, 422])
def test_skip_on_error_skips_only_the_refused_row_of_a_thousand(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    """A request that is refused for a row is sent in halves, with the same keys at every attempt."""
    accepted: list[int] = []

    def answer(request: WebRequest) -> Any:
        result = [row["id"] for row in request.rows]
        if 617 in result:
            return status, b"id 617 is unknown", {}
        accepted.extend(result)
        return []

    rows = people(*((at, "a") for at in range(1_000)))
    with served(answer) as service, caplog.at_level(logging.WARNING):
        sink = webhook_sink(spark, service.url, tmp_path, KEYED, batch_size=1_000, skip_on_error=True)
        for attempt in range(2):
            sink.prepare(KEYED, 1 + attempt)
            accepted.clear()
            assert sink.write(plan(1), frame(spark, KEYED, rows, "i" * 1_000, ())).rows == 999
            assert accepted == ([at for at in range(1_000) if at != 617] if attempt == 0 else [])
        sink.close()
    # The first attempt sends halves of halves, the second one only those that have the refused row.
    assert len(service.keys) <= 3 * math.ceil(math.log2(1_000)) + 2
    skipped = [one.getMessage() for one in caplog.records if "request_skipped" in one.getMessage()]
    assert len(skipped) == 2
    assert all(" rows=1 " in line and "id 617 is unknown" in line for line in skipped)
    assert len({line.split()[1] for line in skipped}) == 1


def test_skip_on_error_skips_nothing_without_an_answer(spark: SparkSession, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}/hook"
    sink = webhook_sink(spark, url, tmp_path, KEYED, skip_on_error=True, retry={"max_attempts": 2})
    sink.prepare(KEYED, 1)
    with pytest.raises(TransientError, match="given up after 2 attempts"):
        sink.write(plan(1), frame(spark, KEYED, FIVE, "iiuid", ()))
    sink.close()


def test_requests_overlap_only_if_the_file_says_so(spark: SparkSession, tmp_path: Path) -> None:
    receiver = Receiver()
    with served(receiver, slow=0.2) as service:
        sink = webhook_sink(spark, service.url, tmp_path, KEYED, batch_size=1, concurrency=4)
        sink.prepare(KEYED, 1)
        sink.write(plan(1), frame(spark, KEYED, FIVE, "iiuid", ()))
        sink.close()
    assert 1 < service.busiest <= 4
    assert [row["_gs_op"] for row in receiver.rows()] == list("iiuid")


def test_secrets_are_sent_and_never_shown(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HOOK_TOKEN", f"{SECRET}-2")
    settings = {"http_secret_header": {"shop": "X-Shop-Key"}, "http_secret_value": {"shop": SECRET}}

    def leak(request: WebRequest) -> Any:
        return 400, f"bad key {request.headers['x-shop-key']} {request.headers['authorization']}".encode(), {}

    with served(leak) as service, caplog.at_level(logging.DEBUG):
        node = {"secret_name": "shop", "headers": {"Authorization": "Bearer ${HOOK_TOKEN}"}}
        sink = webhook_sink(spark, f"{service.url}?token=${{HOOK_TOKEN}}", tmp_path, KEYED, settings, **node)
        sink.prepare(KEYED, 1)
        with pytest.raises(UserError, match="non-retriable HTTP 400") as caught:
            sink.write(plan(1), frame(spark, KEYED, people((1, "a")), "i", ()))
        skipping = webhook_sink(
            spark,
            f"{service.url}?token=${{HOOK_TOKEN}}",
            tmp_path,
            KEYED,
            settings,
            **node,
            skip_on_error=True,
        )
        skipping.prepare(KEYED, 1)
        skipping.write(plan(1), frame(spark, KEYED, people((1, "a")), "i", ()))
        shown = json.dumps([str(caught.value), sink.describe(), repr(sink._node), caplog.text])
    assert service.requests[0].headers["x-shop-key"] == SECRET
    assert service.requests[0].headers["authorization"] == f"Bearer {SECRET}-2"
    assert service.requests[0].path.endswith(f"token={SECRET}-2")
    assert SECRET not in shown
    assert sink.describe()["location"].endswith("/rows?***")


@pytest.mark.parametrize(
    ("node", "says"),
    [
        ({"url": "${NOT_SET_HERE}"}, r"`\$\{NOT_SET_HERE\}` is not set"),
        ({"secret_name": "nobody"}, "nobody"),
        ({"headers": {"X-A": "${HOOK_TOKEN}"}}, "the header `X-A` has a control character in it"),
    ],
)
def test_what_cannot_be_sent_is_an_error_before_a_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, node: dict[str, Any], says: str
) -> None:
    monkeypatch.setenv("HOOK_TOKEN", "a\nb")
    for check in ("validate", "prepare"):
        sink = webhook_sink(spark, **({"url": "http://127.0.0.1:1/x"} | node), folder=tmp_path, schema=KEYED)
        with pytest.raises(HeadraceError, match=says) as caught:
            sink.validate_target() if check == "validate" else sink.prepare(KEYED, 1)
        assert caught.value.node == "out"


def test_values_keep_their_digits_and_intervals_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema(
        [
            ("m", pa.decimal128(38, 4)),
            ("t", pa.timestamp("us", tz="UTC")),
            ("b", pa.binary()),
            ("f", pa.float64()),
        ]
    )
    row = {"m": 2**100, "t": datetime(2024, 5, 1, 1, 2, 3, 4, UTC), "b": b"\x00\xff", "f": float("nan")}
    with served(Receiver()) as service:
        sink = webhook_sink(spark, service.url, tmp_path, schema)
        sink.prepare(schema, 1)
        sink.write(plan(1), frame(spark, schema, [row], "i", ()))
        sink.close()
    assert service.requests[0].body == (
        b'[{"m":1267650600228229401496703205376.0000,"t":"2024-05-01T01:02:03.000004Z","b":"00ff","f":null,'
        b'"_gs_op":"i"}]\n'
    )
    odd = pa.schema([("d", pa.duration("us"))])
    with pytest.raises(SchemaError, match="column `d`: JSON cannot carry duration"):
        webhook_sink(spark, service.url, tmp_path, odd).validate_target()


def test_the_service_counts_calls(spark: SparkSession, tmp_path: Path) -> None:
    from headrace.connectors.http.call_metrics import drain_call_metrics

    drain_call_metrics()
    with served(Receiver(), faults=[503]) as service:
        sink = webhook_sink(spark, service.url, tmp_path, KEYED)
        sink.prepare(KEYED, 1)
        sink.write(plan(1), frame(spark, KEYED, FIVE, "iiuid", ()))
        sink.close()
    calls = drain_call_metrics()["out"]
    assert calls.retries == 1
    assert {key: len(result) for key, result in calls.latencies.items()} == {
        ("retriable_error", "5xx"): 1,
        ("success", "2xx"): 1,
    }
    assert isinstance(service, Service)

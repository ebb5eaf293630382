"""A handler in Spark: requests of every column type, responses, and the division of rows among tasks."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from helpers.web_server import Service, WebRequest, served
from pyspark.sql import SparkSession

from headrace.connectors.http.call_metrics import drain_call_metrics
from headrace.connectors.spark_types import spark_schema
from headrace.jobs.planning.planner import PipelinePlanner
from headrace.jobs.planning.source_schemas import FixedSchemaSource
from headrace.jobs.sources.source_batch import SourceBatch
from headrace.jobs.spark.errors import as_headrace_error
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import DataError, SchemaError, UserError
from headrace.pipeline.file.loader import parse_pipeline
from headrace.pipeline.protocol.epochs import EpochPlan, Phase
from headrace.pipeline.sql.system_columns import POS_TYPE
from headrace.pipeline.types.int256 import UINT256

FILE = """
name: asks
sources: {{src: {{type: kafka, topic: t, primary_key: id, schema: {{id: int64}}}}}}
transforms:
  ask: {{type: handler, from: src, url: "{url}", {more}}}
  after: {{type: sql, sql: "select * from ask where id >= 0"}}
sinks: {{out: {{type: blackhole, from: after}}}}
"""
PLAIN = pa.schema([("id", pa.int64()), ("name", pa.string())])


@pytest.fixture
def web() -> Iterator[Service]:
    with served() as service:
        yield service


def planner(
    spark: SparkSession, url: str, schema: pa.Schema = PLAIN, more: str = "batch_size: 10", **settings: Any
) -> PipelinePlanner:
    made = PipelinePlanner(
        parse_pipeline(FILE.format(url=url, more=more)),
        spark,
        {"src": FixedSchemaSource(schema)},
        Settings(**settings),
    )
    made.pipeline = "uuid"
    return made


def plan(rows: int = 1000) -> EpochPlan:
    ends = [{"src": {"stream": {"offsets": {"0": offset}}}} for offset in (0, rows)]
    return EpochPlan(7, Phase.LIVE, ends[0], ends[1], "hash", datetime(2026, 1, 1, tzinfo=UTC))


def reading(
    made: PipelinePlanner, rows: list[tuple[Any, ...]], schema: pa.Schema = PLAIN, parts: int = 3
) -> dict[str, SourceBatch]:
    payload = made.spark.createDataFrame(rows, spark_schema(schema)).repartition(parts)
    frame = payload.selectExpr("*", "'u' AS _gs_op", f"CAST(struct(0, 0, id, 0) AS {POS_TYPE}) AS _gs_pos")
    return {"src": SourceBatch(frame, len(rows))}


def rows_of(
    made: PipelinePlanner, readings: dict[str, SourceBatch], rows: int = 1000, node: str = "after"
) -> list[dict[str, Any]]:
    return sorted(made.nodes(readings, plan(rows))[node].toArrow().to_pylist(), key=lambda row: row["id"])


def test_every_type_goes_out_as_json_and_comes_back(spark: SparkSession, web: Service) -> None:
    schema = pa.schema(
        [
            ("id", pa.int64()), ("flag", pa.bool_()), ("ratio", pa.float64()),
            ("price", pa.decimal128(20, 4)), ("wide", UINT256), ("raw", pa.binary()), ("day", pa.date32()),
            ("at", pa.timestamp("us", tz="UTC")), ("local", pa.timestamp("us")),
            ("tags", pa.list_(pa.string())), ("inner", pa.struct([("raw", pa.binary()), ("n", pa.int32())])),
            ("odd name, 'x'", pa.string()),
        ]
    )  # fmt: skip
    moment = datetime(2025, 1, 2, 3, 4, 5, 678901)
    full = (
        1, True, 0.5, Decimal("12345678901234.5678"), str(2**256 - 1), bytearray(b"\x00\xff"),
        date(2025, 1, 2), moment.replace(tzinfo=UTC), moment, ["a", None], (bytearray(b"\x01"), 5),
        'quote " and \n',
    )  # fmt: skip
    empty = (2, *[None] * 11)
    infinite = (3, None, float("inf"), *[None] * 9)
    made = planner(spark, web.url, schema)
    result = rows_of(made, reading(made, [full, empty, infinite], schema), rows=3)
    assert web.requests[0].rows[0] == {
        "id": 1, "flag": True, "ratio": 0.5, "price": 12345678901234.5678, "wide": str(2**256 - 1),
        "raw": "00ff", "day": "2025-01-02", "at": "2025-01-02T03:04:05.678901Z",
        "local": "2025-01-02T03:04:05.678901", "tags": ["a", None], "inner": {"raw": "01", "n": 5},
        "odd name, 'x'": 'quote " and \n', "_gs_op": "u",
    }  # fmt: skip
    assert web.requests[0].rows[1] == dict.fromkeys(schema.names, None) | {"id": 2, "_gs_op": "u"}
    assert [row["_gs_op"] for row in result] == ["u"] * 3
    first = {name: result[0][name] for name in schema.names}
    assert list(first.values()) == [
        1, True, 0.5, Decimal("12345678901234.5678"), str(2**256 - 1), b"\x00\xff", date(2025, 1, 2),
        moment.replace(tzinfo=UTC), moment, ["a", None], {"raw": b"\x01", "n": 5}, 'quote " and \n',
    ]  # fmt: skip
    assert [row["ratio"] for row in result[1:]] == [None, None]
    assert made.schemas["after"].field("wide").type == UINT256


def test_columns_go_come_and_change_their_type(spark: SparkSession) -> None:
    def answer(request: WebRequest) -> Any:
        return [{"id": str(row["id"]), "score": 0.5, "more": 1, "_gs_op": "i"} for row in request.rows]

    with served(answer) as web:
        made = planner(spark, web.url, more="schema_override: {id: Utf8, name: null, score: Float64}")
        result = made.nodes(reading(made, [(5, "x")]), plan(1))["ask"].toArrow().to_pylist()
    assert result == [
        {"id": "5", "score": 0.5, "_gs_op": "i", "_gs_pos": {"source": 0, "part": 0, "off": 5, "sub": 0}}
    ]
    assert made.schemas["ask"].types == [pa.string(), pa.float64()]


def test_requests_are_cut_the_same_however_spark_divides_the_rows(spark: SparkSession, web: Service) -> None:
    values = [(n, f"n{n}") for n in range(1000)]
    keys: list[set[str]] = []
    for parts in (1, 5):
        made = planner(spark, web.url, more="batch_size: 100")
        assert [
            row["id"] for row in rows_of(made, reading(made, values[:: 1 if parts == 1 else -1], parts=parts))
        ] == list(range(1000))
        keys.append(set(web.keys))
        web.requests.clear()
    assert keys[0] == keys[1]
    assert len(keys[0]) >= 10


def test_a_small_epoch_is_one_request(spark: SparkSession, web: Service) -> None:
    made = planner(spark, web.url)
    rows_of(made, reading(made, [(n, "x") for n in range(10)]), rows=10)
    assert [len(one.rows) for one in web.requests] == [10]
    assert [row["id"] for row in web.requests[0].rows] == list(range(10))


def test_no_rows_ask_nobody(spark: SparkSession, web: Service) -> None:
    made = planner(spark, web.url)
    assert rows_of(made, reading(made, []), rows=0) == []
    assert web.requests == []


def test_calls_are_counted_for_the_driver(spark: SparkSession, web: Service) -> None:
    drain_call_metrics()
    made = planner(spark, web.url)
    web.faults = [503]
    rows_of(made, reading(made, [(n, "x") for n in range(40)]), rows=40)
    calls = drain_call_metrics()["ask"]
    assert {key: len(latencies) for key, latencies in calls.latencies.items()} == {
        ("success", "2xx"): 4,
        ("retriable_error", "5xx"): 1,
    }
    assert calls.retries == 1
    assert drain_call_metrics() == {}


def test_errors_of_a_task_keep_their_words(spark: SparkSession) -> None:
    with served(lambda _: b"nothing") as web:
        made = planner(spark, web.url)
        with pytest.raises(Exception, match="failed to parse JSON in batch mode") as caught:
            rows_of(made, reading(made, [(1, "x")]), rows=1)
    error = as_headrace_error(caught.value)
    assert (type(error), error.node) == (DataError, "ask")
    assert "body: nothing" in error.message


def test_secrets_reach_the_service_and_nothing_else(
    spark: SparkSession, web: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASK_TOKEN", "canary-1")
    settings = {"http_secret_header": {"my_key": "X-Key"}, "http_secret_value": {"my_key": "canary-2"}}
    more = "secret_name: My-Key, headers: {Authorization: 'Bearer ${ASK_TOKEN}'}"
    made = planner(spark, web.url + "?token=${ASK_TOKEN}", more=more, **settings)
    nodes = made.nodes(reading(made, [(1, "x")]), plan(1))
    nodes["after"].collect()
    headers = web.requests[0].headers
    assert (headers["x-key"], headers["authorization"]) == ("canary-2", "Bearer canary-1")
    assert web.requests[0].path == "/rows?token=canary-1"
    frame: Any = nodes["after"]
    shown = [
        str(made.file.compiled()),
        frame._jdf.queryExecution().toString(),
        made.plan_text(),
        repr(made.file),
    ]
    assert not [text for text in shown if "canary" in text]


def test_secrets_that_are_not_there_are_told(spark: SparkSession, web: Service) -> None:
    made = planner(spark, web.url, more="secret_name: my-key")
    with pytest.raises(UserError, match=r"`my-key` has no `http_secret_header\.my_key`") as caught:
        made.nodes(reading(made, []), plan(1))
    assert "HEADRACE__HTTP_SECRET_HEADER__MY_KEY" in caught.value.hint
    settings = {"http_secret_header": {"k": "X-Key"}, "http_secret_value": {"k": "word\n"}}
    made = planner(spark, web.url, more="secret_name: k", **settings)
    with pytest.raises(UserError, match="the header `X-Key` has a control character in it") as caught:
        made.nodes(reading(made, []), plan(1))
    assert "word" not in str(caught.value)
    settings = {"http_secret_header": {"k": "X-Key"}, "http_secret_value": {"k": "v"}}
    made = planner(spark, web.url, more="secret_name: k, headers: {x-key: v}", **settings)
    with pytest.raises(
        UserError, match="cannot set both 'secret_name' and an explicit 'X-Key' header - remove one"
    ):
        made.nodes(reading(made, []), plan(1))


def test_a_test_asks_no_service(spark: SparkSession, web: Service) -> None:
    made = planner(spark, web.url)
    made.pipeline = ""
    with pytest.raises(Exception, match="a test asks no service") as caught:
        rows_of(made, reading(made, [(1, "x")]))
    assert as_headrace_error(caught.value).hint.startswith("Give the rows")
    assert rows_of(made, reading(made, [])) == []


@pytest.mark.parametrize(
    ("more", "schema", "message"),
    [
        ("schema_override: {other: null}", PLAIN, "drops `other`, which is no column of `src`"),
        ("batch_size: 1", pa.schema([*PLAIN, ("d", pa.duration("us"))]), "column `d` is a duration"),
        ("schema_override: {id: null}", PLAIN, "Primary key validation failed for node 'ask'"),
    ],
)
def test_columns_that_cannot_be_are_told_before_a_run(
    spark: SparkSession, more: str, schema: pa.Schema, message: str
) -> None:
    with pytest.raises((SchemaError, UserError), match=message.replace("(", r"\(")):
        planner(spark, "http://localhost:1/", schema, more)

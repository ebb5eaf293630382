"""Functions in pipeline files.

Types of columns as far as the sink, values, errors with the node, ids that a replay gives again.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from helpers.depth import FULL

from headrace.connectors.spark_types import spark_schema
from headrace.jobs.planning.planner import PipelinePlanner
from headrace.jobs.planning.source_schemas import FixedSchemaSource
from headrace.jobs.sources.source_batch import SourceBatch
from headrace.jobs.spark.errors import as_headrace_error
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import DataError, UserError
from headrace.pipeline.file.loader import parse_pipeline
from headrace.pipeline.protocol.epochs import EpochPlan, Phase
from headrace.pipeline.sql.system_columns import OP, POS, POS_TYPE
from headrace.pipeline.types.int256 import INT256, UINT256

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOW = datetime(2025, 3, 4, 5, 6, 7, 890000, UTC)
PAYLOAD = pa.schema(
    [("id", pa.int64()), ("amount", UINT256), ("fee", UINT256), ("delta", INT256), ("doc", pa.string())]
)
FILE = """
version: 1
name: functions
sources: {{src: {{type: clickhouse, table_name: t, primary_key: id}}}}
transforms:
  calc: {{type: sql, primary_key: id, sql: "{calc}"}}
  after: {{type: sql, primary_key: id, sql: "{after}"}}
sinks: {{out: {{type: blackhole, from: after}}}}
"""
ROWS: list[tuple[Any, ...]] = [
    (1, str(2**256 - 1), "1", "-7", '{"a": 1}', "i", (0, 0, 1, 0)),
    (2, "1000000000000000000000", "0", "7", None, "u", (0, 0, 2, 0)),
]


def _plan(planned_at: datetime) -> EpochPlan:
    return EpochPlan(number=1, phase=Phase.HISTORY, start={}, end={}, pipeline_hash="", planned_at=planned_at)


@pytest.fixture
def run(spark: SparkSession) -> Callable[..., tuple[PipelinePlanner, DataFrame]]:
    def running(
        calc: str, after: str = "SELECT * FROM calc", now: datetime = NOW
    ) -> tuple[PipelinePlanner, DataFrame]:
        planner = PipelinePlanner(
            parse_pipeline(FILE.format(calc=calc, after=after)),
            spark,
            {"src": FixedSchemaSource(PAYLOAD)},
            Settings(),
        )
        from pyspark.sql.types import StructType

        hidden = cast("StructType", StructType.fromDDL(f"{OP} string, {POS} {POS_TYPE}"))
        rows = planner.spark.createDataFrame(
            ROWS, StructType([*spark_schema(PAYLOAD).fields, *hidden.fields])
        )
        return planner, planner.nodes({"src": SourceBatch(rows, len(ROWS))}, _plan(now))["after"]

    return running


def test_types_and_values_reach_the_sink(run: Callable[..., tuple[PipelinePlanner, DataFrame]]) -> None:
    calc = (
        "SELECT id, CASE WHEN fee <> '0' THEN u256_sub(u256_div(amount, fee), fee) END AS share,"
        " i256_neg(delta) AS other, amount,"
        " u256_to_string(amount) AS text, u256_compare(amount, to_u256('0x3635c9adc5dea00000')) AS c,"
        " json_value(doc, '$.a') AS a FROM src"
    )
    planner, frame = run(
        calc,
        "SELECT id, coalesce(share, amount) AS s, other, text, c, a, i256_abs(other) AS size FROM calc"
        " WHERE u256_compare(amount, 7) > 0",
    )
    assert {field.name: str(field.type) for field in planner.schemas["calc"]} == {
        "id": "int64", "share": "uint256", "other": "int256", "amount": "uint256", "text": "string", "c": "int32", "a": "string"
    }  # fmt: skip
    assert {field.name: str(field.type) for field in planner.schemas["out"] if field.name in ("s", "other", "size")} == {
        "s": "uint256", "other": "int256", "size": "int256"
    }  # fmt: skip
    rows = [tuple(row)[:7] for row in frame.orderBy("id").collect()]
    assert rows == [
        (1, str(2**256 - 2), "7", str(2**256 - 1), 1, "1", "7"),
        (2, "1" + "0" * 21, "-7", "1" + "0" * 21, 0, None, "7"),
    ]


@pytest.mark.parametrize(
    ("calc", "message"),
    [
        (
            "SELECT id, u256_div(amount, fee) AS x FROM src",
            "u256_div: division by zero: 1000000000000000000000 / 0",
        ),
        ("SELECT id, u256_add(amount, '1') AS x FROM src WHERE id = 1", "u256_add overflow"),
        ("SELECT id FROM src WHERE u256_compare(doc, amount) > 0", "is no whole number"),
    ],
)
def test_errors_name_the_node(
    run: Callable[..., tuple[PipelinePlanner, DataFrame]], calc: str, message: str
) -> None:
    _, frame = run(calc)
    with pytest.raises(Exception, match="headrace-row") as caught:
        frame.collect()
    error = as_headrace_error(caught.value)
    assert isinstance(error, DataError)
    assert error.node == "calc"
    assert message in error.message
    assert "Traceback" not in str(error)


@pytest.mark.parametrize(
    ("calc", "message"),
    [
        (
            "SELECT id, u256_ad('1', '2') AS x FROM src",
            "there is no function `u256_ad`; did you mean `u256_add`?",
        ),
        (
            "SELECT id, u256_ad(amount, fee) AS x FROM src",
            "for `amount`, which is uint256; did you mean `u256_add`?",
        ),
        ("SELECT id, u256_add(amount) AS x FROM src", "`u256_add` takes 2 arguments, found 1"),
        ("SELECT id, json_value(doc, '$..x') AS x FROM src", "the path `$..x` is not possible"),
    ],
)
def test_mistakes_are_found_before_any_row_is_read(
    run: Callable[..., tuple[PipelinePlanner, DataFrame]], calc: str, message: str
) -> None:
    with pytest.raises(UserError) as caught:
        run(calc)
    assert message in str(caught.value)
    assert caught.value.node == "calc"


WIDE = pa.schema(
    [
        ("id", pa.int64()),
        ("c", pa.decimal256(60, 4)),
        ("w", pa.decimal256(39, 0)),
        ("u", UINT256),
        ("n", pa.decimal128(38, 2)),
    ]
)
NUMBERS: list[tuple[Any, ...]] = [
    (1, "9", "10", "9", Decimal("9.00")),
    (2, "10", "-9", "10", Decimal("10.5")),
    (3, "-10.5", "-10", "7", Decimal("-10.50")),
    (4, "-0.0001", "0", "0", Decimal(0)),
    (5, "9" * 56 + ".0001", "9" * 39, str(2**256 - 1), Decimal("1e35")),
    (6, None, None, None, None),
]


FEWER = {"c = '10.000'", "c <> w", "c IN (9, -0.0001)", "w < 9", "u > 9"}
"""Terms that Spark plans as another term of the same test."""


@pytest.mark.sampled
def test_wide_numbers_are_compared_as_numbers(spark: SparkSession) -> None:
    from pyspark.sql.types import StructType

    comparisons: dict[str, Callable[[Any], object]] = {
        "c < 10": lambda v: v.c < 10,
        "c = '10.000'": lambda v: v.c == 10,
        "c >= n": lambda v: v.c >= v.n,
        "c <> w": lambda v: v.c != v.w,
        "c BETWEEN -10.5 AND u": lambda v: Decimal("-10.5") <= v.c <= v.u,
        "c IN (9, -0.0001)": lambda v: v.c in (9, Decimal("-0.0001")),
        "CASE WHEN c > 0 THEN c ELSE 7 END": lambda v: format(v.c if v.c > 0 else Decimal(7), "f"),
        "coalesce(w, -9)": lambda v: str(v.w),
        "w < 9": lambda v: v.w < 9,
        "CAST(w AS int256) + 1": lambda v: str(v.w + 1),
        "u > 9": lambda v: v.u > 9,
        "CAST(concat('0', CAST(u AS STRING)) AS uint256) = u": lambda _: True,
    }
    if not FULL:
        comparisons = {text: right for text, right in comparisons.items() if text not in FEWER}
    items = ", ".join(f"CASE WHEN id < 6 THEN {text} END AS a{at}" for at, text in enumerate(comparisons))
    text = FILE.format(
        calc=f"SELECT id, {items}, c <=> NULL AS nothing, c < 1 AS unknown FROM src",
        after="SELECT * FROM calc",
    )
    planner = PipelinePlanner(
        parse_pipeline(text, "p.yaml"), spark, {"src": FixedSchemaSource(WIDE)}, Settings()
    )
    hidden = cast("StructType", StructType.fromDDL(f"{OP} string, {POS} {POS_TYPE}"))
    values = [(*row, "i", (0, 0, row[0], 0)) for row in NUMBERS]
    rows = planner.spark.createDataFrame(values, StructType([*spark_schema(WIDE).fields, *hidden.fields]))
    result = (
        planner.nodes({"src": SourceBatch(rows, len(values))}, _plan(NOW))["calc"].orderBy("id").collect()
    )
    for (_, c, w, u, n), row in zip(NUMBERS[:5], result, strict=False):
        answers = {text: row[f"a{at}"] for at, text in enumerate(comparisons)}
        assert answers == {
            text: right(SimpleNamespace(c=Decimal(c), w=int(w), u=int(u), n=n))
            for text, right in comparisons.items()
        }
    assert [row["nothing"] for row in result] == [False] * 5 + [True]
    assert [row["unknown"] for row in result] == [False, False, True, True, False, None]
    kinds = {
        "CASE WHEN c > 0 THEN c ELSE 7 END": "decimal256(60, 4)",
        "coalesce(w, -9)": "decimal256(39, 0)",
        "CAST(w AS int256) + 1": "int256",
    }
    schema, texts = planner.schemas["calc"], list(comparisons)
    assert {text: str(schema.field(f"a{texts.index(text)}").type) for text in kinds} == kinds


def test_ids_are_the_same_in_a_replay_and_differ_by_row_and_call(
    run: Callable[..., tuple[PipelinePlanner, DataFrame]],
) -> None:
    calc = "SELECT id, uuid7() AS a, uuid7() AS b, current_time() AS t, today() AS d FROM src"
    first, again, later = (
        run(calc, now=now)[1].orderBy("id").collect() for now in (NOW, NOW, NOW + timedelta(milliseconds=1))
    )
    assert first == again
    ids = [uuid.UUID(row[name]) for rows in (first, later) for row in rows for name in ("a", "b")]
    assert len(set(ids)) == 8
    assert all(one.version == 7 and one.variant == uuid.RFC_4122 for one in ids)
    assert {one.int >> 80 for one in ids[:4]} == {int(NOW.timestamp() * 1000)}
    assert max(ids[:4]) < min(ids[4:])
    assert (first[0]["t"], str(first[0]["d"])) == ("05:06:07.890000", "2025-03-04")


def test_ids_differ_where_a_row_came_twice(run: Callable[..., tuple[PipelinePlanner, DataFrame]]) -> None:
    twice = "SELECT id, 'a' AS branch FROM src UNION ALL SELECT id, 'b' AS branch FROM src"
    result = [row.u for row in run(twice, "SELECT id, uuid7() AS u FROM calc")[1].collect()]
    assert len(set(result)) == len(result) == 2 * len(ROWS)
    through = run(
        "SELECT id FROM src",
        "SELECT id, uuid7() AS u FROM (SELECT id FROM calc UNION ALL SELECT id FROM src)",
    )[1].collect()
    assert len({row.u for row in through}) == len(through) == 2 * len(ROWS)

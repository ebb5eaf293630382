"""Rows that a transform with dead letters cannot compute: from rows in the driver, and from a Spark job."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from headrace.connectors.frame import EpochFrame
from headrace.jobs.planning import rejections
from headrace.jobs.planning.planner import PipelinePlanner
from headrace.jobs.planning.source_schemas import FixedSchemaSource
from headrace.jobs.sources.source_batch import SourceBatch
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import DataError, UserError
from headrace.pipeline.file.loader import parse_pipeline
from headrace.pipeline.protocol.epochs import EpochPlan, Phase
from headrace.pipeline.sql.system_columns import OP, POS
from headrace.pipeline.types.int256 import UINT256

FILE = """
name: p
sources: {{t: {{type: kafka, topic: t, primary_key: id, schema: {{id: int64, v: string, wei: uint256}}}}}}
transforms:
  x: {{type: sql, on_error: dead_letter, max_error_rate: {rate}, sql: "{sql}"}}
sinks:
  out: {{type: blackhole, from: x}}
  few: {{type: blackhole, from: y}}
  bad: {{type: blackhole, from: x.errors}}
"""
FEW = "  y: {type: sql, sql: SELECT id FROM x}\nsinks:"
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string()), ("wei", UINT256)])
CAST = "SELECT id, CAST(v AS INT) AS n, wei FROM t"
EPOCH = EpochPlan(7, Phase.LIVE, {}, {}, "", datetime(2025, 1, 1, tzinfo=UTC))
INVALID = {3: "x", 700: "1e", 701: "", 1999: "9999999999"}


def planner_of(spark: SparkSession, sql: str = CAST, rate: float = 0.1) -> PipelinePlanner:
    text = FILE.format(sql=sql, rate=rate).replace("sinks:\n", f"{FEW}\n")
    return PipelinePlanner(
        parse_pipeline(text, "f.yaml"), spark, {"t": FixedSchemaSource(SCHEMA)}, Settings()
    )


def rows_of(planner: PipelinePlanner, count: int, invalid: dict[int, str], *, in_driver: bool) -> SourceBatch:
    """Rows 0 to `count`, in four partitions or in the driver. The last one is a delete."""
    cases = " ".join(f"WHEN {place} THEN '{value}'" for place, value in invalid.items())
    value = f"CASE id {cases} ELSE CAST(id AS STRING) END" if cases else "CAST(id AS STRING)"
    frame = planner.spark.range(0, count, 1, 4).selectExpr(
        "id",
        f"{value} AS v",
        "CAST(id AS STRING) AS wei",
        f"CASE id WHEN {count - 1} THEN 'd' ELSE 'i' END AS {OP}",
        f"named_struct('source', 9, 'part', CAST(id % 3 AS INT), 'off', id, 'sub', 0L) AS {POS}",
    )
    frame = (
        planner.spark.createDataFrame(frame.toArrow(), planner.spark.table("hr_t_0").schema)
        if in_driver
        else frame
    )
    return SourceBatch(frame, count, is_local=in_driver)


@contextmanager
def frames_of(planner: PipelinePlanner, batch: SourceBatch, *sinks: str) -> Iterator[dict[str, EpochFrame]]:
    with planner.frames(EPOCH, {"t": batch}, sinks or ("out", "few", "bad")) as frames:
        yield frames


def collect(frame: DataFrame) -> list[dict[str, Any]]:
    return sorted(frame.toArrow().to_pylist(), key=lambda row: row[POS]["off"])


@pytest.mark.parametrize("in_driver", [True, False], ids=["driver", "spark"])
def test_rows_that_cannot_be_computed_are_apart(spark: SparkSession, *, in_driver: bool) -> None:
    planner = planner_of(spark)
    batch = rows_of(planner, 2000, INVALID, in_driver=in_driver)
    with frames_of(planner, batch) as frames:
        good, few, bad = (collect(frames[name].rows) for name in ("out", "few", "bad"))
        assert (frames["bad"].estimate, frames["bad"].key) == (3, ("epoch", "position"))
        assert frames["out"].schema.field("wei").type == UINT256
    expected = [number for number in range(2000) if number not in INVALID]
    assert [row["id"] for row in good] == [row["id"] for row in few] == [*expected, 1999]
    assert [row["n"] for row in good] == [*expected, None], "a delete has its key"
    assert (good[-1][OP], good[-1]["wei"]) == ("d", None)
    assert [(row["node"], row["epoch"], row[OP]) for row in bad] == [("x", 7, "i")] * 3
    originals = [json.loads(row["row"]) for row in bad]
    assert {row["id"]: row["v"] for row in originals} == {3: "x", 700: "1e", 701: ""}
    assert [row["wei"] for row in originals] == ["3", "700", "701"]
    assert [row["operation"] for row in bad] == ["i", "i", "i"]
    assert [json.loads(row["position"])["off"] for row in bad] == [3, 700, 701]
    for row, value in zip(bad, ("x", "1e", ""), strict=True):
        assert row["reason"].startswith(f'The value \'{value}\' of the type "STRING" cannot be cast to "INT"')
    assert not planner.spark.catalog.isCached("hr_t_0")


@pytest.mark.parametrize("in_driver", [True, False], ids=["driver", "spark"])
@pytest.mark.parametrize(
    ("sql", "rejected"),
    [
        ("SELECT id, CAST(v AS INT) AS n FROM t WHERE v NOT IN ('x', '1e')", [701]),
        ("SELECT id, n FROM (SELECT id, 10 / (id - 5) AS n FROM t) WHERE id > 6", []),
        (
            "SELECT id, CAST(p AS INT) AS n FROM t LATERAL VIEW explode(split(v, 'e')) s AS p",
            [3, 700, 701],
        ),
        (
            "WITH c AS (SELECT id, CAST(v AS INT) AS n FROM t) SELECT * FROM c UNION ALL SELECT * FROM c",
            [3, 700, 701],
        ),
    ],
)
def test_statements_of_every_shape(
    spark: SparkSession, sql: str, rejected: list[int], *, in_driver: bool
) -> None:
    planner = planner_of(spark, sql)
    with frames_of(planner, rows_of(planner, 2000, INVALID, in_driver=in_driver), "out", "bad") as frames:
        assert [json.loads(row["row"])["id"] for row in collect(frames["bad"].rows)] == rejected
        assert {row["id"] for row in collect(frames["out"].rows)}.isdisjoint(rejected)


def test_a_sink_elsewhere_computes_nothing_of_it(spark: SparkSession) -> None:
    planner = planner_of(spark)
    planner.file.model.sinks["other"] = planner.file.model.sinks["out"].model_copy(update={"from_": "t"})
    planner.schemas["other"], planner.keys["other"] = planner.schemas["t"], ("id",)
    with frames_of(planner, rows_of(planner, 200, {3: "x"}, in_driver=False), "other") as frames:
        assert frames["other"].rows.count() == 200


def test_without_an_invalid_row_the_errors_are_empty(spark: SparkSession) -> None:
    planner = planner_of(spark)
    with frames_of(planner, rows_of(planner, 50, {}, in_driver=True)) as frames:
        assert frames["bad"].rows.count() == frames["bad"].estimate == 0
        assert frames["out"].table is not None
        assert frames["out"].table.num_rows == 50


@pytest.mark.parametrize(
    ("rate", "count", "invalid", "message"),
    [
        (
            0.05,
            100,
            6,
            "6 or more of 100 rows are rejected, more than `max_error_rate` 0.05 allows; the first",
        ),
        (0.05, 100, 5, ""),
        (0.0, 9, 8, ""),
        (1.0, 100, 11, "more than 10 rows of one epoch are rejected; the first one: The value"),
    ],
)
def test_too_many_rejected_rows_fail_the_epoch(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, rate: float, count: int, invalid: int, message: str
) -> None:
    monkeypatch.setattr(rejections, "_MOST", 10)
    planner = planner_of(spark, rate=rate)
    batch = rows_of(planner, count, dict.fromkeys(range(invalid), "x"), in_driver=True)
    if message:
        with pytest.raises(DataError, match=message) as caught, frames_of(planner, batch):
            pass
        assert caught.value.node == "x"
        return
    with frames_of(planner, batch) as frames:
        assert frames["bad"].rows.count() == invalid


def test_a_statement_that_always_fails_is_an_error_of_the_node(spark: SparkSession) -> None:
    planner = planner_of(spark, "SELECT id, 1 / 0 AS n FROM t")
    with frames_of(planner, rows_of(planner, 0, {}, in_driver=True)) as frames:
        assert frames["bad"].rows.count() == 0
    every = rows_of(planner, 100, {}, in_driver=True)
    with (
        pytest.raises(DataError, match="11 or more of 100 rows are rejected") as caught,
        frames_of(planner, every),
    ):
        pass
    assert caught.value.node == "x"


def test_a_nondeterministic_node_has_no_dead_letters(spark: SparkSession) -> None:
    with pytest.raises(UserError, match="`rand` gives another value each time") as caught:
        planner_of(spark, "SELECT id, CAST(v AS INT) + rand() AS n FROM t")
    assert caught.value.node == "x"
    assert "transform of their own" in caught.value.hint


def test_an_error_of_the_input_is_not_a_rejected_row(spark: SparkSession) -> None:
    text = FILE.format(sql="SELECT id, CAST(v AS INT) AS n FROM before", rate=0.1).replace(
        "  few: {type: blackhole, from: y}\n", ""
    )
    text = text.replace(
        "transforms:", "transforms:\n  before: {type: sql, sql: 'SELECT id, v, 1 / id AS w FROM t'}"
    )
    planner = PipelinePlanner(
        parse_pipeline(text, "f.yaml"), spark, {"t": FixedSchemaSource(SCHEMA)}, Settings()
    )
    batch = rows_of(planner, 200, {3: "x"}, in_driver=False)
    with (
        pytest.raises(DataError, match="Division by zero") as caught,
        frames_of(planner, batch, "out", "bad"),
    ):
        pass
    assert caught.value.node == "before"

"""The memory sink."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from helpers.sink_makers import KEYED, TYPES, VALUES, frame, plan
from pyspark.sql import SparkSession

from headrace.connectors.memory.config import MemorySinkConfig
from headrace.connectors.memory.sink import MemorySink
from headrace.connectors.memory.tables import drop_table, read_table
from headrace.connectors.sink_base import SinkContext
from headrace.jobs.run.events import Until
from headrace.jobs.run.runner import run
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import DataError, FencedError, SchemaError, TargetError
from headrace.pipeline.file.loader import parse_pipeline
from headrace.pipeline.protocol.epochs import SinkKey, WriteCounts

KEY = SinkKey("0" * 32, "trial", "main", "out")
PIPELINE = """\
version: 1
name: trial
epoch: {stream_rows: 400}
sources:
  numbers: {type: rate, rows: 2500, primary_key: value}
transforms:
  last: {type: sql, primary_key: id, sql: "SELECT value % 10 AS id, value FROM numbers WHERE value % 10 < 3"}
sinks:
  out: {type: memory, from: last}
  log: {type: memory, from: numbers, table: all_rows, primary_key: [], exclude_gs_op: true}
"""


@pytest.fixture(autouse=True)
def _empty() -> None:
    for name in ("out", "all_rows"):
        drop_table(name)


def sink(key: tuple[str, ...] = ("id",), schema: pa.Schema = KEYED, **node: Any) -> MemorySink:
    config = MemorySinkConfig.model_validate({"from": "x"} | node)
    return MemorySink(SinkContext(KEY, config, Settings(), schema, None, {"key": key}))


def prepared(key: tuple[str, ...] = ("id",), schema: pa.Schema = KEYED, **node: Any) -> MemorySink:
    made = sink(key, schema, **node)
    made.prepare(schema, 1)
    return made


def people(*pairs: tuple[int | None, str | None]) -> list[dict[str, object]]:
    return [{"id": key, "name": name} for key, name in pairs]


def rows() -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in read_table("out").to_pylist())


def test_the_last_of_a_key_wins_in_an_epoch_and_over_epochs(spark: SparkSession) -> None:
    out = prepared()
    first = frame(spark, KEYED, people((1, "a"), (2, "b"), (1, "c"), (3, "d")), "iiui")
    assert out.write(plan(1), first) == WriteCounts(3, None, None, None)
    second = frame(spark, KEYED, people((1, None), (2, "e"), (4, "f"), (4, None), (5, "g")), "duidi")
    out.write(plan(2), replace(second, table=second.rows.toArrow()))
    assert rows() == [(2, "e"), (3, "d"), (5, "g")]
    with pytest.raises(DataError, match="id"):
        out.write(plan(3), frame(spark, KEYED, people((None, "a")), "i"))
    assert len(rows()) == 3


def test_without_a_key_every_row_is_kept_with_its_operation(spark: SparkSession) -> None:
    out = prepared(())
    changes = frame(spark, KEYED, people((1, "a"), (1, "b"), (1, None)), "iud", ())
    out.write(plan(1), changes)
    out.write(plan(2), frame(spark, KEYED, [], "", ()))
    assert read_table("out").to_pylist() == [
        {"id": 1, "name": "a", "_gs_op": "i"},
        {"id": 1, "name": "b", "_gs_op": "u"},
        {"id": 1, "name": None, "_gs_op": "d"},
    ]
    prepared((), table="all_rows", exclude_gs_op=True).write(plan(1), changes)
    assert read_table("all_rows").column_names == ["id", "name"]


def test_an_epoch_is_applied_once_and_only_by_the_newest_generation(spark: SparkSession) -> None:
    out = prepared(())
    one = frame(spark, KEYED, people((1, "a")), "i", ())
    assert out.write(plan(1), one) == out.write(plan(1), one)
    assert len(rows()) == 1
    successor = sink(())
    successor.prepare(KEYED, 2)
    with pytest.raises(FencedError):
        out.write(plan(2), one)
    successor.write(plan(2), one)
    assert len(rows()) == 2
    with pytest.raises(FencedError):
        sink(()).prepare(KEYED, 1)


def test_values_come_back_as_they_went_in(spark: SparkSession) -> None:
    out = prepared(schema=TYPES)
    out.write(plan(1), frame(spark, TYPES, VALUES, "iiii"))
    out.write(plan(2), frame(spark, TYPES, VALUES[:1], "u"))
    assert read_table("out").sort_by("id").to_pylist() == sorted(VALUES, key=lambda row: row["id"])


def test_a_table_of_other_columns_is_refused() -> None:
    prepared()
    with pytest.raises(SchemaError, match="`out` has other columns: id, name") as caught:
        prepared(schema=TYPES)
    assert "drop_table" in caught.value.hint
    drop_table("out")
    prepared(schema=TYPES)


def test_a_table_that_is_not_there_is_named() -> None:
    prepared()
    with pytest.raises(TargetError, match="`absent`") as caught:
        read_table("absent")
    assert "out" in caught.value.hint


def test_a_pipeline_of_numbers_leaves_its_rows_in_memory(spark: SparkSession, tmp_path: Any) -> None:
    state = {"sqlite": {"path": tmp_path / "ledger.db"}}
    settings = Settings.model_validate({"home": tmp_path, "state_backend": state})
    for _ in range(2):
        run(parse_pipeline(PIPELINE), settings, until=Until.CAUGHT_UP, spark=spark)
        assert rows() == [(0, 2490), (1, 2491), (2, 2492)]
        result = read_table("all_rows")
        assert result.column_names == ["value", "timestamp"]
        assert result["value"].to_pylist() == list(range(2500))

"""Lists, structs and maps through every exactly-once sink: equal when read, or refused with the column's name."""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from helpers.depth import diagonal, with_slow
from helpers.file_sink import file_sink_maker
from helpers.kafka_sink import kafka_sink_maker
from helpers.nested_rows import NESTED, ROWS, from_json, same_as
from helpers.sink_makers import SinkMaker, frame, plan, sink_maker
from pyarrow import types as kinds
from pyspark.sql import SparkSession

from headrace.pipeline.errors import DataError, SchemaError
from headrace.pipeline.types.arrow import is_nested

LAKES = ("delta", "iceberg", "file-parquet")
"""They hold lists, structs and maps as they are."""
TEXTS = ("kafka", "file-json")
"""They hold them as JSON without rules for characters."""


SINKS = ("postgres", "postgres-staged", "delta", "iceberg", "kafka", "file-parquet", "file-json")


def only_slow(sinks: Collection[str], cells: list[Any]) -> list[Any]:
    """Mark the cells of some sinks: only `make test-faults` runs them."""
    return [
        pytest.param(*one.values, id=one.id, marks=pytest.mark.slow) if one.values[0] in sinks else one
        for one in cells
    ]


@pytest.fixture(params=SINKS)
def maker(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> SinkMaker:
    if request.param == "kafka":
        return kafka_sink_maker(spark, request.getfixturevalue("services").kafka.brokers, tmp_path)
    if request.param.startswith("file-"):
        return file_sink_maker(spark, tmp_path, request.param.removeprefix("file-"))
    pg = "" if request.param in LAKES else request.getfixturevalue("pg")
    return sink_maker(request.param, spark, pg, tmp_path)


def target_rows(maker: SinkMaker, schema: pa.Schema) -> list[dict[str, Any]]:
    """The target's rows by id, as values of `schema`."""

    def value(result: Any, kind: pa.DataType) -> Any:
        if maker.kind in LAKES or not is_nested(kind):
            return same_as(result, kind)
        return same_as(from_json(result, kind, hexadecimal=maker.kind in TEXTS), kind)

    rows = maker.rows(schema.names)
    return sorted(
        (
            {field.name: value(cell, field.type) for field, cell in zip(schema, row, strict=True)}
            for row in rows
        ),
        key=lambda row: row["id"],
    )


def expected_rows(rows: list[dict[str, Any]], schema: pa.Schema) -> list[dict[str, Any]]:
    return [{field.name: same_as(row[field.name], field.type) for field in schema} for row in rows]


# test_types_come_back_as_they_went_in is the daily sample of Delta, test_lists_structs_and_maps_are_json the one of Kafka.
@pytest.mark.parametrize(
    ("maker", "key"),
    only_slow(("delta", "kafka"), diagonal(SINKS, {"keyed": (("id",),), "appended": ((),)})),
    indirect=["maker"],
)
def test_lists_structs_and_maps_come_back_as_they_went_in(maker: SinkMaker, key: tuple[str, ...]) -> None:
    sink = maker.joined(NESTED, key)
    sink.write(plan(1), frame(maker.spark, NESTED, ROWS, "iiii", key))
    assert target_rows(maker, NESTED) == expected_rows(ROWS, NESTED)
    if key:
        sink.write(plan(2), frame(maker.spark, NESTED, [ROWS[0] | {"id": 2}, ROWS[1] | {"id": 1}], "uu"))
        assert target_rows(maker, NESTED)[:2] == expected_rows(
            [ROWS[1] | {"id": 1}, ROWS[0] | {"id": 2}], NESTED
        )
    sink.close()


# test_not_a_number_comes_back is the daily sample of Kafka and Iceberg.
@pytest.mark.parametrize("maker", with_slow({"kafka", "iceberg"}, SINKS), indirect=True)
def test_not_a_number_comes_back_from_inside(maker: SinkMaker) -> None:
    schema = pa.schema(
        [("id", pa.int64()), ("v", pa.list_(pa.float64())), ("s", pa.struct([("x", pa.float32())]))]
    )
    row = {"id": 1, "v": [math.nan, 1.0], "s": {"x": math.nan}}
    sink = maker.joined(schema)
    sink.write(plan(1), frame(maker.spark, schema, [row], "i"))
    assert target_rows(maker, schema) == expected_rows([row], schema)
    sink.close()


KEYS = {
    "binary": (pa.map_(pa.binary(), pa.int64()),),
    "struct": (pa.map_(pa.struct([("a", pa.int64())]), pa.int64()),),
    "inside": (pa.list_(pa.struct([("m", pa.map_(pa.binary(), pa.int64()))])),),
}


# Iceberg is the daily sample of both lakes.
@pytest.mark.parametrize(("maker", "kind"), only_slow(("delta",), diagonal(SINKS, KEYS)), indirect=["maker"])
def test_keys_that_a_target_has_no_form_for_are_refused_before_a_row_is_read(
    maker: SinkMaker, kind: pa.DataType
) -> None:
    schema = pa.schema([("id", pa.int64()), ("v", kind)])
    value: Any = [(b"\0", 1)] if kinds.is_map(kind) and kinds.is_binary(kind.key_type) else [({"a": 1}, 1)]
    value = [{"m": [(b"\0", 1)]}] if kinds.is_list(kind) else value
    if maker.kind in LAKES:
        sink = maker.joined(schema)
        sink.write(plan(1), frame(maker.spark, schema, [{"id": 1, "v": value}], "i"))
        assert target_rows(maker, schema) == [{"id": 1, "v": same_as(value, kind)}]
        sink.close()
        return
    with pytest.raises(SchemaError, match=r"column 'v' is .* cannot be keys of a JSON object") as caught:
        maker.open(schema).prepare(schema, 1)
    assert caught.value.node == maker.key.sink
    assert caught.value.hint


INSIDE = {
    "list": (pa.list_(pa.string()), ["fine", "a\0b"]),
    "struct": (pa.struct([("x", pa.string())]), {"x": "\\\0"}),
    "map": (pa.map_(pa.string(), pa.string()), [("k\0", "v")]),
}


# test_types_come_back_as_they_went_in is the daily sample of Delta.
@pytest.mark.parametrize(
    ("maker", "kind", "value"), only_slow(("delta",), diagonal(SINKS, INSIDE)), indirect=["maker"]
)
def test_the_character_nul_inside_is_held_or_named(maker: SinkMaker, kind: pa.DataType, value: Any) -> None:
    schema = pa.schema([("id", pa.int64()), ("v", kind)])
    sink = maker.joined(schema)
    rows = frame(maker.spark, schema, [{"id": 1, "v": value}], "i")
    if maker.kind in (*LAKES, *TEXTS):
        sink.write(plan(1), rows)
        assert target_rows(maker, schema) == [{"id": 1, "v": same_as(value, kind)}]
    else:
        with pytest.raises(
            DataError, match=r"column 'v' holds .*u0000.* cannot hold the character NUL"
        ) as caught:
            sink.write(plan(1), rows)
        assert caught.value.node == maker.key.sink
        assert maker.rows(["id"]) == []
    sink.close()


@pytest.mark.parametrize("there", ["bigint[]", "integer", "hstore_like"])
def test_a_column_that_cannot_take_a_list_is_refused_with_both_types(
    spark: SparkSession, pg: str, tmp_path: Path, there: str
) -> None:
    maker = sink_maker("postgres", spark, pg, tmp_path)
    schema = pa.schema([("id", pa.int64()), ("v", pa.list_(pa.int64()))])
    with psycopg.connect(pg, autocommit=True) as client:
        client.execute("CREATE TYPE hstore_like AS (k text, v text)")
        client.execute(f"CREATE TABLE target (id bigint PRIMARY KEY, v {there})")  # type: ignore[arg-type]
    with pytest.raises(SchemaError) as caught:
        maker.open(schema).prepare(schema, 1)
    assert caught.value.node == maker.key.sink
    assert f"column 'v' of public.target is {there}, which does not hold list" in caught.value.message


@pytest.mark.parametrize("there", ["jsonb", "json", "text"])
def test_json_and_text_columns_that_are_there_take_lists(
    spark: SparkSession, pg: str, tmp_path: Path, there: str
) -> None:
    maker = sink_maker("postgres", spark, pg, tmp_path)
    schema = pa.schema([("id", pa.int64()), ("v", pa.list_(pa.timestamp("us", tz="UTC")))])
    with psycopg.connect(pg, autocommit=True) as client:
        client.execute(f"CREATE TABLE target (id bigint PRIMARY KEY, v {there})")  # type: ignore[arg-type]
    sink = maker.joined(schema)
    sink.write(plan(1), frame(spark, schema, [{"id": 1, "v": ROWS[0]["instants"]}], "i"))
    with psycopg.connect(pg) as client:
        result = client.execute("SELECT v::jsonb->>0, jsonb_array_length(v::jsonb) FROM target").fetchall()
    assert result == [("1900-01-01T00:00:00.000001Z", 4)]
    sink.close()

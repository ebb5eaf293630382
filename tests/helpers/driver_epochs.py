"""Epochs whose rows are in the driver, for encoders that must write them as Spark does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn, cast

import pyarrow as pa
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from headrace.connectors.frame import EpochFrame
from headrace.connectors.lazy_session import LazyFrame, LazySession
from headrace.connectors.spark_types import POS_ARROW, row_schema
from headrace.pipeline.sql.system_columns import OP, POS
from headrace.pipeline.types.arrow import is_nested
from headrace.pipeline.types.int256 import storage_schema
from helpers.typed_values import scalars, schemas, values

ROWS = 12


def refuse() -> NoReturn:
    raise AssertionError("Arrow must encode these rows")


def rows_of(
    schema: pa.Schema, rows: Sequence[dict[str, Any]], ops: str, places: Sequence[Any] = ()
) -> pa.Table:
    """The rows with their operations, at the positions `places` or in their order."""
    positions = places or [{"source": 0, "part": 0, "off": at, "sub": 0} for at in range(len(rows))]
    columns = {
        field.name: pa.array([row[field.name] for row in rows], field.type)
        for field in storage_schema(schema)
    }
    return pa.table(columns | {OP: pa.array(list(ops), pa.string()), POS: pa.array(positions, POS_ARROW)})


def for_spark(
    spark: SparkSession, schema: pa.Schema, table: pa.Table, key: tuple[str, ...] = ("id",)
) -> EpochFrame:
    rows = spark.createDataFrame(table if table.num_rows else [], row_schema(schema))
    return EpochFrame(rows, schema, key, table.num_rows, spark, table=table)


def for_arrow(schema: pa.Schema, table: pa.Table, key: tuple[str, ...] = ("id",)) -> EpochFrame:
    """The rows for an encoder that must not use Spark."""
    rows = cast("DataFrame", LazyFrame(refuse, row_schema(schema)))
    session = cast("SparkSession", LazySession(refuse))
    return EpochFrame(rows, schema, key, table.num_rows, session, table=table)


places = st.fixed_dictionaries(
    {
        "source": st.integers(0, 2),
        "part": st.integers(-2, 2),
        "off": st.sampled_from([0, 2**40, -(2**63)]) | st.integers(0, 20),
        "sub": st.integers(0, 2),
    }
)


@st.composite
def keyed_schemas(draw: st.DrawFn) -> tuple[pa.Schema, tuple[str, ...]]:
    """A schema and a key of one to three columns that are not nested.

    The strategy builds such a key. A filter of `schemas` would reject nearly every schema of some runs.
    """
    schema = draw(schemas)
    plain = [field.name for field in schema if not is_nested(field.type)]
    if not plain:
        plain = ["plain_key"]
        schema = schema.append(pa.field("plain_key", draw(scalars)))
    return schema, tuple(draw(st.lists(st.sampled_from(plain), min_size=1, max_size=3, unique=True)))


@st.composite
def schemas_with_keys(draw: st.DrawFn) -> tuple[pa.Schema, tuple[str, ...]]:
    """A schema and a key of some of its columns or none."""
    schema = draw(schemas)
    return schema, tuple(draw(st.lists(st.sampled_from(schema.names), max_size=3, unique=True)))


@st.composite
def epochs(
    draw: st.DrawFn, keys: st.SearchStrategy[tuple[pa.Schema, tuple[str, ...]]]
) -> tuple[pa.Schema, tuple[str, ...], pa.Table]:
    """A schema with a key, and rows. Few keys, so that they repeat. No two rows have one position."""
    schema, key = draw(keys)
    count = draw(st.integers(0, ROWS))
    columns: dict[str, list[Any]] = {}
    for field in schema:
        result = values(field.type, nulls=field.name not in key)
        few = draw(st.lists(result, min_size=1, max_size=3 if field.name in key else ROWS))
        columns[field.name] = [draw(st.sampled_from(few)) for _ in range(count)]
    rows = [{name: column[at] for name, column in columns.items()} for at in range(count)]
    ops = "".join(draw(st.lists(st.sampled_from("iud" if key else "iu"), min_size=count, max_size=count)))
    order = draw(
        st.lists(places, min_size=count, max_size=count, unique_by=lambda place: tuple(place.values()))
    )
    return schema, key, rows_of(schema, rows, ops, order)

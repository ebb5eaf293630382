"""Helpers of all contract checks: a session, settings, plans and rows."""

from __future__ import annotations

import atexit
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.connectors.spark_types import spark_schema
from headrace.jobs.spark.errors import as_headrace_error
from headrace.jobs.spark.session import start_session, stop_session
from headrace.pipeline.config.sections import SparkSettings
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.protocol.epochs import EpochPlan, Json, Phase
from headrace.pipeline.sql.system_columns import OP, POS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = dict[str, Any]
PIPELINE_HASH = "feedfacecafebeef"
"""The hash of the compiled pipeline in the epochs' plans."""


@cache
def session() -> SparkSession:
    """Return a small Spark session, one for all tests of a process. Use a session that already runs."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession as Session

    if SparkContext._active_spark_context is not None:  # noqa: SLF001  pyspark has no public API for it
        return Session.Builder().getOrCreate()
    home = Path(tempfile.mkdtemp(prefix="headrace-plugin-"))
    conf = {"spark.sql.shuffle.partitions": "1", "spark.sql.adaptive.enabled": "false"}
    spark = SparkSettings(
        master="local[2]", driver_memory="1g", conf=conf, jvm_options="-XX:TieredStopAtLevel=1"
    )
    started = start_session(Settings(home=home, spark=spark), ())
    atexit.register(stop_session, started)
    return started


def collect_rows(frame: DataFrame) -> list[Row]:
    """Return the rows by position. Raise a plugin's failure in a worker as a run would."""
    try:
        rows: list[Row] = frame.toArrow().to_pylist()
    except Exception as error:
        raise as_headrace_error(error) from error
    return sorted(rows, key=row_position)


def row_position(row: Row) -> tuple[int, ...]:
    """Return a row's position as a comparable tuple."""
    return tuple(row[POS].values())


def drop_system_columns(rows: list[Row]) -> list[Row]:
    """Return the rows without the system columns."""
    return [{name: value for name, value in row.items() if name not in (OP, POS)} for row in rows]


def create_position(epoch: int) -> Json:
    """Return the position at the end of an epoch."""
    return {"src": {"stream": {"offsets": {"0": epoch * 10}}}}


def create_plan(number: int) -> EpochPlan:
    """Return the plan of an epoch."""
    return EpochPlan(
        number,
        Phase.LIVE,
        create_position(number - 1),
        create_position(number),
        PIPELINE_HASH,
        datetime(2024, 5, 1, tzinfo=UTC),
    )


def create_frame(schema: pa.Schema, rows: Sequence[Mapping[str, Any]], ops: str) -> DataFrame:
    """Return a frame of rows in the order of their positions. `ops` has one letter per row."""
    from pyspark.sql import functions as F  # noqa: N812

    table = pa.Table.from_pylist([dict(row) for row in rows], schema=schema)
    table = table.append_column("n", pa.array(range(len(rows)), pa.int64())).append_column(
        OP, pa.array(list(ops), pa.string())
    )
    data: DataFrame = session().createDataFrame(table if rows else [], spark_schema(table.schema))
    at = F.struct(
        F.lit(0).alias("source"),
        F.lit(0).alias("part"),
        F.col("n").alias("off"),
        F.lit(0).cast("bigint").alias("sub"),
    )
    return data.withColumn(POS, at).select(*[f"`{name}`" for name in schema.names], OP, POS)


@contextmanager
def temporary_settings() -> Iterator[Settings]:
    """Yield settings with a temporary home."""
    with tempfile.TemporaryDirectory(prefix="headrace-plugin-") as home:
        yield Settings(home=Path(home))

"""What all checks stand on: a session, settings, plans and rows."""

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

from headrace.connectors.base import OP, POS
from headrace.connectors.spark_types import spark_schema
from headrace.jobs.spark.errors import as_headrace_error
from headrace.jobs.spark.session import start_session, stop_session
from headrace.pipeline.config.settings import Settings, SparkSettings
from headrace.pipeline.protocol.epochs import EpochPlan, Json, Phase

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = dict[str, Any]
HASH = "feedfacecafebeef"
"""Of the pipeline that the epochs are said to be of."""


@cache
def session() -> SparkSession:
    """A small Spark session, one for all tests of a process; another one that runs already is taken."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession as Session

    if SparkContext._active_spark_context is not None:  # noqa: SLF001  pyspark says it nowhere else
        return Session.Builder().getOrCreate()
    home = Path(tempfile.mkdtemp(prefix="headrace-plugin-"))
    conf = {"spark.sql.shuffle.partitions": "1", "spark.sql.adaptive.enabled": "false"}
    spark = SparkSettings(master="local[2]", driver_memory="1g", conf=conf, jvm_options="-XX:TieredStopAtLevel=1")
    started = start_session(Settings(home=home, spark=spark), ())
    atexit.register(stop_session, started)
    return started


def collected(frame: DataFrame) -> list[Row]:
    """The rows in the order of their positions. A plugin's failure in a worker is raised as a run would."""
    try:
        rows: list[Row] = frame.toArrow().to_pylist()
    except Exception as error:
        raise as_headrace_error(error) from error
    return sorted(rows, key=place)


def place(row: Row) -> tuple[int, ...]:
    """A row's position, comparable."""
    return tuple(row[POS].values())


def payload(rows: list[Row]) -> list[Row]:
    """The rows without the hidden columns."""
    return [{name: value for name, value in row.items() if name not in (OP, POS)} for row in rows]


def position(epoch: int) -> Json:
    """Where an epoch ends."""
    return {"src": {"stream": {"offsets": {"0": epoch * 10}}}}


def plan(number: int) -> EpochPlan:
    """An epoch."""
    return EpochPlan(number, Phase.LIVE, position(number - 1), position(number), HASH, datetime(2024, 5, 1, tzinfo=UTC))


def frame(schema: pa.Schema, rows: Sequence[Mapping[str, Any]], ops: str) -> DataFrame:
    """Rows in the order of their positions; `ops` has one letter per row."""
    from pyspark.sql import functions as F  # noqa: N812

    table = pa.Table.from_pylist([dict(row) for row in rows], schema=schema)
    table = table.append_column("n", pa.array(range(len(rows)), pa.int64())).append_column(OP, pa.array(list(ops), pa.string()))
    made: DataFrame = session().createDataFrame(table if rows else [], spark_schema(table.schema))
    at = F.struct(F.lit(0).alias("source"), F.lit(0).alias("part"), F.col("n").alias("off"), F.lit(0).cast("bigint").alias("sub"))
    return made.withColumn(POS, at).select(*[f"`{name}`" for name in schema.names], OP, POS)


@contextmanager
def settings() -> Iterator[Settings]:
    """Settings with a home of their own."""
    with tempfile.TemporaryDirectory(prefix="headrace-plugin-") as home:
        yield Settings(home=Path(home))

"""Rows that Catalyst computes in the driver: projections and filters over a local relation need no Spark job.

pyspark offers neither such a frame nor its rows, so both are read in the JVM.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from headrace.connectors.java_classes import java_class
from headrace.connectors.session_options import with_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_BATCH_ROWS = 20_000
"""Rows of one batch on the way to Python."""
LOCAL_EVALUATION = "org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation"
"""Catalyst's rule that evaluates projections and filters over local rows."""
_MOST_ROWS = 200_000
"""Larger results reach Python by a Spark job, which converts them in parallel."""


def frame_of_table(spark: SparkSession, table: pa.Table, schema: StructType | str | None = None) -> DataFrame:
    """Return a frame of rows in the driver.

    Spark reads a table batch by batch and ends at one without rows: it would lose the rows after that one.
    """
    batches = [batch for batch in table.to_batches() if batch.num_rows]
    rows = pa.Table.from_batches(batches) if batches else table.schema.empty_table()
    return spark.createDataFrame(rows, cast("Any", schema))


def collect_arrow(frame: DataFrame) -> pa.Table:
    """Return the rows of a frame as Arrow, without a Spark job where Catalyst computed them in the driver."""
    table = collect_local_rows(frame)
    return frame.toArrow() if table is None else table


def collect_local_rows(frame: DataFrame) -> pa.Table | None:
    """Return the rows of a frame as Arrow. Return None if they need a Spark job, or are empty or many."""
    from pyspark.serializers import NoOpSerializer
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.util import _load_from_socket

    plan = java_frame(frame).queryExecution().executedPlan()
    if plan.nodeName() != "LocalTableScan" or not 0 < plan.rows().size() <= _MOST_ROWS:
        return None
    jvm = cast("Any", frame.sparkSession)._jvm  # noqa: SLF001
    zone = frame.sparkSession.conf.get("spark.sql.session.timeZone")
    converters = _scala_object(jvm, "org.apache.spark.sql.execution.arrow", "ArrowConverters")
    streams = converters.toBatchWithSchemaIterator(
        plan.rows().iterator(), plan.schema(), _BATCH_ROWS, 1 << 40, zone, True, False
    )
    # By a socket of its own: an answer of py4j over 8 KiB waits 40 ms for TCP's delayed acknowledgement.
    python = _scala_object(jvm, "org.apache.spark.api.python", "PythonRDD")
    served = python.serveIterator(streams, "local rows")
    batches: list[pa.RecordBatch] = []
    for message in _load_from_socket(served, NoOpSerializer()):
        with pa.ipc.open_stream(message) as stream:
            batches += stream
    return pa.Table.from_batches(batches).cast(to_arrow_schema(frame.schema))


def compute_by_job(frame: DataFrame) -> DataFrame:
    """Return a frame over the rows that a Spark job computed.

    Spark pushes a filter below the columns that it protects, such as a division. Catalyst's evaluation of
    local rows comes before that, and can fail for rows that the filter leaves out.
    """
    with with_options(frame.sparkSession, {"spark.sql.optimizer.excludedRules": LOCAL_EVALUATION}):
        rows = frame.select("*").toArrow()
    return frame_of_table(frame.sparkSession, rows, frame.schema)


def compute_locally(frame: DataFrame) -> DataFrame | None:
    """Return a frame over the rows that Catalyst computed in the driver, or None if it needs a Spark job.

    Several readers of that frame do not compute the rows again.
    """
    plan = java_frame(frame).queryExecution().optimizedPlan()
    return frame_of_plan(frame.sparkSession, plan) if plan.nodeName() == "LocalRelation" else None


def frame_of_plan(spark: SparkSession, plan: Any) -> DataFrame:
    """Return a frame of a logical plan of the JVM."""
    session = cast("Any", spark)
    dataset = _scala_object(session._jvm, "org.apache.spark.sql.classic", "Dataset")  # noqa: SLF001
    return wrap_java_frame(spark, dataset.ofRows(session._jsparkSession, plan))  # noqa: SLF001


def wrap_java_frame(spark: SparkSession, frame: Any) -> DataFrame:
    """Return a frame of the JVM as one of PySpark. The reverse of `java_frame`."""
    from pyspark.sql import DataFrame as Frame

    return cast("Any", Frame)(frame, spark)


@functools.lru_cache(maxsize=8)
def _scala_object(jvm: Any, package: str, name: str) -> Any:
    """Return a singleton of the JVM."""
    return getattr(java_class(jvm, f"{package}.{name}$"), "MODULE$")


def java_frame(frame: DataFrame) -> Any:
    """Return the frame in the JVM."""
    """Return the frame in the JVM."""
    return cast("Any", frame)._jdf  # noqa: SLF001

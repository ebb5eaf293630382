"""Rows that Catalyst computes in the driver: projections and filters over a local relation need no Spark job.

pyspark offers neither such a frame nor its rows, so both are read in the JVM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_MOST_ROWS = 10_000
"""Larger results reach Python faster by a Spark job: this way sends bytes as text."""


def collect_arrow(frame: DataFrame) -> pa.Table:
    """Return the rows of a frame as Arrow, without a Spark job where Catalyst computed them in the driver."""
    from pyspark.sql.pandas.types import to_arrow_schema

    plan = _jvm(frame).queryExecution().executedPlan()
    if plan.nodeName() != "LocalTableScan" or not 0 < plan.rows().size() <= _MOST_ROWS:
        return frame.toArrow()
    session = cast("Any", frame.sparkSession)
    converters = _scala_object(session._jvm.org.apache.spark.sql.execution.arrow, "ArrowConverters")  # noqa: SLF001
    zone = session.conf.get("spark.sql.session.timeZone")
    streams = converters.toBatchWithSchemaIterator(
        plan.rows().iterator(), plan.schema(), _MOST_ROWS, 1 << 40, zone, True, False
    )
    batches: list[pa.RecordBatch] = []
    while streams.hasNext():
        with pa.ipc.open_stream(streams.next()) as stream:
            batches += stream
    return pa.Table.from_batches(batches).cast(to_arrow_schema(frame.schema))


def compute_locally(frame: DataFrame) -> DataFrame | None:
    """Return a frame over the rows that Catalyst computed in the driver, or None if it needs a Spark job.

    Several readers of that frame do not compute the rows again.
    """
    from pyspark.sql import DataFrame as Frame

    plan = _jvm(frame).queryExecution().optimizedPlan()
    if plan.nodeName() != "LocalRelation":
        return None
    session = cast("Any", frame.sparkSession)
    dataset = _scala_object(session._jvm.org.apache.spark.sql.classic, "Dataset")  # noqa: SLF001
    return cast("Any", Frame)(dataset.ofRows(session._jsparkSession, plan), session)  # noqa: SLF001


def _scala_object(package: Any, name: str) -> Any:
    return getattr(getattr(package, name + "$"), "MODULE$")


def _jvm(frame: DataFrame) -> Any:
    return cast("Any", frame)._jdf  # noqa: SLF001

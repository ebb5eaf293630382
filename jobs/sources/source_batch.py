"""What an epoch reads of a source: its rows, and the rows that it rejects."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute

from headrace.connectors import dead_letters
from headrace.connectors.dead_letters import ERROR
from headrace.connectors.lazy_session import create_frame
from headrace.connectors.spark_types import row_schema
from headrace.pipeline.errors import DataError
from headrace.pipeline.model.error_outputs import EPOCH, LIMITED_ROWS, NODE, REASON, ErrorsOutput
from headrace.pipeline.sql.system_columns import OP, POS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pc: Any = pyarrow.compute
"""Its functions are made at import, so type checkers do not see them."""
_SHOWN = 300
"""Letters of a reason that an error shows."""


@dataclass(frozen=True, slots=True)
class SourceBatch:
    """What one epoch reads of one source.

    `rows` is an upper bound if known, `size` about its bytes. `table` has the rows of `frame` if they are in
    the driver already. `is_local` means that Spark computes `frame` from such rows. `rejected` are the rows
    of the source's errors output. `persisted` must be unpersisted after the epoch.
    """

    frame: DataFrame
    rows: int | None
    size: int | None = None
    table: pa.Table | None = None
    is_local: bool = False
    rejected: SourceBatch | None = None
    persisted: DataFrame | None = None


def separate_rows(
    read: DataFrame | pa.Table, columns: pa.Schema, output: ErrorsOutput, epoch: int, spark: SparkSession
) -> SourceBatch:
    """Return the rows of `UnboundedSource.read_with_errors`, rejected ones apart.

    `columns` are the payload of good rows. Raise DataError if more rows are rejected than `max_error_rate`
    allows.
    """
    if isinstance(read, pa.Table):
        return _separate_table(read, columns, output, epoch, spark)
    # Good and rejected rows come from one read, which is counted before anything is written.
    read = read.persist()
    try:
        count = _count_rejected(read, output)
    except BaseException:
        read.unpersist()
        raise
    return SourceBatch(
        dead_letters.good_rows(read),
        None,
        rejected=_rejected_batch(read, count, output, epoch),
        persisted=read,
    )


def _count_rejected(read: DataFrame, output: ErrorsOutput) -> int:
    from pyspark.sql import functions as F  # noqa: N812

    reason = F.col(f"{ERROR}.{dead_letters.REASON}")
    first = F.min(F.when(reason.isNotNull(), F.struct(POS, reason.alias(REASON))))
    ((total, rejected, example),) = read.agg(F.count(F.lit(1)), F.count(reason), first).collect()
    check_rate(output, rejected, total, example[REASON] if rejected else "")
    return rejected


def _rejected_batch(read: DataFrame, count: int, output: ErrorsOutput, epoch: int) -> SourceBatch:
    from pyspark.sql import functions as F  # noqa: N812

    if not count:
        frame = read.sparkSession.createDataFrame([], row_schema(output.schema))
        return SourceBatch(frame, 0, 0, is_local=True)
    columns = {
        NODE: F.lit(output.node),
        REASON: F.col(f"{ERROR}.{dead_letters.REASON}"),
        EPOCH: F.lit(epoch).cast("bigint"),
        **{name: F.col(f"{ERROR}.{name}") for name in output.columns},
        OP: F.lit("i"),
    }
    rows = read.where(F.col(ERROR).isNotNull())
    # The bytes of the payloads are in the estimate of the source.
    return SourceBatch(rows.select(*[value.alias(name) for name, value in columns.items()], POS), count, 0)


def _separate_table(
    read: pa.Table, columns: pa.Schema, output: ErrorsOutput, epoch: int, spark: SparkSession
) -> SourceBatch:
    """Separate rows in the driver."""
    bad = read.filter(pc.is_valid(read[ERROR]))
    good = (read.filter(pc.is_null(read[ERROR])) if bad.num_rows else read).drop_columns([ERROR])
    names = pa.schema([*output.schema, (OP, pa.string()), read.schema.field(POS)])
    if bad.num_rows:
        errors = bad[ERROR].combine_chunks()
        reasons = errors.field(dead_letters.REASON)
        check_rate(output, bad.num_rows, read.num_rows, reasons[0].as_py())
        values = [
            pa.repeat(output.node, bad.num_rows),
            reasons,
            pa.repeat(pa.scalar(epoch, pa.int64()), bad.num_rows),
            *[errors.field(name) for name in output.columns],
            pa.repeat("i", bad.num_rows),
            bad[POS],
        ]
        bad = pa.table(values, schema=names)
    else:
        bad = names.empty_table()
    rejected = replace(read_in_driver(bad, output.schema, spark), rows=bad.num_rows, size=0)
    return replace(read_in_driver(good, columns, spark), rejected=rejected)


def read_in_driver(rows: pa.Table, columns: pa.Schema, spark: SparkSession) -> SourceBatch:
    """Return rows that are in the driver. `columns` are their payload."""
    # Spark makes no frame of a table without batches.
    frame = create_frame(spark, rows if rows.num_rows else [], columns)
    return SourceBatch(frame, None, None, rows, is_local=True)


def check_rate(output: ErrorsOutput, rejected: int, total: int, reason: str, *, more: bool = False) -> None:
    """Raise DataError if an epoch has more rejected rows than `max_error_rate` allows.

    `more`: there may be more of them.
    """
    if total < LIMITED_ROWS or rejected <= total * output.max_error_rate:
        return
    count = f"{rejected:,} or more" if more else f"{rejected:,}"
    msg = (
        f"{count} of {total:,} rows are rejected, more than `max_error_rate` {output.max_error_rate:g}"
        f" allows; the first one: {reason[:_SHOWN]}"
    )
    hint = "Nothing of the epoch is written. Correct the producer or the node, or raise `max_error_rate`."
    raise DataError(msg, hint=hint, node=output.node)

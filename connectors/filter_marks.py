"""A source's filter in Spark, where rows that fail it are marked and kept.

See `pipeline.lineage.retractions`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.pipeline.sql.filter_marking import FAILED, conditions_for_good
from headrace.pipeline.sql.system_columns import POS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def mark_filtered_rows(rows: DataFrame, predicate: str) -> DataFrame:
    """Return the rows, with those that fail the predicate marked.

    Conditions that only use the operation remove rows instead. Raise Spark's analyzer error for an invalid
    predicate.
    """
    from pyspark.sql import functions as F  # noqa: N812

    for condition in conditions_for_good(predicate):
        rows = rows.where(F.expr(condition))
    parts = [F.col(f"{POS}.{name}").alias(name) for name in ("source", "part", "off")]
    mark = F.struct(*parts, F.lit(FAILED).cast("bigint").alias("sub"))
    passes = F.coalesce(F.expr(predicate), F.lit(False)) & (F.col(f"{POS}.sub") >= 0)
    return rows.withColumn(POS, F.when(passes, F.col(POS)).otherwise(mark))

"""Which row of a key wins where a version decides, the same at every sink.

The highest version wins, and of equal versions the last row by `_gs_pos`. A delete with a version competes
like a row. A delete without one ends what came before it: rows at lower positions and the row in the target
lose, whatever their version is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from headrace.connectors.filters import quote_identifier
from headrace.connectors.row_errors import row_error
from headrace.pipeline.errors import DataError
from headrace.pipeline.sql.system_columns import OP, POS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pc: Any = pyarrow.compute
"""Its functions are made at import, so type checkers do not see them."""
ENDED = "_gs_ended"
"""True where a delete without a version came before the winner: then the target's own row does not count."""
_HINT = "Filter such rows out in a transform, or give them a version: coalesce({0}, …)."


def refuse_unversioned(rows: pa.RecordBatch | pa.Table, version: str, node: str) -> None:
    """Raise DataError for a row without a version that is not a delete."""
    missing = pc.is_null(rows.column(version))
    if OP in rows.schema.names:
        missing = pc.and_(missing, pc.not_equal(rows.column(OP), "d"))
    if many := pc.sum(missing).as_py():
        msg = f"version_column `{version}` is null in {many} rows that are no deletes"
        raise DataError(msg, hint=_HINT.format(version), node=node)


def winners(table: pa.Table, key: Sequence[str], version: str, node: str) -> pa.Table:
    """Return one row per key with the column `ENDED`.

    The table must be in the order of `_gs_pos`. The result has no defined order.
    """
    refuse_unversioned(table, version, node)
    size = table.num_rows
    places = np.arange(size)
    lists = (
        table.select(list(key))
        .append_column("__place", pa.array(places))
        .group_by(list(key))
        .aggregate([("__place", "list")])
    )
    listed = lists["__place_list"].combine_chunks()
    group = np.empty(size, dtype=np.int64)
    group[listed.flatten().to_numpy()] = np.repeat(np.arange(len(listed)), np.diff(listed.offsets.to_numpy()))
    ends = pc.and_(pc.equal(table.column(OP), "d"), pc.is_null(table.column(version))).to_numpy(
        zero_copy_only=False
    )
    last_end = np.full(len(listed), -1, dtype=np.int64)
    np.maximum.at(last_end, group[ends], places[ends])
    column = table.column(version)
    rank = np.where(pc.is_null(column).to_numpy(), 0, pc.rank(column, tiebreaker="dense").to_numpy())
    alive = places[places >= last_end[group]]
    ordered = alive[np.lexsort((alive, rank[alive], group[alive]))]
    best = ordered[np.append(np.diff(group[ordered]) != 0, True)] if size else ordered
    return table.take(pa.array(best)).append_column(ENDED, pa.array(last_end[group[best]] >= 0, pa.bool_()))


def winners_frame(
    rows: DataFrame, key: Sequence[str], names: Sequence[str], version: str, node: str
) -> DataFrame:
    """Return one row per key of a frame with `names` and `ENDED`."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    value, deletes = F.col(quote_identifier(version)), F.col(OP) == "d"
    refused = row_error(
        node, f"version_column `{version}` is null", _HINT.format(version), position=F.to_json(POS)
    )
    checked = F.when(value.isNull() & ~deletes, refused).otherwise(value)
    end = F.max(F.when(deletes & value.isNull(), F.col(POS))).over(
        Window.partitionBy(*map(quote_identifier, key))
    )
    alive = (
        rows.withColumn(version, checked)
        .withColumn("__end", end)
        .where(F.col("__end").isNull() | (F.col(POS) >= F.col("__end")))
    )
    others = [name for name in names if name not in key]
    place = F.struct(F.col(quote_identifier(version)), F.col(POS))
    last = F.max_by(
        F.struct(*map(quote_identifier, others), F.col("__end").isNotNull().alias(ENDED)), place
    ).alias("__last")
    grouped = alive.groupBy(*map(quote_identifier, key)).agg(last)
    return grouped.select(
        *[
            F.col(quote_identifier(name)) if name in key else F.col(f"__last.{quote_identifier(name)}")
            for name in names
        ],
        F.col(f"__last.{ENDED}"),
    )

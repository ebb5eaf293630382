"""What goes into a table of files: the payload, or the last row of each key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import compute as pc
from pyarrow import types as kinds

from headrace.connectors.filters import quote_identifier
from headrace.connectors.frame import EpochFrame, LargeEpochCollector
from headrace.connectors.keys import canonical, canonical_frame
from headrace.connectors.local_relation import frame_of_table
from headrace.connectors.row_errors import row_error
from headrace.connectors.versions import ENDED, winners, winners_frame
from headrace.pipeline.errors import DataError
from headrace.pipeline.sql.system_columns import OP, POS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

DRIVER_ROWS = 50_000
"""Epochs up to this size pass through the driver as Arrow. Rows that are there already have no limit.

MERGE reads its source twice, and the second read of a local source is free.
"""

NO_NULL_KEY = (
    "A row without its key can neither be found nor replaced. Filter such rows out, or choose"
    " another primary_key."
)


@dataclass(frozen=True, slots=True)
class MergeSource:
    """What MERGE takes: one row per key, payload columns and `_gs_op`."""

    rows: DataFrame
    local: bool
    """Whether the rows are in the driver, where reading them twice costs nothing."""
    bounds: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    """Smallest and largest value of key columns, where known: a table's files are skipped by them."""


def select_append_rows(sink: str, frame: EpochFrame) -> DataFrame:
    """Return the payload. A delete fails the epoch, because without a primary key it matches no row."""
    from pyspark.sql import functions as F  # noqa: N812

    hint = "Give the sink a primary_key, or keep deletes out: WHERE _gs_op <> 'd'."
    refused = row_error(sink, "a delete reached a sink without primary_key", hint, position=F.to_json(POS))
    names = frame.schema.names
    first = F.when(F.col(OP) == "d", refused).otherwise(F.col(quote_identifier(names[0]))).alias(names[0])
    return frame.rows.select(first, *[quote_identifier(name) for name in names[1:]])


def collect_small_rows(
    frame: EpochFrame, rows: DataFrame, large: LargeEpochCollector | None = None
) -> pa.Table | None:
    """Collect `rows`, as many as the frame has. Return None if they are too many or of unknown number.

    `large` collects larger epochs too.
    """
    if large is not None and large.accepts(frame):
        return large.collect(frame, rows)
    known = frame.estimate is not None or frame.likely is not None
    return frame.collect_if_small(rows, DRIVER_ROWS) if known else None


def collect_append_rows(
    sink: str, frame: EpochFrame, large: LargeEpochCollector | None = None
) -> pa.Table | None:
    """Return the payload of rows to append: of any number if the driver has them, else of a small epoch.

    For `large` see `collect_small_rows`.

    Return None if Spark has to write the epoch, and for a delete, whose error Spark raises.
    """
    if frame.table is None:
        return collect_small_rows(frame, select_append_rows(sink, frame), large)
    has_delete = "d" in pc.call_function("unique", [frame.table[OP]]).to_pylist()
    return None if has_delete else frame.table.select(frame.schema.names)


def collect_last_rows(
    sink: str, frame: EpochFrame, version: str | None = None, large: LargeEpochCollector | None = None
) -> pa.Table | None:
    """Return one row per key with the payload and `_gs_op`: the last by `_gs_pos`, or the highest version.

    For `large` see `collect_small_rows`.

    With a version, the rows have `versions.ENDED` too. Return None for an epoch that is too large for the
    driver and not in it already. Raise DataError for a null in a key and for a row without its version.
    """
    names = [*frame.schema.names, OP]
    few = frame.table
    if few is None:
        rows = canonical_frame(frame.rows, frame.schema, frame.key).select(*map(quote_identifier, names), POS)
        few = collect_small_rows(frame, rows, large)
    if few is None:
        return None
    return last_by_key(sink, few, frame.key, version).select(names if version is None else [*names, ENDED])


def build_merge_source(
    sink: str, frame: EpochFrame, session: SparkSession, version: str | None, last: pa.Table | None
) -> MergeSource:
    """Return the rows of `collect_last_rows` as a frame of Spark.

    If `last` is None, return what Spark computes for the epoch: a null in a key fails the task.
    """
    names = [*frame.schema.names, OP]
    if last is None:
        rows = canonical_frame(frame.rows, frame.schema, frame.key)
        frame = replace(frame, node_rows=rows, boundary=None)
        return MergeSource(_last_by_key_spark(sink, frame, names, version), local=False)
    schema = frame.rows.select(*map(quote_identifier, names)).schema
    if version is not None:
        schema = schema.add(ENDED, "boolean")
    rows = frame_of_table(session, last, schema)
    return MergeSource(rows, local=True, bounds=bounds_of(last, frame.key))


def last_by_key(sink: str, table: pa.Table, key: tuple[str, ...], version: str | None = None) -> pa.Table:
    """Return one row per key of an Arrow table. The order of the rows is not kept."""
    check_null_keys(sink, table, key)
    if table.num_rows <= 1 and version is None:
        return canonical(table, key)
    table = sort_by_position(canonical(table, key))
    return last_of_sorted(table, key) if version is None else winners(table, key, version, sink)


def check_null_keys(sink: str, table: pa.Table, key: Sequence[str]) -> None:
    """Raise DataError for a null in a key column."""
    for name in key:
        if table[name].null_count:
            msg = f"key column `{name}` is null in {table[name].null_count} rows"
            raise DataError(msg, hint=NO_NULL_KEY, node=sink)


def sort_by_position(table: pa.Table) -> pa.Table:
    """Return the rows in the order of `_gs_pos`."""
    return sort_rows(table, table[POS].combine_chunks().flatten())


def sort_rows(table: pa.Table, parts: Sequence[pa.Array | pa.ChunkedArray]) -> pa.Table:
    """Return the rows in the order of the parts of their positions, which have no nulls.

    Most sources return rows in this order. To check it takes a hundredth of the time of a sort.
    """
    if _is_sorted([part.to_numpy() for part in parts]):
        return table
    names = [str(at) for at in range(len(parts))]
    order = pc.SortOptions([(name, "ascending") for name in names])
    return table.take(pc.call_function("sort_indices", [pa.table(list(parts), names)], order))


def _is_sorted(parts: Sequence[np.ndarray[Any, Any]]) -> bool:
    """Return whether the tuples of the parts ascend."""
    ascends = np.array(True)
    for part in reversed(parts):
        here, following = part[:-1], part[1:]
        ascends = (here < following) | ((here == following) & ascends)
    return bool(ascends.all())


def last_of_sorted(table: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the last row of each key of a sorted table. The order of the rows is not kept."""
    ranks = table.select(list(key)).append_column("__rank", pa.array(np.arange(table.num_rows)))
    last = ranks.group_by(list(key)).aggregate([("__rank", "max")])["__rank_max"]
    return table if len(last) == table.num_rows else table.take(last)


def _last_by_key_spark(sink: str, frame: EpochFrame, names: list[str], version: str | None) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    def check_key(name: str) -> Column:
        refused = row_error(sink, f"key column `{name}` is null", NO_NULL_KEY, position=F.to_json(POS))
        return (
            F.when(F.col(quote_identifier(name)).isNull(), refused)
            .otherwise(F.col(quote_identifier(name)))
            .alias(name)
        )

    if version is not None:
        rows = frame.rows.select(
            *[check_key(name) if name in frame.key else quote_identifier(name) for name in names], POS
        )
        return winners_frame(rows, frame.key, names, version, sink)
    keys = [check_key(name) for name in frame.key]
    others = [name for name in names if name not in frame.key]
    last = F.max_by(F.struct(*map(quote_identifier, others)), F.col(POS)).alias("__last")
    grouped = frame.rows.groupBy(*keys).agg(last)
    return grouped.select(
        *[
            F.col(quote_identifier(name)) if name in frame.key else F.col(f"__last.{quote_identifier(name)}")
            for name in names
        ]
    )


def bounds_of(table: pa.Table, key: tuple[str, ...]) -> dict[str, tuple[Any, Any]]:
    """Return the smallest and the largest value of the key columns that Spark has literals for."""
    result: dict[str, tuple[Any, Any]] = {}
    for name in key:
        kind = table.schema.field(name).type
        if table.num_rows and has_literal(kind):
            ends = pc.call_function("min_max", [table[name]])
            result[name] = (ends["min"].as_py(), ends["max"].as_py())
    return result


def has_literal(kind: pa.DataType) -> bool:
    """Return whether Spark reads the type's Python value as a literal of the same type."""
    plain = kinds.is_integer(kind) or kinds.is_string(kind) or kinds.is_date(kind) or kinds.is_decimal(kind)
    return plain or (isinstance(kind, pa.TimestampType) and kind.tz is not None)

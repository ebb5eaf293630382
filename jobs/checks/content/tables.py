"""The comparison of samples in the driver, by Arrow: last rows of keys, and keys that differ.

Spark takes seconds to plan and shuffle even a few rows. This module does the work of `compare` and of the
window function of `expected` without a Spark job. It shares no code with the sinks, so that their mistakes
are found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from headrace.connectors.keys import canonical
from headrace.jobs.checks.content.compare import SHOWN, ContentDifference, describe_difference
from headrace.jobs.checks.content.inputs import HISTORY, RENEWED, STREAM, TIER, WINDOW, SourceRows
from headrace.pipeline.sql.system_columns import OP, ORDINALS_PER_NODE, POS

pc: Any = pyarrow.compute
"""Its functions are made at import, so type checkers do not see them."""
_EXPECTED, _FOUND = "_hr_expected", "_hr_found"


def last_rows(
    rows: pa.Table, key: Sequence[str], version: str | None, *, filtered: bool = False
) -> tuple[pa.Table, int]:
    """Return the last row of each key, and the number of keys left out because their rows have no order.

    The order is that of tier, source, window, partition and offset, or that of the highest version. With a
    version, a key has no order if its winner is a delete and another row follows; see `expected`.
    """
    rows = canonical(rows, key)
    place = _places(rows)
    group, count = _groups(rows, key)
    alive = np.ones(len(place), dtype=bool)
    rank = np.zeros(len(place), dtype=np.int64)
    if version is not None:
        alive, rank = _by_version(rows, version, group, count, place)
    at = np.flatnonzero(alive)
    ordered = at[np.lexsort((place[at], rank[at], group[at]))]
    last = ordered[np.append(np.diff(group[ordered]) != 0, True)] if len(ordered) else ordered
    unclear = _unclear(rows, group, count)
    if version is not None:
        winner = np.full(count, -1)
        winner[group[last]] = last
        deletes = pc.equal(rows[OP], "d").to_numpy(zero_copy_only=False)
        newest = np.full(count, -1, dtype=np.int64)
        np.maximum.at(newest, group[~deletes], place[~deletes])
        unclear = (deletes[winner] | filtered) & ((newest > place[winner]) | unclear)
    return rows.take(pa.array(last[~unclear[group[last]]])), int(unclear.sum())


def add_order(rows: pa.Table, inputs: Sequence[SourceRows]) -> pa.Table:
    """Return rows at a sink with the columns that order them. See `expected.rows_after_sql`."""
    source = rows[POS].combine_chunks().field("source").to_numpy(zero_copy_only=False)
    history = RENEWED if any(one.renewed for one in inputs) else HISTORY
    tier = np.where(source % ORDINALS_PER_NODE == ORDINALS_PER_NODE - 1, STREAM, history)
    rows = rows.append_column(TIER, pa.array(tier, pa.int32()))
    return rows.append_column(WINDOW, pa.array(np.zeros(len(source)), pa.int32()))


def keys_of(rows: pa.Table, key: Sequence[str], *, streamed: bool) -> pa.Table:
    """Return the keys of some last rows; with `streamed` only those from the stream or renewed history."""
    return (rows.filter(pc.greater_equal(rows[TIER], STREAM)) if streamed else rows).select(list(key))


def rows_of_keys(rows: pa.Table, key: Sequence[str], keys: pa.Table | None) -> pa.Table:
    """Return the rows of these `keys`; all rows for None."""
    if keys is None:
        return rows
    keys = keys.rename_columns(list(key)).cast(
        pa.schema([pa.field(name, rows.schema.field(name).type) for name in key])
    )
    return rows.join(keys, list(key), join_type="left semi")


def compare_tables(expected: pa.Table, actual: pa.Table, key: Sequence[str]) -> ContentDifference:
    """Compare two tables, by key or, without one, as multisets of rows.

    `expected` decides on columns and types.
    """
    columns = expected.column_names
    expected_rows, actual_rows = (_plain(side, columns, expected.schema) for side in (expected, actual))
    counted = _count_rows(expected_rows, actual_rows, columns)
    differing = counted.filter(pc.not_equal(counted[_EXPECTED], counted[_FOUND]))
    if not differing.num_rows:
        return ContentDifference(expected_rows.num_rows, actual_rows.num_rows, 0)
    by = list(key or columns)
    keys = differing.select(by).group_by(by).aggregate([])
    order = pc.call_function("sort_indices", [keys], pc.SortOptions([(name, "ascending") for name in by]))
    shown = keys.take(order[:SHOWN])
    words = []
    for place in range(shown.num_rows):
        one = shown.slice(place, 1)
        wanted, have = (
            _values(side, by, one, columns, keyed=bool(key)) for side in (expected_rows, actual_rows)
        )
        words.append(describe_difference(one.to_pylist()[0], wanted, have, columns, keyed=bool(key)))
    return ContentDifference(expected_rows.num_rows, actual_rows.num_rows, 1, keys.num_rows, tuple(words))


def plain_types(schema: pa.Schema) -> pa.Schema:
    """Return the schema without metadata, all of its columns nullable."""
    return pa.schema([pa.field(field.name, field.type) for field in schema])


def _plain(rows: pa.Table, columns: Sequence[str], wanted: pa.Schema) -> pa.Table:
    """Return the columns in the types that are compared, with one spelling of zero and NaN."""
    rows = rows.select(list(columns)).cast(plain_types(wanted))
    return canonical(rows, list(columns))


def _count_rows(expected_rows: pa.Table, actual_rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return each distinct row of both tables and how often it is in each. A null equals a null."""

    def mark_rows(rows: pa.Table, expected: int) -> pa.Table:
        ones, zeros = (pa.array(np.full(rows.num_rows, value, dtype=np.int64)) for value in (1, 0))
        first, second = (ones, zeros) if expected else (zeros, ones)
        return rows.append_column(_EXPECTED, first).append_column(_FOUND, second)

    both = pa.concat_tables([mark_rows(expected_rows, 1), mark_rows(actual_rows, 0)])
    result = both.group_by(list(columns)).aggregate([(_EXPECTED, "sum"), (_FOUND, "sum")])
    return result.rename_columns([*columns, _EXPECTED, _FOUND])


def _values(
    rows: pa.Table, by: Sequence[str], one: pa.Table, columns: Sequence[str], *, keyed: bool
) -> list[tuple[Any, ...]]:
    """Return the rows of one key, for a message."""
    keep: Any = True
    for name in by:
        value = one[name][0]
        same = pc.equal(rows[name], value) if value.is_valid else pc.is_null(rows[name])
        if pa.types.is_floating(value.type) and value.is_valid and np.isnan(value.as_py()):
            same = pc.is_nan(rows[name])
        keep = pc.and_(keep, pc.fill_null(same, False))
    result = rows.filter(keep).select(list(columns))
    if not keyed:
        return [()] * result.num_rows
    return [tuple(row[name] for name in columns) for row in result.slice(0, SHOWN).to_pylist()]


def _groups(rows: pa.Table, key: Sequence[str]) -> tuple[np.ndarray, int]:
    """Return for each row the number of its key, and how many keys there are."""
    places = pa.array(np.arange(rows.num_rows))
    listed = (
        rows.select(list(key))
        .append_column("_hr_place", places)
        .group_by(list(key))
        .aggregate([("_hr_place", "list")])
    )
    lists = listed["_hr_place_list"].combine_chunks()
    group = np.empty(rows.num_rows, dtype=np.int64)
    group[lists.flatten().to_numpy()] = np.repeat(np.arange(len(lists)), np.diff(lists.offsets.to_numpy()))
    return group, len(lists)


def _places(rows: pa.Table) -> np.ndarray:
    """Return for each row its place among all rows."""
    parts = _position(rows)
    order = np.lexsort([parts[name] for name in ("sub", "off", "part", WINDOW, "source", TIER)])
    place = np.empty(rows.num_rows, dtype=np.int64)
    place[order] = np.arange(rows.num_rows)
    return place


def _position(rows: pa.Table) -> dict[str, np.ndarray]:
    whole = rows[POS].combine_chunks()
    result = dict(zip(("source", "part", "off", "sub"), (whole.field(at) for at in range(4)), strict=True))
    result |= {name: rows[name] for name in (TIER, WINDOW)}
    return {
        name: pc.fill_null(pc.cast(column, pa.int64()), -1).to_numpy(zero_copy_only=False)
        for name, column in result.items()
    }


def _by_version(
    rows: pa.Table, version: str, group: np.ndarray, count: int, place: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return which rows no later delete without a version ends, and the rank of each row's version."""
    column = rows[version]
    missing = pc.is_null(column).to_numpy(zero_copy_only=False)
    ends = missing & pc.equal(rows[OP], "d").to_numpy(zero_copy_only=False)
    ended = np.full(count, -1, dtype=np.int64)
    np.maximum.at(ended, group[ends], place[ends])
    return place >= ended[group], np.where(missing, 0, pc.rank(column, tiebreaker="dense").to_numpy())


def _unclear(rows: pa.Table, group: np.ndarray, count: int) -> np.ndarray:
    """Return for each key whether its rows of the stream lie in several partitions."""
    parts = _position(rows)
    streamed = parts[TIER] == STREAM
    code = (parts["source"] << 32) + parts["part"]
    low, high = np.full(count, np.iinfo(np.int64).max), np.full(count, np.iinfo(np.int64).min)
    np.minimum.at(low, group[streamed], code[streamed])
    np.maximum.at(high, group[streamed], code[streamed])
    return low < high

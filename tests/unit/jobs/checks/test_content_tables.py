"""The comparison of samples in the driver: the last row of a key, and the keys that differ."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headrace.connectors.postgres.content import array_text
from headrace.jobs.checks.content.inputs import BEFORE, HISTORY, STREAM, TIER, WINDOW
from headrace.jobs.checks.content.tables import compare_tables, last_rows, rows_of_keys
from headrace.pipeline.sql.system_columns import OP, POS

PLACE = pa.struct([("source", pa.int32()), ("part", pa.int32()), ("off", pa.int64()), ("sub", pa.int32())])


def rows_of(
    *rows: tuple[Any, Any, str, int, int, tuple[int, int, int]], version: pa.DataType | None = None
) -> pa.Table:
    """Return rows of (id, v, operation, tier, window, (source, part, off))."""
    place = [dict(zip(("source", "part", "off", "sub"), (*row[5], 0), strict=True)) for row in rows]
    columns = [[row[at] for row in rows] for at in range(5)]
    kinds = [
        pa.float64() if isinstance(rows[0][0], float) else pa.int64(),
        version or pa.string(),
        pa.string(),
        pa.int32(),
        pa.int32(),
    ]
    arrays = [pa.array(values, kind) for values, kind in zip(columns, kinds, strict=True)]
    return pa.table([*arrays, pa.array(place, PLACE)], names=["id", "v", OP, TIER, WINDOW, POS])


def last_of(
    rows: pa.Table, version: str | None = None, *, filtered: bool = False
) -> tuple[dict[Any, tuple[Any, str]], int]:
    result, unclear = last_rows(rows, ("id",), version, filtered=filtered)
    return {row["id"]: (row["v"], row[OP]) for row in result.to_pylist()}, unclear


def test_the_stream_comes_after_history_and_history_after_what_the_topic_had_before() -> None:
    rows = rows_of(
        (1, "stream", "u", STREAM, 0, (9, 0, 5)),
        (1, "history", "c", HISTORY, 1, (0, 7, 900)),
        (1, "before", "c", BEFORE, 0, (9, 0, 4)),
        (2, "second window", "c", HISTORY, 2, (0, 0, 1)),
        (2, "first window", "c", HISTORY, 1, (0, 9, 9)),
        (3, "row", "c", STREAM, 0, (9, 0, 1)),
        (3, None, "d", STREAM, 0, (9, 0, 2)),
    )
    assert last_of(rows) == ({1: ("stream", "u"), 2: ("second window", "c"), 3: (None, "d")}, 0)


def test_keys_whose_messages_lie_in_several_partitions_are_left_out() -> None:
    rows = rows_of(
        (1, "a", "c", STREAM, 0, (9, 0, 5)),
        (1, "b", "u", STREAM, 0, (9, 1, 5)),
        (2, "c", "c", HISTORY, 0, (0, 1, 5)),
        (2, "d", "u", STREAM, 0, (9, 1, 6)),
    )
    assert last_of(rows) == ({2: ("d", "u")}, 1)


def test_a_lower_version_after_a_delete_has_no_order() -> None:
    """The target has the row if the delete was in an earlier epoch, because nothing keeps its version."""
    rows = rows_of(
        (1, 7, "d", STREAM, 0, (9, 0, 1)),
        (1, 3, "c", STREAM, 0, (9, 0, 2)),
        (2, 3, "c", STREAM, 0, (9, 0, 3)),
        (2, 7, "d", STREAM, 0, (9, 0, 4)),
        (3, 7, "u", STREAM, 0, (9, 0, 5)),
        (3, 3, "u", STREAM, 0, (9, 0, 6)),
        version=pa.int64(),
    )
    assert last_of(rows, "v") == ({2: (7, "d"), 3: (7, "u")}, 1)
    assert last_of(rows, "v", filtered=True) == ({2: (7, "d")}, 2)


def test_the_highest_version_wins_and_a_delete_without_one_ends_what_came_before() -> None:
    rows = rows_of(
        (1, 9, "c", STREAM, 0, (9, 0, 1)),
        (1, 8, "u", STREAM, 0, (9, 1, 2)),
        (2, 9, "c", STREAM, 0, (9, 0, 1)),
        (2, None, "d", STREAM, 0, (9, 0, 2)),
        (3, 9, "c", STREAM, 0, (9, 0, 1)),
        (3, None, "d", STREAM, 0, (9, 0, 2)),
        (3, 1, "c", STREAM, 0, (9, 0, 3)),
        version=pa.int64(),
    )
    assert last_of(rows, "v") == ({1: (9, "c"), 2: (None, "d"), 3: (1, "c")}, 0)


def test_zeros_are_one_key_and_so_are_all_nan() -> None:
    place = [(0, 0, number) for number in range(4)]
    rows = rows_of(
        *[
            (key, str(at[2]), "c", HISTORY, 0, at)
            for key, at in zip((0.0, -0.0, math.nan, -math.nan), place, strict=True)
        ]
    )
    result, _ = last_rows(rows, ("id",), None)
    assert sorted(result["v"].to_pylist()) == ["1", "3"]


def test_no_rows() -> None:
    empty = rows_of((1, "a", "c", HISTORY, 0, (0, 0, 0))).slice(0, 0)
    assert last_of(empty) == ({}, 0)
    plain = empty.select(["id", "v"])
    assert compare_tables(plain, plain, ("id",)).buckets == 0


def test_keys_that_differ_are_named() -> None:
    wanted = pa.table(
        {"id": [1, 2, 3, 4, 5], "v": ["a", "b", None, "d", "e"], "x": [math.nan, 0.0, 1.0, 2.0, 3.0]}
    )
    result = pa.table(
        {
            "id": [5, 1, 2, 4, 6, 4],
            "v": ["e", "a", "other", "d", "f", "d"],
            "x": [3.0, math.nan, -0.0, 2.0, 1.0, 2.0],
        }
    )
    difference = compare_tables(wanted, result, ("id",))
    assert (difference.expected, difference.found, difference.differing) == (5, 6, 4)
    assert difference.keys == ("id=2: v differs", "id=3: missing", "id=4: 2 rows, expected 1", "id=6: extra")


def test_two_spellings_of_zero_are_two_rows_of_one_key() -> None:
    result = pa.table({"id": [0.0, -0.0], "v": ["a", "a"]})
    assert compare_tables(result.slice(0, 1), result, ("id",)).keys == ("id=0.0: 2 rows, expected 1",)


def test_a_null_is_a_value_of_its_own_and_columns_may_stand_in_another_order() -> None:
    wanted = pa.table({"id": [1, 2], "v": pa.array([None, ""], pa.string())})
    assert compare_tables(wanted, wanted.select(["v", "id"]), ("id",)).buckets == 0
    swapped = pa.table({"id": [1, 2], "v": pa.array(["", None], pa.string())})
    assert compare_tables(wanted, swapped, ("id",)).keys == ("id=1: v differs", "id=2: v differs")


def test_rows_without_a_key_are_counted() -> None:
    wanted = pa.table({"a": [1, 1, None], "b": ["x", "x", "y"]})
    result = pa.table({"a": [1, None, None], "b": ["x", "y", "y"]})
    difference = compare_tables(wanted, result, ())
    assert difference.keys == ("a=1, b=x: 1 times, expected 2", "a=None, b=y: 2 times, expected 1")
    assert compare_tables(wanted, wanted.take([2, 0, 1]), ()).buckets == 0


def test_decimals_that_a_target_has_as_text() -> None:
    wanted = pa.table({"id": [1], "v": pa.array([Decimal("2.50")], pa.decimal128(10, 2))})
    assert compare_tables(wanted, pa.table({"id": [1], "v": ["2.50"]}), ("id",)).buckets == 0
    assert compare_tables(wanted, pa.table({"id": [1], "v": ["2.51"]}), ("id",)).differing == 1


def test_rows_of_keys() -> None:
    rows = pa.table({"a": [1, 2, 2], "b": ["x", "y", "z"], "v": [1, 2, 3]})
    assert rows_of_keys(rows, ("a", "b"), pa.table({"a": [2, 3], "b": ["y", "x"]}))["v"].to_pylist() == [2]
    assert rows_of_keys(rows, ("a", "b"), None) is rows


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (pa.array([1, -2]), '{"1","-2"}'),
        (pa.array(['a"b', "c\\d", "e,f", "NULL", ""]), '{"a\\"b","c\\\\d","e,f","NULL",""}'),
        (pa.array([], pa.int64()), "{}"),
        (pa.array([Decimal("1.50")]), '{"1.50"}'),
        (pa.array([b"a"]), None),
    ],
)
def test_keys_as_the_text_of_an_array(values: pa.Array, text: str | None) -> None:
    assert array_text(pa.chunked_array([values])) == text

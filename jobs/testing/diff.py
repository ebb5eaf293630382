"""Compares expected and actual rows: missing, unexpected, and different ones, matched by the node's key."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ChangedRow:
    """A row that came out differently: the same key, other values in `columns`.

    `at` is the expected row's number from 0.
    """

    at: int
    expected: Row
    found: Row
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NodeDifference:
    """How the rows of one node are not those that were expected. Rows have the compared columns alone."""

    node: str
    key: tuple[str, ...]
    expected: list[Row]
    found: list[Row]
    missing: list[int] = field(default_factory=list)
    """Numbers of expected rows."""
    extra: list[Row] = field(default_factory=list)
    changed: list[ChangedRow] = field(default_factory=list)
    misplaced: bool = False
    """All rows are there, in another order."""


def compare(
    node: str,
    expected: list[Row],
    actual: list[Row],
    key: Sequence[str] = (),
    *,
    ordered: bool = False,
    tolerance: float = 0.0,
) -> NodeDifference | None:
    """How the two differ; None if they do not. Rows have the same columns."""
    if (
        ordered
        and len(expected) == len(actual)
        and all(same(one, other, tolerance) for one, other in zip(expected, actual, strict=True))
    ):
        return None
    lacking, extra = _find_unmatched(expected, actual, tolerance)
    if not lacking and not extra:
        return NodeDifference(node, tuple(key), expected, actual, misplaced=True) if ordered else None
    changed: list[ChangedRow] = []
    if key:
        lacking, extra, changed = _by_key(expected, lacking, extra, tuple(key), tolerance)
    return NodeDifference(node, tuple(key), expected, actual, lacking, extra, changed)


def same(one: Any, other: Any, tolerance: float = 0.0) -> bool:
    """Return whether two values are equal.

    NaN equals NaN; floats and decimals may differ by the tolerance, also when nested.
    """
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(
            same(value, other[name], tolerance) for name, value in one.items()
        )
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(
            same(left, right, tolerance) for left, right in zip(one, other, strict=True)
        )
    if isinstance(one, float | Decimal) and isinstance(other, float | Decimal):
        if math.isnan(one) or math.isnan(other):
            return math.isnan(one) and math.isnan(other)
        if one == other or math.isinf(one) or math.isinf(other):
            return one == other
        return abs(Decimal(one) - Decimal(other)) <= Decimal(str(tolerance))
    return one == other


def _find_unmatched(expected: list[Row], actual: list[Row], tolerance: float) -> tuple[list[int], list[Row]]:
    """Return the indexes of expected rows without an equal row, and the other rows that are left.

    Each row matches once. Rows are paired in the order of their values, so that a tolerance does not pair
    them crosswise.
    """
    left = sorted(actual, key=_order)
    lacking = []
    for at in sorted(range(len(expected)), key=lambda index: _order(expected[index])):
        match = next((index for index, row in enumerate(left) if same(expected[at], row, tolerance)), None)
        if match is None:
            lacking.append(at)
        else:
            del left[match]
    taken = [id(row) for row in left]
    return sorted(lacking), [row for row in actual if id(row) in taken]


def _order(row: Row) -> tuple[tuple[str, Any], ...]:
    return tuple(_rank(value) for value in row.values())


def _rank(value: Any) -> tuple[str, Any]:
    """Values of one column in their order; those of types without one by their text."""
    if isinstance(value, int | float | Decimal) and not math.isnan(value):
        return ("", value)
    return (type(value).__name__, repr(value))


def _by_key(
    expected: list[Row], lacking: list[int], extra: list[Row], key: tuple[str, ...], tolerance: float
) -> tuple[list[int], list[Row], list[ChangedRow]]:
    changed, missing = [], []
    for at in lacking:
        row = expected[at]
        other = next((one for one in extra if all(same(one[name], row[name]) for name in key)), None)
        if other is None:
            missing.append(at)
            continue
        extra = [one for one in extra if one is not other]
        changed.append(
            ChangedRow(
                at, row, other, tuple(name for name in row if not same(row[name], other[name], tolerance))
            )
        )
    return missing, extra, changed

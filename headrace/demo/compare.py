"""Compares a target with the expected table, row by row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute

from headrace.demo.flights import KEY

pc: Any = pyarrow.compute


@dataclass(frozen=True, slots=True)
class Comparison:
    """The differences of a target.

    `missing`, `extra` and `changed` contain keys. `duplicates` counts rows beyond the first of a key.
    """

    expected: int
    rows: int
    duplicates: int
    missing: pa.Table
    extra: pa.Table
    changed: pa.Table

    @property
    def is_equal(self) -> bool:
        """Whether every expected row is there, once, with the expected values."""
        return not (self.duplicates or self.missing.num_rows or self.extra.num_rows or self.changed.num_rows)

    def summarize(self) -> str:
        """Return the result as one line."""
        if self.is_equal:
            return f"{self.rows:,} rows, all as expected: lost 0, doubled 0"
        return (
            f"{self.rows:,} rows, {self.expected:,} expected: lost {self.missing.num_rows:,}, doubled"
            f" {self.duplicates:,}, "
            f"not expected {self.extra.num_rows:,}, other values {self.changed.num_rows:,}"
        )


def compare(target: pa.Table, expected: pa.Table) -> Comparison:
    """Compare all columns of `expected` in any order of rows. Types are cast to those of `expected`."""
    rows = target.select(expected.column_names).cast(expected.schema)
    keys = list(KEY)
    distinct = rows.group_by(keys).aggregate([]).num_rows
    if rows.sort_by([(name, "ascending") for name in keys]).equals(expected):
        no_keys = expected.select(keys).slice(0, 0)
        return Comparison(expected.num_rows, rows.num_rows, 0, no_keys, no_keys, no_keys)
    same = expected.column_names
    both = rows.select(keys).join(expected.select(keys), keys, join_type="inner")
    return Comparison(
        expected=expected.num_rows,
        rows=rows.num_rows,
        duplicates=rows.num_rows - distinct,
        missing=_anti_join(expected, rows, keys),
        extra=_anti_join(rows, expected, keys),
        changed=_anti_join(_with_row_text(expected, same), _with_row_text(rows, same), [*keys, "_row"])
        .join(both, keys, join_type="left semi")
        .select(keys),
    )


def _anti_join(left: pa.Table, right: pa.Table, on: list[str]) -> pa.Table:
    return left.select(on).join(right.select(on), on, join_type="left anti").select(list(KEY))


def _with_row_text(table: pa.Table, columns: list[str]) -> pa.Table:
    """Return the keys, and all other values as one text, because a join treats nulls as different."""
    texts = [pc.fill_null(table[name].cast(pa.string()), "\\N") for name in columns if name not in KEY]
    return table.select(list(KEY)).append_column("_row", pc.binary_join_element_wise(*texts, "\x1f"))

"""Row by row: a target against the table that had to come out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute

from headrace.demo.flights import KEY

pc: Any = pyarrow.compute


@dataclass(frozen=True, slots=True)
class Comparison:
    """How a target differs. `lost`, `extra` and `changed` hold keys; `doubled` counts rows beyond the first of a key."""

    expected: int
    rows: int
    doubled: int
    lost: pa.Table
    extra: pa.Table
    changed: pa.Table

    @property
    def equal(self) -> bool:
        """Whether every row is there, once, and as it has to be."""
        return not (self.doubled or self.lost.num_rows or self.extra.num_rows or self.changed.num_rows)

    def said(self) -> str:
        """In a few words."""
        if self.equal:
            return f"{self.rows:,} rows, all as expected: lost 0, doubled 0"
        return (
            f"{self.rows:,} rows, {self.expected:,} expected: lost {self.lost.num_rows:,}, doubled {self.doubled:,}, "
            f"not expected {self.extra.num_rows:,}, other values {self.changed.num_rows:,}"
        )


def compare(target: pa.Table, expected: pa.Table) -> Comparison:
    """Compares all columns of `expected`, whatever order the rows are in and whatever kin of its types the target reads back as."""
    rows = target.select(expected.column_names).cast(expected.schema)
    keys = list(KEY)
    once = rows.group_by(keys).aggregate([]).num_rows
    if rows.sort_by([(name, "ascending") for name in keys]).equals(expected):
        nothing = expected.select(keys).slice(0, 0)
        return Comparison(expected.num_rows, rows.num_rows, 0, nothing, nothing, nothing)
    same = expected.column_names
    both = rows.select(keys).join(expected.select(keys), keys, join_type="inner")
    return Comparison(
        expected=expected.num_rows,
        rows=rows.num_rows,
        doubled=rows.num_rows - once,
        lost=_anti(expected, rows, keys),
        extra=_anti(rows, expected, keys),
        changed=_anti(_marked(expected, same), _marked(rows, same), [*keys, "_row"]).join(both, keys, join_type="left semi").select(keys),
    )


def _anti(left: pa.Table, right: pa.Table, on: list[str]) -> pa.Table:
    return left.select(on).join(right.select(on), on, join_type="left anti").select(list(KEY))


def _marked(table: pa.Table, columns: list[str]) -> pa.Table:
    """Keys with all other values as one text, since a join takes a null for different from a null."""
    texts = [pc.fill_null(table[name].cast(pa.string()), "\\N") for name in columns if name not in KEY]
    return table.select(list(KEY)).append_column("_row", pc.binary_join_element_wise(*texts, "\x1f"))

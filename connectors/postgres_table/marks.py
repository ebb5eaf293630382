"""Marks of rows that cannot be staged: two columns of staging tables, with the reason and the row as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import date, datetime, time
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute

from headrace.connectors.postgres_table.convert import RowChecks
from headrace.connectors.postgres_table.merge import POSITION
from headrace.pipeline.errors import DataError
from headrace.pipeline.sql.system_columns import OP

pc: Any = pyarrow.compute
"""Its functions are made at import, so type checkers do not see them."""
Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)
MARKS: Mapping[str, str] = {"_gs_reason": "TEXT", "_gs_row": "TEXT"}
"""The columns with their types. They are NULL for a row that can be staged. Else the payload is NULL."""


def mark_rows(checks: RowChecks, rows: Rows) -> tuple[Rows, int]:
    """Return the rows with the columns `MARKS`, and the number of deletes among those that can be loaded."""
    reasons: dict[int, str] = {}
    start, deletes = 0, 0
    while start < rows.num_rows:
        if not reasons:
            with suppress(DataError):
                deletes = checks.check(rows)
                break
        place = _find_refused(checks, rows, start)
        deletes += checks.check(rows.slice(start, place - start))
        if place < rows.num_rows and (reason := _explain(checks, rows.slice(place, 1))) is not None:
            reasons[place] = reason
        start = place + 1
    columns = list(rows.columns)
    marks = [pa.nulls(rows.num_rows, pa.string())] * len(MARKS)
    if reasons:
        lines = {at: json.dumps(_payload(rows.slice(at, 1)), default=_plain) for at in reasons}
        marks = [
            pa.array([result.get(at) for at in range(rows.num_rows)], pa.string())
            for result in (reasons, lines)
        ]
        kept = pc.is_null(marks[0])
        columns = [
            column if name in (OP, *POSITION) else pc.if_else(kept, column, pa.scalar(None, column.type))
            for name, column in zip(rows.schema.names, columns, strict=True)
        ]
    return type(rows).from_arrays([*columns, *marks], names=[*rows.schema.names, *MARKS]), deletes


def _find_refused(checks: RowChecks, rows: Rows, start: int) -> int:
    """Return the place of the first row from `start` on that the checks refuse, or the number of rows."""
    low, high = start, rows.num_rows
    if _explain(checks, rows.slice(start)) is None:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if _explain(checks, rows.slice(low, middle - low)) is None:
            low = middle
        else:
            high = middle
    return low


def _explain(checks: RowChecks, rows: Rows) -> str | None:
    """Return why the checks refuse a row of these, or None."""
    try:
        checks.check(rows)
    except DataError as error:
        return error.message
    return None


def _payload(row: Any) -> dict[str, Any]:
    """Return the payload of a single row."""
    (result,) = row.to_pylist()
    return {name: value for name, value in result.items() if name not in (OP, *POSITION)}


def _plain(value: object) -> str:
    """Return a value as JSON text has it."""
    if isinstance(value, bytes):
        return f"\\x{value.hex()}"
    return value.isoformat() if isinstance(value, date | datetime | time) else str(value)

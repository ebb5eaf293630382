"""The rows of a target after the operations of the rows were applied in order.

A model of the SQL of the sinks on Python rows: a table with a key takes upserts and deletes, one without a
key appends and refuses deletes, and a sink without a target gets every row unchanged.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.pipeline.errors import DataError, GuaranteeError
from headrace.pipeline.model.graph import lacks_commit_record
from headrace.pipeline.sql.system_columns import OP

Row = dict[str, Any]

_COMPARES: Mapping[str, Callable[[Any, Any], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "=": operator.eq,
    "!=": operator.ne,
    "<>": operator.ne,
}


def keeps_operations(sink: Any) -> bool:
    """Return whether a sink passes rows on unchanged, operations included."""
    return lacks_commit_record(sink)


def apply_to_target(name: str, sink: Any, key: Sequence[str], rows: Sequence[Row]) -> list[Row]:
    """Return the rows of the target in the order in which they were inserted.

    `rows` are in order and have `_gs_op`. Raises the errors of the sink: DataError for a null in a key,
    GuaranteeError for a delete without a key.
    """
    if keeps_operations(sink):
        return list(rows)
    if not key:
        if any(row[OP] == "d" for row in rows):
            msg = "a delete arrived, and a table without a key cannot apply it"
            raise GuaranteeError(
                msg,
                node=name,
                hint="Set `primary_key` on the sink, or filter `_gs_op <> 'd'` in a transform.",
            )
        return [_payload(row) for row in rows]
    result: dict[str, Row] = {}
    for row in rows:
        if missing := [column for column in key if row[column] is None]:
            shown = ", ".join(f"{column}={value!r}" for column, value in list(_payload(row).items())[:8])
            msg = f"key column '{missing[0]}' is null in a row ({shown})"
            raise DataError(
                msg, node=name, hint="Filter such rows out in a transform, or choose another `primary_key`."
            )
        _apply(result, repr([row[column] for column in key]), row, sink)
    return list(result.values())


def _apply(state: dict[str, Row], key: str, row: Row, sink: Any) -> None:
    existing = state.get(key)
    if row[OP] == "d":
        state.pop(key, None)
    elif existing is None or (
        getattr(sink, "on_conflict", "update") == "update"
        and _wins(row, existing, getattr(sink, "update_where", {}))
    ):
        state[key] = _payload(row)


def _wins(new: Row, old: Row, where: Mapping[str, str]) -> bool:
    """Return whether an update applies.

    It does if `EXCLUDED.column op t.column` is true for all columns. A null never compares as true.
    """
    return all(
        new.get(column) is not None
        and old.get(column) is not None
        and _COMPARES[op](new[column], old[column])
        for column, op in where.items()
    )


def _payload(row: Row) -> Row:
    return {column: value for column, value in row.items() if column != OP}

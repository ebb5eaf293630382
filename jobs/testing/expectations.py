"""The expected rows of one node in its own types, and the actual rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from headrace.jobs.testing.inputs import cast_rows, check_columns, check_operations
from headrace.jobs.testing.sink_state import Row, keeps_operations
from headrace.pipeline.errors import PipelineFileError, UserError
from headrace.pipeline.sql.system_columns import OP
from headrace.pipeline.suggestions import suggest_closest
from headrace.pipeline.testcases.loader import Case
from headrace.pipeline.testcases.rows import Rows
from headrace.pipeline.testcases.values import fit
from headrace.pipeline.types.int256 import is_wide


@dataclass(frozen=True, slots=True)
class Expectation:
    """Expected and actual rows of one node with the columns of `schema`.

    `key` is that of the node if all its columns are compared.
    """

    node: str
    schema: pa.Schema
    key: tuple[str, ...]
    expected: list[Row]
    found: list[Row]
    ordered: bool
    tolerance: float


def expectation(
    case: Case, node: str, schema: pa.Schema, key: Sequence[str], actual: list[Row]
) -> Expectation:
    """Return what a test expects of a node. `actual` are the rows that it has.

    Raises PipelineFileError for expected rows that the node cannot have: other columns or other types.
    """
    expected_config, rows = case.node.expect[node], case.expected_rows(node)
    sink = case.file.model.sinks.get(node)
    known = [*schema.names, *([] if sink is not None and not keeps_operations(sink) else [OP])]
    check_columns(case, node, rows, known)
    check_operations(case, node, rows)
    _check_columns(case, node, rows, schema, known)
    columns = tuple(expected_config.columns or schema.names)
    if OP in rows.columns and OP not in columns:
        columns = (*columns, OP)
    payload = pa.schema([schema.field(name) for name in columns if name != OP])
    cells, wrong = cast_rows(rows, payload)
    if wrong:
        raise PipelineFileError(
            [
                UserError(
                    f"test `{case.name}`: expected row {row + 1} of `{node}`, column `{column}`: {reason}",
                    place=rows.place(row, column),
                )
                for row, column, reason in wrong
            ]
        )
    wide = {field.name for field in payload if is_wide(field.type)}
    expected = [
        {name: (record.get(OP) or "i") if name == OP else cell[name] for name in columns}
        for cell, record in zip(cells, rows.records, strict=True)
    ]
    return Expectation(
        node,
        pa.schema([pa.field(OP, pa.string()) if name == OP else schema.field(name) for name in columns]),
        tuple(key) if set(key) <= set(columns) else (),
        expected,
        [
            {name: fit(row[name], schema.field(name).type) if name in wide else row[name] for name in columns}
            for row in actual
        ],
        expected_config.ordered,
        expected_config.tolerance,
    )


def _check_columns(case: Case, node: str, rows: Rows, schema: pa.Schema, known: list[str]) -> None:
    """Columns that are compared must be there, and without `columns` all of them are compared."""
    columns = case.node.expect[node].columns
    place = case.place("expect", node, "columns")
    problems = [
        UserError(
            f"test `{case.name}`: `{node}` has no column `{name}`{suggest_closest(name, known)}",
            hint=f"Columns: {', '.join(known)}.",
            place=place,
        )
        for name in columns
        if name not in known
    ]
    lacking = (
        [name for name in schema.names if name not in rows.columns] if rows.records and not columns else []
    )
    if lacking:
        msg = (
            f"test `{case.name}`: the expected rows of `{node}` do not name the columns {', '.join(lacking)}"
        )
        hint = "Name them in a row, or list under `columns` those that are to be compared."
        problems.append(UserError(msg, hint=hint, place=rows.start))
    if problems:
        raise PipelineFileError(problems)

"""Replaces expected rows by actual rows in the files of the tests.

Only the rows in a YAML file change: a row that is as expected keeps its line and its comment, and in a
changed row only the changed values are replaced.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode, SequenceNode

from headrace.jobs.testing.diff import NodeDifference, compare
from headrace.jobs.testing.expectations import Expectation
from headrace.jobs.testing.expectations import expectation as expected_of
from headrace.jobs.testing.formatting import flow, json_value, plain, scalar
from headrace.jobs.testing.inputs import to_row_value
from headrace.jobs.testing.runner import CaseOutcome
from headrace.jobs.testing.sink_state import Row
from headrace.pipeline.errors import HeadraceError, UserError
from headrace.pipeline.model.testcases import CaseConfig
from headrace.pipeline.sql.system_columns import OP
from headrace.pipeline.testcases.loader import Case
from headrace.pipeline.types.int256 import storage_schema
from headrace.pipeline.yaml.reader import read_tree


@dataclass(frozen=True, slots=True)
class _Edit:
    """Text to put in place of [start, end)."""

    start: int
    end: int
    text: str


def update(outcome: CaseOutcome) -> list[str]:
    """Rewrite the expected rows of a failed test. Return one line per changed node.

    Raises UserError if there is nothing to write: an error was expected or occurred, or an alias shares the
    rows.
    """
    case = outcome.case
    if case.node.expect_error is not None:
        msg = f"test `{case.name}` expects an error, and has no rows to update"
        raise UserError(msg, hint="Correct `expect_error` by hand.", place=case.place("expect_error"))
    if outcome.error is not None:
        msg = f"test `{case.name}` ended with an error, so there are no rows to update it with"
        raise UserError(msg, hint="Fix that first.", place=case.place())
    changes = []
    for difference in outcome.differences:
        expectation = outcome.expectations[difference.node]
        node = case.node.expect[difference.node]
        rows = _in_order(difference, expectation)
        if node.path is None:
            text = case.path.read_text(encoding="utf-8")
            path = ("tests", case.name, "expect", difference.node, "rows")
            new = replace_rows(text, path, difference, expectation)
            _check(new, case, expectation)
            case.path.write_text(new, encoding="utf-8")
            where = str(case.place("expect", difference.node))
        else:
            target = case.path.parent / node.path
            _write_file(node.forms[0], target, rows, expectation, case.expected_rows(difference.node).columns)
            where = str(target)
        changes.append(
            f"{where}: `{difference.node}` now expects {len(rows)} row{'' if len(rows) == 1 else 's'}"
        )
    return changes


def _check(text: str, case: Case, expectation: Expectation) -> None:
    """Raise UserError unless the test, loaded from the new text, expects the actual rows."""
    tree = read_tree(text, str(case.path))
    try:
        node = CaseConfig.model_validate(tree.value["tests"][case.name])
        again = replace(case, node=node, places=tree.places, texts=tree.texts)
        payload = pa.schema([field for field in expectation.schema if field.name != OP])
        both = expected_of(again, expectation.node, payload, expectation.key, expectation.found)
        good = compare("", both.expected, both.found, ordered=both.ordered, tolerance=both.tolerance) is None
    except (ValidationError, HeadraceError, KeyError, TypeError):
        good = False
    if not good:
        msg = f"the rows of `{expectation.node}` in test `{case.name}` cannot be rewritten where they stand"
        raise UserError(msg, hint="Change them by hand.", place=case.place("expect", expectation.node))


def _in_order(difference: NodeDifference, expectation: Expectation) -> list[Row]:
    """Return the rows to expect: unchanged and changed rows in their order, then new ones."""
    if expectation.ordered:
        return expectation.found
    changed = {change.at: change.found for change in difference.changed}
    kept = [
        changed.get(at, row) for at, row in enumerate(expectation.expected) if at not in difference.missing
    ]
    return [*kept, *difference.extra]


def _write_file(
    form: str, path: Path, rows: list[Row], expectation: Expectation, columns: Sequence[str]
) -> None:
    names = list(columns) if set(columns) == set(expectation.schema.names) else expectation.schema.names
    if form == "parquet":
        schema = pa.schema([expectation.schema.field(name) for name in names])
        cells = [{field.name: to_row_value(row[field.name], field.type) for field in schema} for row in rows]
        pq.write_table(pa.Table.from_pylist(cells, storage_schema(schema)), path)
        return
    if form == "json":
        lines = [json_value({name: row[name] for name in names}) for row in rows]
    else:
        target = io.StringIO()
        writer = csv.writer(target, lineterminator="\n")
        cells = [
            [
                ""
                if row[name] is None
                else json_value(row[name])
                if isinstance(row[name], dict | list)
                else plain(row[name])
                for name in names
            ]
            for row in rows
        ]
        writer.writerows([names, *cells])
        lines = target.getvalue().splitlines()
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def replace_rows(text: str, path: Sequence[str], difference: NodeDifference, expectation: Expectation) -> str:
    """Return a YAML text with the rows at `path` replaced by the actual rows."""
    parent, rows = _find(text, path)
    new = _in_order(difference, expectation)
    order = (
        list(_names(rows)) if set(_names(rows)) == set(expectation.schema.names) else expectation.schema.names
    )
    if (
        not new
        or rows.flow_style
        or expectation.ordered
        or not all(isinstance(row, MappingNode) for row in rows.value)
    ):
        return _apply(
            text, [_whole(text, parent, rows, [{name: row[name] for name in order} for row in new])]
        )
    edits: list[_Edit] = []
    for change in difference.changed:
        edits += _change_values(
            rows.value[change.at], {name: change.found[name] for name in order}, change.columns
        )
    for at in difference.missing:
        start, end = _line(text, rows.value[at])
        edits.append(_Edit(start, end, ""))
    if difference.extra:
        _, end = _line(text, rows.value[-1])
        indent = " " * rows.start_mark.column
        break_ = "" if text[:end].endswith("\n") else "\n"
        lines = "".join(
            f"{indent}- {flow({name: row[name] for name in order})}\n" for row in difference.extra
        )
        edits.append(_Edit(end, end, break_ + lines))
    return _apply(text, edits)


def _find(text: str, path: Sequence[str]) -> tuple[MappingNode, SequenceNode]:
    """Return the rows in the composed text and the mapping that contains them.

    Raises UserError for an alias or a merge.
    """
    node: Node = YAML(typ="safe", pure=True).compose(text)
    parent = node
    for part in path:
        parent = node
        pair = (
            next(((key, value) for key, value in parent.value if key.value == part), None)
            if isinstance(parent, MappingNode)
            else None
        )
        if pair is None or pair[1].start_mark.index < pair[0].end_mark.index:
            msg = f"the rows at `{'.'.join(path)}` come from an alias or a merge, and others may share them"
            raise UserError(msg, hint="Write them out where they are expected, or change them by hand.")
        node = pair[1]
    assert isinstance(parent, MappingNode)  # noqa: S101  checked on the way
    assert isinstance(node, SequenceNode)  # noqa: S101  the file was read as such
    return parent, node


def _names(rows: SequenceNode) -> list[str]:
    return list(
        dict.fromkeys(key.value for row in rows.value if isinstance(row, MappingNode) for key, _ in row.value)
    )


def _whole(text: str, parent: MappingNode, rows: SequenceNode, new: list[Row]) -> _Edit:
    """Return an edit of all rows.

    They are on one line if the mapping around them is, else one line per row.
    """
    start, end = rows.start_mark.index, _end(rows)
    if not new or parent.flow_style:
        if not rows.flow_style:
            start = len(text[:start].rstrip())
        space = "" if rows.flow_style else " "
        return _Edit(start, end, f"{space}[{', '.join(map(flow, new))}]")
    indent = " " * (rows.start_mark.column if not rows.flow_style else parent.start_mark.column + 2)
    lines = [f"{indent}- {flow(row)}" for row in new]
    return _Edit(len(text[:start].rstrip()), end, "\n" + "\n".join(lines))


def _change_values(row: MappingNode, new: Row, columns: Sequence[str]) -> list[_Edit]:
    """Return the edits of the values that changed.

    If one is not a simple scalar, return an edit of the whole row.
    """
    values = {key.value: value for key, value in row.value}
    simple = all(
        isinstance(value := values.get(name), ScalarNode)
        and value.style not in ("|", ">")
        and value.value != ""
        for name in columns
    )
    if simple:
        return [
            _Edit(values[name].start_mark.index, values[name].end_mark.index, scalar(new[name]))
            for name in columns
        ]
    return [_Edit(row.start_mark.index, _end(row), flow(new))]


def _line(text: str, row: Node) -> tuple[int, int]:
    """Return the range from the start of the first line of a row to after its last line break."""
    line_break = text.find("\n", _end(row))
    dash = text.rfind("-", 0, row.start_mark.index)
    return text.rfind("\n", 0, dash) + 1, len(text) if line_break < 0 else line_break + 1


def _end(node: Node) -> int:
    """Return where the text of a node ends.

    The end mark of a block collection is after the comments that follow it.
    """
    if isinstance(node, CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(last[1] if isinstance(last, tuple) else last)
    return node.end_mark.index


def _apply(text: str, edits: list[_Edit]) -> str:
    for edit in sorted(edits, key=lambda edit: edit.start, reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text

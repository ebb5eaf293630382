"""Mistakes in tests beyond their structure: unknown nodes, rows set twice, columns that a source lacks.

It uses plain values, so that one invalid test does not hide mistakes in the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from headrace.pipeline.errors import SchemaError, UserError
from headrace.pipeline.model.testcases import FORMS
from headrace.pipeline.suggestions import suggest_closest
from headrace.pipeline.types.arrow import parse_type
from headrace.pipeline.yaml.reader import PARTS, Path, YamlDocument, shorten

OP = "_gs_op"
OPERATIONS = ("i", "u", "d")
METADATA = ("__kafka_partition", "__kafka_offset", "__kafka_timestamp")


def check_cases(tree: YamlDocument, pipeline: Mapping[str, Any]) -> list[UserError]:
    """Return all mistakes in a file's `tests`. `pipeline` has the plain values of the nodes."""
    tests = tree.value.get("tests") if isinstance(tree.value, dict) else None
    parts = {part: nodes if isinstance(nodes := pipeline.get(part), dict) else {} for part in PARTS}
    if not isinstance(tests, dict):
        return []
    return [
        problem
        for name, test in tests.items()
        if isinstance(test, dict)
        for problem in _Check(tree, name, test, parts).problems()
    ]


class _Check:
    """The check of one test."""

    def __init__(
        self, tree: YamlDocument, name: str, test: dict[str, Any], parts: Mapping[str, dict[str, Any]]
    ) -> None:
        self._tree, self._name, self._test, self._parts = tree, name, test, parts

    def problems(self) -> Iterator[UserError]:
        """Yield all mistakes of the test."""
        expected, error = self._test.get("expect"), self._test.get("expect_error")
        if not expected and error is None:
            hint = "Add `expect:` with a node and its rows, or `expect_error:` with a part of the message."
            yield self._problem("a test must expect rows or an error, and this one expects nothing", hint, ())
        if expected and error is not None:
            yield self._problem(
                "a test expects rows or an error, and this one says both",
                "Make two tests of it.",
                ("expect_error",),
            )
        if error == "":
            yield self._problem(
                "`expect_error` is empty, and any error has that in it",
                "Write a part of the message.",
                ("expect_error",),
            )
        for part in ("given", "expect"):
            nodes = self._test.get(part)
            for node, form in nodes.items() if isinstance(nodes, dict) else ():
                yield from self._node(part, node)
                if isinstance(form, dict):
                    yield from self._rows(part, node, form)
                elif isinstance(form, list):
                    yield from self._values(part, node, form)

    def _node(self, part: str, node: str) -> Iterator[UserError]:
        known = [name for kind in PARTS[: 2 if part == "given" else 3] for name in self._parts[kind]]
        if node in known:
            return
        hint = f"There are: {', '.join(known)}."
        if node in self._parts["sinks"]:
            yield self._problem(
                f"`{node}` is a sink, and rows are given to sources and transforms", hint, (part, node)
            )
            return
        what = "source or transform" if part == "given" else "source, transform or sink"
        yield self._problem(
            f"`{shorten(node)}` is no {what} of this pipeline{suggest_closest(node, known)}",
            hint,
            (part, node),
        )

    def _values(self, part: str, node: str, listed: list[Any]) -> Iterator[UserError]:
        """Check a list of values, which only a dynamic table has."""
        result = self._parts["transforms"].get(node)
        if not isinstance(result, dict) or result.get("type") != "dynamic_table":
            msg = f"`{part}.{node}` is a list, and only a dynamic table has values without columns"
            yield self._problem(msg, "Write `rows:` with a map per row.", (part, node))
        for index, value in enumerate(listed):
            if isinstance(value, dict | list | bool) or value is None:
                hint = "Put it into quotes if it is meant as text."
                yield self._problem(
                    f"`{part}.{node}` lists something that is no text", hint, (part, node, index)
                )

    def _rows(self, part: str, node: str, declared: dict[str, Any]) -> Iterator[UserError]:
        forms = [form for form in FORMS if declared.get(form) is not None]
        if not forms and set(declared) <= {
            *FORMS,
            "schema",
            "ordered",
            "columns",
            "tolerance",
        }:  # otherwise the unknown key is reported
            hint = (
                "Write `rows: []` if there are none."
                if part == "expect"
                else "A source without rows need not be given."
            )
            yield self._problem(f"`{part}.{node}` needs one of {', '.join(FORMS)}", hint, (part, node))
        if len(forms) > 1:
            msg = f"`{part}.{node}` says {' and '.join(f'`{form}`' for form in forms)}"
            yield self._problem(msg, "One of them is enough.", (part, node, forms[1]))
        yield from self._schema(part, node, declared)
        rows = declared.get("rows")
        for index, row in enumerate(rows if isinstance(rows, list) else ()):
            if isinstance(row, dict):
                yield from self._row(
                    (part, node, "rows", index),
                    row,
                    self._columns(node, declared) if part == "given" else None,
                )

    def _schema(self, part: str, node: str, declared: dict[str, Any]) -> Iterator[UserError]:
        schema = declared.get("schema")
        if part != "given" or not isinstance(schema, dict):
            return
        if self._columns(node, {}) is not None:
            msg = f"`{node}` has its columns from the pipeline file"
            yield self._problem(msg, "Remove `schema` here.", (part, node, "schema"))
        for column, kind in schema.items():
            try:
                parse_type(str(kind))
            except SchemaError as error:
                reason, _, supported = error.message.partition("supported: ")
                msg = f"column `{column}`: {reason.replace(chr(39), '`').rstrip('; ')}"
                yield self._problem(
                    msg, f"Supported: {supported}." if supported else "", (part, node, "schema", column)
                )

    def _columns(self, node: str, declared: dict[str, Any]) -> list[str] | None:
        """Return the columns that an input node can have, if the files declare them."""
        source = self._parts["sources"].get(node)
        if not isinstance(source, dict):
            return None
        stream = source.get("unbounded_source") if source.get("type") == "hybrid" else source
        if source.get("type") == "file":  # folders may add columns to those of its `schema`
            stream = None
        schema = declared.get("schema") or (stream.get("schema") if isinstance(stream, dict) else None)
        if not isinstance(schema, dict):
            return None
        return [
            *schema,
            *(METADATA if isinstance(stream, dict) and stream.get("include_metadata") else ()),
            OP,
        ]

    def _row(self, path: Path, row: dict[str, Any], known: list[str] | None) -> Iterator[UserError]:
        if row.get(OP, "i") not in OPERATIONS:
            yield self._problem(f"`{OP}` cannot be `{shorten(row[OP])}`", "Allowed: i, u, d.", (*path, OP))
        for column in row if known is not None else ():
            if column not in (known or ()):
                msg = f"`{path[1]}` has no column `{shorten(column)}`{suggest_closest(column, known or ())}"
                yield self._problem(msg, f"Columns: {', '.join(known or ())}.", (*path, column))

    def _problem(self, msg: str, hint: str, path: Path) -> UserError:
        return UserError(
            f"test `{shorten(self._name)}`: {msg}",
            hint=hint,
            place=self._tree.place(("tests", self._name, *path)),
        )

"""Checks the structure of a pipeline file: the inputs of each node.

It uses plain values, so that one invalid node does not hide other mistakes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from headrace.pipeline.errors import FileLocation, UserError
from headrace.pipeline.model.error_outputs import errors_name
from headrace.pipeline.sql import dynamic_tables as dynamic
from headrace.pipeline.sql import statements
from headrace.pipeline.sql.dialects.translation import DIALECTS
from headrace.pipeline.suggestions import suggest_closest
from headrace.pipeline.yaml.reader import PARTS, YamlDocument

_TABLE = "dynamic_table"


@dataclass(slots=True)
class _FileStructure:
    """Node names by part, and the inputs of transforms and sinks. `whole` means that all inputs are known."""

    names: dict[str, list[str]]
    reads: dict[str, tuple[str, ...]] = field(default_factory=dict)
    whole: bool = True
    tables: frozenset[str] = frozenset()
    """Dynamic tables. No node reads their rows, and they are no orphans."""
    errors: dict[str, str] = field(default_factory=dict)
    """The nodes with `on_error: dead_letter`, by the name of their errors output."""


def check_shape(tree: YamlDocument) -> list[UserError]:
    """Check for duplicate names, missing inputs, cycles and orphans. Skips parts that are not mappings."""
    parts: dict[str, Any] = {part: tree.value.get(part, {}) for part in PARTS}
    if not all(isinstance(nodes, dict) for nodes in parts.values()) or "sources" not in tree.value:
        return []
    if not parts["sources"]:
        return [
            UserError(
                "`sources` is empty", hint="It needs at least a source.", place=tree.place(("sources",))
            )
        ]
    tables = frozenset(
        name
        for name, node in parts["transforms"].items()
        if isinstance(node, dict) and node.get("type") == _TABLE
    )
    shape = _FileStructure(
        {part: list(nodes) for part, nodes in parts.items()}, whole=bool(parts["sinks"]), tables=tables
    )
    shape.errors = {
        errors_name(name): name
        for part in ("sources", "transforms")
        for name, node in parts[part].items()
        if _has_dead_letters(node)
    }
    problems = [*_twice(shape, tree), *_reads(shape, parts, tree)]
    problems += _unknown(shape, tree)
    if not problems:
        problems += _circles(shape, tree)
    return problems or _orphans(shape, tree)


def _has_dead_letters(node: Any) -> bool:
    result = node.get("unbounded_source", node) if isinstance(node, dict) else None
    return isinstance(result, dict) and result.get("on_error") == "dead_letter"


def _twice(shape: _FileStructure, tree: YamlDocument) -> Iterator[UserError]:
    seen: dict[str, str] = {}
    for part, names in shape.names.items():
        for name in names:
            first = seen.setdefault(name.lower(), f"`{name}` in {part}")
            if first != f"`{name}` in {part}":
                msg = f"duplicate node name `{name}`: there is {first}"
                yield UserError(
                    msg,
                    hint="Names are compared without case. Rename one of the two.",
                    place=tree.place((part, name)),
                )


def _reads(shape: _FileStructure, parts: dict[str, Any], tree: YamlDocument) -> Iterator[UserError]:
    """Fill `shape.reads` and yield the statements that cannot be parsed."""
    for part in ("transforms", "sinks"):
        for name, node in parts[part].items():
            by_sql = isinstance(node, dict) and node.get("type") in ("sql", _TABLE)
            text = node.get("sql" if by_sql else "from") if isinstance(node, dict) else None
            if text is None and name in shape.tables:
                continue
            if not isinstance(text, str):
                shape.whole = False
                continue
            if not by_sql:
                shape.reads[name] = (text,)
                continue
            try:
                if name in shape.tables:
                    dynamic.check_population(text, node=name, dialect=_dialect(node))
                shape.reads[name] = statements.input_nodes(text, node=name, dialect=_dialect(node))
            except UserError as error:
                shape.whole = False
                yield UserError(
                    error.message, hint=error.hint, node=name, place=tree.place((part, name, "sql"))
                )
                continue
            if not shape.reads[name]:
                msg = "reads no source and no transform"
                hint = (
                    "Name one after FROM:"
                    f" {', '.join([*shape.names['sources'], *shape.names['transforms']])}."
                )
                yield UserError(msg, hint=hint, node=name, place=tree.place((part, name, "sql")))


def _dialect(node: dict[str, Any]) -> str:
    """Return the dialect of a sql node. An unknown one is reported by the check of the node."""
    text = node.get("dialect")
    return text if isinstance(text, str) and text in DIALECTS else "spark"


def _unknown(shape: _FileStructure, tree: YamlDocument) -> Iterator[UserError]:
    every = dict.fromkeys([*shape.names["sources"], *shape.names["transforms"]])
    known = [name for name in every if name not in shape.tables]
    for name, upstreams in shape.reads.items():
        part = "transforms" if name in shape.names["transforms"] else "sinks"
        for upstream in upstreams:
            if upstream in known or (upstream in shape.errors and part == "sinks"):
                continue
            there = f"no source or transform{suggest_closest(upstream, known)}"
            what = "a sink, and nothing can be read from it" if upstream in shape.names["sinks"] else there
            place = tree.place((part, name, "from" if "from" in tree.value[part][name] else "sql"))
            if upstream in shape.tables:
                msg = f"reads `{upstream}`, which is a dynamic table: no rows leave it"
                hint = f"Ask it in a sql transform: WHERE dynamic_table_check('{upstream}', column)."
                yield UserError(msg, hint=hint, node=name, place=place)
                continue
            if (of := upstream.removesuffix(errors_name(""))) != upstream and of in every:
                yield _wrong_errors(of, name, place, shape)
                continue
            yield UserError(
                f"reads `{upstream}`, which is {what}",
                node=name,
                place=place,
                hint=f"There are: {', '.join(known)}.",
            )


def _wrong_errors(of: str, name: str, place: FileLocation, shape: _FileStructure) -> UserError:
    """Return the mistake of a node that reads rejected rows which it cannot get."""
    upstream = errors_name(of)
    if upstream in shape.errors:
        msg, hint = f"reads `{upstream}`, and only sinks can", f"Give `from: {upstream}` to a sink."
    else:
        msg = f"reads `{upstream}`, and `{of}` rejects no rows: it has no `on_error: dead_letter`"
        kind = "kafka source" if of in shape.names["sources"] else "transform"
        hint = f"Set `on_error: dead_letter` at the {kind} `{of}`, or remove this node."
    return UserError(msg, hint=hint, node=name, place=place)


def _circles(shape: _FileStructure, tree: YamlDocument) -> Iterator[UserError]:
    """Yield each cycle once."""
    done: set[str] = set()
    for start in shape.names["transforms"]:
        way: list[str] = []
        stack: list[tuple[str, int]] = [(start, 0)]
        while stack:
            name, depth = stack.pop()
            del way[depth:]
            if name in way:
                circle = [*way[way.index(name) :], name]
                done |= set(circle)
                msg = f"transforms read each other in a circle: {' -> '.join(circle)}"
                hint = "Let one of them read a source instead."
                yield UserError(msg, hint=hint, node=name, place=tree.place(("transforms", name, "sql")))
                break
            if name not in done:
                way.append(name)
                stack += [
                    (upstream, depth + 1)
                    for upstream in shape.reads.get(name, ())
                    if upstream in shape.names["transforms"]
                ]
        done |= set(way)


def _orphans(shape: _FileStructure, tree: YamlDocument) -> list[UserError]:
    """Yield sources and transforms that no node reads. Skipped if the inputs are unknown."""
    used = {upstream for upstreams in shape.reads.values() for upstream in upstreams}
    places = {
        name: tree.place((part, name))
        for part in PARTS[:2]
        for name in shape.names[part]
        if name not in used | shape.tables
    }
    if not places or not shape.whole:
        return []
    msg = f"Source(s) and/or transform(s) have no consumers: {', '.join(places)}."
    return [
        UserError(
            msg, hint="Remove them or connect them to a transform or sink.", place=next(iter(places.values()))
        )
    ]

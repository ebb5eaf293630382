"""An explanation for people: the graph, then each node, at most 80 columns wide."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from headrace.jobs.explain.model import ExplainedNode, Explanation, HistorySplits, SourcePart
from headrace.pipeline.lineage.relations import ColumnLineage

WIDTH = 80
_HEAD = 12  # of "  delivery  ", the widest word in front of a sentence
_TIGHT = "\u00a0"
_TITLES = {
    "source": "sources",
    "errors": "rejected rows",
    "transform": "transforms",
    "table": "dynamic tables",
    "sink": "sinks",
}
_PARTITIONS = 24
"""Partitions of a source whose splits are listed; the JSON has all of them."""


def text(explanation: Explanation, *, lineage: bool = False) -> str:
    """Return the output of `headrace explain`. `lineage` adds the origin of every column of a sink."""
    return "\n".join(_lines(explanation, lineage=lineage))


def _lines(explanation: Explanation, *, lineage: bool) -> Iterator[str]:
    yield f"pipeline {explanation.name}, file hash {explanation.pipeline_hash}"
    yield ""
    yield from _graph(explanation)
    for node in explanation.nodes:
        yield f"\n{node.kind} {node.name}"
        yield from _node(explanation, node, lineage=lineage)
    if explanation.splits is not None:
        yield from _splits(explanation.splits)
    if explanation.spark_plan is not None:
        empty = "Spark has nothing to plan: no transform whose sources are known."
        yield f"\n{explanation.spark_plan or empty}"


def _graph(explanation: Explanation) -> Iterator[str]:
    """Yield the nodes by type: what each one is, what it reads, and for a sink the load path."""
    width = min(24, max((len(node.name) for node in explanation.nodes), default=0))
    for kind, title in _TITLES.items():
        if nodes := [node for node in explanation.nodes if node.kind == kind]:
            yield title
        for node in nodes:
            first, *rest = _summary(node)
            lead = " " * (width + 4)
            yield from _wrap(f"  {node.name:{width}}  ", first, len(lead))
            for line in rest:
                yield from _wrap(lead, line)


def _summary(node: ExplainedNode) -> list[str]:
    key = [f"key {', '.join(node.key)}"] if node.key_from == (node.name,) and node.kind != "sink" else []
    reads = f", reads {', '.join(node.inputs)}" if node.inputs else ""
    if node.kind == "source":
        return [", then ".join(f"{part.type} {part.name}" for part in node.parts), *key]
    if node.kind == "table":
        return [f"dynamic table{reads}", f"looked up by {', '.join(node.asked_by) or 'no transform'}"]
    if node.target is None:
        return [f"{node.type}{reads}", *key]
    target = node.target
    history = [f"history {target.load_path.path}"] if target.load_path else []
    delivery = "; ".join([target.guarantee.delivery.replace("_", " "), *history, target.writes])
    return [f"{f'{node.type} {target.name}'.rstrip()}{reads}", delivery]


def _node(explanation: Explanation, node: ExplainedNode, *, lineage: bool) -> Iterator[str]:
    for part in node.parts:
        yield from _fact(part.phase, _part(part))
    for label, sentence in node.notes:
        yield from _fact(label, sentence)
    if node.kind == "transform":
        yield from _fact("reads", f"{', '.join(node.inputs)}, by {node.type}")
    if node.kind == "table":
        yield from _fact(
            "filled by", f"{', '.join(node.inputs)}, before the same epoch asks" if node.inputs else "others"
        )
        yield from _fact("asked by", ", ".join(node.asked_by) or "nobody")
        return
    if node.target is not None:
        yield from _fact("reads", ", ".join(node.inputs))
        yield from _target(node)
    yield from _fact("key", _key(node))
    yield from _fact("columns", _columns(explanation, node))
    for sentence in node.unchecked:
        yield from _fact("unchecked", sentence)
    if lineage and node.kind == "sink":
        first = next(
            other for other in explanation.nodes if other.kind == "sink" and other.inputs == node.inputs
        )
        yield from _lineage(node) if first is node else _fact("lineage", f"as at {first.name}")


def _part(part: SourcePart) -> str:
    return f"{part.type} {part.name}, {part.description}"


def _target(node: ExplainedNode) -> Iterator[str]:
    target = node.target
    assert target is not None  # noqa: S101  only sinks come here
    yield from _fact(
        "target", f"{node.type} {target.name}".rstrip() + (" (made if missing)" if target.created else "")
    )
    yield from _fact("writes", target.writes)
    yield from _fact("delivery", f"{target.guarantee.delivery.replace('_', ' ')}: {target.guarantee.reason}")
    for condition in target.guarantee.provided:
        yield from _fact("provided", condition)
    if target.order is not None:
        yield from _fact("order", target.order.wins)
        for note in target.order.notes:
            yield from _fact("", note)
    yield from _fact("visible", target.visible)
    if target.load_path is not None:
        yield from _fact("history", f"{target.load_path.path}: {target.load_path.reason}")


def _key(node: ExplainedNode) -> str:
    if not node.key:
        return "none: rows are appended" if node.kind == "sink" else "none"
    own = node.key_from == (node.name,)
    return f"{', '.join(node.key)}; {'its own' if own else 'from ' + ', '.join(node.key_from)}"


def _columns(explanation: Explanation, node: ExplainedNode) -> str:
    if node.kind == "sink":
        (before,) = (other for other in explanation.nodes if other.name == node.inputs[0])
        if before.columns == node.columns and node.columns:
            return f"the {len(node.columns)} of {before.name}" + ("" if node.complete else ", and others")
    # A name stays next to its type: lines do not break at these spaces.
    column_list = ", ".join(
        f"{column.name} {column.type}".rstrip().replace(" ", _TIGHT) for column in node.columns
    )
    if node.complete:
        return column_list
    return f"{column_list}, and others" if column_list else "not known"


def _lineage(node: ExplainedNode) -> Iterator[str]:
    if not node.lineage:
        yield from _fact("lineage", "not known")
        return
    yield "  lineage"
    width = min(24, max(len(name) for name in node.lineage))
    for name, derived in node.lineage.items():
        yield from _wrap(f"    {name:{width}}  ", _origins(derived), 6 + width)
        for step in derived.steps:
            lead = " " * (6 + width)
            yield from _wrap(f"{lead}{step.node}.{step.column} = ", step.expression, len(lead) + 4)


def _origins(derived: ColumnLineage) -> str:
    if not derived.origins:
        return "no source column"
    return ", ".join(f"{origin.node}.{origin.column}" for origin in derived.origins)


def _splits(history: HistorySplits) -> Iterator[str]:
    yield "\nsplits of history, as they would be cut now; no snapshot was created"
    for source, part in dict.fromkeys((summary.source, summary.part) for summary in history.summaries):
        summaries = [
            summary for summary in history.summaries if (summary.source, summary.part) == (source, part)
        ]
        yield f"  {source}, {part}"
        yield f"    {'partition':10}  {'splits':>6}  {'rows':>13}  first, last"
        for summary in summaries[:_PARTITIONS]:
            ends = (
                ""
                if summary.first is None or summary.last is None
                else f"{summary.first[0]}, {summary.last[0]}"
            )
            yield f"    {summary.partition or 'all':10}  {summary.count:>6,}  {summary.rows:>13,}  {ends}"[
                :WIDTH
            ].rstrip()
        if len(summaries) > 1:
            more = (
                f" ({len(summaries) - _PARTITIONS:,} partitions more)" if len(summaries) > _PARTITIONS else ""
            )
            total = (sum(summary.count for summary in summaries), sum(summary.rows for summary in summaries))
            yield f"    {'together':10}  {total[0]:>6,}  {total[1]:>13,}{more}"
    for source, reason in history.unchecked.items():
        yield from _wrap("  ", f"{source}: unchecked, {reason}")
    if not history.summaries and not history.unchecked:
        yield "  no source has a history"


def _fact(label: str, sentence: str) -> list[str]:
    return _wrap(f"  {label:{_HEAD - 2}} ", sentence, _HEAD + 1)


def _wrap(head: str, sentence: str, indent: int | None = None) -> list[str]:
    lead = " " * (len(head) if indent is None else indent)
    lines = textwrap.wrap(
        sentence, WIDTH, initial_indent=head, subsequent_indent=lead, break_on_hyphens=False
    )
    return [line.replace(_TIGHT, " ") for line in lines] or [head.rstrip()]

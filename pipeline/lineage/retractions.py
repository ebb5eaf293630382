"""Filters before sinks with a key: a row that a filter drops becomes a delete of its key.

A target with a key has the last state of each row. If an update fails a filter, the row that passed it before
must leave the target. A delete has little more than its key, so no filter can test it. Transforms therefore
keep the rows that fail, and mark them: `_gs_pos.sub` is negative (`marking`). A marked row comes before all
rows of the same source row, so that a row from another branch wins. `_gs_op` stays unchanged. A sink with a
key treats a marked row as a delete. A sink without a key never receives it.

Only the columns for the key of a marked row are computed. All others, such as a division, may rely on the
filter.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlglot import exp

from headrace.pipeline.model import graph
from headrace.pipeline.model.nodes import PipelineModel
from headrace.pipeline.sql.filter_marking import Marking, leaves_for_good
from headrace.pipeline.sql.traces import plain_inputs, trace, trace_distinct

Trace = Callable[[exp.Query, Collection[str]], dict[str, set[str]]]
"""Returns the input columns of columns of a statement, by node."""


@dataclass(frozen=True, slots=True)
class Retractions:
    """The nodes whose filters mark rows, and the sinks that treat them as deletes.

    Column names are in lower case.
    """

    needs: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The columns that the deletes need, by node upstream of such a sink."""
    marked: frozenset[str] = frozenset()
    """The nodes whose rows may be marked."""
    sinks: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The sinks that rows may reach as deletes, with the sources whose key is not in the sink's key."""
    filtering: Mapping[str, str] = field(default_factory=dict)
    """The nodes that mark rows, with their filters."""
    keys: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The columns of `needs` for the key of every such sink. They never include a version."""
    plain: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The columns of `keys` that arrive unchanged in all these sinks' keys, if the sinks share their targets.

    A filter on only these columns decides which keys belong to this pipeline. It must not delete other keys.
    """

    def marking(self, name: str, *, marked: bool) -> Marking | None:
        """Return the columns that a node's SQL keeps of dropped rows. None if it marks none.

        `marked` means that rows that it reads may be marked.
        """
        if name not in self.marked:
            return None
        return Marking(self.needs[name], marked, self.keys[name], self.plain[name])

    def marking_nodes(self, model: PipelineModel, sink: str) -> list[str]:
        """Return the nodes that mark rows upstream of a sink, in the file's order."""
        result: set[str] = set()
        waiting = [model.sinks[sink].from_]
        while waiting:
            name = waiting.pop()
            if name not in result:
                result.add(name)
                waiting += graph.inputs_of(model, name)
        return [
            name for name in (*model.sources, *model.transforms) if name in result and name in self.filtering
        ]


def retractions(model: PipelineModel, upserts: Callable[[str], bool]) -> Retractions:
    """Return the effects of filters. `upserts` returns whether a sink deletes by a key."""
    needs: dict[str, set[str]] = {}
    keys: dict[str, set[str]] = {}
    plain: dict[str, set[str]] = {}
    sinks: dict[str, frozenset[str]] = {}
    for name, sink in model.sinks.items():
        key = graph.key_of(model, name)
        if not key or graph.lacks_commit_record(sink) or not upserts(name) or graph.reads_errors(model, name):
            continue
        sources, distinct = (_upstream(model, sink.from_, key, by) for by in (trace, trace_distinct))
        other = frozenset(
            source
            for source in graph.upstream_sources(model, name)
            if not _is_within(model, source, distinct)
        )
        if other.issuperset(graph.upstream_sources(model, name)):
            continue
        sinks[name] = other
        for node, columns in _upstream(model, sink.from_, [*key, *kept_columns(sink)]).items():
            needs.setdefault(node, set()).update(columns)
            keys[node] = keys.get(node, columns) & sources.get(node, set())
        unchanged = _find_unchanged_columns(model, sink.from_, key) if graph.is_shared(sink) else {}
        for node in sources:
            plain[node] = plain.get(node, unchanged.get(node, set())) & unchanged.get(node, set())
    filtering = {
        name: text
        for name in needs
        if (text := _filter_of(model, name, keys.get(name, ()), plain.get(name, ())))
    }
    marked: set[str] = set()
    for name in (*model.sources, *graph.in_order(model)):
        if name in needs and (name in filtering or marked.intersection(graph.inputs_of(model, name))):
            marked.add(name)
    reached = {name: other for name, other in sinks.items() if model.sinks[name].from_ in marked}
    by_node = [{name: frozenset(result.get(name, ())) for name in needs} for result in (needs, keys, plain)]
    return Retractions(by_node[0], frozenset(marked), reached, filtering, *by_node[1:])


def kept_columns(sink: Any) -> tuple[str, ...]:
    """Return the columns other than the key that a delete needs at a sink."""
    version = getattr(sink, "version_column", None)
    return (version,) if version else ()


def _is_within(model: PipelineModel, source: str, columns: Mapping[str, Collection[str]]) -> bool:
    """Return whether a sink's key contains the source's key.

    `columns` are those that the sink's key keeps apart. Only if the source's key is among them is a row that
    fails a filter the one that the sink would delete.
    """
    return {name.lower() for name in model.sources[source].primary_key} <= set(columns.get(source, ()))


def _upstream(
    model: PipelineModel, start: str, columns: Sequence[str], by: Trace = trace
) -> dict[str, set[str]]:
    """Return, by node upstream of `start`, the columns from which these columns are computed.

    `by` traces the columns of one statement. A program passes its columns on by name.
    """
    result: dict[str, set[str]] = {start: {name.lower() for name in columns}}
    for name in reversed(graph.in_order(model)):
        if name not in result:
            continue
        node: Any = model.transforms[name]
        made = (
            by(node.query(name), result[name])
            if node.type == "sql"
            else dict.fromkeys(node.inputs(name), result[name])
        )
        for upstream, wanted in made.items():
            result.setdefault(upstream, set()).update(wanted)
    return result


def _find_unchanged_columns(model: PipelineModel, start: str, columns: Sequence[str]) -> dict[str, set[str]]:
    """Return, by node upstream of `start`, the columns that arrive there unchanged as these columns.

    Their names may differ.
    """
    result: dict[str, set[str]] = {start: {name.lower() for name in columns}}
    for name in reversed(graph.in_order(model)):
        node: Any = model.transforms[name]
        for upstream in graph.inputs_of(model, name) if name in result else ():
            brought = plain_inputs(node.query(name), result[name]) if node.type == "sql" else result[name]
            result[upstream] = result.get(upstream, set(brought)) & brought
    return result


def _filter_of(model: PipelineModel, name: str, keys: Collection[str], plain: Collection[str]) -> str:
    """Return the description of a node's filter. Empty if it keeps all rows, or drops rows permanently."""
    if name in model.sources:
        source = model.sources[name]
        stream = source.unbounded_source if source.type == "hybrid" else source
        condition = getattr(stream, "filter", None) if source.is_unbounded else None
        return f"filter {condition}" if condition else ""  # the source of a plugin has no filter
    node: Any = model.transforms[name]
    if node.type != "sql":
        return ""
    query = node.query(name)
    where = [clause.this.sql(dialect="spark", comments=False) for clause in query.find_all(exp.Where)]
    if where and not leaves_for_good(query, keys, plain):
        return f"WHERE {where[0]}"
    return "a list without items" if any(_lists(query)) else ""


def _lists(query: exp.Query) -> Iterator[exp.Expr]:
    from headrace.pipeline.sql.generators import is_generator

    return (part for part in query.walk() if is_generator(part))

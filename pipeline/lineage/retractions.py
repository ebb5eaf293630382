"""Filters at sinks with a key: a row that a filter leaves out becomes a delete of its key.

A target with a key holds the last state of each row. If an update fails a filter, the row that passed it before must leave the
target; a delete carries little more than its key, so no filter can judge it. Transforms therefore keep the rows that fail, and
mark them: `_gs_pos.sub` is negative (`marking`). A marked row stands before all rows of the same source row, so a row
that another branch makes of it wins. `_gs_op` stays what it was. A sink with a key takes a marked row as a delete; a sink without
one never sees it.

Of a marked row only the columns that its key is made of are computed. Everything else may rely on the filter, such as a division.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlglot import exp

from headrace.pipeline.model import graph
from headrace.pipeline.model.nodes import PipelineModel
from headrace.pipeline.sql.filter_marking import Marking, leaves_for_good
from headrace.pipeline.sql.traces import plain_inputs, trace


@dataclass(frozen=True, slots=True)
class Retractions:
    """Where in a pipeline filters mark rows, and which sinks take them for deletes. Names of columns are in lower case."""

    needs: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """By node on the way to such a sink: the columns that the deletes need there."""
    marked: frozenset[str] = frozenset()
    """The nodes whose rows may be marked."""
    sinks: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The sinks that rows may reach as deletes, each with the sources whose rows do not: their key is not in the sink's."""
    filtering: Mapping[str, str] = field(default_factory=dict)
    """The nodes that mark rows, each with what it filters by."""
    keys: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Of `needs`: the columns that the key of every such sink is made of. A version is none of them."""
    plain: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Of `keys`: the columns that arrive in every such sink's key unchanged, where all these sinks share their targets.

    A filter by nothing else says which keys are this pipeline's: it must not delete those of another one.
    """

    def marking(self, name: str, *, marked: bool) -> Marking | None:
        """What the SQL of a node keeps of rows that it leaves out; None where it marks none. `marked`: rows that it reads may be."""
        if name not in self.marked:
            return None
        return Marking(self.needs[name], marked, self.keys[name], self.plain[name])

    def marking_nodes(self, model: PipelineModel, sink: str) -> list[str]:
        """Return the nodes that mark rows upstream of a sink, in the file's order."""
        found: set[str] = set()
        waiting = [model.sinks[sink].from_]
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += graph.inputs_of(model, name)
        return [name for name in (*model.sources, *model.transforms) if name in found and name in self.filtering]


def retractions(model: PipelineModel, upserts: Callable[[str], bool]) -> Retractions:
    """Return the effects of filters. `upserts` returns whether a sink deletes by a key."""
    needs: dict[str, set[str]] = {}
    keys: dict[str, set[str]] = {}
    plain: dict[str, set[str]] = {}
    sinks: dict[str, frozenset[str]] = {}
    for name, sink in model.sinks.items():
        key = graph.key_of(model, name)
        if not key or graph.lacks_commit_record(sink) or not upserts(name):
            continue
        sources = _upstream(model, sink.from_, key)
        other = frozenset(source for source in graph.upstream_sources(model, name) if not _is_within(model, source, sources))
        if other.issuperset(graph.upstream_sources(model, name)):
            continue
        sinks[name] = other
        for node, columns in _upstream(model, sink.from_, [*key, *kept_columns(sink)]).items():
            needs.setdefault(node, set()).update(columns)
            keys[node] = keys.get(node, columns) & sources.get(node, set())
        unchanged = _unchanged(model, sink.from_, key) if graph.is_shared(sink) else {}
        for node in sources:
            plain[node] = plain.get(node, unchanged.get(node, set())) & unchanged.get(node, set())
    filtering = {name: text for name in needs if (text := _filter_of(model, name, keys.get(name, ()), plain.get(name, ())))}
    marked: set[str] = set()
    for name in (*model.sources, *graph.in_order(model)):
        if name in needs and (name in filtering or marked.intersection(graph.inputs_of(model, name))):
            marked.add(name)
    reached = {name: other for name, other in sinks.items() if model.sinks[name].from_ in marked}
    by_node = [{name: frozenset(found.get(name, ())) for name in needs} for found in (needs, keys, plain)]
    return Retractions(by_node[0], frozenset(marked), reached, filtering, *by_node[1:])


def kept_columns(sink: Any) -> tuple[str, ...]:
    """Return the columns other than the key that a delete needs at a sink."""
    version = getattr(sink, "version_column", None)
    return (version,) if version else ()


def _is_within(model: PipelineModel, source: str, columns: Mapping[str, Collection[str]]) -> bool:
    """Whether a sink's key holds the source's own: only then is a row that fails a filter the one that the sink would delete."""
    return {name.lower() for name in model.sources[source].primary_key} <= set(columns.get(source, ()))


def _upstream(model: PipelineModel, start: str, columns: Sequence[str]) -> dict[str, set[str]]:
    """By node upstream of `start`: the columns that these columns of it are made of. A program passes its columns on by name."""
    found: dict[str, set[str]] = {start: {name.lower() for name in columns}}
    for name in reversed(graph.in_order(model)):
        if name not in found:
            continue
        node: Any = model.transforms[name]
        made = trace(node.query(name), found[name]) if node.type == "sql" else dict.fromkeys(node.inputs(name), found[name])
        for upstream, wanted in made.items():
            found.setdefault(upstream, set()).update(wanted)
    return found


def _unchanged(model: PipelineModel, start: str, columns: Sequence[str]) -> dict[str, set[str]]:
    """By node upstream of `start`: the columns that arrive there under some name as these columns, and unchanged."""
    found: dict[str, set[str]] = {start: {name.lower() for name in columns}}
    for name in reversed(graph.in_order(model)):
        node: Any = model.transforms[name]
        for upstream in graph.inputs_of(model, name) if name in found else ():
            brought = plain_inputs(node.query(name), found[name]) if node.type == "sql" else found[name]
            found[upstream] = found.get(upstream, set(brought)) & brought
    return found


def _filter_of(model: PipelineModel, name: str, keys: Collection[str], plain: Collection[str]) -> str:
    """What a node leaves rows out by, for people; empty where it keeps all, or leaves out for good."""
    if name in model.sources:
        source = model.sources[name]
        stream = source.unbounded_source if source.type == "hybrid" else source if source.type == "kafka" else None
        return f"filter {stream.filter}" if stream is not None and stream.filter else ""
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

"""The graph of a pipeline file: who reads whom, keys, orphans, cycles, one lane."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from headrace.pipeline import nodes, sql
from headrace.pipeline.errors import GuaranteeError, Place, UserError

PlaceOf = Callable[..., Place]


def inputs_of(model: nodes.PipelineModel, name: str) -> tuple[str, ...]:
    """The nodes that a transform or a sink reads; none for a source. Raises UserError where its SQL cannot be parsed."""
    if name in model.transforms:
        return sql.tables(model.transforms[name].sql, node=name)
    return (model.sinks[name].from_,) if name in model.sinks else ()


def in_order(model: nodes.PipelineModel) -> list[str]:
    """Transforms so that each comes after what it reads. Raises UserError for a cycle."""
    done: list[str] = []
    open_: list[str] = []

    def visit(name: str) -> None:
        if name in done or name not in model.transforms:
            return
        if name in open_:
            msg = f"transforms read each other in a circle: {' -> '.join([*open_[open_.index(name) :], name])}"
            raise UserError(msg, node=name)
        open_.append(name)
        for upstream in inputs_of(model, name):
            visit(upstream)
        open_.pop()
        done.append(name)

    for name in model.transforms:
        visit(name)
    return done


def key_of(model: nodes.PipelineModel, name: str) -> tuple[str, ...]:
    """The node's own primary key, else the one that its inputs agree on, else ()."""
    if own := model.nodes()[name].primary_key:
        return own
    found = {key_of(model, upstream) for upstream in inputs_of(model, name) if upstream in model.nodes()}
    return found.pop() if len(found) == 1 else ()


def upstream_sources(model: nodes.PipelineModel, name: str) -> tuple[str, ...]:
    """The sources whose rows reach a node, in the file's order."""
    if name in model.sources:
        return (name,)
    found = {source for upstream in inputs_of(model, name) for source in upstream_sources(model, upstream)}
    return tuple(source for source in model.sources if source in found)


def consumers(model: nodes.PipelineModel) -> Mapping[str, int]:
    """How many nodes read each source and transform."""
    counts = dict.fromkeys([*model.sources, *model.transforms], 0)
    for name in [*model.transforms, *model.sinks]:
        for upstream in inputs_of(model, name):
            counts[upstream] += 1
    return counts


def check_graph(model: nodes.PipelineModel, place: PlaceOf) -> list[UserError]:
    """Every structural mistake. Opens no connection."""
    problems = [*_duplicate_names(model, place), *_inputs(model, place)]
    if problems:
        return problems
    try:
        in_order(model)
    except UserError as error:
        error.place = place("transforms", error.node, "sql")
        return [error]
    return [*_orphans(model, place), *_job_mode(model, place), *_guarantees(model, place), *_one_lane(model, place)]


def _duplicate_names(model: nodes.PipelineModel, place: PlaceOf) -> Iterator[UserError]:
    seen: set[str] = set()
    for kind in ("sources", "transforms", "sinks"):
        for name in getattr(model, kind):
            if name.lower() in seen:
                yield UserError(f"duplicate node name `{name}`", hint="Names are compared without case.", place=place(kind, name))
            seen.add(name.lower())


def _inputs(model: nodes.PipelineModel, place: PlaceOf) -> Iterator[UserError]:
    known = [*model.sources, *model.transforms]
    for name in [*model.transforms, *model.sinks]:
        where = place("transforms", name, "sql") if name in model.transforms else place("sinks", name, "from")
        try:
            found = inputs_of(model, name)
        except UserError as error:
            error.node, error.place = name, where
            yield error
            continue
        for upstream in found:
            if upstream not in known:
                close = difflib.get_close_matches(upstream, known, n=1)
                meant = f"; did you mean `{close[0]}`?" if close else ""
                yield UserError(
                    f"reads `{upstream}`, which is no source or transform{meant}",
                    node=name,
                    place=where,
                    hint=f"There are: {', '.join(known)}.",
                )


def _orphans(model: nodes.PipelineModel, place: PlaceOf) -> Iterator[UserError]:
    counts = consumers(model)
    if orphans := [name for name, count in counts.items() if count == 0]:
        msg = f"Source(s) and/or transform(s) have no consumers: {', '.join(orphans)}."
        kind = "sources" if orphans[0] in model.sources else "transforms"
        yield UserError(msg, hint="Remove them or connect them to a transform or sink.", place=place(kind, orphans[0]))


def _job_mode(model: nodes.PipelineModel, place: PlaceOf) -> Iterator[UserError]:
    if model.job_mode and (endless := [name for name, node in model.sources.items() if node.type == "kafka"]):
        msg = f"job_mode is enabled but the following source(s) do not support it: {', '.join(endless)}"
        yield UserError(msg, hint="Use a hybrid or a bounded source, or remove job_mode.", place=place("job_mode"))


def _guarantees(model: nodes.PipelineModel, place: PlaceOf) -> Iterator[UserError]:
    for name, sink in model.sinks.items():
        sources = [model.sources[source] for source in upstream_sources(model, name)]
        yield from _overlap(name, sink, sources, bool(key_of(model, name)), place)
        if sink.type in ("print", "blackhole") and sink.delivery == "exactly_once":
            yield GuaranteeError(f"a {sink.type} sink is at-least-once", node=name, place=place("sinks", name, "delivery"))
        unknown = set(getattr(sink, "update_where", {})) and getattr(sink, "on_conflict", "update") == "nothing"
        if unknown:
            yield UserError(
                "`update_where` does nothing beside `on_conflict: nothing`", node=name, place=place("sinks", name, "update_where")
            )


def _overlap(name: str, sink: Any, sources: list[Any], keyed: bool, place: PlaceOf) -> Iterator[UserError]:
    """Whether the handoff of each hybrid source can be exact at this sink (B1, B2, B5, B6 of the design review)."""
    for source in sources:
        if source.type != "hybrid" or sink.delivery == "at_least_once" or sink.type in ("print", "blackhole"):
            continue
        exact = source.offset_table is not None and source.offset_table.table_name in (None, source.bounded_sources[-1].table_name)
        if exact:
            continue
        if not keyed and not source.cursor:
            msg = "the handoff overlaps, and a sink without a key would hold the rows of the overlap twice"
            hint = (
                "Give the sink a primary_key, the source an offset_table in the history table or a cursor, or say delivery: at_least_once."
            )
            yield GuaranteeError(msg, hint=hint, node=name, place=place("sinks", name))
        if getattr(sink, "on_conflict", "update") == "nothing":
            msg = "`on_conflict: nothing` keeps stale rows of the handoff's overlap"
            hint = "Use on_conflict: update, or an offset_table in the history table, which has no overlap."
            yield GuaranteeError(msg, hint=hint, node=name, place=place("sinks", name, "on_conflict"))


def _one_lane(model: nodes.PipelineModel, place: PlaceOf) -> Iterator[UserError]:
    if model.partitions and not any(source.type != "kafka" for source in model.sources.values()):
        yield UserError("`partitions` need a source with history", place=place("partitions"))
    targets: dict[tuple[str, ...], str] = {}
    for name, sink in model.sinks.items():
        target = _target(sink)
        if target and (other := targets.setdefault(target, name)) != name:
            yield UserError(f"writes the same target as `{other}`: {'.'.join(target)}", node=name, place=place("sinks", name))


def _target(sink: Any) -> tuple[str, ...]:
    if sink.type == "postgres":
        return ("postgres", sink.schema_, sink.table)
    return ("delta", sink.path) if sink.type == "delta" else ()

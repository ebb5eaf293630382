"""The graph of a pipeline: who reads whom, keys, guarantees, one lane."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace.pipeline import nodes
from headrace.pipeline import tables as dynamic
from headrace.pipeline.errors import GuaranteeError, UserError
from headrace.pipeline.transforms import DynamicTable
from headrace.pipeline.values import PlaceOf, check_values


def inputs_of(model: nodes.PipelineModel, name: str) -> tuple[str, ...]:
    """The nodes that a transform or a sink reads; none for a source. Raises UserError where its SQL cannot be parsed."""
    if name in model.transforms:
        return model.transforms[name].inputs(name)
    return (model.sinks[name].from_,) if name in model.sinks else ()


def tables(model: nodes.PipelineModel) -> dict[str, DynamicTable]:
    """The dynamic tables. They stand among the transforms, and no rows leave them."""
    return {name: node for name, node in model.transforms.items() if isinstance(node, DynamicTable)}


def asks(model: nodes.PipelineModel, name: str) -> tuple[str, ...]:
    """The dynamic tables that a transform's SQL asks. Raises UserError for a call that says no table."""
    node = model.transforms.get(name)
    text, dialect = getattr(node, "sql", None), getattr(node, "dialect", None)
    return dynamic.asked(text, node=name, **({"dialect": dialect} if dialect else {})) if isinstance(text, str) else ()


def in_order(model: nodes.PipelineModel) -> list[str]:
    """Transforms with rows so that each comes after what it reads. Raises UserError for a cycle."""
    there = tables(model)
    return [name for name in steps(model) if name not in there]


def steps(model: nodes.PipelineModel) -> list[str]:
    """All transforms: each after what it reads, dynamic tables after what fills them and before who asks them.

    Raises UserError for a cycle.
    """
    done: list[str] = []
    open_: list[str] = []

    def visit(name: str) -> None:
        if name in done or name not in model.transforms:
            return
        if name in open_:
            msg = f"transforms read each other in a circle: {' -> '.join([*open_[open_.index(name) :], name])}"
            raise UserError(msg, node=name)
        open_.append(name)
        for upstream in (*inputs_of(model, name), *asks(model, name)):
            visit(upstream)
        open_.pop()
        done.append(name)

    for name in model.transforms:
        visit(name)
    return done


def key_of(model: nodes.PipelineModel, name: str) -> tuple[str, ...]:
    """The node's own primary key, else the one that its inputs agree on, else (); a dynamic table has none."""
    if isinstance(model.nodes()[name], DynamicTable):
        return ()
    if own := model.nodes()[name].primary_key:
        return own
    found = {key_of(model, upstream) for upstream in inputs_of(model, name) if upstream in model.nodes()}
    return found.pop() if len(found) == 1 else ()


def key_givers(model: nodes.PipelineModel, name: str) -> tuple[str, ...]:
    """The nodes whose `primary_key` is the key of this one: itself, or those that it is inherited from; none without a key."""
    if model.nodes()[name].primary_key:
        return (name,)
    if not key_of(model, name):
        return ()
    return tuple(dict.fromkeys(giver for upstream in inputs_of(model, name) for giver in key_givers(model, upstream)))


def upstream_sources(model: nodes.PipelineModel, name: str) -> tuple[str, ...]:
    """The sources whose rows reach a node, in the file's order."""
    if name in model.sources:
        return (name,)
    found = {source for upstream in inputs_of(model, name) for source in upstream_sources(model, upstream)}
    return tuple(source for source in model.sources if source in found)


def asked_behind(model: nodes.PipelineModel, name: str) -> tuple[str, ...]:
    """The dynamic tables that the rows of a node were asked about on their way, in the file's order."""
    found = {*asks(model, name)}.union(*(asked_behind(model, upstream) for upstream in inputs_of(model, name)))
    return tuple(table for table in tables(model) if table in found)


def check_model(model: nodes.PipelineModel, place: PlaceOf) -> list[UserError]:
    """What only whole nodes of a sound shape show: keys, values, guarantees, one lane. Opens no connection."""
    problems = [*check_values(model, place), *_keys(model, place), *_job_mode(model, place)]
    return [*problems, *_guarantees(model, place), *_one_lane(model, place)]


def _keys(model: nodes.PipelineModel, place: PlaceOf) -> Iterator[UserError]:
    """Where branches with different keys meet: to append without a key would not be what the file says."""
    for name in model.transforms:
        keys = {upstream: key_of(model, upstream) for upstream in inputs_of(model, name)}
        if len(set(keys.values())) > 1 and not model.transforms[name].primary_key:
            said = ", ".join(f"{upstream} ({', '.join(key) or 'none'})" for upstream, key in keys.items())
            msg = f"no primary key can be inherited, since its inputs have different ones: {said}"
            hint = "Give this transform a primary_key, or all of its inputs the same one."
            yield UserError(msg, hint=hint, node=name, place=place("transforms", name))


def _job_mode(model: nodes.PipelineModel, place: PlaceOf) -> Iterator[UserError]:
    if model.job_mode and (endless := [name for name, node in model.sources.items() if _endless(node)]):
        msg = f"job_mode is enabled but the following source(s) do not support it: {', '.join(endless)}"
        yield UserError(msg, hint="Use a hybrid or a bounded source, or remove job_mode.", place=place("job_mode"))


def _endless(source: Any) -> bool:
    """Whether a source is a stream without history."""
    return source.type == "kafka" or getattr(source, "endless", False)


def forgetful(sink: Any) -> bool:
    """Whether a sink keeps no record of its epochs, so that rows may arrive there twice."""
    return sink.type in ("print", "blackhole") or getattr(sink, "forgetful", False)


def _guarantees(model: nodes.PipelineModel, place: PlaceOf) -> Iterator[UserError]:
    for name, sink in model.sinks.items():
        sources = [model.sources[source] for source in upstream_sources(model, name)]
        yield from _overlap(name, sink, sources, bool(key_of(model, name)), place)
        if forgetful(sink) and sink.delivery == "exactly_once":
            msg, hint = f"a {sink.type} sink is at-least-once", "Remove `delivery`, or say delivery: at_least_once."
            yield GuaranteeError(msg, hint=hint, node=name, place=place("sinks", name, "delivery"))
        unknown = set(getattr(sink, "update_where", {})) and getattr(sink, "on_conflict", "update") == "nothing"
        if unknown:
            msg = "`update_where` does nothing beside `on_conflict: nothing`"
            yield UserError(msg, hint="Remove one of the two.", node=name, place=place("sinks", name, "update_where"))


def _overlap(name: str, sink: Any, sources: list[Any], keyed: bool, place: PlaceOf) -> Iterator[UserError]:
    """Whether the handoff of each hybrid source can be exact at this sink (B1, B2, B5, B6 of the design review)."""
    for source in sources:
        if source.type != "hybrid" or sink.delivery == "at_least_once" or forgetful(sink):
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
    if model.partitions and not any(not _endless(source) for source in model.sources.values()):
        hint = "Remove `partitions`, or read history from a clickhouse, an iceberg, a file or a hybrid source."
        yield UserError("`partitions` need a source with history", hint=hint, place=place("partitions"))
    targets: dict[tuple[str, ...], str] = {}
    for name, sink in model.sinks.items():
        target = _target(sink)
        if target and (other := targets.setdefault(target, name)) != name:
            msg = f"writes the same target as `{other}`: {'.'.join(target)}"
            hint = "Give one of the two another target; to write two inputs into one, UNION ALL them in a transform."
            yield UserError(msg, hint=hint, node=name, place=place("sinks", name))


def _target(sink: Any) -> tuple[str, ...]:
    if sink.type == "postgres":
        return ("postgres", sink.schema_, sink.table)
    if sink.type == "iceberg":
        return ("iceberg", sink.warehouse or "", sink.table_name)
    return ("delta", sink.path) if sink.type == "delta" else ()

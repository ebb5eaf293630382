"""Checks that need all nodes of a valid structure: keys, values, guarantees, connectedness."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace.pipeline.errors import GuaranteeError, UserError
from headrace.pipeline.model import graph, nodes
from headrace.pipeline.protocol.partitions import is_history_open
from headrace.pipeline.validation.dead_letters import check_dead_letters
from headrace.pipeline.validation.declared_checks import find_check_errors
from headrace.pipeline.validation.fields import PlaceOf, check_values


def check_model(model: nodes.PipelineModel, place: PlaceOf) -> list[UserError]:
    """Check keys, values, guarantees and connectedness of valid nodes. Opens no connection."""
    problems = [*check_values(model, place), *_keys(model, place), *_job_mode(model, place)]
    problems += check_dead_letters(model, place)
    problems += find_check_errors(model, place)
    return [*problems, *_guarantees(model, place), *_one_lane(model, place)]


def _keys(model: nodes.PipelineModel, place: PlaceOf) -> Iterator[UserError]:
    """Refuse inputs with different keys. The result would be appended without a key, against the file."""
    for name in model.transforms:
        keys = {upstream: graph.key_of(model, upstream) for upstream in graph.inputs_of(model, name)}
        late = any(graph.has_late_key(model, upstream) for upstream in keys)
        if len(set(keys.values())) > 1 and not late and not model.transforms[name].primary_key:
            details = ", ".join(f"{upstream} ({', '.join(key) or 'none'})" for upstream, key in keys.items())
            msg = f"no primary key can be inherited, since its inputs have different ones: {details}"
            hint = "Give this transform a primary_key, or all of its inputs the same one."
            yield UserError(msg, hint=hint, node=name, place=place("transforms", name))


def _job_mode(model: nodes.PipelineModel, place: PlaceOf) -> Iterator[UserError]:
    if model.job_mode and (endless := [name for name, node in model.sources.items() if _endless(node)]):
        msg = f"job_mode is enabled but the following source(s) do not support it: {', '.join(endless)}"
        yield UserError(
            msg, hint="Use a hybrid or a bounded source, or remove job_mode.", place=place("job_mode")
        )


def _endless(source: Any) -> bool:
    """Return whether a source is a stream without history."""
    return source.type != "hybrid" and source.is_unbounded


def _guarantees(model: nodes.PipelineModel, place: PlaceOf) -> Iterator[UserError]:
    for name, sink in model.sinks.items():
        sources = [model.sources[source] for source in graph.upstream_sources(model, name)]
        late = graph.has_late_key(model, name)
        yield from _overlap(name, sink, sources, bool(graph.key_of(model, name)) or late, place)
        if graph.lacks_commit_record(sink) and sink.delivery == "exactly_once":
            msg, hint = (
                f"a {sink.type} sink is at-least-once",
                "Remove `delivery`, or say delivery: at_least_once.",
            )
            yield GuaranteeError(msg, hint=hint, node=name, place=place("sinks", name, "delivery"))
        if not late:
            yield from _version(name, sink, graph.key_of(model, name), place)
        unknown = (
            set(getattr(sink, "update_where", {})) and getattr(sink, "on_conflict", "update") == "nothing"
        )
        if unknown:
            msg = "`update_where` has no effect with `on_conflict: nothing`"
            yield UserError(
                msg, hint="Remove one of the two.", node=name, place=place("sinks", name, "update_where")
            )


def _version(name: str, sink: Any, key: tuple[str, ...], place: PlaceOf) -> Iterator[UserError]:
    """Check whether a sink can use `version_column`.

    `jobs.planning.column_checks` checks its type in Spark.
    """
    column = getattr(sink, "version_column", None)
    if column is None:
        return
    problem, hint = "", "Remove `version_column`."
    if not key:
        problem, hint = (
            "needs a key: without one every row is kept",
            "Set `primary_key`, or remove `version_column`.",
        )
    elif column in key:
        problem, hint = (
            f"`{column}` is part of the key, so its rows never compete",
            "Name a column that is not in the key.",
        )
    elif getattr(sink, "on_conflict", "update") == "nothing":
        problem, hint = (
            "contradicts `on_conflict: nothing`, which keeps the first row",
            "Remove one of the two.",
        )
    elif getattr(sink, "update_where", {}):
        problem, hint = "and `update_where` both decide which row stays", "Remove one of the two."
    elif not getattr(sink.capabilities, "versions", False):
        problem = f"is not possible: the plugin of type `{sink.type}` does not compare versions"
    if problem:
        yield UserError(
            f"`version_column` {problem}", hint=hint, node=name, place=place("sinks", name, "version_column")
        )


def _overlap(name: str, sink: Any, sources: list[Any], keyed: bool, place: PlaceOf) -> Iterator[UserError]:
    """Check that each hybrid source's handoff is exact at this sink (B1, B2, B5, B6 of the design review)."""
    for source in sources:
        if source.type != "hybrid" or sink.delivery == "at_least_once" or graph.lacks_commit_record(sink):
            continue
        exact = source.offset_table is not None and source.offset_table.table_name in (
            None,
            getattr(source.bounded_sources[-1], "table_name", ""),
        )
        if exact:
            continue
        if not keyed and not source.cursor:
            msg = "the handoff overlaps, and a sink without a key would hold the rows of the overlap twice"
            hint = (
                "Give the sink a primary_key, the source an offset_table in the history table or a"
                " cursor, or say delivery: at_least_once."
            )
            yield GuaranteeError(msg, hint=hint, node=name, place=place("sinks", name))
        if getattr(sink, "on_conflict", "update") == "nothing":
            msg = "`on_conflict: nothing` keeps stale rows of the handoff's overlap"
            hint = "Use on_conflict: update, or an offset_table in the history table, which has no overlap."
            yield GuaranteeError(msg, hint=hint, node=name, place=place("sinks", name, "on_conflict"))


def _one_lane(model: nodes.PipelineModel, place: PlaceOf) -> Iterator[UserError]:
    if model.partitions and not any(not _endless(source) for source in model.sources.values()):
        hint = (
            "Remove `partitions`, or read history from a clickhouse, delta, iceberg, file or hybrid source."
        )
        yield UserError("`partitions` need a source with history", hint=hint, place=place("partitions"))
    endless = [name for name, source in model.sources.items() if source.is_unbounded]
    if endless and is_history_open(model.partitions):
        msg = (
            f"`end: open` needs `history_end` here: source `{endless[0]}` has a stream, which fills later"
            " partitions"
        )
        hint = "Set `history_end` to the day after the last partition that history fills."
        yield UserError(msg, hint=hint, place=place("partitions", "end"))
    several = [
        name for name, source in model.sources.items() if len(getattr(source, "bounded_sources", ())) > 1
    ]
    if several and (ordered := graph.partition_ordered_sinks(model)):
        msg = (
            f"source `{several[0]}` has several bounded sources, and `partitions` reads them partition by"
            f" partition: a key in two partitions may keep the row of the earlier source at sink {ordered[0]}"
        )
        hint = (
            "If all history rows of a key are in one partition, set `any_order: true` in `partitions`. Or set"
            " `version_column` at the sink, or remove `partitions`."
        )
        yield GuaranteeError(msg, hint=hint, place=place("partitions"))
    targets: dict[tuple[str, ...], str] = {}
    for name, sink in model.sinks.items():
        target = _target(sink)
        if target and (other := targets.setdefault(target, name)) != name:
            msg = f"writes the same target as `{other}`: {'.'.join(target)}"
            hint = (
                "Give one of the two another target; to write two inputs into one, UNION ALL them in a"
                " transform."
            )
            yield UserError(msg, hint=hint, node=name, place=place("sinks", name))


def _target(sink: Any) -> tuple[str, ...]:
    """Return what names the sink's target; () for a plugin, which says it at the target."""
    keys = getattr(sink, "target_keys", ())
    values = sink.model_dump(mode="json", by_alias=True)
    return (sink.type, *(str(values[key] or "") for key in keys)) if keys else ()

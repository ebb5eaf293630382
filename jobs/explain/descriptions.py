"""The sentences of an explanation: how sources are read, what sinks guarantee and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.connectors import registry
from headrace.jobs.dynamic_tables.lookup_table import LookupTableColumns
from headrace.jobs.explain.model import ExplainedTarget, Guarantee, Order, SourcePart
from headrace.jobs.planning.load_path import LoadPath
from headrace.jobs.staging.determinism import nondeterministic_nodes, nondeterministic_upstream
from headrace.jobs.transforms.retractions import follows_updates, retractions_of
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.file.loader import PipelineFile
from headrace.pipeline.model import graph
from headrace.pipeline.model.capabilities import Delivery, SinkCapabilities, Visibility
from headrace.pipeline.model.nodes import PipelineModel
from headrace.pipeline.model.partitions import UTC_ZONE, TimePartitionsConfig
from headrace.pipeline.model.transforms import DynamicTableConfig
from headrace.pipeline.protocol import positions
from headrace.pipeline.protocol.partitions import describe_keys, is_history_open
from headrace.pipeline.types.durations import spell_duration

_SNAPSHOT = "snapshot: every split reads the same rows at any time"
_NO_SNAPSHOT = "no snapshot: it must not change until every epoch of it is written"


def parts_of(name: str, node: Any, settings: Settings) -> tuple[SourcePart, ...]:
    """Return the tables and topics that a source reads, in the order in which it reads them."""
    result = registry.describe(name, node, settings)
    history = positions.bounded_phases(node)
    return tuple(
        _part(entry, phase="history" if place < history else "stream") for place, entry in enumerate(result)
    )


def program_of(node: Any) -> tuple[tuple[str, str], ...]:
    """Return which program a transform runs and with which limits. Empty for SQL and services."""
    if node.type == "script":
        return (
            (
                "runs",
                (
                    f"{node.language} in a sandbox: {spell_duration(node.timeout)} per call,"
                    f" {node.memory_limit >> 20} MiB"
                ),
            ),
        )
    return (
        (("runs", f"`{node.function}` in Spark's workers, as the settings allow"),)
        if node.type == "python"
        else ()
    )


def staged_of(model: PipelineModel, name: str) -> tuple[tuple[str, str], ...]:
    """Return how the results of a non-deterministic transform are stored. Empty for other transforms."""
    why = nondeterministic_nodes(model).get(name)
    return (("staged", f"once per epoch, before a sink gets a row: {why}"),) if why else ()


def _part(entry: dict[str, Any], *, phase: str) -> SourcePart:
    what = (
        entry.get("table_name")
        or entry.get("topic")
        or entry.get("location")
        or ".".join(entry["asset_key"][1:])
    )
    if phase == "stream":
        return SourcePart(
            phase,
            entry["kind"],
            what,
            None,
            "transactions read committed" if entry["kind"] == "kafka" else "without an end",
        )
    has_snapshot = entry.get("snapshot") != "none"
    return SourcePart(phase, entry["kind"], what, has_snapshot, _SNAPSHOT if has_snapshot else _NO_SNAPSHOT)


def notes_of(model: PipelineModel, name: str) -> tuple[tuple[str, str], ...]:
    """Return the other facts about a source: its handoff, its partitions, and the effect of job_mode."""
    node = model.sources[name]
    result: list[tuple[str, str]] = []
    if node.type == "hybrid":
        result.append(("handoff", handoff(node)))
    if model.partitions and positions.bounded_phases(node):
        keys = positions.windows_of(model)
        by = model.partitions
        zone = by.timezone if isinstance(by, TimePartitionsConfig) else UTC_ZONE
        where = f" in {zone}" if zone != UTC_ZONE else ""
        later = ", more when they have passed" if is_history_open(by) else ""
        result.append(("partitions", f"{len(keys)} by {by.column}{where}, {describe_keys(keys)}{later}"))
    if model.job_mode and positions.is_unbounded(node):
        result.append(("job_mode", "the stream is never read"))
    return tuple(result)


def table_notes(node: DynamicTableConfig, settings: Settings) -> tuple[tuple[str, str], ...]:
    """Return where the values of a dynamic table are stored, and who may change them."""
    if node.in_memory:
        return (
            (
                "values",
                f"{node.backend_entity_name}, in memory: this pipeline's alone, kept on disk by epoch",
            ),
        )
    where = LookupTableColumns.of(node, settings.postgres_for_tables())
    read = (
        f"kept here, and read on by `{where.time_column}`"
        if where.cache
        else "asked in batches, epoch by epoch"
    )
    return (
        (
            "values",
            (
                f"postgres {where.name}, column `{where.column}` (made if missing): others may write it too;"
                f" {read}"
            ),
        ),
    )


def handoff(node: Any) -> str:
    """Return where the stream of a hybrid source starts, and what that means for its rows."""
    table = node.offset_table
    if _exact(node):
        return (
            f"exact: the stream starts after the largest `{table.offset_column}` per partition, and"
            " history reads nothing beyond it"
        )
    if table is not None:
        return (
            f"by offset table `{table.table_name}`; history may hold rows beyond it, which keyed sinks"
            " take twice without harm"
        )
    lag = (
        f"the stream starts {spell_duration(node.handoff_lag) if node.handoff_lag else '1h'} back, or at"
        " the topic's first message"
    )
    lag += " where producers set the time of messages (CreateTime)"
    if node.cursor is not None:
        settled = spell_duration(node.cursor.allowed_lateness)
        return (
            f"{lag}; inside the overlap `{node.cursor.column}` tells history from stream, rows arrive"
            f" within {settled}"
        )
    return f"{lag}; rows of the overlap arrive twice, which keyed sinks take without harm"


def _exact(node: Any) -> bool:
    table = node.offset_table
    return table is not None and table.table_name in (
        None,
        getattr(node.bounded_sources[-1], "table_name", ""),
    )


def describe_target(
    file: PipelineFile, settings: Settings, name: str, load_path: LoadPath | None, order: Order | None = None
) -> ExplainedTarget:
    """Return what a sink writes, and which guarantee it gives."""
    node = file.model.sinks[name]
    able = registry.sink_class(node).capabilities
    key = graph.key_of(file.model, name)
    described = registry.describe(name, node, settings)[0]
    kept = described.get("table_name") or described.get("location")
    what = "appends upserts and deletes with the key" if able.appends_changes else "upserts and deletes by"
    writes = f"{what} {', '.join(key)}{_left_out(file, name)}" if key and able.upsert else "appends"
    return ExplainedTarget(
        name=str(kept or ""),
        created=bool(kept) and able.creates_target,
        writes=writes if kept else "nothing is kept",
        guarantee=_guarantee(file.model, name, able),
        visible=_visible(able, load_path),
        load_path=load_path,
        order=order,
    )


def _left_out(file: PipelineFile, name: str) -> str:
    """Return what happens at a sink with a key to rows that filters leave out."""
    retractions = retractions_of(file.model)
    nodes = retractions.marking_nodes(file.model, name) if name in retractions.sinks else []
    conditions = file.hide_variables("; ".join(f"{node} ({retractions.filtering[node]})" for node in nodes))
    if not conditions:
        return ""
    if not follows_updates(file.model.sinks[name]):
        return (
            "; deletes pass filters, an insert or update that a filter leaves out changes nothing:"
            f" {conditions}"
        )
    return f"; an insert or update that a filter leaves out is a delete of its key: {conditions}"


def _guarantee(model: PipelineModel, name: str, able: SinkCapabilities) -> Guarantee:
    if able.delivery is not Delivery.EXACTLY_ONCE:
        repeats = "; repeated requests have the same idempotency keys" if able.idempotency_keys else ""
        return Guarantee("at_least_once", f"the sink keeps no record of what it holds{repeats}")
    if model.sinks[name].delivery == "at_least_once":
        return Guarantee("at_least_once", "as the file asks for")
    fence = (
        "refuses writers of an older generation"
        if able.fences
        else "cannot compare generations, so a takeover waits their commits out"
    )
    return Guarantee(
        "exactly_once",
        f"rows and record of an epoch are one atomic act; it {fence}",
        tuple(_conditions(model, name)),
    )


def _conditions(model: PipelineModel, name: str) -> list[str]:
    """Return the conditions of exactly-once that do not depend on the sink."""
    result = []
    for source in graph.upstream_sources(model, name):
        node = model.sources[source]
        phases: Sequence[Any] = (
            node.bounded_sources
            if node.type == "hybrid"
            else [node]
            if positions.bounded_phases(node)
            else []
        )
        result += [
            f"`{phase.table_name}` holds still until its history is written"
            for phase in phases
            if getattr(phase, "snapshot", "") == "none"
        ]
        if node.type == "hybrid" and not _exact(node):
            result.append(_overlap(node, graph.key_of(model, name)))
    if staged := nondeterministic_upstream(model, name):
        shown = ", ".join(f"`{node}`" for node in staged)
        result.append(
            f"`staging.path` is a folder that every host which runs this pipeline sees: rows of {shown} are"
            " staged there"
        )
    return result


def _overlap(node: Any, key: tuple[str, ...]) -> str:
    if node.cursor is not None:
        return f"rows arrive within {spell_duration(node.cursor.allowed_lateness)} of `{node.cursor.column}`"
    return (
        f"history lags its topic by less than the overlap, whose rows the upsert by {', '.join(key)}"
        " takes twice without harm"
    )


def _visible(able: SinkCapabilities, load_path: LoadPath | None) -> str:
    if load_path is not None and load_path.is_bulk_copy and able.direct not in (None, able.visibility):
        return f"whole {able.visibility}s; during history {able.direct} by {able.direct}"
    return "row by row" if able.visibility is Visibility.ROW else f"whole {able.visibility}s"

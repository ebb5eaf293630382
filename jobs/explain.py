"""What a run of a file would do: sources and how they are pinned, the handoff, routes, and the guarantee at every sink with its reason."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.connectors import registry
from headrace.connectors.base import Delivery, SinkCapabilities, Visibility
from headrace.jobs.assembly import Assembly, node_types
from headrace.jobs.routes import Route
from headrace.jobs.session import start_session, stop_session
from headrace.pipeline import graph, positions
from headrace.pipeline.durations import spell_duration
from headrace.pipeline.errors import TransientError
from headrace.pipeline.file import PipelineFile
from headrace.pipeline.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WIDTH = 80


@dataclass(frozen=True, slots=True)
class SinkStory:
    """One sink: where its rows go, by which route, and what is promised there."""

    name: str
    target: str
    mode: str
    delivery: str
    visibility: str
    route: Route | None
    columns: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """`str()` of it is what `headrace explain` prints, at most 80 columns wide."""

    name: str
    pipeline_hash: str
    sources: tuple[tuple[str, tuple[str, ...]], ...]
    transforms: tuple[tuple[str, str], ...]
    sinks: tuple[SinkStory, ...]
    unchecked: str = ""
    spark_plan: str = ""

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"pipeline {self.name}, one lane, file hash {self.pipeline_hash}"
        if self.unchecked:
            yield from _wrapped("unchecked: ", self.unchecked)
        for name, said in self.sources:
            yield f"\nsource {name}"
            for line in said:
                yield from _wrapped("  ", line)
        for name, said in self.transforms:
            yield ""
            yield from _wrapped(f"transform {name}  ", said)
        for sink in self.sinks:
            yield from self._sink_lines(sink)
        if self.spark_plan:
            yield f"\n{self.spark_plan}"

    @staticmethod
    def _sink_lines(sink: SinkStory) -> Iterator[str]:
        yield f"\nsink {sink.name}"
        yield from _wrapped("  target    ", sink.target)
        yield from _wrapped("  writes    ", sink.mode)
        yield from _wrapped("  delivery  ", sink.delivery)
        yield from _wrapped("  visible   ", sink.visibility)
        if sink.route is not None:
            yield from _wrapped("  history   ", f"{sink.route.path}: {sink.route.why}")
        if sink.columns:
            yield from _wrapped("  columns   ", ", ".join(f"{name} {kind}" for name, kind in sink.columns))


def explain(file: PipelineFile, settings: Settings, *, spark_plan: bool = False, spark: SparkSession | None = None) -> Explanation:
    """Looks at the sources' schemas and changes nothing. Sources that cannot be reached leave columns and routes unchecked.

    Raises UserError where the file's SQL or keys do not fit the sources.
    """
    session = spark or start_session(settings, node_types(file))
    assembly: Assembly | None = None
    unchecked = plan = ""
    try:
        try:
            assembly = Assembly(file, settings, session)
            found = assembly.routes
            plan = assembly.planner.plan_text() if spark_plan else ""
        except TransientError as error:
            unchecked, found = f"columns and routes, because {error.message}", {}
        model = file.model
        return Explanation(
            name=model.name,
            pipeline_hash=file.hash,
            sources=tuple((name, tuple(_source(name, node, settings, file))) for name, node in model.sources.items()),
            transforms=tuple((name, f"sql over {', '.join(graph.inputs_of(model, name))}") for name in model.transforms),
            sinks=tuple(_sink(file, settings, name, found.get(name), assembly) for name in model.sinks),
            unchecked=unchecked,
            spark_plan=plan,
        )
    finally:
        if assembly is not None:
            assembly.close()
        if spark is None:
            stop_session(session)


def _source(name: str, node: Any, settings: Settings, file: PipelineFile) -> Iterator[str]:
    stream = positions.has_stream(node)
    for part in registry.describe(name, node, settings):
        what = f"{part['kind']} {part.get('table_name') or part.get('topic') or '.'.join(part['asset_key'][1:])}"
        if part["kind"] == "kafka":
            yield f"stream: {what}, transactions read committed"
        elif part.get("snapshot") == "none":
            yield f"history: {what}, not pinned: it must not change until every epoch of it is written"
        else:
            yield f"history: {what}, pinned: every split reads the same rows whenever it is read"
    if node.type == "hybrid":
        yield f"handoff: {_handoff(node)}"
    if file.model.partitions and positions.bounded_phases(node):
        windows = positions.windows_of(file.model)
        yield f"windows: {len(windows)} by {file.model.partitions.column}, {windows[0]} to {windows[-1]}"
    if file.model.job_mode and stream:
        yield "job_mode: the stream is never read"


def _handoff(node: Any) -> str:
    table = node.offset_table
    if table is not None and table.table_name in (None, node.bounded_sources[-1].table_name):
        return f"exact: the stream starts behind the largest `{table.offset_column}` per partition, and history reads nothing beyond it"
    if table is not None:
        return f"by offset table `{table.table_name}`; history may hold rows beyond it, which keyed sinks take twice without harm"
    lag = f"the stream starts {spell_duration(node.history_lag) if node.history_lag else '1h'} back"
    if node.cursor is not None:
        settled = spell_duration(node.cursor.settle)
        return f"{lag}; inside the overlap `{node.cursor.column}` tells history from stream, rows settle within {settled}"
    return f"{lag}; rows of the overlap arrive twice, which keyed sinks take without harm"


def _sink(file: PipelineFile, settings: Settings, name: str, route: Route | None, assembly: Assembly | None) -> SinkStory:
    node = file.model.sinks[name]
    able = registry.sink_class(node).capabilities
    key = graph.key_of(file.model, name)
    described = registry.describe(name, node, settings)[0]
    target = described.get("table_name") or described.get("location") or "nothing is kept"
    schema = assembly.planner.schemas[name] if assembly else []
    return SinkStory(
        name=name,
        target=f"{node.type} {target}" + (" (made if missing)" if able.creates_target else ""),
        mode=f"upserts and deletes by {', '.join(key)}" if key and able.upsert else "appends",
        delivery=_delivery(node, able),
        visibility=_visibility(able, route),
        route=route if any(positions.bounded_phases(source) for source in file.model.sources.values()) else None,
        columns=tuple((field.name, str(field.type)) for field in schema),
    )


def _delivery(node: Any, able: SinkCapabilities) -> str:
    if able.delivery is not Delivery.EXACTLY_ONCE:
        return "at least once: the sink keeps no record of what it holds"
    if node.delivery == "at_least_once":
        return "at least once, as the file asks for"
    fence = "refuses writers of an older generation" if able.fences else "cannot compare generations, so a takeover waits their commits out"
    return f"exactly once: rows and record of an epoch are one atomic act; it {fence}"


def _visibility(able: SinkCapabilities, route: Route | None) -> str:
    if route is not None and route.direct:
        return f"whole {able.visibility}s; during history {Visibility.SPLIT} by {Visibility.SPLIT}"
    return "row by row" if able.visibility is Visibility.ROW else f"whole {able.visibility}s"


def _wrapped(head: str, text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=head, subsequent_indent=" " * len(head), break_long_words=False) or [head.rstrip()]

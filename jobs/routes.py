"""Which way history takes to each sink: direct, where tasks load Arrow from source to sink, or rows, through Spark SQL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.connectors import registry
from headrace.jobs.direct import translate
from headrace.jobs.planner import Planner
from headrace.jobs.sources import LaneSource
from headrace.pipeline import graph, sql
from headrace.pipeline.errors import UserError
from headrace.pipeline.file import PipelineFile
from headrace.pipeline.types import is_nested

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Route:
    """`path` is direct or rows; `why` says so for people. `query` is the transform in the source's own SQL."""

    path: str
    why: str
    source: str = ""
    query: str | None = None

    @property
    def direct(self) -> bool:
        """Whether tasks load by themselves."""
        return self.path == "direct"


def routes(file: PipelineFile, planner: Planner, sources: Mapping[str, LaneSource]) -> dict[str, Route]:
    """The route of history to every sink. Deterministic: an epoch must be finished by the route that it was begun with."""
    return {name: _route(file, planner, sources, name) for name in file.model.sinks}


def _route(file: PipelineFile, planner: Planner, sources: Mapping[str, LaneSource], sink: str) -> Route:
    names = graph.upstream_sources(file.model, sink)
    source = sources[names[0]]
    if reason := _obstacle(file, planner, sources, sink):
        return Route("rows", reason)
    try:
        query = _query(file, sink, source, planner)
    except UserError as error:
        return Route("rows", error.message)
    return Route("direct", "history goes from source to sink as Arrow, the SQL runs in the source", source.name, query)


def _obstacle(file: PipelineFile, planner: Planner, sources: Mapping[str, LaneSource], sink: str) -> str:
    """Why history must go through Spark's rows whatever the SQL says; empty if it need not."""
    names = graph.upstream_sources(file.model, sink)
    source = sources[names[0]]
    if not registry.sink_class(file.model.sinks[sink]).capabilities.direct:
        return f"a {file.model.sinks[sink].type} sink takes rows from Spark only"
    if len(names) != 1:
        return f"it reads {len(names)} sources"
    if len(source.bounded) != 1 or not source.bounded[0].capabilities.direct:
        return f"`{source.name}` cannot be read by tasks alone"
    if getattr(source.node, "cursor", None) is not None:
        return "history is cut by a cursor, which Spark applies"
    arriving = planner.schemas[file.model.sinks[sink].from_]
    if nested := [field.name for field in arriving if is_nested(field.type)]:
        return f"Spark turns nested columns into JSON: {', '.join(nested)}"
    have, want = source.bounded[0].schema(planner.spark), planner.source_schemas[source.name]
    other = [field.name for field in want if have.field(field.name).type != field.type]
    return f"Spark casts history to the stream's types: {', '.join(other)}" if other else ""


def _query(file: PipelineFile, sink: str, source: LaneSource, planner: Planner) -> str | None:
    """The transforms between source and sink as one query in the source's SQL; None where rows go through as they are.

    Raises UserError where the source's SQL cannot say the same.
    """
    chain = _chain(file, sink, source.name)
    schema = planner.source_schemas[source.name]
    if not chain:
        if source.bounded[0].schema(planner.spark).names == schema.names:
            return None
        columns = ", ".join(f"`{name}`" for name in schema.names)
        return _translated("the columns", f"SELECT {columns} FROM {source.name}", source.name, schema)  # noqa: S608  the file's own names
    upstream, query = source.name, ""
    for name in chain:
        query = _translated(f"transform `{name}`", file.model.transforms[name].sql, upstream, planner.schemas[upstream], query)
        upstream = name
    return query


def _chain(file: PipelineFile, sink: str, source: str) -> list[str]:
    """The transforms from a source to a sink, in order. Raises UserError where one of them reads several nodes."""
    found: list[str] = []
    at = file.model.sinks[sink].from_
    while at != source:
        found.insert(0, at)
        inputs = sql.table_uses(file.model.transforms[at].sql, node=at)
        if len(inputs) != 1:
            msg = f"transform `{at}` reads {len(inputs)} nodes"
            raise UserError(msg)
        at = next(iter(inputs))
    return found


def _translated(what: str, text: str, upstream: str, schema: pa.Schema, over: str = "") -> str:
    found = translate(text, upstream, schema, f"({over})") if over else translate(text, upstream, schema)
    if found is None:
        msg = f"{what}: Spark and the source may not mean the same by this SQL"
        raise UserError(msg)
    return found

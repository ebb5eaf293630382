"""Which way history takes to each sink: direct, where tasks load Arrow from source to sink, or rows, through Spark SQL."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.connectors import registry
from headrace.jobs.direct import translate
from headrace.jobs.planner import Planner
from headrace.jobs.purity import impure_behind
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


@dataclass(frozen=True, slots=True)
class Columns:
    """What routes are chosen by: `payloads` of the sources, `nodes` as Spark sees all nodes, and what a history has `itself`.

    Before a run nodes may be missing, and `itself` None: then the route is not known either.
    """

    payloads: Mapping[str, pa.Schema]
    nodes: Mapping[str, pa.Schema]
    itself: Callable[[LaneSource], pa.Schema | None]


def routes(file: PipelineFile, planner: Planner, sources: Mapping[str, LaneSource]) -> dict[str, Route]:
    """The route of history to every sink. Deterministic: an epoch must be finished by the route that it was begun with."""
    columns = Columns(planner.source_schemas, planner.schemas, lambda source: source.bounded[0].schema(planner.spark))
    return {name: route(file, columns, sources, name) for name in file.model.sinks}


def route(file: PipelineFile, columns: Columns, sources: Mapping[str, LaneSource], sink: str) -> Route:
    """The route to one sink; its path is `unchecked` where columns that decide are not known."""
    names = graph.upstream_sources(file.model, sink)
    source = sources[names[0]]
    if reason := _obstacle(file, sources, sink):
        return Route("rows", reason)
    have = columns.itself(source)
    try:
        query = _query(file, sink, source, columns, have)
    except UserError as error:
        return Route("rows", error.message)
    except _UnknownError as error:
        return Route("unchecked", str(error))
    return Route("direct", "history goes from source to sink as Arrow, the SQL runs in the source", source.name, query)


class _UnknownError(Exception):
    """Columns that decide are not known; the text says whose."""


def _obstacle(file: PipelineFile, sources: Mapping[str, LaneSource], sink: str) -> str:
    """Why history must go through Spark's rows whatever the SQL and the columns are; empty if it need not."""
    names = graph.upstream_sources(file.model, sink)
    source = sources[names[0]]
    if not registry.sink_class(file.model.sinks[sink]).capabilities.direct:
        return f"a {file.model.sinks[sink].type} sink takes rows from Spark only"
    if staged := impure_behind(file.model, sink):
        return f"the rows of `{staged[0]}` are staged first"
    if len(names) != 1:
        return f"it reads {len(names)} sources"
    if len(source.bounded) != 1 or not source.bounded[0].capabilities.direct:
        return f"`{source.name}` cannot be read by tasks alone"
    return "history is cut by a cursor, which Spark applies" if getattr(source.node, "cursor", None) is not None else ""


def _query(file: PipelineFile, sink: str, source: LaneSource, columns: Columns, have: pa.Schema | None) -> str | None:
    """The transforms between source and sink as one query in the source's SQL; None where rows go through as they are.

    `have` are the columns that the history has itself. Raises UserError where the source's SQL cannot say the same, or where
    its columns are not what Spark makes of them.
    """
    arriving = _known(columns.nodes, file.model.sinks[sink].from_)
    if nested := [field.name for field in arriving if is_nested(field.type)]:
        msg = f"Spark turns nested columns into JSON: {', '.join(nested)}"
        raise UserError(msg)
    upstream, query = source.name, ""
    for name in _chain(file, sink, source.name):
        node: Any = file.model.transforms[name]
        query = _translated(f"transform `{name}`", node.spark_sql(name), upstream, _known(columns.nodes, upstream), query)
        upstream = name
    want = _known(columns.payloads, source.name)
    if have is None:
        msg = f"the columns of the history of `{source.name}` are not known"
        raise _UnknownError(msg)
    if other := [field.name for field in want if have.field(field.name).type != field.type]:
        msg = f"Spark casts history to the stream's types: {', '.join(other)}"
        raise UserError(msg)
    if query or have.names == want.names:
        return query or None
    listed = ", ".join(f"`{name}`" for name in want.names)
    return _translated("the columns", f"SELECT {listed} FROM {source.name}", source.name, want)  # noqa: S608  the file's own names


def _known(schemas: Mapping[str, pa.Schema], name: str) -> pa.Schema:
    if name not in schemas:
        msg = f"the columns of `{name}` are not known"
        raise _UnknownError(msg)
    return schemas[name]


def _chain(file: PipelineFile, sink: str, source: str) -> list[str]:
    """The transforms from a source to a sink, in order. Raises UserError where one of them reads several nodes."""
    found: list[str] = []
    at = file.model.sinks[sink].from_
    while at != source:
        found.insert(0, at)
        node = file.model.transforms[at]
        if node.type != "sql":
            msg = f"transform `{at}` is a {node.type}, which runs in Spark's workers"
            raise UserError(msg)
        if asked := graph.asks(file.model, at):
            msg = f"transform `{at}` asks the dynamic table `{asked[0]}`, which Spark's workers do"
            raise UserError(msg)
        inputs = sql.table_uses(node.sql, node=at, dialect=node.dialect)
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

"""Chooses the load path of history to each sink: bulk copy by Arrow from source to sink, or through Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.connectors import registry
from headrace.connectors.split_tasks import count_task_threads
from headrace.jobs.planning.arrow_functions import UnprovenValuesError
from headrace.jobs.planning.arrow_sql import ArrowSelect
from headrace.jobs.planning.clickhouse_sql import translate
from headrace.jobs.planning.planner import PipelinePlanner
from headrace.jobs.planning.portable_sql import parse_portable
from headrace.jobs.sources.pipeline_source import PipelineSource
from headrace.jobs.staging.determinism import nondeterministic_upstream
from headrace.jobs.transforms.retractions import retractions_of
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import UserError
from headrace.pipeline.file.loader import PipelineFile
from headrace.pipeline.lineage.columns import lineage
from headrace.pipeline.model import graph
from headrace.pipeline.model.nodes import PipelineModel
from headrace.pipeline.sql import statements
from headrace.pipeline.types.arrow import is_nested

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class LoadPath:
    """The load path of history to a sink. `path` is direct or rows; `reason` explains it to people.

    `query` is the transform in the SQL of the source, of which it reads only the last row of each key if it
    `filters`. `key` are the columns of the source that arrive
    unchanged in the key of the sink; empty for a sink without a key.
    """

    path: str
    reason: str
    source: str = ""
    query: str | None = None
    transforms: tuple[ArrowSelect, ...] = ()
    """The transforms that tasks compute over Arrow, if the source has no SQL for them."""
    key: tuple[str, ...] = ()
    filters: bool = False
    """Whether a filter may leave out the last row of a key, so that earlier ones must not be read."""
    keys_spread: bool = False
    """Whether the sink may get rows of one key in several splits, whose order it keeps."""

    @property
    def guarded_transforms(self) -> tuple[str, ...]:
        """The names of `transforms` if Spark computes batches with values that Arrow leaves to it."""
        if not any(transform.guarded for transform in self.transforms):
            return ()
        return tuple(transform.node for transform in self.transforms)

    @property
    def is_bulk_copy(self) -> bool:
        """Whether history is loaded by bulk copy."""
        return self.path == "direct"


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns that decide the load path.

    `payloads` of sources, `nodes` as Spark sees them, `itself` of a history. `spreads` returns why a history
    may have rows of one key in several splits, see `BoundedSource.spreads`. Before a run nodes may be
    missing, and `itself` or `spreads` may return None: then the load path is unknown.
    """

    payloads: Mapping[str, pa.Schema]
    nodes: Mapping[str, pa.Schema]
    itself: Callable[[PipelineSource], pa.Schema | None]
    spreads: Callable[[PipelineSource, Sequence[str]], str | None] = lambda source, key: source.bounded[
        0
    ].explain_key_spread(key)
    refuses_overflow: bool = True
    """Whether Spark refuses integers that overflow."""
    copies_in_driver: bool = False
    """Whether threads of the driver bulk copy, which can use Spark."""


def copies_in_driver(settings: Settings) -> bool:
    """Return whether splits are bulk copied by threads of the driver, not by tasks of a cluster."""
    return count_task_threads(settings.spark.master) > 0


def refuses_overflow(settings: Settings) -> bool:
    """Return whether Spark is left to refuse integers that overflow, which is its default."""
    return settings.spark.conf.get("spark.sql.ansi.enabled", "true").lower() == "true"


def plan_load_paths(
    file: PipelineFile, planner: PipelinePlanner, sources: Mapping[str, PipelineSource], settings: Settings
) -> dict[str, LoadPath]:
    """Return the load path of history to every sink.

    It is deterministic: an epoch must be finished with the load path that it began with.
    """

    def spreads(source: PipelineSource, key: Sequence[str]) -> str:
        first = source.bounded[0]
        # The splits of each epoch decide where they have the keys: an index may be dropped between two runs.
        return "" if first.capabilities.splits_have_keys else first.explain_key_spread(key)

    columns = Columns(
        planner.source_schemas,
        planner.schemas,
        lambda source: source.bounded[0].schema(planner.spark),
        spreads,
        refuses_overflow(settings),
        copies_in_driver(settings),
    )
    return {name: plan_load_path(file, columns, sources, name) for name in file.model.sinks}


def plan_load_path(
    file: PipelineFile, columns: Columns, sources: Mapping[str, PipelineSource], sink: str
) -> LoadPath:
    """Return the load path to one sink. Its path is `unchecked` if columns that decide are not known."""
    names = graph.upstream_sources(file.model, sink)
    source = sources[names[0]]
    if reason := _dead_letters(file, sink) or _obstacle(file, sources, sink):
        return LoadPath("rows", reason)
    have = columns.itself(source)
    try:
        sql = _plan_computation(file, sink, source, columns, have)
        key = carried_key(file.model, columns.nodes, sink, source.name)
        spread = columns.spreads(source, key) if graph.key_of(file.model, sink) else ""
        _check_columns(file, columns, sink)
    except UserError as error:
        return LoadPath("rows", error.message)
    except _UnknownError as error:
        return LoadPath("unchecked", str(error))
    if spread is None:
        return LoadPath("unchecked", f"the sorting key of `{source.name}` is not known")
    filtering = _filter(file, sink)
    keeps_order = not filtering and _keeps_order(file, source, sink)
    apart = "" if keeps_order or not spread else f"{spread}, and the order of splits is not kept"
    if filtering and (file.model.partitions or len(key) < len(graph.key_of(file.model, sink))):
        apart = apart or f"rows that `{filtering}` filters out become deletes of their keys"
    if apart:
        return LoadPath("rows", apart)
    why = f"history goes from source to sink as Arrow{sql.describe()}"
    if spread:
        why += f"; {spread}, so the sink loads splits in their order"
    return LoadPath("direct", why, source.name, *sql, key, filters=bool(filtering), keys_spread=keeps_order)


def _keeps_order(file: PipelineFile, source: PipelineSource, sink: str) -> bool:
    """Return whether the sink keeps the order of splits, and it is the order of rows."""
    has_offsets = source.handoff is not None and source.handoff.exact is not None
    return registry.sink_class(file.model.sinks[sink]).capabilities.orders_splits and not has_offsets


def _check_columns(file: PipelineFile, columns: Columns, sink: str) -> None:
    """Raise UserError if only Spark can write the columns of a sink."""
    node = file.model.sinks[sink]
    payload = _get_schema(columns.nodes, node.from_)
    if unfit := node.explain_direct_obstacle(payload, graph.key_of(file.model, sink)):
        raise UserError(unfit)


def carried_key(
    model: PipelineModel, nodes: Mapping[str, pa.Schema], sink: str, source: str
) -> tuple[str, ...]:
    """Return the source columns that the sink's primary key contains unchanged.

    `nodes` are the columns of nodes, as far as they are known.
    """
    known = {name: dict.fromkeys(schema.names, "") for name, schema in nodes.items()}
    derived = lineage(model, known)[sink].columns
    result = [derived[name] for name in graph.key_of(model, sink) if name in derived]
    copies = [one.origins[0] for one in result if not one.steps and len(one.origins) == 1]
    return tuple(dict.fromkeys(origin.column for origin in copies if origin.node == source))


class _UnknownError(Exception):
    """The columns that decide are unknown. The message names the node."""


def _dead_letters(file: PipelineFile, sink: str) -> str:
    """Return why dead letters of a node or of the sink rule out a bulk copy, or an empty string."""
    if rejecting := graph.rejecting_transforms(file.model, sink):
        return f"Spark finds the rows that `{rejecting[0]}` rejects"
    if graph.reads_errors(file.model, sink):
        return "history has no rejected rows"
    if getattr(file.model.sinks[sink], "on_error", "fail") == "dead_letter":
        return "rows that the target refuses are found in one transaction"
    return ""


def _obstacle(file: PipelineFile, sources: Mapping[str, PipelineSource], sink: str) -> str:
    """Return why history must go through Spark regardless of SQL and columns, or an empty string."""
    names = graph.upstream_sources(file.model, sink)
    source = sources[names[0]]
    if not registry.sink_class(file.model.sinks[sink]).capabilities.direct:
        return f"a {file.model.sinks[sink].type} sink takes rows from Spark only"
    if staged := nondeterministic_upstream(file.model, sink):
        return f"the rows of `{staged[0]}` are staged first"
    if len(names) != 1:
        return f"it reads {len(names)} sources"
    if len(source.bounded) != 1 or not source.bounded[0].capabilities.direct:
        return f"`{source.name}` cannot be read by tasks alone"
    return _explain_cut(source)


def _explain_cut(source: PipelineSource) -> str:
    """Return what cuts history by the values of rows, if only Spark can do that, or an empty string."""
    if getattr(source.node, "cursor", None) is not None:
        return "history is cut by a cursor, which Spark applies"
    if source.bounded[0].capabilities.computes_sql:
        return ""
    has_offsets = source.handoff is not None and source.handoff.exact is not None
    return "history is cut by offsets, which Spark applies" if has_offsets else ""


def _filter(file: PipelineFile, sink: str) -> str:
    """Return the first transform whose filter makes deletes at this sink, or an empty string.

    History may have several rows of a key, of which the last decides.
    """
    retractions = retractions_of(file.model)
    nodes = retractions.marking_nodes(file.model, sink) if sink in retractions.sinks else []
    return next((name for name in nodes if name in file.model.transforms), "")


class _SplitComputation(NamedTuple):
    """What is computed between source and sink. See `LoadPath`."""

    query: str | None = None
    transforms: tuple[ArrowSelect, ...] = ()

    def describe(self) -> str:
        if not self.transforms:
            return ", the SQL runs in the source" if self.query else ""
        leaves_values = any(transform.guarded for transform in self.transforms)
        rest = ", and by Spark for values that Arrow does not compute" if leaves_values else ""
        return f", the SQL is computed over Arrow{rest}"


def _plan_computation(
    file: PipelineFile, sink: str, source: PipelineSource, columns: Columns, have: pa.Schema | None
) -> _SplitComputation:
    """Return the transforms between source and sink as one query in the source's SQL, or over Arrow.

    `have` are the columns of the history itself. Raise UserError if only Spark can compute a transform, or if
    Spark reads the columns with other types.
    """
    arriving = _get_schema(columns.nodes, file.model.sinks[sink].from_)
    if nested := [field.name for field in arriving if is_nested(field.type)]:
        msg = f"Spark turns nested columns into JSON: {', '.join(nested)}"
        raise UserError(msg)
    result = _plan_chain(file, sink, source, columns)
    want = _get_schema(columns.payloads, source.name)
    if have is None:
        msg = f"the columns of the history of `{source.name}` are not known"
        raise _UnknownError(msg)
    if other := [field.name for field in want if have.field(field.name).type != field.type]:
        msg = f"Spark casts history to the stream's types: {', '.join(other)}"
        raise UserError(msg)
    if unfit := source.bounded[0].explain_direct_obstacle():
        msg = f"`{source.name}`: {unfit}"
        raise UserError(msg)
    if result.query or result.transforms or have.names == want.names:
        return result
    if not source.bounded[0].capabilities.computes_sql:
        msg = f"only Spark reads some columns of `{source.name}` in another order"
        raise UserError(msg)
    return _SplitComputation(_select_columns(source.name, want))


def _plan_chain(file: PipelineFile, sink: str, source: PipelineSource, columns: Columns) -> _SplitComputation:
    """Return transforms in the source's SQL if it has an equivalent, else over Arrow."""
    chain = _chain(file, sink, source.name)
    if not source.bounded[0].capabilities.computes_sql:
        return _plan_arrow_transforms(file, chain, source.name, columns)
    try:
        return _SplitComputation(_translate_chain(file, chain, source.name, columns) or None)
    except UserError:
        if not columns.copies_in_driver:
            raise
    result = _plan_arrow_transforms(file, chain, source.name, columns)
    if not _filter(file, sink):
        return result
    # A query, because then the source can read only the last row of each key.
    return result._replace(query=_select_columns(source.name, _get_schema(columns.payloads, source.name)))


def _select_columns(source: str, payload: pa.Schema) -> str:
    """Return a query in the source's SQL that reads the columns in this order."""
    listed = ", ".join(f"`{name}`" for name in payload.names)
    sql = f"SELECT {listed} FROM {source}"  # noqa: S608  the file's own names
    return _translate("the columns", sql, source, payload)


def _translate_chain(file: PipelineFile, chain: Sequence[str], source: str, columns: Columns) -> str:
    """Return transforms in the source's SQL. Raise UserError if it has no equivalent."""
    upstream, query = source, ""
    for name in chain:
        node: Any = file.model.transforms[name]
        query = _translate(
            f"transform `{name}`", node.spark_sql(name), upstream, _get_schema(columns.nodes, upstream), query
        )
        upstream = name
    return query


def _plan_arrow_transforms(
    file: PipelineFile, chain: Sequence[str], source: str, columns: Columns
) -> _SplitComputation:
    """Return transforms that tasks compute over Arrow. Raise UserError if only Spark can compute one."""
    upstream, transforms = source, []
    for name in chain:
        node: Any = file.model.transforms[name]
        payload, wanted = _get_schema(columns.nodes, upstream), _get_schema(columns.nodes, name)
        # Spark computes no column that a later transform does not read, so none of them may fail.
        integers = columns.refuses_overflow and name == chain[-1]
        for guarded in (False, True) if columns.copies_in_driver else (False,):
            select = parse_portable(
                node.spark_sql(name), upstream, payload, any_year=True, integers=integers, guarded=guarded
            )
            transform = ArrowSelect(name, select, payload, guarded) if select is not None else None
            if transform is not None and _has_types(transform, wanted):
                transforms.append(transform)
                break
        else:
            msg = f"transform `{name}`: Spark and Arrow may not mean the same by this SQL"
            raise UserError(msg)
        upstream = name
    return _SplitComputation(None, tuple(transforms))


def _has_types(transform: ArrowSelect, wanted: pa.Schema) -> bool:
    try:
        schema = transform.read_schema()
    except UnprovenValuesError:  # of a literal
        return False
    return (schema.names, schema.types) == (wanted.names, wanted.types)


def _get_schema(schemas: Mapping[str, pa.Schema], name: str) -> pa.Schema:
    if name not in schemas:
        msg = f"the columns of `{name}` are not known"
        raise _UnknownError(msg)
    return schemas[name]


def _chain(file: PipelineFile, sink: str, source: str) -> list[str]:
    """Return the transforms from a source to a sink, in order.

    Raises UserError if one of them reads several nodes.
    """
    result: list[str] = []
    at = file.model.sinks[sink].from_
    while at != source:
        result.insert(0, at)
        node = file.model.transforms[at]
        if node.type != "sql":
            msg = f"transform `{at}` is a {node.type}, which runs in Spark's workers"
            raise UserError(msg)
        if tables := graph.looked_up_tables(file.model, at):
            msg = (
                f"transform `{at}` looks up the dynamic table `{tables[0]}`, which only Spark's workers"
                " can do"
            )
            raise UserError(msg)
        inputs = statements.table_uses(node.sql, node=at, dialect=node.dialect)
        if len(inputs) != 1:
            msg = f"transform `{at}` reads {len(inputs)} nodes"
            raise UserError(msg)
        at = next(iter(inputs))
    return result


def _translate(what: str, text: str, upstream: str, schema: pa.Schema, over: str = "") -> str:
    result = translate(text, upstream, schema, f"({over})") if over else translate(text, upstream, schema)
    if result is None:
        msg = f"{what}: Spark and the source may not mean the same by this SQL"
        raise UserError(msg)
    return result

"""Maintenance of the tables of sinks, next to a run. Each can first report its changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from headrace.connectors import registry
from headrace.connectors.sink_base import SinkContext
from headrace.jobs.planning.compiled_pipeline import node_types
from headrace.jobs.run.operations import Lines, describe_run, open_pipeline_state
from headrace.jobs.run.pipeline_run import LANE
from headrace.jobs.spark.errors import translate_spark_errors
from headrace.jobs.spark.session import start_session, stop_session
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import InternalError, UserError
from headrace.pipeline.file.loader import PipelineFile
from headrace.pipeline.model.connectors import sink_entries
from headrace.pipeline.protocol.epochs import SinkKey

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.connectors.table_maintenance import Compaction, FileTotal, TableMaintenance, Vacuum


def compact(
    file: PipelineFile,
    settings: Settings,
    *,
    sink: str | None,
    start_spark: Callable[[], SparkSession],
    dry_run: bool,
) -> Lines:
    """Rewrite small files of a sink's table into larger ones, or of all sinks with such tables.

    A run may write meanwhile. Raise UserError for a sink without such a table, and TransientError if the run
    changed the same files at each attempt.
    """

    def work(table: TableMaintenance) -> str:
        return _describe_compaction(table.plan_compaction() if dry_run else table.compact())

    return _maintain(file, settings, sink, start_spark, work)


def vacuum(
    file: PipelineFile,
    settings: Settings,
    *,
    sink: str | None,
    hours: int | None,
    start_spark: Callable[[], SparkSession],
    dry_run: bool,
) -> Lines:
    """Remove files that no version of the last `hours` needs, by default the retention of each table.

    A run may write meanwhile. Raise UserError for a sink without such a table, and for a retention below that
    of the table.
    """

    def work(table: TableMaintenance) -> str:
        if dry_run:
            return _describe_vacuum(table.plan_vacuum(hours), "would be removed")
        return _describe_vacuum(table.vacuum(hours), "removed")

    return _maintain(file, settings, sink, start_spark, work)


@contextmanager
def spark_on_demand(file: PipelineFile, settings: Settings) -> Iterator[Callable[[], SparkSession]]:
    """Yield a function that starts Spark at its first call. Stop that Spark at the end."""
    with ExitStack() as stack:
        sessions: list[SparkSession] = []

        def start() -> SparkSession:
            if not sessions:
                sessions.append(start_session(settings, node_types(file)))
                stack.callback(stop_session, sessions[0])
            return sessions[0]

        yield start


def _maintain(
    file: PipelineFile,
    settings: Settings,
    sink: str | None,
    start_spark: Callable[[], SparkSession],
    work: Callable[[TableMaintenance], str],
) -> Lines:
    names = _select_sinks(file, sink)
    with (
        open_pipeline_state(file, settings) as (ledger, state),
        file.locate_errors(),
        translate_spark_errors(),
    ):
        lines = [
            f"Sink {name}: {_maintain_sink(file, settings, name, state.pipeline, start_spark(), work)}"
            for name in names
        ]
        return *lines, describe_run(ledger, file, state, "continues")


def _maintain_sink(
    file: PipelineFile,
    settings: Settings,
    name: str,
    pipeline: str,
    spark: SparkSession,
    work: Callable[[TableMaintenance], str],
) -> str:
    """Do the work at the table of a sink. Raise SinkStateError if the sink lost its record before it."""
    import pyarrow as pa

    key = SinkKey(pipeline, file.name, LANE, name)
    extra: Mapping[str, Any] = {"sinks": tuple(file.model.sinks)}
    context = SinkContext(key, file.model.sinks[name], settings, pa.schema([]), spark, extra)
    sink = registry.open_sink(context)
    try:
        maintenance = sink.open_maintenance()
        before = sink.record()
        done = work(maintenance)
        if before is not None and sink.record() is None:
            msg = f"the maintenance of {maintenance.target} removed the commit record of epoch {before.epoch}"
            raise InternalError(msg, node=name)
        return done
    finally:
        sink.close()


def _select_sinks(file: PipelineFile, sink: str | None) -> list[str]:
    """Return the sinks to maintain. Raise UserError if there is none, or if `sink` cannot be maintained."""
    sinks = file.model.sinks
    able = [name for name, node in sinks.items() if node.capabilities.maintains_files]
    if sink is not None:
        file.check_sink(sink)
    if sink in able or (sink is None and able):
        return [sink] if sink is not None else able
    kinds = ", ".join(kind for kind, one in sink_entries().items() if one.capabilities.maintains_files)
    hint = f"Only tables of these types have files to maintain: {kinds}."
    if sink is None:
        types = ", ".join(dict.fromkeys(node.type for node in sinks.values()))
        msg = f"no sink of this pipeline is a table of files; the types of its sinks: {types}"
        raise UserError(msg, hint=hint, place=file.place("sinks"))
    msg = f"a sink of type `{sinks[sink].type}` has no files to maintain"
    raise UserError(msg, hint=hint, node=sink, place=file.place("sinks", sink, "type"))


def _describe_compaction(done: Compaction) -> str:
    table = f"The table has {_format_total(done.before)}."
    if not done.rewritten.files:
        return f"nothing to compact. {table}"
    rewritten = _format_total(done.rewritten)
    if done.after is None:
        return f"{rewritten} would be rewritten into {done.written}. {table}"
    return (
        f"{rewritten} rewritten into {done.written}. The table had {_format_total(done.before)},"
        f" and has {_format_total(done.after)}."
    )


def _describe_vacuum(done: Vacuum, what: str) -> str:
    expired = f" {done.expired} snapshots are older." if done.expired else ""
    return (
        f"{_format_total(done.removed)} {what}, which no version of the last {done.hours:g} hours"
        f" needs.{expired}"
    )


def _format_total(total: FileTotal) -> str:
    return f"{total.files} file{'' if total.files == 1 else 's'} ({total.size / 1e6:,.3f} MB)"

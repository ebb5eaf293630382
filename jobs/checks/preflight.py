"""Checks of a pipeline file that need external systems or Spark: schemas, SQL, filters, topics, targets.

They read and write no rows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from headrace.connectors import registry
from headrace.connectors.lazy_session import LazySession, is_starting
from headrace.connectors.ledger.factory import open_ledger
from headrace.connectors.sink_base import SinkContext
from headrace.connectors.source_base import BoundedSource
from headrace.connectors.stream_base import UnboundedSource
from headrace.jobs.dynamic_tables.factory import value_tables
from headrace.jobs.planning.column_checks import unknown_check_columns
from headrace.jobs.planning.compiled_pipeline import node_types
from headrace.jobs.planning.planner import PipelinePlanner
from headrace.jobs.planning.resolution import try_resolving
from headrace.jobs.planning.source_schemas import FixedSchemaSource
from headrace.jobs.planning.spark_needs import needs_spark
from headrace.jobs.planning.stream_filters import StreamFilter
from headrace.jobs.run.file_check import check_file
from headrace.jobs.sources.pipeline_source import PipelineSource, create_pipeline_sources, stream_node
from headrace.jobs.sources.side_outputs import check_side_outputs
from headrace.jobs.spark.errors import as_headrace_error
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import (
    HeadraceError,
    InternalError,
    PipelineFileError,
    TransientError,
    UserError,
)
from headrace.pipeline.file.loader import PipelineFile
from headrace.pipeline.model import graph
from headrace.pipeline.model.graph import key_of
from headrace.pipeline.model.telemetry import event_time_problem
from headrace.pipeline.protocol.epochs import SinkKey
from headrace.pipeline.validation.warnings import missing_keys

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

PATIENCE_S = 12.0
"""How long all systems together may take to answer."""

Session = Callable[[], "SparkSession"]


@dataclass(slots=True)
class PreflightResult:
    """The result of the checks of a valid file. `unchecked` gives the reason by node."""

    errors: list[UserError] = field(default_factory=list)
    warnings: list[UserError] = field(default_factory=list)
    unchecked: dict[str, str] = field(default_factory=dict)
    schemas: dict[str, pa.Schema] = field(default_factory=dict)
    """The payload of every node that is known."""

    def add(self, file: PipelineFile, *errors: UserError) -> None:
        """Add errors with their locations in the file."""
        for error in errors:
            file.locate(error)
            self.errors.append(error)


def check_pipeline(file: PipelineFile, settings: Settings, session: Session) -> PreflightResult:
    """Check everything that can be reached. The rest is in `unchecked`. `session` is called on first use.

    Raises InternalError for a fault of Headrace itself. Errors that the user can fix are in the result.
    """
    findings = PreflightResult(warnings=list(file.warnings))
    file, unresolved = try_resolving(file, settings)
    for name, problem in unresolved.items():
        _collect_error(file, name, _raiser(problem), findings)
    keyless = {str(problem): problem for problem in missing_keys(file.model, file.place)}
    findings.warnings = [warning for warning in findings.warnings if str(warning) not in keyless]
    (findings.errors if settings.enforce_primary_keys else findings.warnings).extend(keyless.values())
    try:
        check_side_outputs(settings)
    except UserError as error:
        findings.errors.append(error)
    lazy = LazySession(session)
    if needs_spark(file, settings.spark.master, reads_history=False):
        lazy.start()
    spark = cast("SparkSession", lazy)
    sources = create_pipeline_sources(file.model.sources, settings)
    try:
        _check_sources(file, sources, spark, findings)
        _check_scripts(file, settings, findings)
        _check_sql(file, settings, spark, findings)
        _check_event_times(file, findings)
        _check_tables(file, settings, findings)
        _check_sinks(file, settings, spark, findings)
        if not unresolved:
            _check_lane(file, settings, findings)
    finally:
        for source in sources.values():
            source.close()
    return findings


def _check_sources(
    file: PipelineFile, sources: Mapping[str, PipelineSource], spark: Any, findings: PreflightResult
) -> None:
    calls: dict[tuple[str, int], Callable[[], Any]] = {}
    for name, source in sources.items():
        if source.unbounded is not None and not source.unbounded.is_resolved:
            calls[name, -1] = source.unbounded.check
            continue
        if source.unbounded is not None:
            result = _collect_error(
                file, name, partial(_stream_schema, source, source.unbounded, spark), findings
            )
            findings.schemas |= {name: result} if result is not None else {}
            calls[name, -1] = source.unbounded.check
        for rank, part in enumerate(source.bounded):
            calls[name, rank] = _phase(file, source, part, rank, spark)
    for (name, rank), answer in _run_concurrently(calls).items():
        result = _collect_error(file, name, answer, findings)
        if rank >= 0 and sources[name].unbounded is None and result is not None:
            findings.schemas[name] = result


def _stream_schema(source: PipelineSource, stream: UnboundedSource, spark: Any) -> pa.Schema:
    schema = stream.schema()
    if not StreamFilter(stream_node(source.node), schema).is_portable:
        stream.check_filter(spark)
    return schema


def _phase(
    file: PipelineFile, source: PipelineSource, part: BoundedSource, rank: int, spark: Any
) -> Callable[[], pa.Schema]:
    def ask() -> pa.Schema:
        schema = part.schema(spark)
        if source.unbounded is not None:
            source.check_history_columns(part, schema)
        part.check(spark, list(_columns_of_history(file, source, rank)))
        return schema

    return ask


def _columns_of_history(file: PipelineFile, source: PipelineSource, rank: int) -> Iterator[str]:
    """Columns that the file names outside of SQL, which a table of history must have."""
    if file.model.partitions:
        yield file.model.partitions.column
    if cursor := getattr(source.node, "cursor", None):
        yield cursor.column
    table = getattr(source.node, "offset_table", None)
    if table is None or rank != len(source.bounded) - 1:
        return
    if table.table_name in (None, getattr(source.node.bounded_sources[-1], "table_name", "")):
        yield from (
            name for name in (table.partition_column, table.offset_column, table.topic_column) if name
        )


def _check_scripts(file: PipelineFile, settings: Settings, findings: PreflightResult) -> None:
    """Add errors of scripts and functions that do not load, and of missing secrets of handlers.

    Columns need not be known.
    """
    from headrace.jobs.transforms.http.endpoint import find_endpoint_errors
    from headrace.jobs.transforms.preflight import check_program
    from headrace.jobs.transforms.registry import KEYS

    findings.errors += find_endpoint_errors(file, settings)
    for name, node in file.model.transforms.items():
        try:
            check_program(name, node, settings, file.lines_of(name, "script"))
        except UserError as error:
            error.node, error.keys = error.node or name, error.keys or (KEYS.get(node.type, ""),)
            findings.add(file, error)


def _check_sql(
    file: PipelineFile, settings: Settings, spark: SparkSession, findings: PreflightResult
) -> None:
    known = {
        name: FixedSchemaSource(findings.schemas[name])
        for name in file.model.sources
        if name in findings.schemas
    }
    try:
        findings.schemas |= PipelinePlanner(file, spark, known, settings).schemas
    except UserError as error:
        known_errors = {str(one) for one in findings.errors}
        findings.errors += [
            one
            for one in (error.problems if isinstance(error, PipelineFileError) else (error,))
            if str(one) not in known_errors
        ]
    for name in graph.in_order(file.model):
        if name not in findings.schemas and not findings.errors:
            findings.unchecked[name] = "it reads what is not known"


def _check_tables(file: PipelineFile, settings: Settings, findings: PreflightResult) -> None:
    """Dynamic tables in Postgres that are there already, and their columns."""
    calls: dict[tuple[str, int], Callable[[], Any]] = {
        (name, 0): table.check for name, table in value_tables(file.model, settings)
    }
    for (name, _), answer in _run_concurrently(calls).items():
        _collect_error(file, name, answer, findings)


def _check_event_times(file: PipelineFile, findings: PreflightResult) -> None:
    for name, node in file.model.nodes().items():
        if name not in findings.schemas or node.telemetry is None or node.telemetry.event_time is None:
            continue
        columns = {column.name: column.type for column in findings.schemas[name]}
        if problem := event_time_problem(node.telemetry.event_time, columns):
            problem.node, problem.keys = name, ("telemetry", "event_time", "column")
            findings.add(file, problem)


def _check_sinks(
    file: PipelineFile, settings: Settings, spark: SparkSession, findings: PreflightResult
) -> None:
    calls: dict[tuple[str, int], Callable[[], Any]] = {}
    for name, node in file.model.sinks.items():
        if name in findings.schemas:
            findings.warnings += unknown_check_columns(file, name, findings.schemas[name])
            calls[name, 0] = _target(file, settings, name, node, findings.schemas[name], spark)
    for (name, _), answer in _run_concurrently(calls, spark).items():
        _collect_error(file, name, answer, findings)


def _target(
    file: PipelineFile, settings: Settings, name: str, node: Any, schema: pa.Schema, spark: Any
) -> Callable[[], None]:
    extra = {"key": key_of(file.model, name), "streams": graph.streams_of(file.model)}
    context = SinkContext(SinkKey("", file.name, "main", name), node, settings, schema, spark, extra)

    def ask() -> None:
        sink = registry.open_sink(context)
        try:
            sink.validate_target()
        finally:
            sink.close()

    return ask


def _check_lane(file: PipelineFile, settings: Settings, findings: PreflightResult) -> None:
    """Check that a pipeline that has begun can follow the file. Does not create a missing ledger."""
    backend = settings.state_backend
    if backend.backend_type == "sqlite" and not backend.sqlite.path.exists():
        return

    def ask() -> None:
        ledger = open_ledger(settings)
        try:
            if (state := ledger.state(file.name)) is not None and state.position:
                check_file(file, state, ledger)
        finally:
            ledger.close()

    try:
        _run_concurrently({("ledger", 0): ask})["ledger", 0]()
    except PipelineFileError as error:
        findings.errors += error.problems
    except TransientError as error:
        findings.unchecked["ledger"] = error.message


def _collect_error(file: PipelineFile, name: str, ask: Callable[[], Any], findings: PreflightResult) -> Any:
    """Return the result of `ask`. Add its error to `findings`, with the node's location."""
    try:
        return ask()
    except Exception as error:
        translated: HeadraceError = as_headrace_error(error, node=name)
        if isinstance(translated, InternalError):
            raise
        if isinstance(translated, TransientError):
            findings.unchecked[name] = translated.message
            return None
        translated.node = translated.node or name
        problem = (
            translated
            if isinstance(translated, UserError)
            else UserError(translated.message, hint=translated.hint, node=name, place=translated.place)
        )
        file.locate(problem)
        if str(problem) not in {str(other) for other in findings.errors}:
            findings.errors.append(problem)
        return None


def _run_concurrently(
    calls: Mapping[tuple[str, int], Callable[[], Any]], spark: SparkSession | None = None
) -> dict[tuple[str, int], Callable[[], Any]]:
    """Return the answers, as functions that return or raise them. A late answer is a TransientError.

    While a call starts the lazy session `spark`, no answer is late.
    """
    answers: dict[tuple[str, int], Callable[[], Any]] = {}
    everybody = threading.Event()

    def put(key: tuple[str, int], ask: Callable[[], Any]) -> None:
        try:
            result = ask()
            answers[key] = lambda: result
        except BaseException as error:  # noqa: BLE001  raised in the thread that reads the answer
            answers[key] = _raiser(error)
        if len(answers) == len(calls):
            everybody.set()

    for key, ask in calls.items():
        # Daemons: a driver that waits for a server must not keep the command from ending.
        threading.Thread(target=put, args=(key, ask), name=f"check {key[0]}", daemon=True).start()
    while calls and not everybody.wait(PATIENCE_S) and is_starting(spark):
        pass  # no system takes this time
    late = TransientError(f"no answer within {PATIENCE_S:.0f} s")
    return {key: answers.get(key) or _raiser(late) for key in calls}


def _raiser(error: BaseException) -> Callable[[], Any]:
    def ask() -> Any:
        raise error

    return ask


def all_node_types(files: Iterable[PipelineFile]) -> frozenset[str]:
    """Return the node types of several files, for one session that serves them all."""
    return frozenset(kind for file in files for kind in node_types(file))

"""Runs the tests of pipelines: the planner and SQL of a run, without servers.

Spark starts when a test needs it: for SQL that Arrow does not compute.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, cast

from headrace.connectors.filter_marks import mark_filtered_rows
from headrace.connectors.lazy_session import LazySession, defer_frame, ensure_started
from headrace.jobs.planning.planner import PipelinePlanner
from headrace.jobs.planning.stream_filters import StreamFilter
from headrace.jobs.sources.source_batch import SourceBatch
from headrace.jobs.spark.errors import as_headrace_error
from headrace.jobs.spark.session import start_session, stop_session, without_optimizing_compiler
from headrace.jobs.testing.diff import NodeDifference, compare
from headrace.jobs.testing.expectations import Expectation, expectation
from headrace.jobs.testing.inputs import InputTable, build_input_table, check_computable, frame_of, stream_of
from headrace.jobs.testing.sink_state import Row, apply_to_target
from headrace.jobs.testing.subgraph import TABLE, SubgraphPlanners
from headrace.jobs.transforms.retractions import SinkBoundary
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import DataError, HeadraceError, PipelineFileError, SchemaError, ServiceError
from headrace.pipeline.model import graph
from headrace.pipeline.protocol.epochs import EpochPlan, Phase
from headrace.pipeline.sql.dynamic_tables import VALUE
from headrace.pipeline.sql.system_columns import OP, ORDINALS_PER_NODE, POS
from headrace.pipeline.testcases.loader import Case

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

_CONF = {"spark.sql.shuffle.partitions": "1", "spark.sql.adaptive.enabled": "false"}


@dataclass(frozen=True, slots=True)
class CaseOutcome:
    """The result of one test.

    `error` is the error that occurred; `unraised` the expected message that did not occur.
    """

    case: Case
    seconds: float
    differences: list[NodeDifference] = field(default_factory=list)
    expectations: dict[str, Expectation] = field(default_factory=dict)
    error: HeadraceError | None = None
    unraised: str | None = None

    @property
    def passed(self) -> bool:
        """Whether the results are as expected."""
        return not self.differences and self.error is None and self.unraised is None


class PipelineTestRunner:
    """Runs tests in one Spark session, an existing one if the process has one, as in pytest.

    The session starts when a test needs it. `close` stops it.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lazy: LazySession | None = None

    @cached_property
    def _stages(self) -> SubgraphPlanners:
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        if SparkContext._active_spark_context is not None:  # noqa: SLF001  pyspark says it nowhere else
            return SubgraphPlanners(SparkSession.Builder().getOrCreate(), self._settings)
        self._lazy = LazySession(lambda: start_session(small(self._settings), ()))
        return SubgraphPlanners(cast("SparkSession", self._lazy), self._settings)

    def close(self) -> None:
        """Stop the session if this object started it."""
        if self._lazy is not None and self._lazy.started_session is not None:
            stop_session(self._lazy.started_session)
            self._lazy = None
            del self._stages

    def run(self, case: Case) -> CaseOutcome:
        """Run one test.

        Errors of the test or the pipeline are in the outcome. Raises only if Spark is unavailable.
        """
        started = time.monotonic()
        wanted = case.node.expect_error
        try:
            expectations = self._expectations(case)
        except ServiceError:
            raise
        except PipelineFileError as error:
            return CaseOutcome(case, time.monotonic() - started, error=error)
        except HeadraceError as error:
            met = wanted is not None and wanted in f"{error.message}\n{error.hint}"
            return CaseOutcome(case, time.monotonic() - started, error=None if met else error)
        differences = [
            difference for result in expectations.values() if (difference := _difference(result)) is not None
        ]
        seconds = time.monotonic() - started
        log.info(
            "event=test_completed test=%s file=%s seconds=%.2f differences=%d",
            case.name,
            case.path,
            seconds,
            len(differences),
        )
        return CaseOutcome(case, seconds, differences, expectations, unraised=wanted)

    def _expectations(self, case: Case) -> dict[str, Expectation]:
        """Return expected and actual rows by node. If the test expects an error, all nodes are computed."""
        inputs = {name: case.input_rows(name) for name in case.node.given}
        planner, schemas = self._stages.planner_for(case, inputs)
        model = case.file.model
        filled = {
            name
            for name, node in graph.dynamic_tables(planner.file.model).items()
            if node.sql or not model.transforms[name].inputs(name)
        }
        check_computable(case, {**planner.schemas, **dict.fromkeys(filled)})
        tables = {
            name: build_input_table(case, name, rows, schemas[name], _ordinal(case, name))
            for name, rows in inputs.items()
        }
        sets = {
            name: InputTable(_values(tables.get(name), case, name)) for name in graph.dynamic_tables(model)
        }
        planner.tables = sets
        readings = _readings(planner, case, tables)
        now = case.node.now or datetime.now(UTC)
        plan = EpochPlan(1, Phase.LIVE, {}, {}, case.file.hash, now)
        views = planner.nodes(readings, plan, separate=True)
        local = planner.compute_local_rows(readings)
        boundary = SinkBoundary(planner.file.model, planner.retractions, planner.keys)
        inputs_of_sinks: dict[str, list[Row]] = {}
        result: dict[str, Expectation] = {}
        for name in case.node.expect or [
            name for name in planner.file.model.sinks if _is_reached(case, name)
        ]:
            if name in sets:
                rows = [{VALUE: value, OP: "i"} for value in sets[name].values]
                result[name] = expectation(case, name, TABLE, (VALUE,), rows)
                continue
            sink = model.sinks.get(name)
            node = sink.from_ if sink else name
            at = name if name in planner.retractions.sinks else node
            if at not in inputs_of_sinks:
                inputs_of_sinks[at] = (
                    _rows(boundary.visible_local_rows(at, local[node]))
                    if node in local
                    else _rows(_collect(boundary.visible_rows(at, views[node]), node, planner.texts))
                )
            rows = (
                inputs_of_sinks[at]
                if sink is None
                else apply_to_target(name, sink, planner.keys[name], inputs_of_sinks[at])
            )
            if name in case.node.expect:
                result[name] = expectation(case, name, planner.schemas[name], planner.keys[name], rows)
        return result


def small(settings: Settings) -> Settings:
    """Return the settings with a Spark that starts quickly and uses few resources.

    The user's `spark.conf` takes precedence.
    """
    spark = settings.spark.model_copy(
        update={
            "master": "local[2]",
            "driver_memory": "1g",
            "conf": {**_CONF, **settings.spark.conf},
        }
    )
    return without_optimizing_compiler(settings.model_copy(update={"spark": spark}))


def _difference(expectation: Expectation) -> NodeDifference | None:
    return compare(
        expectation.node,
        expectation.expected,
        expectation.found,
        expectation.key,
        ordered=expectation.ordered,
        tolerance=expectation.tolerance,
    )


def _readings(planner: PipelinePlanner, case: Case, tables: Mapping[str, pa.Table]) -> dict[str, SourceBatch]:
    """Return the given rows of sources, as an epoch reads them."""
    readings = {}
    for name, table in tables.items():
        if name not in planner.source_schemas:
            continue
        payload, marks = planner.source_schemas[name], name in planner.retractions.marked
        filtered = _filtered_node(case, name)
        passed = StreamFilter(filtered, payload).compute(table, marks=marks) if filtered else table
        rows = table if passed is None else passed
        frame = defer_frame(planner.spark, partial(frame_of, planner.spark, rows, payload), payload)
        if passed is None:
            frame = _filter_rows(ensure_started(frame), filtered.filter, case, name, marks=marks)
            readings[name] = SourceBatch(frame, table.num_rows)
        else:
            readings[name] = SourceBatch(frame, table.num_rows, table=passed, is_local=True)
    return readings


def _values(table: pa.Table | None, case: Case, name: str) -> list[str]:
    """Return the given values of a dynamic table. Raises DataError if one is null."""
    values = table[VALUE].to_pylist() if table is not None else []
    if None in values:
        msg = f"test `{case.name}`: `{name}` has a null, and a dynamic table takes strings"
        raise DataError(msg, node=name, place=case.place("given", name))
    return values


def _filtered_node(case: Case, name: str) -> Any:
    """Return the node of a topic, an Iceberg table or files with a filter in Spark SQL, or None.

    ClickHouse has SQL of its own.
    """
    source = case.file.model.sources.get(name)
    filtered = stream_of(source) if source else None
    if filtered is None and getattr(source, "filter_dialect", "") == "spark":
        filtered = source
    return filtered if getattr(filtered, "filter", None) else None


def _filter_rows(frame: DataFrame, condition: str, case: Case, name: str, *, marks: bool) -> DataFrame:
    """Return the rows that pass a filter."""
    from pyspark.errors import AnalysisException, ParseException

    try:
        return mark_filtered_rows(frame, condition) if marks else frame.where(condition)
    except (AnalysisException, ParseException) as error:
        message = (error.getMessage() or str(error)).strip().splitlines()[0]
        msg = f"the filter `{condition}` is wrong: {message}"
        raise SchemaError(msg, node=name, place=case.file.place("sources", name, "filter")) from None


def _collect(frame: DataFrame, node: str, texts: Mapping[str, str]) -> pa.Table:
    try:
        return frame.toArrow()
    except Exception as error:
        raise as_headrace_error(error, node=node, texts=texts) from error


def _rows(table: pa.Table) -> list[Row]:
    """Return the rows of a node in order, with `_gs_op`."""
    rows: list[Row] = table.to_pylist(maps_as_pydicts="strict")
    rows.sort(key=lambda row: tuple(row[POS].values()))
    return [
        {name: value for name, value in row.items() if name not in (POS, OP)} | {OP: row[OP]} for row in rows
    ]


def _ordinal(case: Case, name: str) -> int:
    names = [*case.file.model.sources, *case.file.model.transforms]
    return (names.index(name) + 1) * ORDINALS_PER_NODE - 1


def _is_reached(case: Case, name: str) -> bool:
    """Return whether rows of a given node reach a node."""
    return name in case.node.given or any(
        _is_reached(case, upstream) for upstream in graph.inputs_of(case.file.model, name)
    )

"""A pipeline's sinks as one multi-asset: the step that writes them runs the lane, and proves what it wrote."""

# No postponed annotations here: Dagster compares the annotation of `context` itself, not its spelling.
from collections.abc import Iterator, Mapping, Sequence

import dagster as dg

from headrace.jobs.run.events import CheckResult, Event, PartitionCompleted, PhaseChanged, RunMessage, RunResult, Until
from headrace.orchestration import metadata as report
from headrace.orchestration.columns import ColumnBook
from headrace.orchestration.execution import check_results, run_lane, verdict
from headrace.orchestration.pipelines import PIPELINE_TAG, Pipeline, window_problem
from headrace.orchestration.resources import SPARK
from headrace.orchestration.specs import check_specs, sink_specs
from headrace.orchestration.state import WindowRows, window_rows
from headrace.pipeline.errors import HeadraceError

Lineage = Mapping[str, dg.TableColumnLineage | None]
Checks = Mapping[str, Mapping[str, CheckResult]]
"""Check results by sink and name."""


def sink_assets(pipeline: Pipeline) -> dg.AssetsDefinition:
    """One multi-asset for the lane: a spec per sink at its physical key, with the checks of the step that writes.

    Every epoch goes to all sinks of its lane, so a selection of some sinks writes all of them and reports all of them.
    A selection of checks alone writes nothing and asks the real systems again.
    """
    book = ColumnBook(pipeline)
    lineage = {sink: book.lineage(sink, pipeline.sources) for sink in pipeline.sinks}

    @dg.multi_asset(
        name=f"{pipeline.name}_lane",
        specs=sink_specs(pipeline, book),
        check_specs=check_specs(pipeline),
        can_subset=True,
        backfill_policy=dg.BackfillPolicy.single_run() if pipeline.partitions else None,
        op_tags={PIPELINE_TAG: pipeline.name},
        required_resource_keys={SPARK},
    )
    def lane(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult | dg.AssetCheckResult]:
        windows = list(context.partition_keys) if context.has_partition_key or context.has_partition_key_range else None
        selected = [name for name, physical in pipeline.sinks.items() if physical.key in context.selected_asset_keys]
        checked = {pipeline.sink_of(key.asset_key) for key in context.selected_asset_check_keys}
        written = _write(context, pipeline, windows) if selected else None
        asked = [name for name in pipeline.sinks if name in checked or written]
        content = any(key.name == "content_matches" for key in context.selected_asset_check_keys)
        try:
            checks = _by_sink(check_results(pipeline, getattr(context.resources, SPARK), asked, content=content))
        except HeadraceError as error:
            raise verdict(error, context.op_execution_context.retry_number) from error
        if written:
            yield from _materialized(context, pipeline, windows, *written, checks, lineage)
        yield from _checked(context, pipeline, windows, checks)

    return lane


def _write(context: dg.AssetExecutionContext, pipeline: Pipeline, windows: Sequence[str] | None) -> tuple[RunResult, WindowRows]:
    """Runs the lane: the windows' history, or without partitions history and then the stream until caught up.

    Windows that are complete when it fails are reported before the failure is raised: they are in every sink.
    """
    if problem := window_problem(pipeline, windows):
        raise dg.Failure(description=problem, allow_retries=False)
    rows: dict[str, Mapping[str, int]] = {}

    def on_event(event: Event) -> None:
        if isinstance(event, PartitionCompleted):
            rows[event.window] = event.rows
            context.log.info("window %s is complete: %s", event.window or "(all)", dict(event.rows))
        elif isinstance(event, PhaseChanged):
            context.log.info("phase %s %s", event.phase, event.detail or "")
        elif isinstance(event, RunMessage):
            context.log.log(event.level.upper(), event.message)

    until = Until.HISTORY if windows or not pipeline.has_stream else Until.CAUGHT_UP
    try:
        spark = getattr(context.resources, SPARK)
        result = run_lane(
            pipeline,
            spark,
            until=until,
            windows=windows,
            run_id=context.run.run_id,
            retries=context.op_execution_context.retry_number,
            on_event=on_event,
        )
    except BaseException:
        for window in rows if windows else ():
            for sink, physical in pipeline.sinks.items():
                metadata = _partition_rows(rows[window], sink)
                context.log_event(dg.AssetMaterialization(physical.key, partition=window, metadata=metadata))
        raise
    return result, rows | dict(window_rows(pipeline, windows or ()))


def _materialized(
    context: dg.AssetExecutionContext,
    pipeline: Pipeline,
    windows: Sequence[str] | None,
    result: RunResult,
    rows: WindowRows,
    checks: Checks,
    lineage: Lineage,
) -> Iterator[dg.MaterializeResult]:
    """A result per selected sink; events of their own for the sinks of the lane that were written without being selected."""
    for sink, physical in pipeline.sinks.items():
        metadata = report.run_metadata(result, sink) | report.target_metadata(checks.get(sink, {}))
        if found := lineage[sink]:
            metadata["dagster/column_lineage"] = found
        if physical.key not in context.selected_asset_keys:
            for window in windows or [None]:
                own = _partition_rows(rows.get(window or "", {}), sink) if window else {}
                context.log_event(dg.AssetMaterialization(physical.key, partition=window, metadata=metadata | own))
            continue
        for window in windows or ():
            if own := _partition_rows(rows.get(window, {}), sink):
                context.add_asset_metadata(own, physical.key, partition_key=window)
        yield dg.MaterializeResult(asset_key=physical.key, metadata=metadata)


def _partition_rows(rows: Mapping[str, int], sink: str) -> dict[str, int]:
    return {"dagster/partition_row_count": rows[sink]} if sink in rows else {}


def _checked(
    context: dg.AssetExecutionContext, pipeline: Pipeline, windows: Sequence[str] | None, checks: Checks
) -> Iterator[dg.AssetCheckResult]:
    """The selected checks. A run over partitions plans one evaluation for each, so each gets its answer beside the sink's own."""
    for key in sorted(context.selected_asset_check_keys, key=str):
        check = checks[pipeline.sink_of(key.asset_key)][key.name]
        for window in windows or ():
            report.log_check(context, check, key.asset_key, partition=window)
        yield report.check_result(check, key.asset_key)


def _by_sink(results: Sequence[CheckResult]) -> Checks:
    found: dict[str, dict[str, CheckResult]] = {}
    for result in results:
        found.setdefault(result.sink, {})[result.name] = result
    return found

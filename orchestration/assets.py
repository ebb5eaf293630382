"""A pipeline's sinks as one multi-asset. Its step runs the pipeline and checks what it wrote."""

# No postponed annotations here: Dagster compares the annotation of `context` as an object, not as text.
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import dagster as dg

from headrace.jobs.run.events import (
    CheckResult,
    Event,
    PartitionCompleted,
    PhaseChanged,
    RunMessage,
    RunResult,
    Until,
)
from headrace.jobs.run.status import completed_partitions
from headrace.orchestration import metadata as report
from headrace.orchestration import source_reports
from headrace.orchestration.columns import ColumnCatalog
from headrace.orchestration.execution import run_checks, run_pipeline, to_dagster_error
from headrace.orchestration.operations import suggest_operations
from headrace.orchestration.pipelines import (
    PIPELINE_TAG,
    REFRESH_TAG,
    WRITE_SUFFIX,
    Pipeline,
    applicable_checks,
    partition_error,
)
from headrace.orchestration.resources import SPARK
from headrace.orchestration.specs import check_specs, sink_specs
from headrace.orchestration.state import PartitionRows, read_partition_rows, read_pipeline_state
from headrace.orchestration.termination import RunStatusWatch, end_if_requested
from headrace.pipeline.errors import HeadraceError
from headrace.pipeline.protocol.partitions import describe_keys

BACKFILL_TAG = "dagster/backfill"
"""Dagster's tag of the runs of a backfill."""
Lineage = Mapping[str, dg.TableColumnLineage | None]
Checks = Mapping[str, Mapping[str, CheckResult]]
"""Check results by sink and name."""


def sink_assets(pipeline: Pipeline) -> dg.AssetsDefinition:
    """Return one multi-asset: a spec per sink at its physical key, and the checks of the step that writes.

    Every epoch goes to all sinks of the pipeline, so a selection of some sinks writes and reports all of
    them. A selection of checks alone writes nothing and runs the checks against the real systems.
    """
    catalog = ColumnCatalog(pipeline)
    lineage = {sink: catalog.lineage(sink, pipeline.sources) for sink in pipeline.sinks}

    @dg.multi_asset(
        name=f"{pipeline.name}{WRITE_SUFFIX}",
        specs=sink_specs(pipeline, catalog),
        check_specs=check_specs(pipeline),
        can_subset=True,
        backfill_policy=dg.BackfillPolicy.single_run() if pipeline.partitions else None,
        op_tags={PIPELINE_TAG: pipeline.name},
        pool=pipeline.pool,
        required_resource_keys={SPARK},
    )
    def write_sinks(
        context: dg.AssetExecutionContext,
    ) -> Iterator[dg.MaterializeResult | dg.AssetCheckResult]:
        _add_run_tags(context, pipeline)
        partitions = (
            list(context.partition_keys)
            if context.has_partition_key or context.has_partition_key_range
            else None
        )
        selected = [
            name for name, physical in pipeline.sinks.items() if physical.key in context.selected_asset_keys
        ]
        checked = {pipeline.sink_for_key(key.asset_key) for key in context.selected_asset_check_keys}
        content = any(key.name == "content_matches" for key in context.selected_asset_check_keys)
        with (
            RunStatusWatch(context.instance, context.run.run_id) as watch,
            _keep_complete_partitions(context, pipeline, partitions if selected else None),
        ):
            written = _write_sinks(context, pipeline, partitions, watch) if selected else None
            sinks_to_check = [name for name in pipeline.sinks if name in checked or written]
            try:
                checks = _group_by_sink(
                    run_checks(
                        pipeline,
                        getattr(context.resources, SPARK),
                        sinks_to_check,
                        content=content,
                        is_canceled=watch.canceled.is_set,
                    )
                )
            except HeadraceError as error:
                raise to_dagster_error(error, context.op_execution_context.retry_number) from error
        if written and _is_new_to_dagster(context, pipeline, partitions, written[0]):
            yield from _report_materializations(context, pipeline, partitions, *written, checks, lineage)
        elif written:
            _report_observations(context, pipeline, partitions, written[0])
        yield from _report_checks(context, pipeline, partitions, checks)
        if written:
            source_reports.report_sources(context, pipeline, watch.canceled.is_set)

    return write_sinks


def _add_run_tags(context: dg.AssetExecutionContext, pipeline: Pipeline) -> None:
    """Add the tags of the pipeline's jobs to a run that was launched without a job. Its own tags stay.

    Dagster's job for such runs has no tags.
    """
    tags = {**pipeline.options.run_tags, PIPELINE_TAG: pipeline.name}
    missing = {name: value for name, value in tags.items() if name not in context.run.tags}
    if missing:
        context.instance.add_run_tags(context.run.run_id, missing)


def _write_sinks(
    context: dg.AssetExecutionContext,
    pipeline: Pipeline,
    partitions: Sequence[str] | None,
    watch: RunStatusWatch,
) -> tuple[RunResult, PartitionRows]:
    """Run the pipeline: the partitions' history, or without partitions history and then the stream.

    If history cannot load all selected partitions, load the others, then raise Failure: the button for all
    partitions also selects those that the stream fills.
    """
    problem = partition_error(pipeline, partitions)
    if problem:
        partitions = [key for key in pipeline.history_partitions if key in (partitions or ())]
        if not partitions:
            raise dg.Failure(description=problem, allow_retries=False)
    rows: dict[str, Mapping[str, int]] = {}

    def on_event(event: Event) -> None:
        if isinstance(event, PartitionCompleted):
            rows[event.window] = event.rows
            context.log.info(
                "event=partition_completed partition=%s rows=%s", event.window or "(all)", dict(event.rows)
            )
        elif isinstance(event, PhaseChanged):
            context.log.info("event=phase_changed phase=%s detail=%s", event.phase, event.detail or "")
        elif isinstance(event, RunMessage):
            context.log.log(event.level.upper(), "event=run_message message=%s", event.message)

    until = Until.HISTORY if partitions or not pipeline.has_stream else Until.CAUGHT_UP
    result = run_pipeline(
        pipeline,
        getattr(context.resources, SPARK),
        until=until,
        partitions=partitions,
        refresh=_is_refresh(context, pipeline, partitions),
        run_id=context.run.run_id,
        is_canceled=watch.canceled.is_set,
        retries=context.op_execution_context.retry_number,
        on_event=on_event,
    )
    end_if_requested(context, result, is_pause_success=False)
    if problem:
        loaded = describe_keys(partitions or ())
        raise dg.Failure(description=f"{problem} History has loaded {loaded}.", allow_retries=False)
    return result, rows | dict(read_partition_rows(pipeline, partitions or ()))


@contextmanager
def _keep_complete_partitions(
    context: dg.AssetExecutionContext, pipeline: Pipeline, partitions: Sequence[str] | None
) -> Iterator[None]:
    """Report the partitions that are in every sink if the run fails.

    Dagster shows a partition as failed if the last run that was to write it reported nothing about it.
    """
    try:
        yield
    except dg.RetryRequested:
        raise
    except BaseException:
        try:
            done = completed_partitions(pipeline.file, read_pipeline_state(pipeline)) if partitions else []
            rows = read_partition_rows(pipeline, done)
        except HeadraceError as error:
            context.log.warning("event=partitions_not_reported error=%s", error)
            raise
        for partition in (key for key in partitions or () if key in done):
            for sink, physical in pipeline.sinks.items():
                metadata = _partition_rows(rows.get(partition, {}), sink)
                context.log_event(
                    dg.AssetMaterialization(
                        physical.key,
                        partition=partition,
                        description="The partition is complete. The run that reports it failed.",
                        metadata=metadata,
                    )
                )
        raise


def _is_refresh(
    context: dg.AssetExecutionContext, pipeline: Pipeline, partitions: Sequence[str] | None
) -> bool:
    """Return whether the run reads complete partitions again.

    A run without partitions continues a stream, so it does not read history again.
    """
    from headrace.jobs.planning.refresh import find_refresh_obstacle

    return (
        context.run.tags.get(REFRESH_TAG) != "false"
        and not (pipeline.has_stream and not partitions)
        and find_refresh_obstacle(pipeline.file) is None
    )


def _is_new_to_dagster(
    context: dg.AssetExecutionContext,
    pipeline: Pipeline,
    partitions: Sequence[str] | None,
    result: RunResult,
) -> bool:
    """Return whether the run has something to report as a materialization.

    That is what it wrote, and what another program wrote before. A backfill counts partitions without a
    materialization as failed, so it gets one in any case.
    """
    if any(counts.rows for counts in result.counts.values()) or BACKFILL_TAG in context.run.tags:
        return True
    return not all(
        set(partitions) <= set(context.instance.get_materialized_partitions(physical.key))
        if partitions
        else context.instance.get_latest_materialization_event(physical.key)
        for physical in pipeline.sinks.values()
    )


def _report_observations(
    context: dg.AssetExecutionContext,
    pipeline: Pipeline,
    partitions: Sequence[str] | None,
    result: RunResult,
) -> None:
    """Report that the run wrote nothing to the sinks."""
    for sink, physical in pipeline.sinks.items():
        for partition in partitions or [None]:
            metadata = report.run_metadata(result, sink)
            context.log_event(dg.AssetObservation(physical.key, partition=partition, metadata=metadata))


def _report_materializations(
    context: dg.AssetExecutionContext,
    pipeline: Pipeline,
    partitions: Sequence[str] | None,
    result: RunResult,
    rows: PartitionRows,
    checks: Checks,
    lineage: Lineage,
) -> Iterator[dg.MaterializeResult]:
    """Yield a result per selected sink. Log events for the sinks that were written without a selection."""
    for sink, physical in pipeline.sinks.items():
        metadata = report.run_metadata(result, sink) | report.target_metadata(checks.get(sink, {}))
        if column_lineage := lineage[sink]:
            metadata["dagster/column_lineage"] = column_lineage
        if physical.key not in context.selected_asset_keys:
            for partition in partitions or [None]:
                partition_rows = _partition_rows(rows.get(partition or "", {}), sink) if partition else {}
                context.log_event(
                    dg.AssetMaterialization(
                        physical.key, partition=partition, metadata=metadata | partition_rows
                    )
                )
            continue
        for partition in partitions or ():
            if partition_rows := _partition_rows(rows.get(partition, {}), sink):
                context.add_asset_metadata(partition_rows, physical.key, partition_key=partition)
        yield dg.MaterializeResult(asset_key=physical.key, metadata=metadata)


def _partition_rows(rows: Mapping[str, int], sink: str) -> dict[str, int]:
    return {"dagster/partition_row_count": rows[sink]} if sink in rows else {}


def _report_checks(
    context: dg.AssetExecutionContext, pipeline: Pipeline, partitions: Sequence[str] | None, checks: Checks
) -> Iterator[dg.AssetCheckResult]:
    """Yield the results of the selected checks. Log the others as separate events.

    Every sink that was written has results, also if only another sink was selected. A run over partitions
    plans one evaluation per partition, so log one for each as well.
    """
    for key in sorted(context.selected_asset_check_keys, key=str):
        check = checks[pipeline.sink_for_key(key.asset_key)][key.name]
        advice = suggest_operations(pipeline, check)
        for partition in partitions or ():
            report.log_check(context, check, key.asset_key, partition=partition, advice=advice)
        yield report.check_result(check, key.asset_key, advice)
    planned = {(key.asset_key, key.name) for key in context.selected_asset_check_keys}
    for sink, results in checks.items():
        for name in applicable_checks(pipeline, sink):
            if (pipeline.sinks[sink].key, name) not in planned and name in results:
                advice = suggest_operations(pipeline, results[name])
                report.log_check(context, results[name], pipeline.sinks[sink].key, advice=advice)


def _group_by_sink(results: Sequence[CheckResult]) -> Checks:
    grouped: dict[str, dict[str, CheckResult]] = {}
    for result in results:
        grouped.setdefault(result.sink, {})[result.name] = result
    return grouped

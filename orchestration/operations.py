"""The job `<pipeline>_operate`: operations on a pipeline and its tables. First a dry run."""

# No postponed annotations here: Dagster compares the annotation of `context` as an object, not as text.
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import dagster as dg

from headrace.jobs.run.events import CheckResult
from headrace.orchestration.execution import RETRIES, to_dagster_error, wait_for_thread
from headrace.orchestration.metadata import CHECK_DESCRIPTIONS
from headrace.orchestration.pipelines import PIPELINE_TAG, Pipeline
from headrace.orchestration.resources import SPARK
from headrace.orchestration.termination import RunStatusWatch
from headrace.pipeline.errors import HeadraceError

_TIMEOUT_SECONDS = 60.0


def operations_job(pipeline: Pipeline) -> dg.JobDefinition:
    """Return the job. Its configuration names one operation. It changes nothing unless `dry_run` is false.

    The job is in no pool, because it must run next to other runs of the pipeline. The lease lets no operation
    write next to a run.
    """

    @dg.op(
        name=f"{pipeline.name}_operate_op",
        out=dg.Out(dg.Nothing),
        config_schema=_config_schema(pipeline),
        required_resource_keys={SPARK},
        tags={PIPELINE_TAG: pipeline.name},
    )
    def operate(context: dg.OpExecutionContext) -> None:
        ((operation, options),) = context.op_config["operation"].items()
        dry_run = context.op_config["dry_run"]
        with RunStatusWatch(context.instance, context.run.run_id) as watch:
            try:
                lines = wait_for_thread(
                    lambda: _execute(context, pipeline, operation, options, dry_run=dry_run),
                    operation,
                    watch.canceled.is_set,
                )
            except HeadraceError as error:
                raise to_dagster_error(error, RETRIES) from error
        if dry_run:
            lines = (*lines, "Nothing was changed. To do it, launch the job again with `dry_run: false`.")
        for line in lines:
            context.log.info("event=operation_step message=%s", line)
        context.add_output_metadata(
            {"operation": operation, "dry run": dry_run, "changes": dg.MetadataValue.md("\n\n".join(lines))}
        )

    @dg.job(
        name=f"{pipeline.name}_operate",
        description=f"Operations on pipeline `{pipeline.file.name}`. Choose one in the launchpad. Without"
        " `dry_run: false` the run only reports what it would change.",
        tags={**pipeline.options.run_tags, PIPELINE_TAG: pipeline.name},
        executor_def=dg.in_process_executor,
    )
    def job() -> None:
        operate()

    return job


def suggest_operations(pipeline: Pipeline, check: CheckResult) -> str:
    """Return what a person can do after a failed check, as Markdown. Empty for other checks."""
    if check.passed is not False:
        return ""
    job = f"{pipeline.name}_operate"
    if check.name in ("row_count_matches", "content_matches"):
        path, sink = pipeline.file.path, check.sink
        lines = [
            f"Write its rows again: job `{job}`, `operation: {{rebuild: {{sink: {sink}}}}}`",
            f"Accept the rows as they are: `headrace accept-target {path} --sink {sink}`",
        ]
    elif check.name not in CHECK_DESCRIPTIONS:
        lines = ["Correct the rows in the source, or the transforms. New rows are right from then on"]
    else:
        job_name = f"{pipeline.name}_{'stream' if pipeline.has_stream else 'history'}"
        lines = [f"Launch `{job_name}`: it finishes an open epoch, or names the repair"]
    lines.append(f"Start over with a new snapshot: job `{job}`, `operation: {{reset: {{targets: empty}}}}`")
    return (
        "\n".join(f"- {line}" for line in lines) + "\n\nA run of the job first reports what it would change."
    )


def _config_schema(pipeline: Pipeline) -> Mapping[str, Any]:
    # Dagster keeps the types of a process by their names: the sinks of an edited file need another name.
    digest = hashlib.sha256("\n".join(pipeline.sinks).encode()).hexdigest()[:8]
    sink = dg.Field(
        dg.Enum(f"{pipeline.name}_sinks_{digest}", [dg.EnumValue(name) for name in pipeline.sinks])
    )
    table = dg.Field(sink.config_type, is_required=False, description="Default: all with such a table.")
    targets = dg.Enum("reset_targets", [dg.EnumValue("empty"), dg.EnumValue("keep")])
    epoch = dg.Field(dg.Noneable(int), default_value=None, description="Default: the one after its last.")
    hours = dg.Field(dg.Noneable(int), default_value=None, description="Default: the retention of the table.")
    keep = dg.Field(int, default_value=pipeline.settings().ledger.keep_epochs or 20_000)
    return {
        "dry_run": dg.Field(bool, default_value=True, description="Report the changes, and make none."),
        "operation": dg.Selector(
            {
                "stop": dg.Field({}, description="End the active run."),
                "restart": dg.Field({}, description="End the active run. The supervisor starts the next."),
                "replay": dg.Field({"sink": sink, "from_epoch": epoch}, description="Write epochs again."),
                "rebuild": dg.Field({"sink": sink}, description="Write all epochs into a sink again."),
                "rewind": dg.Field(
                    {"to": dg.Field(str, description="Epoch, or time such as 2026-03-01T12:00:00+00:00.")},
                    description="Read the streams again from the end of an earlier epoch.",
                ),
                "reset": dg.Field({"targets": targets}, description="Start over with a new snapshot."),
                "prune": dg.Field(
                    {"keep_epochs": keep}, description="Roll up all epochs of the ledger but the last ones."
                ),
                "compact": dg.Field(
                    {"sink": table}, description="Rewrite small files of Delta and Iceberg tables."
                ),
                "vacuum": dg.Field(
                    {"sink": table, "older_than_hours": hours},
                    description="Remove files of Delta and Iceberg tables that no kept version needs.",
                ),
            }
        ),
    }


def _execute(
    context: Any, pipeline: Pipeline, operation: str, options: Mapping[str, Any], *, dry_run: bool
) -> tuple[str, ...]:
    # They import Spark, which only runs may do.
    from headrace.jobs.run import interventions, maintenance, operations

    spark = getattr(context.resources, SPARK)
    file, settings = pipeline.file, spark.settings(pipeline.settings())
    ending = {"by": f"Dagster run {context.run.run_id[:8]}", "timeout": _TIMEOUT_SECONDS, "dry_run": dry_run}

    def start_spark() -> Any:
        return spark.session(settings, pipeline.node_types)

    tables = {"sink": options.get("sink"), "start_spark": start_spark, "dry_run": dry_run}

    def replay(from_epoch: int | None) -> tuple[str, ...]:
        return operations.replay(
            file,
            settings,
            sink=options["sink"],
            from_epoch=from_epoch,
            start_spark=start_spark,
            dry_run=dry_run,
        )

    work: Mapping[str, Callable[[], tuple[str, ...]]] = {
        "stop": lambda: operations.stop(file, settings, **ending),
        "restart": lambda: operations.restart(file, settings, **ending),
        "replay": lambda: replay(options["from_epoch"]),
        "rebuild": lambda: replay(1),
        "rewind": lambda: interventions.rewind(file, settings, to=options["to"], dry_run=dry_run).changes,
        "reset": lambda: (
            interventions.reset(file, settings, empty=options["targets"] == "empty", dry_run=dry_run).changes
        ),
        "prune": lambda: operations.prune(file, settings, keep=options["keep_epochs"], dry_run=dry_run),
        "compact": lambda: maintenance.compact(file, settings, **tables),
        "vacuum": lambda: maintenance.vacuum(file, settings, hours=options["older_than_hours"], **tables),
    }
    with spark.translate_errors(settings):
        return work[operation]()

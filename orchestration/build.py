"""Dagster definitions from pipeline files, for the component and for Headrace's own code location."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dagster as dg

from headrace.orchestration.asset_keys import KeyStyle, assign_keys
from headrace.orchestration.assets import sink_assets
from headrace.orchestration.operations import operations_job
from headrace.orchestration.options import PipelineOptions
from headrace.orchestration.pipelines import PIPELINE_TAG, Pipeline, create_pipeline
from headrace.orchestration.resources import SPARK, spark_resource
from headrace.orchestration.schedules import pipeline_schedule
from headrace.orchestration.sensors import build_supervisor
from headrace.orchestration.specs import broken_assets, source_specs
from headrace.orchestration.stream import stream_job
from headrace.pipeline.errors import FileLocation, HeadraceError, PipelineFileError, UserError
from headrace.pipeline.file.loader import PipelineFile, load_pipeline

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AutomationDefaults:
    """Whether supervisors and schedules are on before a person switches them in the UI."""

    supervisors: bool = False
    schedules: bool = False


@dataclass(frozen=True, slots=True)
class PipelineDefinitions:
    """The definitions of one pipeline."""

    pipeline: Pipeline
    assets: dg.AssetsDefinition
    jobs: Sequence[Any]
    schedules: Sequence[dg.ScheduleDefinition]
    sensors: Sequence[dg.SensorDefinition]


def build_definitions(
    files: Iterable[Path | PipelineFile],
    overrides: Mapping[str, Any] | None = None,
    *,
    strict: bool = True,
    sources: bool = True,
    automation: AutomationDefaults = AutomationDefaults(),
    asset_keys: KeyStyle = "short",
    options: PipelineOptions | None = None,
) -> dg.Definitions:
    """Return the definitions of all pipeline files, by their paths or after they were parsed.

    If `strict` is set, the first file with mistakes raises UserError, as `dg check defs` expects. Otherwise a
    broken file becomes an asset that shows its mistakes, and the other files load. `sources` declares the
    inputs of the pipelines as external assets with kind and columns. Without it they are plain dependencies
    that another component can declare. `automation` tells which supervisors and schedules are on at first.
    `asset_keys`: see `assign_keys`. `options` are the component's.
    """
    broken: dict[Path, UserError] = {}

    @contextmanager
    def collect_mistakes(path: Path) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            mistake = _to_user_error(error, path)
            if strict:
                raise mistake from error
            log.error("event=file_not_loaded file=%s error=%s", path, mistake)  # noqa: TRY400  a mistake in the file; its traceback is no help
            broken[path] = mistake

    read: dict[Path, Pipeline] = {}
    for file in files:
        path = file if isinstance(file, Path) else Path(file.path) / file.name
        with collect_mistakes(path):
            pipeline = create_pipeline(load_pipeline(file) if isinstance(file, Path) else file, overrides)
            read[path] = _check_unique(replace(pipeline, options=options or PipelineOptions()), read.values())
    loaded: list[PipelineDefinitions] = []
    for path, pipeline in zip(read, assign_keys([*read.values()], asset_keys), strict=True):
        with collect_mistakes(path):
            loaded.append(build_pipeline_definitions(pipeline, automation))
    return dg.Definitions(
        assets=[
            *(parts.assets for parts in loaded),
            *broken_assets(broken),
            *(source_specs([parts.pipeline for parts in loaded]) if sources else ()),
        ],
        jobs=[job for parts in loaded for job in parts.jobs],
        schedules=[schedule for parts in loaded for schedule in parts.schedules],
        sensors=[sensor for parts in loaded for sensor in parts.sensors],
        resources={SPARK: spark_resource},
    )


def build_pipeline_definitions(
    pipeline: Pipeline, automation: AutomationDefaults = AutomationDefaults()
) -> PipelineDefinitions:
    """Return assets, jobs, schedule and supervisor of one pipeline.

    Raise UserError for an invalid schedule.
    """
    assets = sink_assets(pipeline)
    materialize = dg.define_asset_job(
        f"{pipeline.name}_history",
        selection=dg.AssetSelection.assets(assets),
        tags={**pipeline.options.run_tags, PIPELINE_TAG: pipeline.name},
    )
    stream = stream_job(pipeline) if pipeline.has_stream else None
    schedule = pipeline_schedule(pipeline, materialize, stream, is_on=automation.schedules)
    continuous = stream is not None and pipeline.file.model.stream.mode == "continuous"
    return PipelineDefinitions(
        pipeline=pipeline,
        assets=assets,
        jobs=[materialize, *([stream] if stream else ()), operations_job(pipeline)],
        schedules=[schedule] if schedule else [],
        sensors=[build_supervisor(pipeline, stream, is_on=automation.supervisors)]
        if stream and continuous
        else [],
    )


def _to_user_error(error: Exception, path: Path) -> UserError:
    """Return the mistake of a file with its location, for any error. The first line is the default."""
    if isinstance(error, UserError):
        error.place = error.place or (
            None if isinstance(error, PipelineFileError) else FileLocation(str(path), 1)
        )
        return error
    kind = "" if isinstance(error, HeadraceError) else f"{type(error).__name__}: "
    message = getattr(error, "message", None) or " ".join(str(error).split())
    return UserError(f"{kind}{message}", hint=getattr(error, "hint", ""), place=FileLocation(str(path), 1))


def _check_unique(pipeline: Pipeline, others: Iterable[Pipeline]) -> Pipeline:
    """Return `pipeline` if no other one has its name or one of its targets. Raise UserError otherwise."""
    for other in others:
        if other.name == pipeline.name:
            msg = f"pipeline name `{pipeline.file.name}` is taken by `{other.file.name}` in {other.file.path}"
            raise UserError(
                msg, hint="Dagster compares names with every - read as _.", place=pipeline.file.place("name")
            )
        taken = {physical.address for physical in other.sinks.values()}
        for sink, physical in pipeline.sinks.items():
            if physical.address in taken:
                msg = (
                    f"writes `{physical.key.to_user_string()}`, which pipeline `{other.file.name}`"
                    f" ({other.file.path}) writes too"
                )
                raise UserError(
                    msg,
                    hint="A target belongs to one pipeline.",
                    node=sink,
                    place=pipeline.file.place("sinks", sink),
                )
    return pipeline

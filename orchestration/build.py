"""Definitions out of pipeline files: what the component and the code location of Headrace's own have in common."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg

from headrace.orchestration.assets import sink_assets
from headrace.orchestration.pipelines import PIPELINE_TAG, Pipeline, load
from headrace.orchestration.resources import SPARK, spark_resource
from headrace.orchestration.schedules import pipeline_schedule
from headrace.orchestration.sensors import supervisor
from headrace.orchestration.specs import broken_asset, source_specs
from headrace.orchestration.stream import stream_job
from headrace.pipeline.errors import UserError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Parts:
    """What one pipeline brings into a code location."""

    pipeline: Pipeline
    assets: dg.AssetsDefinition
    jobs: Sequence[Any]
    schedules: Sequence[dg.ScheduleDefinition]
    sensors: Sequence[dg.SensorDefinition]


def build(
    files: Iterable[Path], overrides: Mapping[str, Any] | None = None, *, strict: bool = True, sources: bool = True
) -> dg.Definitions:
    """Definitions for every pipeline file.

    With `strict` the first file with mistakes raises UserError, which is what `dg check defs` wants to see. Without, a broken
    file becomes a visible asset that carries its mistakes, and the other files work on. `sources` declares what pipelines
    read as external assets with kind and columns; without, they are plain dependencies for somebody else to declare.
    """
    made: list[Parts] = []
    broken: list[dg.AssetsDefinition] = []
    for path in files:
        try:
            made.append(_distinct(pipeline_parts(load(path, overrides)), made))
        except UserError as error:
            if strict:
                raise
            log.error("%s cannot be loaded:\n%s", path, error)  # noqa: TRY400  a mistake of the file, its traceback helps nobody
            broken.append(broken_asset(path, error))
    return dg.Definitions(
        assets=[*(parts.assets for parts in made), *broken, *(source_specs([parts.pipeline for parts in made]) if sources else ())],
        jobs=[job for parts in made for job in parts.jobs],
        schedules=[schedule for parts in made for schedule in parts.schedules],
        sensors=[sensor for parts in made for sensor in parts.sensors],
        resources={SPARK: spark_resource},
    )


def pipeline_parts(pipeline: Pipeline) -> Parts:
    """Assets, jobs, schedule and supervisor of one pipeline. Raises UserError for a schedule that cannot be."""
    assets = sink_assets(pipeline)
    materialize = dg.define_asset_job(
        f"{pipeline.name}_history", selection=dg.AssetSelection.assets(assets), tags={PIPELINE_TAG: pipeline.name}
    )
    stream = stream_job(pipeline) if pipeline.has_stream else None
    schedule = pipeline_schedule(pipeline, materialize, stream)
    continuous = stream is not None and pipeline.file.model.stream.mode == "continuous"
    return Parts(
        pipeline=pipeline,
        assets=assets,
        jobs=[materialize, *([stream] if stream else ())],
        schedules=[schedule] if schedule else [],
        sensors=[supervisor(pipeline, stream)] if stream and continuous else [],
    )


def _distinct(parts: Parts, made: Sequence[Parts]) -> Parts:
    """The parts, if no pipeline before them has their name or writes where they do. Raises UserError."""
    pipeline = parts.pipeline
    for other in (before.pipeline for before in made):
        if other.name == pipeline.name:
            msg = f"pipeline name `{pipeline.file.name}` is taken by `{other.file.name}` in {other.file.path}"
            raise UserError(msg, hint="Dagster compares names with every - read as _.", place=pipeline.file.place("name"))
        taken = {physical.key for physical in other.sinks.values()}
        for sink, physical in pipeline.sinks.items():
            if physical.key in taken:
                msg = f"writes `{physical.key.to_user_string()}`, which pipeline `{other.file.name}` ({other.file.path}) writes too"
                raise UserError(msg, hint="A target belongs to one pipeline.", node=sink, place=pipeline.file.place("sinks", sink))
    return parts

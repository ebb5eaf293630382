"""Observations of the systems that a pipeline reads: the lag of the stream, the age of the newest data."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import dagster as dg

from headrace.connectors.source_base import BoundedSource
from headrace.connectors.stream_base import UnboundedSource
from headrace.jobs.sources.pipeline_source import PipelineSource, create_pipeline_sources
from headrace.orchestration.execution import wait_for_thread
from headrace.orchestration.pipelines import Pipeline
from headrace.orchestration.state import read_pipeline_state
from headrace.pipeline.errors import HeadraceError
from headrace.pipeline.protocol import positions
from headrace.pipeline.protocol.epochs import Json

log = logging.getLogger(__name__)

Observations = Mapping[dg.AssetKey, Mapping[str, Any]]


def report_sources(context: Any, pipeline: Pipeline, is_canceled: Callable[[], bool] = lambda: False) -> None:
    """Log one observation per source that says something. A system that is unreachable is a warning."""
    try:
        result = wait_for_thread(lambda: observe_sources(pipeline), "observe", is_canceled)
    except HeadraceError as error:
        context.log.warning("event=sources_not_observed error=%s", error)
        return
    for key, metadata in result.items():
        context.log_event(dg.AssetObservation(key, metadata=metadata))


def observe_sources(pipeline: Pipeline) -> Observations:
    """Return the lag in offsets and the age of the newest data, by asset, where the system knows them.

    Raise HeadraceError if the ledger or a system is unreachable.
    """
    state = read_pipeline_state(pipeline)
    position = state.position if state else {}
    result: dict[dg.AssetKey, Mapping[str, Any]] = {}
    sources = create_pipeline_sources(pipeline.file.model.sources, pipeline.settings())
    try:
        for name, source in sources.items():
            here = position.get(name, {})
            for asset, part in zip(pipeline.sources[name], _parts(source), strict=True):
                if metadata := _observe(part, here):
                    result[asset.key] = metadata
    finally:
        for source in sources.values():
            source.close()
    return result


def _parts(source: PipelineSource) -> list[BoundedSource | UnboundedSource]:
    return [*source.bounded, *([source.unbounded] if source.unbounded else [])]


def _observe(part: BoundedSource | UnboundedSource, position: Json) -> Mapping[str, Any]:
    metadata: dict[str, Any] = {}
    if isinstance(part, UnboundedSource) and (here := position.get("stream")):
        part.resume(here)
        metadata["lag_offsets"] = positions.offset_lag(here, part.end_offsets())
    if (newest := part.newest_change_ms()) is not None:
        metadata["dagster/last_updated_timestamp"] = dg.MetadataValue.timestamp(newest / 1000)
        metadata["age_seconds"] = round(max(0.0, time.time() - newest / 1000), 1)
    return metadata

"""The state of a pipeline from the ledger alone, for the command line and the sensor in Dagster."""

from __future__ import annotations

from headrace.pipeline.file.loader import PipelineFile
from headrace.pipeline.protocol import positions
from headrace.pipeline.protocol.epochs import Phase
from headrace.pipeline.protocol.ledger import PipelineState


def history_complete(file: PipelineFile, state: PipelineState | None) -> bool:
    """Return whether all history is in every sink, according to the ledger."""
    return bool(state and state.position) and positions.history_complete(
        file.model, state.position if state else {}
    )


def was_history_loaded(file: PipelineFile, state: PipelineState | None) -> bool:
    """Return whether every sink has received all history. A refresh that has not ended changes nothing."""
    keys = positions.windows_of(file.model)
    return bool(state and state.position) and len(keys) == len(
        positions.refreshable(file.model, state.position if state else {}, keys)
    )


def completed_partitions(file: PipelineFile, state: PipelineState | None) -> list[str]:
    """Return the keys of the completed partitions, in order."""
    return positions.completed_partitions(file.model, state.position) if state and state.position else []


def has_stream_work(file: PipelineFile) -> bool:
    """Return whether the pipeline continues with a stream after its history is complete."""
    return not file.model.job_mode and any(
        positions.is_unbounded(node) for node in file.model.sources.values()
    )


def phase(file: PipelineFile, state: PipelineState | None) -> Phase:
    """Return the pipeline's current phase."""
    if not history_complete(file, state):
        return Phase.HISTORY
    position = state.position if state else {}
    started = [
        position[name]
        for name, node in file.model.sources.items()
        if positions.is_unbounded(node) and "stream" in position.get(name, {})
    ]
    return Phase.CATCHING_UP if positions.is_catching_up(started) else Phase.LIVE

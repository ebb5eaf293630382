"""The ledger's state of a pipeline, read without a lease."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

from headrace.connectors.ledger.factory import open_existing_ledger
from headrace.orchestration.pipelines import Pipeline
from headrace.pipeline.protocol.coordinator.blocking import find_block
from headrace.pipeline.protocol.epochs import WriteCounts
from headrace.pipeline.protocol.ledger import Ledger, PipelineState

PartitionRows = Mapping[str, Mapping[str, int]]
"""Rows by partition and sink."""


def read_pipeline_state(pipeline: Pipeline) -> PipelineState | None:
    """Return the pipeline's state, None if there is no ledger yet. Create no file."""
    with open_pipeline_ledger(pipeline) as ledger:
        return ledger.state(pipeline.file.name) if ledger else None


def describe_blocked_epoch(pipeline: Pipeline, state: PipelineState | None) -> str:
    """Return why the open epoch is blocked, with the next command. Empty if the next run can try it."""
    if state is None or state.open_plan is None:
        return ""
    file = pipeline.file
    with open_pipeline_ledger(pipeline) as ledger:
        block = find_block(ledger, state, file.model.epoch.max_attempts, file.path) if ledger else None
    return f"{block} To go on in Dagster, launch the stream's job by hand." if block else ""


def read_partition_rows(pipeline: Pipeline, partitions: Collection[str]) -> PartitionRows:
    """Return the rows that history wrote into each partition at each sink, over all runs."""
    with open_pipeline_ledger(pipeline) as ledger:
        counts = ledger.window_counts(pipeline.file.name) if ledger else {}
    return {
        key: {sink: _net_rows(entry) for sink, entry in by_sink.items()}
        for key, by_sink in counts.items()
        if key in partitions
    }


def _net_rows(counts: WriteCounts) -> int:
    """Return inserted minus deleted rows if the sink knows them, else the rows written."""
    return (
        counts.rows if counts.inserted is None or counts.deleted is None else counts.inserted - counts.deleted
    )


@contextmanager
def open_pipeline_ledger(pipeline: Pipeline) -> Iterator[Ledger | None]:
    """Open the pipeline's ledger for a block. None if there is none yet: no file is created."""
    ledger = open_existing_ledger(pipeline.settings())
    try:
        yield ledger
    finally:
        if ledger:
            ledger.close()

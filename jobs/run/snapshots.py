"""The snapshots of a run's histories: replaced when partitions have passed, dropped when unused."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.jobs.planning.compiled_pipeline import CompiledPipeline
from headrace.jobs.run.events import RunMessage
from headrace.jobs.run.reporter import RunReporter
from headrace.jobs.sources.backfill import EpochRange
from headrace.jobs.sources.snapshots import create_token, drop_stale_snapshots, renew_sources
from headrace.pipeline.errors import HeadraceError
from headrace.pipeline.protocol.coordinator import EpochCoordinator
from headrace.pipeline.protocol.epochs import Phase


def renew_snapshots(
    compiled: CompiledPipeline, coordinator: EpochCoordinator, refresh: Sequence[str] = ()
) -> EpochRange:
    """Create new snapshots of history. Return the epoch without rows that replaces the former ones.

    The epoch also marks the partitions of `refresh`, which the next epochs read again.
    """
    lease = coordinator.lease
    position = renew_sources(
        compiled.sources,
        compiled.planner.spark,
        create_token(lease.pipeline, lease.generation),
        compiled.file.model,
        coordinator.position,
        coordinator.ledger,
        refresh,
    )
    return EpochRange(Phase.HISTORY, position)


def drop_unused_snapshots(
    compiled: CompiledPipeline, coordinator: EpochCoordinator, reporter: RunReporter
) -> None:
    """Drop snapshots that the position does not refer to. If that fails, a later run tries again."""
    try:
        drop_stale_snapshots(compiled.sources, coordinator.lease, coordinator.position)
    except HeadraceError as error:
        reporter.publish(RunMessage(f"snapshots of an earlier start were not dropped: {error}", "warning"))

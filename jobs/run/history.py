"""Loads partitions of history, and with a refresh reads complete ones again from new snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.jobs.planning.refresh import check_readable_keys
from headrace.jobs.run.snapshots import drop_unused_snapshots, renew_snapshots
from headrace.jobs.sources.backfill import BackfillPlanner, EpochRange, SplitCache
from headrace.jobs.sources.changed_keys import check_messages_since_handoff
from headrace.pipeline.errors import (
    FencedError,
    HeadraceError,
    PipelineStateError,
    SparkJvmError,
)
from headrace.pipeline.file.loader import PipelineFile
from headrace.pipeline.model import graph
from headrace.pipeline.protocol import positions
from headrace.pipeline.protocol.epochs import Json, Phase, Position
from headrace.pipeline.protocol.partitions import is_history_open

if TYPE_CHECKING:
    from headrace.jobs.run.pipeline_run import PipelineRun


class HistoryLoad:
    """Loads partitions of history that are not complete. With `refresh` it reads complete ones again."""

    def __init__(self, pipeline_run: PipelineRun, windows: Sequence[str], *, refresh: bool) -> None:
        self._run = pipeline_run
        self._windows = windows
        self._coordinator, self._model = pipeline_run.coordinator, pipeline_run.file.model
        self._sources = pipeline_run.assembly.sources
        known = [
            event["data"]
            for event in self._coordinator.ledger.events(self._model.name, self._coordinator.lease.lane)
            if event["kind"] == "splits"
        ]
        epoch = self._model.epoch
        self._planner = BackfillPlanner(
            self._model, self._sources, SplitCache(known, self._note), epoch.history_rows, epoch.max_bytes
        )
        position = self._coordinator.position
        order = positions.windows_of(self._model)
        self._partly_read = sorted(positions.partly_read(position), key=order.index)
        self._refreshed = positions.refreshable(self._model, position, windows) if refresh else []

    def _note(self, page: Json) -> None:
        self._coordinator.ledger.event(self._coordinator.lease, "splits", page)

    def run(self) -> None:
        """Load and refresh the partitions, until they are complete or the run must stop."""
        self.check()
        if self.needs_snapshots:
            self.finish_partly_read()
            if not self._run.stopping:
                self._run.run_epoch(self.create_snapshots())
        self.report_start()
        self._load(self._windows)
        self.drop_snapshots()

    def check(self) -> None:
        """Raise the error of partitions that cannot be loaded or refreshed. Nothing is planned before."""
        position = self._coordinator.position
        _check_order(self._run.file, position, self._windows, self._refreshed)
        if self._refreshed:
            check_readable_keys(self._coordinator.sinks.values())
            for name, source in self._sources.items():
                check_messages_since_handoff(source, position[name])

    @property
    def needs_snapshots(self) -> bool:
        """Whether new snapshots of history replace the present ones."""
        return bool(self._refreshed) or any(
            positions.needs_snapshot(self._model, self._coordinator.position[name], self._windows)
            for name, source in self._sources.items()
            if source.bounded
        )

    def finish_partly_read(self) -> None:
        """Load the rest of partitions that were partly read from the present snapshots."""
        self._load(self._partly_read)

    def create_snapshots(self) -> EpochRange:
        """Create new snapshots. Return the epoch that refers to them and marks the refreshed partitions."""
        return renew_snapshots(self._run.assembly, self._coordinator, self._refreshed)

    def report_start(self) -> None:
        """Report the number of partitions that are not complete."""
        done = positions.completed_partitions(self._model, self._coordinator.position)
        if left := [key for key in self._windows if key not in done]:
            self._run.reporter.enter(Phase.HISTORY, {"windows": len(left)})

    def next_epoch(self, windows: Sequence[str] | None = None) -> EpochRange | None:
        """Return the next epoch of partitions, by default of all. None if they are complete."""
        spark = self._run.assembly.planner.spark
        return self._planner.next(
            spark, self._coordinator.position, self._windows if windows is None else windows
        )

    def cancel_refresh(self) -> None:
        """Let the sinks keep the rows that they have if the next partition cannot be read again.

        Its refresh would block the pipeline at each start. No epoch is open.
        """
        position = self._coordinator.position
        done = positions.completed_partitions(self._model, position)
        left = [key for key in self._windows if key not in done]
        for name, here in position.items():  # only a pipeline with one source is refreshed
            marked = [key for key in left if positions.is_refresh(self._model, here, key)]
            if marked and marked[0] == left[0]:
                end = positions.cancel_refresh(self._model, here, marked)
                self._run.run_epoch(EpochRange(Phase.HISTORY, {**position, name: end}))

    def drop_snapshots(self) -> None:
        """Drop snapshots that are no longer used."""
        renewed = self._refreshed or is_history_open(self._model.partitions)
        if renewed and not self._coordinator.has_open_epoch:
            drop_unused_snapshots(self._run.assembly, self._coordinator, self._run.reporter)

    def _load(self, windows: Sequence[str]) -> None:
        while not self._run.stopping and (step := self._plan(windows)) is not None:
            self._run.run_epoch(step)

    def _plan(self, windows: Sequence[str]) -> EpochRange | None:
        """Return the next epoch. End the refresh of a partition that can never be read again."""
        try:
            with self._run.session.translate_errors():
                return self.next_epoch(windows)
        except (FencedError, SparkJvmError):
            raise
        except HeadraceError as error:
            if not error.retriable and not self._run.stopping:
                self.cancel_refresh()
            raise


def _check_order(
    file: PipelineFile, position: Position, windows: Sequence[str], refreshed: Sequence[str]
) -> None:
    """Raise PipelineStateError for a partition before one that is loaded, at sinks where the last row stays.

    A key with rows in both would keep the row of the earlier partition. `refreshed` are partitions
    that are read again.
    """
    sinks = graph.partition_ordered_sinks(file.model)
    order = {key: place for place, key in enumerate(positions.windows_of(file.model))}
    done = [key for key in positions.completed_partitions(file.model, position) if key not in refreshed]
    partly_read = positions.partly_read(position)
    begun = max([*done, *partly_read], key=lambda key: order.get(key, -1), default="")
    late = [key for key in windows if order[key] < order.get(begun, -1) and key not in done]
    if not sinks or not late or late[0] in partly_read:
        return
    msg = (
        f"partition {late[0]} cannot be loaded after {begun}: at sink {', '.join(sinks)} the last row of a"
        " key stays, and a key with rows in both partitions would keep the older row"
    )
    hint = (
        "If all history rows of a key are in one partition, set `any_order: true` in `partitions`. Or set"
        " `version_column` at the sinks. Or start over and load the partitions in order:"
        f" headrace reset {file.path}."
    )
    raise PipelineStateError(msg, hint=hint, place=file.place("partitions"))

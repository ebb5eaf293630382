"""Publishes the events of a run and collects its result."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.jobs.run.events import (
    EpochCommitted,
    PartitionCompleted,
    PhaseChanged,
    PhaseFigures,
    RunMessage,
    RunResult,
    StreamIdle,
)
from headrace.pipeline.model.error_outputs import error_sinks, rejected_rows
from headrace.pipeline.protocol import positions
from headrace.pipeline.protocol.epochs import EpochPlan, Json, Phase, Position, WriteCounts

if TYPE_CHECKING:
    from headrace.jobs.run.subscribers import EventStream
    from headrace.pipeline.file.loader import PipelineFile
    from headrace.pipeline.protocol.coordinator import EpochCoordinator

_IDLE_NOTICE = 30.0


class RunReporter:
    """Publishes the events of one run, and collects its result."""

    def __init__(self, file: PipelineFile, events: EventStream) -> None:
        self.publish = events.publish
        self.epochs = 0
        self.last_seconds = 0.0
        self._file = file
        self._phase: Phase | None = None
        self._figures: dict[Phase, PhaseFigures] = {}
        self._counts: dict[str, WriteCounts] = {}
        self._error_sinks = error_sinks({name: node.from_ for name, node in file.model.sinks.items()})
        self._rejected: dict[str, int] = {}
        self._first: int | None = None
        self._window_rows: dict[str, dict[str, int]] = {}
        self._idle_since: float | None = None

    def enter(self, phase: Phase, detail: Json | None = None) -> None:
        """Set the phase, and publish a PhaseChanged event if it differs from the previous phase."""
        if phase is not self._phase:
            self._phase = phase
            self.publish(PhaseChanged(phase, detail or {}))

    def report_stream_start(self, begun: Position) -> None:
        """Report the phase and the offsets at which the stream begins, and the handoff position."""
        begun = {name: place for name, place in begun.items() if name in self._file.model.sources}
        streams = {
            name: positions.offsets(place["stream"]) for name, place in begun.items() if "stream" in place
        }
        fences = {
            name: positions.offsets(place.get("fence")) for name, place in begun.items() if place.get("fence")
        }
        phase = Phase.CATCHING_UP if positions.is_catching_up(begun.values()) else Phase.LIVE
        self.enter(phase, {"offsets": streams, "fence": fences})

    def idle(self, backlog: int | None, sources: Sequence[str]) -> None:
        """Publish that the stream is idle, and once a message after it has been idle for a while."""
        now = time.monotonic()
        self.publish(StreamIdle(backlog))
        if self._idle_since is None:
            self._idle_since = now
        elif now - self._idle_since > _IDLE_NOTICE:
            self._idle_since = now + 1e9
            where = ", ".join(f"`{name}`" for name in sources)
            self.publish(
                RunMessage(
                    f"nothing new from {where} for {_IDLE_NOTICE:.0f} s; the stream is at its end"
                    f" ({backlog} offsets behind)"
                )
            )

    def record_commit(self, event: EpochCommitted) -> None:
        """Publish an epoch that all sinks committed, with its rejected rows, and add it to the result."""
        plan, counts = event.plan, event.counts
        rejected = rejected_rows(self._error_sinks, {name: count.rows for name, count in counts.items()})
        event = replace(event, rejected=rejected)
        self._idle_since = None
        self.epochs += 1
        self._first = self._first or plan.number
        self.last_seconds = event.steps["total"]
        before = self._figures.get(plan.phase, PhaseFigures(0, 0, 0.0))
        self._figures[plan.phase] = PhaseFigures(
            before.epochs + 1, before.rows + event.largest_rows, before.seconds + self.last_seconds
        )
        for name, count in counts.items():
            self._counts[name] = self._counts.get(name, WriteCounts()) + count
        for name, rows in rejected.items():
            self._rejected[name] = self._rejected.get(name, 0) + rows
        self.publish(event)
        self._window_progress(plan, counts)

    def _window_progress(self, plan: EpochPlan, counts: Mapping[str, WriteCounts]) -> None:
        if plan.phase is not Phase.HISTORY:
            return
        window = plan.window or ""
        rows = self._window_rows.setdefault(window, {})
        for name, count in counts.items():
            rows[name] = rows.get(name, 0) + count.rows
        model = self._file.model
        if all(
            positions.is_partition_done(model, plan.end.get(name, {}), window)
            for name, node in model.sources.items()
            if positions.bounded_phases(node)
        ):
            self.publish(PartitionCompleted(window, self._window_rows.pop(window)))

    def result(self, coordinator: EpochCoordinator, stop_reason: str, *, caught_up: bool) -> RunResult:
        """Return what the run did, and why it ended."""
        return RunResult(
            name=self._file.name,
            pipeline=coordinator.lease.pipeline,
            stop_reason=stop_reason,
            epochs=self.epochs,
            first_epoch=self._first,
            last_epoch=coordinator.committed,
            counts=self._counts,
            phases=self._figures,
            history_complete=positions.history_complete(self._file.model, coordinator.position),
            caught_up=caught_up,
            rejected=self._rejected,
        )

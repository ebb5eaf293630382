"""What people are told of a lane's run: events at the door and in the log, the word beside its heartbeat, and what came of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.jobs.run.events import EpochCommitted, Event, Listener, PartitionCompleted, PhaseChanged, PhaseFigures, RunMessage, RunResult
from headrace.jobs.staging.pending_calls import read_pending_calls
from headrace.pipeline.protocol import positions
from headrace.pipeline.protocol.epochs import EpochPlan, Json, Phase, Position, WriteCounts

if TYPE_CHECKING:
    from headrace.jobs.monitoring.monitor import NullMonitor
    from headrace.pipeline.errors import HeadraceError
    from headrace.pipeline.file.loader import PipelineFile
    from headrace.pipeline.protocol.coordinator import EpochCoordinator

log = logging.getLogger(__name__)

_IDLE_NOTICE = 30.0


class RunReporter:
    """Of one run. It writes nothing but the lane's progress."""

    def __init__(self, file: PipelineFile, monitor: NullMonitor, listener: Listener | None) -> None:
        self.epochs = 0
        self.last_seconds = 0.0
        self._file = file
        self._monitor = monitor
        self._listener = listener
        self._phase: Phase | None = None
        self._figures: dict[Phase, PhaseFigures] = {}
        self._counts: dict[str, WriteCounts] = {}
        self._first: int | None = None
        self._window_rows: dict[str, dict[str, int]] = {}
        self._idle_since: float | None = None
        self._said: Json = {}
        self._waits: frozenset[str] = frozenset()
        self._stalled = ""

    def publish(self, event: Event) -> None:
        """Pass an event to the listener, and write messages to the log."""
        if isinstance(event, RunMessage):
            log.log(logging.WARNING if event.level == "warning" else logging.INFO, "%s", event.message)
        if self._listener is not None:
            self._listener(event)

    def enter(self, phase: Phase, detail: Json | None = None) -> None:
        """Set the phase, and publish a PhaseChanged event if it differs from the previous phase."""
        if phase is not self._phase:
            self._phase = phase
            self._monitor.phase(phase)
            self.publish(PhaseChanged(phase, detail or {}))

    def report_stream_start(self, begun: Position) -> None:
        """Report the phase and the offsets at which the stream begins, and the handoff position."""
        begun = {name: place for name, place in begun.items() if name in self._file.model.sources}
        streams = {name: positions.offsets(place["stream"]) for name, place in begun.items() if "stream" in place}
        fences = {name: positions.offsets(place.get("fence")) for name, place in begun.items() if place.get("fence")}
        phase = Phase.CATCHING_UP if positions.is_catching_up(begun.values()) else Phase.LIVE
        self.enter(phase, {"offsets": streams, "fence": fences})

    def idle(self, lane: EpochCoordinator, backlog: int | None, sources: Sequence[str]) -> None:
        """Update the backlog in the heartbeat, and report once that a stream has been idle for a while."""
        now = time.monotonic()
        if self._said and self._said["backlog"] != backlog:
            self._said = {**self._said, "backlog": backlog}
            lane.progress(self._said)
        if self._idle_since is None:
            self._idle_since = now
        elif now - self._idle_since > _IDLE_NOTICE:
            self._idle_since = now + 1e9
            where = ", ".join(f"`{name}`" for name in sources)
            self.publish(
                RunMessage(f"nothing new from {where} for {_IDLE_NOTICE:.0f} s; the stream is at its end ({backlog} offsets behind)")
            )

    def collect_pending_calls(self, folder: Path) -> Json:
        """Return the external calls that tasks wait for, as heartbeat data.

        The heartbeat's thread calls this. Logs each wait once.
        """
        found = read_pending_calls(folder)
        for node in found.keys() - self._waits:
            log.warning("node=%s %s", node, found[node])
        self._waits = frozenset(found)
        stalled = [self._stalled] if self._stalled else []
        self._monitor.waiting = "; ".join([*(f"{node}: {message}" for node, message in found.items()), *stalled])
        return {"waiting": self._monitor.waiting} if self._monitor.waiting else {}

    def set_stall(self, what: str) -> None:
        """Set the reason why the stream is stalled, for the heartbeat. An empty string clears it."""
        self._stalled = what

    def record_failure(self, lane: EpochCoordinator, error: HeadraceError) -> None:
        """Record a failed attempt at an epoch in the monitor and in the heartbeat."""
        self._monitor.record_failure(error)
        lane.progress({**self._said, "error": _first_line(error)})

    def record_commit(
        self, lane: EpochCoordinator, plan: EpochPlan, counts: Mapping[str, WriteCounts], steps: Mapping[str, float], left: int | None
    ) -> None:
        """Record an epoch that all sinks committed. `left` is the remaining backlog, if known."""
        self._idle_since = None
        self.epochs += 1
        self._first = self._first or plan.number
        self.last_seconds = steps["total"]
        rows = max((count.rows for count in counts.values()), default=0)
        before = self._figures.get(plan.phase, PhaseFigures(0, 0, 0.0))
        self._figures[plan.phase] = PhaseFigures(before.epochs + 1, before.rows + rows, before.seconds + self.last_seconds)
        for name, count in counts.items():
            self._counts[name] = self._counts.get(name, WriteCounts()) + count
        self._said = {
            "phase": str(plan.phase),
            "epoch": plan.number,
            "rows": rows,
            "rows_per_s": round(rows / max(self.last_seconds, 1e-3)),
            "backlog": left,
        }
        lane.progress(self._said)
        self._monitor.record_commit(plan, counts, steps, left)
        self.publish(EpochCommitted(plan, counts, steps, left))
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

    def result(self, lane: EpochCoordinator, stop_reason: str, *, caught_up: bool) -> RunResult:
        """Return what the run did, and why it ended."""
        return RunResult(
            name=self._file.name,
            pipeline=lane.lease.pipeline,
            stop_reason=stop_reason,
            epochs=self.epochs,
            first_epoch=self._first,
            last_epoch=lane.committed,
            counts=self._counts,
            phases=self._figures,
            history_complete=positions.history_complete(self._file.model, lane.position),
            caught_up=caught_up,
        )


def _first_line(error: HeadraceError) -> str:
    return error.message.splitlines()[0][:200] if error.message else type(error).__name__

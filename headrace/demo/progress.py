"""Progress of the demo's pipeline, from its ledger."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.connectors.ledger.factory import open_ledger
from headrace.jobs.run.status import completed_partitions, history_complete
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.file.loader import PipelineFile
from headrace.pipeline.protocol import positions
from headrace.pipeline.protocol.epochs import Phase, largest_row_count
from headrace.pipeline.protocol.ledger import EpochRow, PipelineState

SOURCE = "flights"


@dataclass(frozen=True, slots=True)
class PhaseSummary:
    """A phase in the ledger: epochs, rows (of the sink with most), and seconds from plan to commit.

    `rate` is rows per second over all epochs except the killed one.
    """

    name: str
    epochs: int
    rows: int
    seconds: float
    rate: float


class DemoProgress:
    """The ledger's answers in terms of the demo. Thread-safe."""

    def __init__(self, file: PipelineFile, settings: Settings) -> None:
        self.file = file
        self._ledger = open_ledger(settings)

    def state(self) -> PipelineState | None:
        """Return the state of the pipeline, None before its first start."""
        return self._ledger.state(self.file.name)

    def count_consumed(self) -> int:
        """Return the number of committed messages of the topic. History contains those before the handoff."""
        state = self.state()
        position = state.position.get(SOURCE, {}) if state else {}
        return sum(positions.offsets(position.get("stream") or position.get("fence")).values())

    def handoff_offset(self) -> int:
        """Return the number of messages that the history table contains, 0 while unknown."""
        state = self.state()
        return sum(positions.offsets(state.position.get(SOURCE, {}).get("fence")).values()) if state else 0

    def is_history_complete(self) -> bool:
        """Return whether all months are in every sink."""
        return history_complete(self.file, self.state())

    def completed_months(self) -> list[str]:
        """Return the months that are in every sink."""
        return completed_partitions(self.file, self.state())

    def last_epoch_of(self, month: str) -> int:
        """Return the epoch that completed a month."""
        return max(row.plan.number for row in self.epochs() if row.plan.window == month)

    def epochs(self) -> list[EpochRow]:
        """Return all epochs, including the open one."""
        return list(self._ledger.epochs(self.file.name))

    def summarize_phases(self, without_epoch: int | None) -> list[PhaseSummary]:
        """Return history and stream. `without_epoch` is the killed epoch, if there is one."""
        summaries = []
        for name, phases in (("history", (Phase.HISTORY,)), ("stream", (Phase.CATCHING_UP, Phase.LIVE))):
            rows = [row for row in self.epochs() if row.plan.phase in phases and row.committed_at]
            timed = [row for row in rows if row.plan.number != without_epoch]
            seconds = sum(
                (row.committed_at - row.plan.planned_at).total_seconds() for row in timed if row.committed_at
            )
            rate = sum(largest_row_count(row.counts) for row in timed) / max(seconds, 1e-3)
            summaries.append(
                PhaseSummary(
                    name, len(rows), sum(largest_row_count(row.counts) for row in rows), seconds, rate
                )
            )
        return summaries

    def close(self) -> None:
        """Close the ledger."""
        self._ledger.close()

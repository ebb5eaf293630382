"""Where the demo's pipeline stands, by its ledger."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.connectors.ledger_factory import open_ledger
from headrace.jobs.run.status import completed_partitions, history_complete
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.file.loader import PipelineFile
from headrace.pipeline.protocol import positions
from headrace.pipeline.protocol.epochs import Phase
from headrace.pipeline.protocol.ledger import EpochRow, PipelineState

SOURCE = "flights"


@dataclass(frozen=True, slots=True)
class PhaseSum:
    """What the ledger says about a phase: epochs and rows (of the sink that took most), seconds from plan to commit.

    `rate` is rows per second over all epochs but one that a kill lies in.
    """

    name: str
    epochs: int
    rows: int
    seconds: float
    rate: float


class DemoLane:
    """The ledger's answers in the demo's words. Safe to ask from several threads."""

    def __init__(self, file: PipelineFile, settings: Settings) -> None:
        self.file = file
        self._ledger = open_ledger(settings)

    def state(self) -> PipelineState | None:
        """Where the lane stands, None before its first start."""
        return self._ledger.state(self.file.name)

    def consumed(self) -> int:
        """How many messages of the topic are committed: history holds those before the fence."""
        state = self.state()
        here = state.position.get(SOURCE, {}) if state else {}
        return sum(positions.offsets(here.get("stream") or here.get("fence")).values())

    def fence(self) -> int:
        """How many messages of the topic the history table holds, 0 while that is not known."""
        state = self.state()
        return sum(positions.offsets(state.position.get(SOURCE, {}).get("fence")).values()) if state else 0

    def has_history(self) -> bool:
        """Whether all months are in every sink."""
        return history_complete(self.file, self.state())

    def months(self) -> list[str]:
        """The months that are in every sink."""
        return completed_partitions(self.file, self.state())

    def last_epoch_of(self, month: str) -> int:
        """The epoch that completed a month."""
        return max(row.plan.number for row in self.epochs() if row.plan.window == month)

    def epochs(self) -> list[EpochRow]:
        """All epochs, the open one included."""
        return list(self._ledger.epochs(self.file.name))

    def sums(self, without: int | None) -> list[PhaseSum]:
        """History and stream. `without` is the epoch that a kill lies in, if there is one."""
        found = []
        for name, phases in (("history", (Phase.HISTORY,)), ("stream", (Phase.CATCHING_UP, Phase.LIVE))):
            rows = [row for row in self.epochs() if row.plan.phase in phases and row.committed_at]
            timed = [row for row in rows if row.plan.number != without]
            seconds = sum((row.committed_at - row.plan.planned_at).total_seconds() for row in timed if row.committed_at)
            rate = sum(_rows(row) for row in timed) / max(seconds, 1e-3)
            found.append(PhaseSum(name, len(rows), sum(_rows(row) for row in rows), seconds, rate))
        return found

    def close(self) -> None:
        """Lets go of the ledger."""
        self._ledger.close()


def _rows(row: EpochRow) -> int:
    return max((counts.rows for counts in row.counts.values()), default=0)

"""Observes the frames of an epoch while the planner creates them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from headrace.connectors.lazy_session import ensure_started
from headrace.jobs.monitoring.errors import log_errors
from headrace.jobs.monitoring.spark_observation import EpochObservation, observe_frame
from headrace.jobs.monitoring.table_figures import figures_of_table
from headrace.pipeline.model import graph
from headrace.pipeline.model.nodes import PipelineModel
from headrace.pipeline.model.telemetry import EventTime

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)


class FrameObserver(Protocol):
    """Receives the frames of one epoch when they are created."""

    def __call__(self, name: str, frame: DataFrame, *, staged: bool = False) -> DataFrame:
        """Return the frame to use for a transform, or for a source that has rows.

        `staged` rows were stored on disk.
        """
        ...

    def share(self, frame: DataFrame) -> None:
        """Record that a frame was persisted for several sinks."""
        ...

    def observe_rows(self, tables: Mapping[str, pa.Table]) -> bool:
        """Record the rows of all nodes of an epoch, which are in the driver.

        Return False, and record nothing, if frames are needed: for samples, or for nodes without a table.
        """
        ...


@dataclass(frozen=True, slots=True)
class EpochObserver:
    """Counts the rows of `counted` nodes, which queries read. Keeps the frames of `kept` nodes as samples.

    Frames of `impure` nodes are kept only after their rows were stored: sampling must not repeat their
    external calls. `unstored` are those nodes, and the nodes that read them, before that.
    """

    observation: EpochObservation
    model: PipelineModel
    counted: Collection[str]
    kept: Collection[str]
    impure: Collection[str]
    times: Mapping[str, Mapping[str, EventTime]]
    unstored: set[str] = field(default_factory=set)

    def __call__(self, name: str, frame: DataFrame, *, staged: bool = False) -> DataFrame:
        """See `FrameObserver`."""
        if not staged and (
            name in self.impure or self.unstored.intersection(graph.inputs_of(self.model, name))
        ):
            self.unstored.add(name)
        if name in self.kept and name not in self.unstored:
            self.observation.frames[name] = frame
        if name not in self.counted:
            return frame
        frame = ensure_started(frame)
        try:
            observed, observation = observe_frame(frame, self.times.get(name, {}))
        except Exception as error:  # noqa: BLE001  monitoring must not fail an epoch
            log.warning("event=rows_not_observed node=%s error=%s", name, type(error).__name__)
            return frame
        self.observation.waiting[name] = observation
        return observed

    def observe_rows(self, tables: Mapping[str, pa.Table]) -> bool:
        """See `FrameObserver.observe_rows`."""
        if self.kept or not tables.keys() >= {*self.counted}:
            return False
        for name in self.counted:
            self._count_rows(name, tables[name])
        return True

    @log_errors
    def _count_rows(self, name: str, rows: pa.Table) -> None:
        self.observation.known[name] = figures_of_table(rows, self.times.get(name, {}))

    @log_errors
    def share(self, frame: DataFrame) -> None:
        """See `FrameObserver.share`."""
        self.observation.share(frame)

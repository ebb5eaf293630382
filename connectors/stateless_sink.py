"""The base of sinks whose target has no commit record: at least once."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.connectors.frame import EpochFrame
from headrace.connectors.sink_base import Sink, SinkContext
from headrace.pipeline.protocol.epochs import CommitRecord, EpochPlan, Json, WriteCounts

if TYPE_CHECKING:
    import pyarrow as pa


class StatelessSink(Sink):
    """A sink that writes every epoch that it receives. The record lives as long as the object."""

    def __init__(self, context: SinkContext) -> None:
        """Store the context without opening a connection."""
        super().__init__(context)
        self._record: CommitRecord | None = None

    @abstractmethod
    def write_rows(self, plan: EpochPlan, frame: EpochFrame) -> int:
        """Write all rows of an epoch, even if they were written before. Return their number."""

    def prepare(self, schema: pa.Schema, generation: int) -> None:
        """Do nothing: there is no target to check or to fence."""

    def record(self) -> CommitRecord | None:
        """Return the record of this object; None in a new process."""
        return self._record

    def register(self, record: CommitRecord) -> CommitRecord:
        """Store the record in memory. There is no target, so `baseline` is None."""
        self._record = replace(record, baseline=None)
        return self._record

    def write(self, plan: EpochPlan, frame: EpochFrame) -> WriteCounts:
        """Write all rows of the epoch. See `write_rows`."""
        counts = WriteCounts(self.write_rows(plan, frame), None, None, None)
        if self._record is not None:
            self._record = self._record.after_epoch(plan, self._record.generation, counts)
        return counts

    def describe(self) -> Json:
        """Return the type and an asset key of the sink itself, because there is no external target."""
        kind = self._context.node.type
        return {"kind": kind, "asset_key": [kind, self._context.key.sink]}

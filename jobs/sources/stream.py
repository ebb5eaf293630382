"""Plans the next epoch of the stream: the new rows of every unbounded source."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.connectors.stream_base import ReadLimits
from headrace.jobs.sources.backfill import EpochRange
from headrace.jobs.sources.epoch_size import FIRST_ROWS, StreamEpochSize
from headrace.jobs.sources.pipeline_source import PipelineSource
from headrace.pipeline.protocol import positions
from headrace.pipeline.protocol.epochs import Phase, Position


class StreamPlanner:
    """Plans the unbounded part of a pipeline.

    Every source gets an equal share of the rows of an epoch, so a backlog delays no source.
    """

    def __init__(self, sources: Mapping[str, PipelineSource], rows: int | None, size: int) -> None:
        self._sources = {name: source for name, source in sources.items() if source.unbounded is not None}
        self._rows = StreamEpochSize(rows)
        self._size = size
        self.lags: dict[str, Mapping[str, int]] = {}
        """The lag by source and partition at the last call of `backlog`."""

    def __bool__(self) -> bool:
        return bool(self._sources)

    def begin(self, position: Position) -> Position:
        """Return the position with every stream started at its handoff position."""
        return {
            **position,
            **{name: source.stream_start(position[name]) for name, source in self._sources.items()},
        }

    def next(self, position: Position) -> EpochRange | None:
        """Return the next step after a position whose streams have started, or None without new rows."""
        share, size = (max(1, most // max(1, len(self._sources))) for most in (self._rows.rows, self._size))
        end = dict(position)
        for name, source in self._sources.items():
            limit = min(share, getattr(source.node, "batch_size", None) or share)
            end[name] = source.next_end_offsets(position[name], ReadLimits(rows=limit, bytes=size))
        if end == position:
            return None
        own_positions = [position[name] for name in self._sources]
        return EpochRange(Phase.CATCHING_UP if positions.is_catching_up(own_positions) else Phase.LIVE, end)

    def adapt_size(self, start: Position, end: Position, seconds: float, *, has_spark: bool) -> None:
        """Adapt the size of the next epoch to the one between two positions, which took these seconds."""
        ends = {name: (start[name]["stream"], end[name]["stream"]) for name in self._sources}
        rows = sum(positions.offset_lag(*span) for span in ends.values())
        if rows < FIRST_ROWS:  # there is no backlog
            return
        estimates = [
            source.unbounded.estimate_bytes(*ends[name], self._size)
            for name, source in self._sources.items()
            if source.unbounded is not None
        ]
        known = [one for one in estimates if one is not None]
        size = sum(known) if len(known) == len(estimates) else None
        self._rows.adapt(rows, size, seconds, has_spark=has_spark)

    def backlog(self, position: Position) -> int | None:
        """Return the number of offsets between the position and the sources' ends, or None if unknown."""
        total = 0
        for name, source in self._sources.items():
            assert source.unbounded is not None  # noqa: S101  by construction
            lags = source.unbounded.lags(position[name]["stream"])
            if lags is None:
                return None
            self.lags[name] = lags
            total += sum(lags.values())
        return total

    def end_position(self, position: Position) -> Position:
        """Return the position with every stream after its source's current last row, readable or not."""
        return {
            **position,
            **{
                name: {**position[name], "stream": source.unbounded.high_watermarks()}
                for name, source in self._sources.items()
                if source.unbounded
            },
        }

    def has_reached(self, position: Position, target: Position) -> bool:
        """Return whether every stream has reached `target`."""
        return not any(
            positions.is_before(position[name].get("stream"), target[name]["stream"])
            for name in self._sources
        )

    def has_more(self, step: EpochRange) -> bool:
        """Return whether more rows can be read after a step.

        Rows that wait for an open transaction cannot.
        """
        return any(
            positions.is_before(step.end[name]["stream"], source.unbounded.end_offsets())
            for name, source in self._sources.items()
            if source.unbounded
        )

    def commit(self, position: Position) -> None:
        """Commit the position to the sources' own tools."""
        for name, source in self._sources.items():
            if source.unbounded is not None and "stream" in position[name]:
                source.unbounded.commit(position[name]["stream"])

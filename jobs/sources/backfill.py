"""Plans the next epoch of history: whole splits of one partition, up to a number of rows and bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.jobs.sources.pipeline_source import PipelineSource
from headrace.pipeline.errors import SinkStateError
from headrace.pipeline.model.nodes import PipelineModel
from headrace.pipeline.protocol import positions
from headrace.pipeline.protocol.epochs import Json, Phase, Position

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class EpochRange:
    """The range that the next epoch is planned with."""

    phase: Phase
    end: Position
    window: str | None = None
    splits: tuple[Json, ...] = ()


class SplitCache:
    """The splits of every partition.

    They are computed once and stored in the ledger, so that a resumed run has the same.

    `known` are the `splits` events of the ledger; `note` stores one more. `of` is the fingerprint of
    everything that decides which rows a partition has: snapshots, handoff position, column and bounds. Splits
    with another fingerprint are not used.
    """

    def __init__(self, known: Sequence[Json], note: Callable[[Json], None]) -> None:
        self._pages = {
            (page["source"], page["window"], page["phase"], page.get("of")): page["splits"] for page in known
        }
        self._note = note

    def splits(
        self, source: str, window: str, phase: int, of: str, work_out: Callable[[], list[Json]]
    ) -> list[Json]:
        """Return the splits of one phase in one partition."""
        key = source, window, phase, of
        if key not in self._pages:
            page = {"source": source, "window": window, "phase": phase, "of": of, "splits": work_out()}
            self._note(page)
            self._pages[key] = page["splits"]
        return self._pages[key]


class BackfillPlanner:
    """Plans the bounded part of a pipeline."""

    def __init__(
        self,
        model: PipelineModel,
        sources: Mapping[str, PipelineSource],
        book: SplitCache,
        rows: int,
        size: int,
    ) -> None:
        self._model = model
        self._sources = sources
        self._book = book
        self._rows = rows
        self._size = size

    def next(self, spark: SparkSession, position: Position, windows: Sequence[str]) -> EpochRange | None:
        """Return the next step through `windows`, or None if all are complete.

        Phases of a source keep their order.
        """
        for window in windows:
            for name, source in self._sources.items():
                if source.bounded and not positions.is_partition_done(self._model, position[name], window):
                    return self._step(spark, position, name, window)
        return None

    def _step(self, spark: SparkSession, position: Position, name: str, window: str) -> EpochRange:
        source, position_of_source = self._sources[name], position[name]
        source.check_retention(position_of_source)
        phase, done, known = positions.window_progress(position_of_source, window)
        bounds = positions.history_partition(self._model, window)
        of = positions.fingerprint(
            [
                positions.pins_ref(position_of_source),
                position_of_source["fence"],
                bounds and [bounds.column, bounds.start, bounds.end],
            ]
        )
        splits = self._book.splits(
            name, window, phase, of, lambda: source.splits(spark, position_of_source, phase, bounds)
        )
        mark = positions.fingerprint(splits)
        if done and known != mark:
            msg = (
                f"the splits of window `{window or 'all'}` are not those that its first {done} epochs"
                " were cut by"
            )
            raise SinkStateError(
                msg,
                hint="Start this window again: headrace replay FILE --from the epoch that began it.",
                node=name,
            )
        if positions.is_refresh(self._model, position_of_source, window):
            taken = splits[done:]  # one epoch, because a reader must not see a partition half replaced
        else:
            taken = _take(splits[done:], self._rows, self._size)
        at = (phase + 1, 0, "") if done + len(taken) == len(splits) else (phase, done + len(taken), mark)
        position_of_source = positions.advance_partition(
            self._model, source.node, position_of_source, window, at
        )
        pieces = tuple({"source": name, "phase": phase, "split": split} for split in taken)
        return EpochRange(Phase.HISTORY, {**position, name: position_of_source}, window or None, pieces)


def _take(splits: Sequence[Json], rows: int, size: int) -> list[Json]:
    """Return as many splits as fit in `rows` and, if their bytes are known, in `size`; at least one."""
    taken: list[Json] = []
    total, total_size = 0, 0
    for split in splits:
        total += split.get("rows", 0)
        total_size += split.get("bytes", 0)
        if taken and (total > rows or total_size > size):
            break
        taken.append(split)
    return taken


def splits_by_phase(splits: Sequence[Json], source: str) -> dict[int, list[Any]]:
    """Return the splits of a plan that belong to one source, by phase."""
    result: dict[int, list[Any]] = {}
    for piece in splits:
        if piece["source"] == source:
            result.setdefault(piece["phase"], []).append(piece["split"])
    return result

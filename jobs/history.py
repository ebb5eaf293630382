"""What the next epoch of history carries: whole splits of one window, in order, up to a number of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.connectors.base import Window
from headrace.jobs.sources import LaneSource
from headrace.pipeline import positions
from headrace.pipeline.errors import RecordError
from headrace.pipeline.nodes import PipelineModel
from headrace.pipeline.records import Json, Phase, Position

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Step:
    """What an epoch is going to be planned with."""

    phase: Phase
    end: Position
    window: str | None = None
    splits: tuple[Json, ...] = ()


class SplitBook:
    """The splits of every window, worked out once and kept in the ledger: a resume must count the same pieces.

    `known` are the ledger's `splits` events, `note` writes one more.
    """

    def __init__(self, known: Sequence[Json], note: Callable[[Json], None]) -> None:
        self._pages = {self._key(page["source"], page["window"], page["phase"]): page["splits"] for page in known}
        self._note = note

    @staticmethod
    def _key(source: str, window: str, phase: int) -> tuple[str, str, int]:
        return source, window, phase

    def splits(self, source: str, window: str, phase: int, work_out: Callable[[], list[Json]]) -> list[Json]:
        """The splits of one phase in one window."""
        key = self._key(source, window, phase)
        if key not in self._pages:
            page = {"source": source, "window": window, "phase": phase, "splits": work_out()}
            self._note(page)
            self._pages[key] = page["splits"]
        return self._pages[key]


class History:
    """The bounded part of a lane."""

    def __init__(self, model: PipelineModel, sources: Mapping[str, LaneSource], book: SplitBook, rows: int) -> None:
        self._model = model
        self._sources = sources
        self._book = book
        self._rows = rows

    def next(self, spark: SparkSession, position: Position, windows: Sequence[str]) -> Step | None:
        """The next step through `windows`, None when all of them are complete. Phases of a source keep their order."""
        for window in windows:
            for name, source in self._sources.items():
                if source.bounded and not positions.window_done(source.node, position[name], window):
                    return self._step(spark, position, name, window)
        return None

    def _step(self, spark: SparkSession, position: Position, name: str, window: str) -> Step:
        source, here = self._sources[name], dict(position[name])
        source.check_retention(here)
        phase, done, known = here["windows"].get(window, [0, 0, ""])
        splits = self._book.splits(name, window, phase, lambda: source.splits(spark, here, phase, self._window(window)))
        mark = positions.fingerprint(splits)
        if done and known != mark:
            msg = f"the splits of window `{window or 'all'}` are not those that its first {done} epochs were cut by"
            raise RecordError(msg, hint="Start this window again: headrace replay FILE --from the epoch that began it.", node=name)
        taken = _take(splits[done:], self._rows)
        at = [phase + 1, 0, ""] if done + len(taken) == len(splits) else [phase, done + len(taken), mark]
        here["windows"] = {**here["windows"], window: at}
        pieces = tuple({"source": name, "phase": phase, "split": split} for split in taken)
        return Step(Phase.HISTORY, {**position, name: here}, window or None, pieces)

    def _window(self, key: str) -> Window | None:
        bounds = positions.window_bounds(self._model, key)
        if bounds is None or self._model.partitions is None:
            return None
        return Window(key, self._model.partitions.column, *bounds)


def _take(splits: Sequence[Json], rows: int) -> list[Json]:
    """As many as stay within `rows`, at least one."""
    taken: list[Json] = []
    total = 0
    for split in splits:
        total += split.get("rows", 0)
        if taken and total > rows:
            break
        taken.append(split)
    return taken


def pieces_of(splits: Sequence[Json], source: str) -> dict[int, list[Any]]:
    """The splits of a plan that belong to one source, by phase."""
    found: dict[int, list[Any]] = {}
    for piece in splits:
        if piece["source"] == source:
            found.setdefault(piece["phase"], []).append(piece["split"])
    return found

"""The position of a source inside a lane, as JSON.

A source with history::

    {"pins": [snapshot handle per bounded phase], "fence": unbounded position or null, "cursor": ISO time or null,
     "windows": {"2013-01-01": [phase, splits done, fingerprint of the phase's splits]},
     "stream": unbounded position, "began": unbounded position, "catch_up": unbounded position}

The last three are there once the stream has begun: where it is, where it began, and the end that it had then. A source
without history has only `stream`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

from headrace.pipeline.nodes import PipelineModel
from headrace.pipeline.records import Json, Position
from headrace.pipeline.windows import WHOLE, time_windows, window_keys


def fingerprint(splits: Sequence[Json]) -> str:
    """Eight hex digits that change when a list of splits does."""
    return hashlib.sha256(json.dumps(splits, sort_keys=True).encode()).hexdigest()[:8]


def bounded_phases(node: Any) -> int:
    """How many bounded phases a source node has."""
    if node.type == "hybrid":
        return len(node.bounded_sources)
    return 0 if has_stream(node) else 1


def has_stream(node: Any) -> bool:
    """Whether a source node never ends."""
    return node.type in ("hybrid", "kafka") or getattr(node, "endless", False)


def windows_of(model: PipelineModel) -> list[str]:
    """Keys of the windows of this pipeline's history."""
    return window_keys(model.partitions)


def window_bounds(model: PipelineModel, key: str) -> tuple[str, str] | None:
    """First day and the day behind the last one of a window; None for the one window of an unpartitioned history."""
    if model.partitions is None or key == WHOLE:
        return None
    window = next(window for window in time_windows(model.partitions) if window.key == key)
    return window.start.isoformat(), window.end.isoformat()


def window_done(node: Any, position: Json, window: str) -> bool:
    """Whether a window of a source's history is in every sink."""
    return position.get("windows", {}).get(window, [0])[0] >= bounded_phases(node)


def windows_done(model: PipelineModel, position: Position) -> list[str]:
    """The windows that all sources of the lane have completed."""
    return [key for key in windows_of(model) if all(window_done(node, position.get(name, {}), key) for name, node in model.sources.items())]


def history_complete(model: PipelineModel, position: Position) -> bool:
    """Whether all history is in every sink. True as well where there is none."""
    return all(
        window_done(node, position.get(name, {}), key)
        for name, node in model.sources.items()
        if bounded_phases(node)
        for key in windows_of(model)
    )


def offsets(position: Json | None) -> dict[str, int]:
    """The offsets of an unbounded position, by partition."""
    return dict((position or {}).get("offsets", {}))


def behind(here: Json | None, there: Json | None) -> bool:
    """Whether `here` has not yet reached `there` in some partition."""
    mine = offsets(here)
    return any(mine.get(partition, 0) < offset for partition, offset in offsets(there).items())


def distance(here: Json, there: Json) -> int:
    """Offsets between two unbounded positions, never negative."""
    mine = offsets(here)
    return sum(max(0, offset - mine.get(partition, 0)) for partition, offset in offsets(there).items())


def catching_up(positions: Iterable[Json]) -> bool:
    """Whether some source has not yet passed the end that its stream had at the handoff."""
    return any(behind(position.get("stream"), position.get("catch_up")) for position in positions)

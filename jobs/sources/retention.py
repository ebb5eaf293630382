"""Checks that sources still have the rows that a rewind or a replay reads again, before anything changes."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.jobs.sources.pipeline_source import PipelineSource
from headrace.pipeline.errors import RetentionError, TargetError
from headrace.pipeline.protocol import positions
from headrace.pipeline.protocol.epochs import EpochPlan, Json, Position


def find_changed_source(sources: Mapping[str, PipelineSource], plan: EpochPlan) -> str:
    """Return a source whose stream no longer has the rows of an epoch, or "" if all of them have."""
    for name, end in plan.end.items():
        start, source = plan.start.get(name, {}), sources.get(name)
        if source is None or source.unbounded is None or not start.get("stream") or "stream" not in end:
            continue
        if not source.unbounded.has_rows(start["stream"], end["stream"]):
            return name
    return ""


_MOVING = ("offsets", "growing", "files", "root")
"""Keys of an unbounded position that change while the stream continues. The others identify the topic."""


class RetentionCheck:
    """The offsets that streams have now, read once per source.

    `back` names the operation in messages; `hint` is the alternative.
    """

    def __init__(self, sources: Mapping[str, PipelineSource], back: str, hint: str) -> None:
        self._sources = sources
        self._back = back
        self._hint = hint
        self._first: dict[str, tuple[Json, Json]] = {}
        """Of each source, a position without its offsets, and the first one that can be read."""

    def check_epoch(self, plan: EpochPlan) -> None:
        """Raise where the stream rows of an epoch cannot be read again."""
        for name, end in plan.end.items():
            start = plan.start.get(name, {})
            stream = start.get("stream") or start.get("fence")
            if "stream" in end and stream != end["stream"]:
                self.check({name: {"stream": stream}})

    def check_snapshots(self, plan: EpochPlan, position: Position) -> None:
        """Raise RetentionError for an epoch of history from a snapshot that `position` no longer has.

        New snapshots replace the former ones, which are dropped then.
        """
        for name in {piece["source"] for piece in plan.splits}:
            if positions.pins_ref(plan.start[name]) != positions.pins_ref(position[name]):
                msg = (
                    f"epoch {plan.number} has rows of an earlier snapshot of history, which was dropped, and"
                    f" {self._back} needs it"
                )
                raise RetentionError(msg, hint=self._hint, node=name)

    def check(self, position: Position) -> None:
        """Raise RetentionError for rows that the topic no longer has, TargetError if it is another topic."""
        for name, place in position.items():
            source, stream = self._sources.get(name), place.get("stream")
            if source is None or source.unbounded is None or stream is None:
                continue
            rest = {key: value for key, value in stream.items() if key != "offsets"}
            if name not in self._first or self._first[name][0] != rest:
                self._first[name] = rest, source.unbounded.readable_offsets(stream)
            self._compare(name, stream, self._first[name][1])

    def _compare(self, name: str, stream: Json, now: Json) -> None:
        if any(stream[key] != now.get(key) for key in stream if key not in _MOVING):
            msg = (
                f"{self._back} would read from a topic that was deleted and created again, or is another"
                " one, since"
            )
            raise TargetError(msg, hint=self._hint, node=name)
        first = positions.offsets(now)
        for part, offset in positions.offsets(stream).items():
            if first.get(part, 0) > offset:
                msg = f"partition {part} begins at offset {first[part]}, and {self._back} needs {offset}"
                raise RetentionError(msg, hint=self._hint, node=name)

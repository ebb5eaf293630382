"""Detects streams that an open transaction blocks, and ends a run that would wait forever for one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from headrace.connectors.stall import Stall
from headrace.jobs.run.events import RunMessage, StreamStalled
from headrace.jobs.sources.pipeline_source import PipelineSource
from headrace.pipeline.errors import TargetError
from headrace.pipeline.protocol.epochs import Position

CHECK_EVERY = 1.0
REPORT_AFTER = 10.0
"""Seconds after which a stall is reported: transactions are short."""
REPORT_EVERY = 300.0
MARGIN = 60.0
"""Seconds that a run waits beyond the time after which the brokers abort a transaction."""


class StallWatch:
    """Publishes the stalls of a run's streams: a message at intervals, StreamStalled for the heartbeat."""

    def __init__(
        self, sources: Mapping[str, PipelineSource], publish: Callable[[RunMessage | StreamStalled], None]
    ) -> None:
        self._sources = {
            name: source.unbounded for name, source in sources.items() if source.unbounded is not None
        }
        self._publish = publish
        self._since: dict[tuple[str, str, int], float] = {}
        self._reported = -REPORT_EVERY
        self._checked = -CHECK_EVERY

    def clear(self) -> None:
        """Forget all stalls, because rows arrive again."""
        if self._since:
            self._since = {}
            self._publish(StreamStalled(""))

    def check(self, position: Position, *, ending: bool) -> None:
        """Report stalls at `position`. `ending`: the run ends when it has caught up.

        Raises TargetError where such a run has waited for longer than the brokers keep a transaction open.
        """
        now = time.monotonic()
        if now - self._checked < CHECK_EVERY:
            return
        self._checked = now
        result = {
            (name, one.partition, one.last_stable): one
            for name in self._sources
            for one in self._of(name, position)
        }
        self._since = {key: self._since.get(key, now) for key in result}
        if not result:
            self._publish(StreamStalled(""))
            return
        key = min(result, key=lambda one: self._since[one])
        name, stall, waited = key[0], result[key], now - self._since[key]
        if waited >= REPORT_AFTER:
            self._publish(StreamStalled(f"{name}: {explain_stall(stall)}"))
            if now - self._reported >= REPORT_EVERY:
                self._reported = now
                for (source, *_), one in result.items():
                    self._publish(
                        RunMessage(
                            f"node '{source}': {explain_stall(one)}. {transaction_hint(one)}", "warning"
                        )
                    )
        if ending and waited > self._limit(name):
            msg = f"{explain_stall(stall)}; the run waited {waited:.0f} s for it"
            raise TargetError(msg, hint=transaction_hint(stall), node=name)

    def _limit(self, name: str) -> float:
        return self._sources[name].stall_limit() + MARGIN

    def _of(self, name: str, position: Position) -> list[Stall]:
        return list(self._sources[name].stalls(position[name]["stream"]))


def explain_stall(stall: Stall) -> str:
    """Return why a partition cannot be read further."""
    since = (
        ""
        if stall.since_ms is None
        else f" since {datetime.fromtimestamp(stall.since_ms / 1000, UTC).isoformat(timespec='seconds')}"
    )
    return (
        f"partition {stall.partition} of topic `{stall.topic}` has an open transaction{since}:"
        f" {stall.high_watermark - stall.last_stable} offsets wait (last stable offset {stall.last_stable},"
        f" high watermark {stall.high_watermark})"
    )


def transaction_hint(stall: Stall) -> str:
    """Return how to end a transaction that its producer has left open."""
    place = f"--topic {stall.topic} --partition {stall.partition}"
    return (
        "End or restart its producer. If the transaction hangs: kafka-transactions.sh --bootstrap-server"
        " BROKER find-hanging"
        f" {place}, then kafka-transactions.sh --bootstrap-server BROKER abort {place} --start-offset"
        f" {stall.last_stable}."
    )

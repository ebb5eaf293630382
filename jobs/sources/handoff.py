"""The handoff of a hybrid source from history to its stream.

Finds the handoff position, and refuses sources that have no exact one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from headrace.connectors.source_base import BoundedSource, Snapshot
from headrace.connectors.stream_base import UnboundedSource
from headrace.pipeline.errors import GuaranteeError, RetentionError, TargetError
from headrace.pipeline.model.hybrid import HybridSourceConfig
from headrace.pipeline.model.sources import OffsetTable
from headrace.pipeline.protocol import positions
from headrace.pipeline.protocol.epochs import Json
from headrace.pipeline.protocol.table_offsets import (
    HandoffFilter,
    HandoffPosition,
    TableOffsets,
    find_handoff_position,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

DEFAULT_LAG = timedelta(hours=1)
_SHOWN = 5  # ranges or partitions in a message


class Handoff:
    """Finds the handoff position of a hybrid source.

    `appends` are the sinks without a key, which must get each row once.
    """

    def __init__(
        self, name: str, node: HybridSourceConfig, history: Sequence[BoundedSource], stream: UnboundedSource
    ) -> None:
        self.name = name
        self.node = node
        self._history = history
        self._stream = stream

    @property
    def exact(self) -> OffsetTable | None:
        """The offset table, where it is the last history table itself, so that history can be cut by it."""
        table, last = self.node.offset_table, self.node.bounded_sources[-1]
        own = getattr(last, "table_name", None)  # files and functions have none
        return table if table is not None and table.table_name in (None, own) else None

    def handoff_filter(self, fence: Json | None) -> HandoffFilter | None:
        """How history ends where the stream starts, if it has its offsets."""
        if (table := self.exact) is None or fence is None:
            return None
        topic = table.topic_name or self.node.unbounded_source.topic
        return HandoffFilter(
            table.partition_column, table.offset_column, positions.offsets(fence), table.topic_column, topic
        )

    def position_before_snapshot(self) -> tuple[Json | None, str | None]:
        """Return handoff position and cursor that must be known before a snapshot of history is created.

        The position is None if the rows of the snapshot contain it.
        """
        node = self.node
        if self.exact is not None:
            return None, None
        if node.offset_table is not None:
            loaded = self._history[-1].read_end_offsets(node.offset_table, node.unbounded_source.topic)
            earliest = self._stream.earliest_offsets()
            wanted = {part: loaded.get(part, offset) for part, offset in positions.offsets(earliest).items()}
            return earliest | {"offsets": wanted}, None
        now = datetime.now(UTC)
        since = self._overlap_start(now)
        if node.cursor is None:
            return self._offsets_from(since), None
        # Between two seconds: a table that keeps whole seconds, or milliseconds, has each row on the side
        # that its message is on.
        settled = (now - node.cursor.allowed_lateness).replace(microsecond=0) - timedelta(microseconds=1)
        return self._offsets_from(since and min(since, settled)), settled.isoformat()

    def _overlap_start(self, now: datetime) -> datetime | None:
        """Return the time at which the stream starts, or None for its first row.

        Raise GuaranteeError for a `start_at` after the time that history may lack messages of.
        """
        latest, start_at = now - (self.node.handoff_lag or DEFAULT_LAG), self.node.unbounded_source.start_at
        if start_at is None:
            return latest
        if start_at == "earliest":
            return None
        start = datetime.fromtimestamp(int(start_at) / 1000, UTC)
        if start > latest:
            msg = (
                f"the stream would start at {start.isoformat()}, and history may lack messages since"
                f" {latest.isoformat(timespec='seconds')}, which is `handoff_lag` ago"
            )
            hint = "Set `start_at` to an earlier time, or lower `handoff_lag` if history lags less."
            raise GuaranteeError(msg, hint=hint, node=self.name, keys=("unbounded_source", "start_at"))
        return start

    def _offsets_from(self, start: datetime | None) -> Json:
        """Return the position of the first message at or after a time, or of the first one."""
        return (
            self._stream.earliest_offsets()
            if start is None
            else self._stream.offsets_for_time(_millis(start))
        )

    def position_from_snapshot(
        self, spark: SparkSession, snapshot: Snapshot, appends: Sequence[str] = ()
    ) -> Json:
        """Return the handoff position from the rows of a snapshot.

        The rows have every message before it that the topic still has. Raises TargetError if the rows are of
        another topic, GuaranteeError if sinks without a key would miss rows or get some twice.
        """
        assert self.exact is not None  # noqa: S101
        earliest = self._stream.earliest_offsets()
        first = positions.offsets(earliest)
        have = self._history[-1].measure_offsets(
            spark, snapshot, self.exact, self.node.unbounded_source.topic, first
        )
        self._check_partitions(have, first)
        fence = find_handoff_position(have, first, self._stream.find_filled_gaps)
        if appends:
            self._check_duplicates(have, appends[0])
            self._check_phases(fence, appends[0])
        if fence.missing:
            log.warning(
                "event=offsets_missing_in_history node=%s offsets=%s",
                self.name,
                _format_items(
                    f"partition {part}: [{low}, {high})" for part, (low, high) in fence.missing.items()
                ),
            )
        self._check_lost(fence, first)
        return earliest | {
            "offsets": {part: max(offset, first[part]) for part, offset in fence.offsets.items()}
        }

    def _check_lost(self, fence: HandoffPosition, first: dict[str, int]) -> None:
        """Raise RetentionError if the topic dropped messages after the end of history.

        The file can allow this gap.
        """
        lost = [
            f"partition {part}: [{offset}, {first[part]})"
            for part, offset in fence.offsets.items()
            if offset < first[part]
        ]
        if not lost:
            return
        table = self.node.offset_table
        assert table is not None  # noqa: S101
        if table.allow_missing:
            log.warning(
                "event=lost_offsets_skipped node=%s offsets=%s",
                self.name,
                _format_items(lost),
            )
            return
        msg = (
            f"neither the history table nor topic `{self.node.unbounded_source.topic}` has the offsets"
            f" {_format_items(lost)}"
        )
        hint = (
            "Load these messages into the table and run again. If they were deletes or transaction markers,"
            " set"
            " `allow_missing: true` under `offset_table`."
        )
        raise RetentionError(msg, hint=hint, node=self.name)

    def _check_partitions(self, have: TableOffsets, topic: dict[str, int]) -> None:
        """Offsets of partitions that the topic lacks are another topic's, so the others may be too."""
        unknown = sorted(set(have.partitions) - set(topic), key=int)
        if not unknown:
            return
        table = self.node.offset_table
        assert table is not None  # noqa: S101
        msg = (
            f"history has rows of partition {_format_items(unknown)}, topic"
            f" `{self.node.unbounded_source.topic}` has only partition"
            f" {_format_items(sorted(topic, key=int))}: they are offsets of another topic"
        )
        hint = (
            "Where the table holds several topics, name `topic_column` under `offset_table`. Where the"
            " topic was deleted and created"
            f" again, set `{table.partition_column}` and `{table.offset_column}` of the old rows to NULL,"
            " or use `handoff_lag`."
        )
        raise TargetError(msg, hint=hint, node=self.name)

    def _check_duplicates(self, have: TableOffsets, sink: str) -> None:
        twice = {part: offsets.duplicates for part, offsets in have.partitions.items() if offsets.duplicates}
        if twice:
            listed = _format_items(f"partition {part}: {rows}" for part, rows in twice.items())
            msg = (
                f"history has messages more than once (rows too many by {listed}), and sink '{sink}' has"
                " no key"
            )
            hint = (
                "Remove the duplicates from the table (OPTIMIZE TABLE … DEDUPLICATE), give the sink a"
                " primary_key,"
                " or set delivery: at_least_once at the sink."
            )
            raise GuaranteeError(msg, hint=hint, node=self.name)

    def _check_phases(self, fence: HandoffPosition, sink: str) -> None:
        """Rows of a gap may be in an earlier phase, which has no offsets.

        Rows without an offset are not messages of the topic.
        """
        if len(self._history) == 1 or not fence.missing:
            return
        listed = _format_items(
            f"partition {part}: [{low}, {high})" for part, (low, high) in fence.missing.items()
        )
        msg = (
            f"the last history table lacks offsets that the topic has ({listed}), and sink '{sink}' has"
            " no key"
        )
        hint = (
            "An earlier phase may have these rows, so reading them from the topic could write them twice."
            " Load them into the table,"
            " give the sink a primary_key, or set delivery: at_least_once at the sink."
        )
        raise GuaranteeError(msg, hint=hint, node=self.name)


def _format_items(items: Iterable[str]) -> str:
    listed = list(items)
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return ", ".join(listed[:_SHOWN]) + more


def _millis(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)

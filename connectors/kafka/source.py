"""A Kafka topic as an unbounded source, read in ranges by Spark's batch reader.

A position: {"topic": name, "topic_id": id, "cluster_id": id, "offsets": {"0": next offset to read, …}}.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from headrace.connectors.addresses import describe_topic
from headrace.connectors.kafka.admin import Topic, TopicCluster
from headrace.connectors.kafka.config import KafkaSourceConfig
from headrace.connectors.kafka.gaps import find_filled_gaps
from headrace.connectors.kafka.growth import TopicGrowth
from headrace.connectors.kafka.message_format import is_resolved, resolve_schema
from headrace.connectors.kafka.peek import MessagePeeker
from headrace.connectors.kafka.reader import MessageReader
from headrace.connectors.kafka.sizes import SizeEstimator, fair_shares
from headrace.connectors.spark_types import spark_schema
from headrace.connectors.stall import Stall
from headrace.connectors.stream_base import ReadLimits, UnboundedSource
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import InternalError, RetentionError, TargetError, UserError
from headrace.pipeline.model.capabilities import SourceCapabilities
from headrace.pipeline.model.connectors import source_entries
from headrace.pipeline.protocol import positions
from headrace.pipeline.protocol.epochs import Json
from headrace.pipeline.protocol.table_offsets import Range
from headrace.pipeline.sql.system_columns import OP

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

_CHECK_SECONDS = 3.0
_RESET = "`headrace reset FILE` starts over with a new snapshot."


class KafkaStream(UnboundedSource):
    """One topic. Exact: the same range gives the same rows again, and only rows of committed transactions."""

    capabilities: ClassVar[SourceCapabilities] = source_entries()["kafka"].capabilities

    def __init__(self, name: str, node: KafkaSourceConfig, settings: Settings, ordinal: int = 0) -> None:
        self._name = name
        self._node = node
        self._connection = settings.kafka_source
        self._cluster = TopicCluster(name, node.topic, self._connection)
        self._peeker = MessagePeeker(name, node.topic, self._connection, self.group)
        self._growth = TopicGrowth(name, self._cluster, self._peeker)
        self._sizes = SizeEstimator(self._peeker)
        self._sized: tuple[dict[int, tuple[int, int]], int] = ({}, 0)
        self._checked: Json | None = None
        self._planned: Json | None = None  # the end of the last planned epoch, until Spark reads it
        self._reader = MessageReader(name, node, self._connection, self.group, ordinal)

    @classmethod
    def resolve(cls, name: str, node: KafkaSourceConfig, settings: Settings) -> KafkaSourceConfig:
        """Return the node with the reader schema and the primary key that its schema registry has."""
        return resolve_schema(name, node, settings.kafka_source)

    @property
    def is_resolved(self) -> bool:
        """See `UnboundedSource.is_resolved`."""
        return is_resolved(self._node)

    @property
    def group(self) -> str:
        """The consumer group that lag tools see."""
        return f"{self._connection.consumer_group_id or 'headrace'}-{self._name}"

    def schema(self) -> pa.Schema:
        """Return the columns of `schema` or of the reader schema, then the metadata columns if requested."""
        return self._reader.format.columns

    def initial_offsets(self) -> Json:
        """Return the position of `starting_offsets`.

        It is earliest, latest, or the first rows at or after epoch milliseconds.
        """
        setting = self._node.starting_offsets.strip().lower()
        if setting == "earliest":
            return self._growth.first_position(self.earliest_offsets())
        if setting == "latest":
            return self.end_offsets()
        if not re.fullmatch(r"\d+", setting):
            msg = (
                f"starting_offsets `{self._node.starting_offsets}` is none of: earliest, latest, epoch"
                " milliseconds"
            )
            raise UserError(msg, hint="Write for example starting_offsets: '1735689600000'.", node=self._name)
        return self._at_time(self._cluster.describe(), int(setting))

    def earliest_offsets(self) -> Json:
        """Return the first offsets that the topic still has."""
        topic = self._cluster.describe()
        return self._position(topic, self._cluster.earliest(topic.partitions))

    def find_filled_gaps(self, gaps: Mapping[str, Sequence[Range]]) -> dict[str, int]:
        """See `UnboundedSource.find_filled_gaps`. Offsets of markers and compacted messages are not rows."""
        return find_filled_gaps(self._connection, self.group, self._node.topic, gaps)

    def ordered_start(self, position: Json) -> Json:
        """See `UnboundedSource.ordered_start`. Partitions added before the start may have taken over keys."""
        return position if position.get("growing") else self._growth.first_position(position)

    def end_offsets(self) -> Json:
        """Return the position after the last row that no open transaction can abort."""
        topic = self._cluster.describe()
        return self._position(topic, self._cluster.stable_end(topic.partitions))

    def offsets_for_time(self, moment_ms: int) -> Json:
        """Return the first row at or after a time per partition, or the end of a partition without one.

        If producers set the times of messages (CreateTime), a recently appended message may have any time.
        The stream then starts at the topic's earliest offset. The clock of this host may be ahead of the
        brokers' clocks, so recent rows are measured from the newest message. Raise RetentionError if the
        topic may have lost rows of that time: they would be in neither history nor stream.
        """
        topic, back = self._cluster.describe(), int(time.time() * 1000) - moment_ms
        by_broker = self._cluster.has_broker_time()
        if by_broker:
            result = self._at_time(topic, moment_ms)
        else:
            result = self.earliest_offsets()
            log.warning(
                "event=handoff_at_earliest node=%s topic=%s timestamp_type=CreateTime",
                self._name,
                self._node.topic,
            )
        kept = self._cluster.retention_ms()
        if kept is not None and back > kept:
            earliest = self._cluster.earliest(topic.partitions)
            if lost := [
                str(part) for part in topic.partitions if 0 < earliest[part] == result["offsets"][str(part)]
            ]:
                msg = (
                    f"the fence lies {back // 1000} s back, topic `{self._node.topic}` keeps rows for"
                    f" {kept // 1000} s and has lost some"
                    f" of partitions {', '.join(lost)}"
                )
                hint = (
                    "Lengthen retention.ms; or lower handoff_lag if history lags its topic by less; or"
                    " use an offset_table."
                )
                raise RetentionError(msg, hint=hint, node=self._name)
        return self._no_later(result, back) if by_broker else result

    def _no_later(self, fence: Json, back: int) -> Json:
        """Return the position, moved back in partitions where it is later than their recent rows.

        A partition's recent rows start with the first one appended at most `back` ms before its newest row.
        """
        newest = self._cluster.newest_ms(map(int, fence["offsets"]))
        recent = self._cluster.at_times({part: moment - back for part, moment in newest.items()})
        result = {
            part: min(offset, at) if (at := recent.get(int(part), -1)) >= 0 else offset
            for part, offset in fence["offsets"].items()
        }
        return fence | {"offsets": result}

    def _at_time(self, topic: Topic, moment_ms: int) -> Json:
        """Return the position at a time.

        The end is read first, so that a row arriving between the two requests is after the position and not
        lost.
        """
        end = self._cluster.stable_end(topic.partitions)
        result = self._cluster.at_time(topic.partitions, moment_ms)
        return self._position(
            topic, {part: result[part] if result[part] >= 0 else end[part] for part in topic.partitions}
        )

    def high_watermarks(self) -> Json:
        """Return the high watermarks, which include open transactions and rows that wait for them."""
        topic = self._cluster.describe()
        return self._position(topic, self._cluster.high_watermark(topic.partitions))

    def lags(self, at: Json) -> dict[str, int]:
        """Return the offsets between `at` and the high watermark.

        They include transaction markers and compacted gaps.
        """
        offsets = at["offsets"]
        return {
            part: max(0, end - offsets.get(part, 0))
            for part, end in self.high_watermarks()["offsets"].items()
        }

    def stalls(self, at: Json) -> list[Stall]:
        """Return the partitions that are read up to an open transaction and have more rows after it."""
        parts = [int(part) for part in at["offsets"]]
        ends, high = self._cluster.stable_end(parts), self._cluster.high_watermark(parts)
        stuck = {
            part: ends[part]
            for part in parts
            if at["offsets"][str(part)] >= ends[part] and high[part] > ends[part]
        }
        first = self._peeker.first(stuck)
        return [
            Stall(
                self._node.topic,
                str(part),
                end,
                high[part],
                first[part].written_ms if part in first else None,
            )
            for part, end in stuck.items()
        ]

    def stall_limit(self) -> float:
        """Return the brokers' transaction.max.timeout.ms in seconds.

        Brokers abort a transaction that is open for longer, unless it hangs.
        """
        return self._cluster.longest_transaction_s()

    def next_end_offsets(self, after: Json, limits: ReadLimits) -> Json:
        """Return an end of at most `limits.rows` offsets after `after`, shared fairly.

        Small backlogs are taken whole and the rest is split equally. Partitions that `after` does not have
        are read when the known ones have passed the barriers of `kafka.growth`.
        """
        topic = self._same_topic(after)
        ends = self._cluster.stable_end(topic.partitions)
        at, ends = self._growth.follow(after, topic.partitions, ends)
        starts = self._starts(at, topic, ends)
        rows = min(limits.rows, self._node.batch_size or limits.rows)
        most = limits.per_partition or rows
        backlog = {part: min(most, max(0, ends[part] - start)) for part, start in starts.items()}
        taken = fair_shares(backlog, rows)
        if not any(taken.values()):
            return after
        self._reader.format.check_order()
        offsets = {part: start + taken[part] for part, start in starts.items()}
        if limits.bytes is not None:
            bounded, size = self._sizes.limit(
                {part: (start, offsets[part]) for part, start in starts.items()}, limits.bytes
            )
            offsets |= bounded
            self._sized = {part: (start, offsets[part]) for part, start in starts.items()}, size
        self._checked = self._planned = result = self._position(topic, offsets, at.get("growing"))
        return result

    def estimate_bytes(self, start: Json, end: Json, most: int) -> int:
        """Return the estimate of `next_end_offsets` for this range, or a new one from samples."""
        first = positions.offsets(start)
        ranges = {int(part): (first.get(part, 0), stop) for part, stop in positions.offsets(end).items()}
        return self._sized[1] if self._sized[0] == ranges else self._sizes.total(ranges, most)

    def read_table(self, spark: SparkSession, start: Json, end: Json) -> pa.Table | None:
        """Return the rows of a small range, read in the driver, or None if `read` must read them."""
        if self._node.on_error == "dead_letter":
            return None
        return self._reader.read_table(spark, self._ranges(start, end))

    def read(self, spark: SparkSession, start: Json, end: Json) -> DataFrame:
        """Return the rows in [start, end). Raise the errors of `check_range`."""
        is_first, self._planned = end == self._planned, None
        return self.filter_rows(self._reader.read(spark, self._ranges(start, end), is_first=is_first))

    def read_with_errors(self, spark: SparkSession, start: Json, end: Json) -> DataFrame | pa.Table:
        """See `UnboundedSource.read_with_errors`. A small range is read in the driver."""
        ranges = self._ranges(start, end)
        table = self._reader.read_table(spark, ranges)
        return self._reader.read_with_errors(spark, ranges) if table is None else table

    def filter_rows(self, rows: DataFrame) -> DataFrame:
        """Return the rows that pass the node's filter, or all of them, marked."""
        return self._reader.filter_rows(rows, marks=self.marks) if self._node.filter else rows

    def _ranges(self, start: Json, end: Json) -> dict[str, Range]:
        """Return the offsets [start, end) of the partitions that have any."""
        self.check_range(start, end)
        ranges = {part: (start["offsets"].get(part, 0), stop) for part, stop in end["offsets"].items()}
        if missing := sorted(set(start["offsets"]) - set(ranges)):
            msg = f"the end position lacks partitions {', '.join(missing)} of topic `{self._node.topic}`"
            raise InternalError(msg, node=self._name)
        return {part: span for part, span in ranges.items() if span[1] > span[0]}

    def check_range(self, start: Json, end: Json) -> None:
        """Raise TargetError or RetentionError if the topic no longer has that range.

        A range that `next_end_offsets` has just returned is not checked the first time, because its offsets
        existed then.
        """
        checked, self._checked = self._checked, None
        if end == checked:
            return
        topic = self._same_topic(end)
        wanted = [part for part in topic.partitions if str(part) in end["offsets"]]
        ends = self._cluster.stable_end(wanted)
        self._starts(start, topic, ends)
        # Spark would wait for rows that never arrive, and then report that retention removed them.
        self._refuse_beyond(
            {int(part): offset for part, offset in end["offsets"].items()}, ends, "to be read up to"
        )

    def check_filter(self, spark: SparkSession) -> None:
        """Check the filter with Spark's analyzer, over no rows."""
        if self._node.filter:
            rows = spark.createDataFrame([], spark_schema(self.schema()).add(OP, "string"))
            self._reader.filter_rows(rows, marks=self.marks)

    def check(self) -> None:
        """Check that the brokers have the topic."""
        self._cluster.knock(_CHECK_SECONDS)
        self._cluster.describe(timeout=_CHECK_SECONDS)

    def commit(self, position: Json) -> None:
        """Set the group's offsets for ordinary lag tools. Failures are only logged."""
        self._cluster.commit(self.group, {int(part): offset for part, offset in position["offsets"].items()})

    def describe(self) -> Json:
        """Return the type, asset key and topic."""
        return describe_topic(self._node.topic, self._connection.brokers)

    def is_compacted(self) -> bool:
        """See `UnboundedSource.is_compacted`."""
        return self._cluster.cleanup_policy() != {"delete"}

    def newest_change_ms(self) -> int | None:
        """See `UnboundedSource.newest_change_ms`."""
        return max(self._cluster.newest_ms(self._cluster.describe().partitions).values(), default=None)

    def close(self) -> None:
        """Close the clients."""
        self._reader.close()
        self._peeker.close()
        self._cluster.close()

    def _position(self, topic: Topic, offsets: Mapping[int, int], growing: Json | None = None) -> Json:
        ordered = {str(part): offsets[part] for part in sorted(offsets)}
        result: Json = {
            "topic": self._node.topic,
            "topic_id": topic.topic_id,
            "cluster_id": topic.cluster_id,
            "offsets": ordered,
        }
        return result | ({"growing": growing} if growing else {})

    def _same_topic(self, at: Json) -> Topic:
        """Return the topic. Raise TargetError if `at` is of another topic or cluster."""
        topic = self._cluster.describe()
        hint = f"Offsets of another topic mean nothing here. {_RESET}"
        if at["topic"] != self._node.topic:
            msg = f"the position is of topic `{at['topic']}`, the file says `{self._node.topic}`"
            raise TargetError(msg, hint=hint, node=self._name)
        for what, mine, its in (
            ("cluster", at["cluster_id"], topic.cluster_id),
            ("topic", at["topic_id"], topic.topic_id),
        ):
            if mine != its:
                made = "was deleted and recreated" if what == "topic" else "is of another cluster"
                msg = f"topic `{self._node.topic}` {made}: its {what} id is {its}, the position has {mine}"
                raise TargetError(msg, hint=hint, node=self._name)
        if gone := sorted(set(map(int, at["offsets"])) - set(topic.partitions)):
            msg = f"topic `{self._node.topic}` lost its partitions {', '.join(map(str, gone))}"
            raise TargetError(msg, hint=hint, node=self._name)
        return topic

    def _starts(self, after: Json, topic: Topic, ends: Mapping[int, int]) -> dict[int, int]:
        """Return the start offset for each partition of `after` and `ends`; new partitions start at 0."""
        starts = {part: after["offsets"].get(str(part), 0) for part in topic.partitions if part in ends}
        earliest = self._cluster.earliest(starts)
        if lost := {part: start for part, start in starts.items() if start < earliest[part]}:
            details = "; ".join(
                f"partition {part}: next to read {at}, earliest held {earliest[part]}"
                for part, at in lost.items()
            )
            count = sum(earliest[part] - at for part, at in lost.items())
            msg = (
                f"topic `{self._node.topic}` no longer holds {count} offsets that the stream must read"
                f" ({details})"
            )
            hint = f"Lengthen retention.ms (and delete.retention.ms of a compacted topic). {_RESET}"
            hint += " If an epoch is open, `headrace replay FILE --skip-open` goes on without its rows."
            raise RetentionError(msg, hint=hint, node=self._name)
        self._refuse_beyond(starts, ends, "next to read")
        return starts

    def _refuse_beyond(self, offsets: Mapping[int, int], ends: Mapping[int, int], what: str) -> None:
        """Raise TargetError for offsets after the last row.

        `ends` is compared first, because it may be below the high watermark.
        """
        ahead = [part for part, offset in offsets.items() if offset > ends[part]]
        high = self._cluster.high_watermark(ahead)
        if cut := {part: offsets[part] for part in ahead if offsets[part] > high[part]}:
            gaps = "; ".join(f"partition {part}: {what} {at}, end {high[part]}" for part, at in cut.items())
            msg = (
                f"topic `{self._node.topic}` ends before the stream's position ({gaps}): its log was cut off"
            )
            raise TargetError(msg, hint=f"Was the cluster restored from a backup? {_RESET}", node=self._name)

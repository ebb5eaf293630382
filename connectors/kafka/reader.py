"""Reads ranges of a topic, small ones in the driver and others by Spark; decodes and filters the messages."""

from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.connectors.dead_letters import good_rows
from headrace.connectors.filter_marks import mark_filtered_rows
from headrace.connectors.frame import DRIVER_BYTES
from headrace.connectors.kafka.client_config import spark_options
from headrace.connectors.kafka.config import KafkaSourceConfig
from headrace.connectors.kafka.decoded_batch import split_by_partition
from headrace.connectors.kafka.driver_reader import Decoder, DriverReader, Range, count_offsets
from headrace.connectors.kafka.message_batch import MessageBatch
from headrace.connectors.kafka.message_format import create_format
from headrace.connectors.lazy_session import ensure_started, find_started_session
from headrace.connectors.spark_plan import refuse_relative_timestamps
from headrace.pipeline.config.sections import KafkaConnection
from headrace.pipeline.errors import SchemaError
from headrace.pipeline.sql.system_columns import OP, POS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MESSAGES = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, headers"
    " array<struct<key: string, value: binary>>"
)
_FETCHING = {
    # Ranges only contain existing rows, so waiting gains nothing. Spark seeks to both ends of the log after
    # every poll. That discards rows fetched early, and blocks on a fetch that waits at the log's end (by
    # default for half a second).
    "kafka.fetch.max.wait.ms": "10",
    "kafka.max.poll.records": "100000",
    "kafka.max.partition.fetch.bytes": str(8 * 2**20),
}
_MOST_FAILURES = 6
_PIECE = 200_000
"""Messages that the driver reads and decodes together, at most."""
_FIRST_PIECE = 50_000
"""Messages of a piece while their size is unknown."""
_MOST_BYTES = 128 << 20
"""Bytes of the messages and of the rows of a range that the driver reads. Spark reads larger ones."""
_MOST_WITH_SPARK = 400_000
"""Messages of a range that the driver reads at most if the run uses Spark, which would convert the rows."""
_SMALL = 20_000
"""Ranges of fewer offsets are read by one task per topic partition, at most one per core.

Starting a task costs more than reading such a range.
"""


def split_ranges(ranges: Mapping[int, Range], most: int) -> list[Mapping[int, Range]]:
    """Return pieces of about `most` offsets, at least one. Each has its share of each partition."""
    count = max(1, -(-count_offsets(ranges) // most))
    return [
        {
            part: (start + (end - start) * at // count, start + (end - start) * (at + 1) // count)
            for part, (start, end) in ranges.items()
        }
        for at in range(count)
    ]


class MessageReader:
    """Reads messages of one topic as rows. `ordinal` is the number of the source in `_gs_pos`."""

    def __init__(
        self, name: str, node: KafkaSourceConfig, connection: KafkaConnection, group: str, ordinal: int
    ) -> None:
        self._name = name
        self._node = node
        self._connection = connection
        self._group = group
        self.format = create_format(name, node, connection, ordinal)
        """How the messages are encoded."""
        self._driver = DriverReader(name, node.topic, connection, group)
        self._failures = 0
        self._skipped = 0

    def read(
        self, spark: SparkSession, ranges: Mapping[str, tuple[int, int]], *, is_first: bool = False
    ) -> DataFrame:
        """Return the rows of the offsets [start, end) by partition. No range is empty.

        For `is_first` see `MessageFormat.decode`.
        """
        if self._node.on_error == "dead_letter":
            return good_rows(self.read_with_errors(spark, ranges))
        return self.format.decode(self._messages(spark, ranges), is_first=is_first)

    def read_with_errors(self, spark: SparkSession, ranges: Mapping[str, tuple[int, int]]) -> DataFrame:
        """Return the rows as `read`. With dead letters, rejected ones are among them; see `dead_letters`."""
        return self.format.decode(self._messages(spark, ranges))

    def close(self) -> None:
        """Close the connections."""
        self._driver.release()
        self.format.close()

    def read_table(self, spark: SparkSession, ranges: Mapping[str, tuple[int, int]]) -> pa.Table | None:
        """Return the rows of a range, read in the driver, or None if Spark must read it.

        After a range that the driver could not read, Spark reads the next ones: 1, 3, 7 and up to 63.
        """
        spans = {int(part): span for part, span in ranges.items()}
        total, most = count_offsets(spans), self._connection.driver_rows
        if find_started_session(spark) is not None:
            most = min(most, _MOST_WITH_SPARK)
        if not 0 < total <= min(most, self.format.driver_rows):
            self._driver.release()
            return None
        if self._skipped < 2**self._failures - 1:
            self._skipped += 1
            return None

        table = self._read_in_driver(spans, functools.partial(self._decode, spark))
        self._failures, self._skipped = (min(self._failures + 1, _MOST_FAILURES) if table is None else 0), 0
        if table is None:
            self._driver.release()
        else:
            self._driver.receive_ahead(total, functools.partial(self._decode, None))
        return table

    def _decode(self, spark: SparkSession | None, batch: MessageBatch) -> pa.Table | None:
        return self.format.decode_batch(spark, batch, self._node.topic)

    def _read_in_driver(self, ranges: Mapping[int, Range], decode: Decoder) -> pa.Table | None:
        """Return the rows by partition: those that are decoded already, then those of the other messages.

        The messages of a large range are read and decoded in pieces. They take several times the memory of
        rows. Return None if Spark must read the range.
        """
        mean_size = self._driver.mean_size
        if mean_size * count_offsets(ranges) > _MOST_BYTES:
            return None
        most = min(_PIECE, int(DRIVER_BYTES / 2 / mean_size)) if mean_size else min(_PIECE, _FIRST_PIECE)
        decoded = self._driver.take_decoded(ranges)
        result = {part: [batch.rows for batch in batches] for part, batches in decoded.items()}
        ends = {part: batches[-1].end for part, batches in decoded.items()}
        left = {part: (ends.get(part, start), end) for part, (start, end) in ranges.items()}
        rows, size = None, 0
        for piece in split_ranges(left, max(1, most)):
            batch = self._driver.read(piece)
            rows = None if batch is None else decode(batch)
            size += 0 if rows is None else rows.nbytes
            if batch is None or rows is None or size > _MOST_BYTES:
                return None
            if not result and piece == left:
                return rows
            for part, some in split_by_partition(batch, rows).items():
                result.setdefault(part, []).append(some)
        tables = [table for part in sorted(result) for table in result[part]]
        return pa.concat_tables(tables, promote_options="default") if result else rows

    def filter_rows(self, rows: DataFrame, *, marks: bool) -> DataFrame:
        """Return the rows that pass the node's filter, or all of them, marked, if `marks`.

        Raise SchemaError if it is no predicate over the columns.
        """
        from pyspark.errors import AnalysisException, ParseException
        from pyspark.sql import functions as F  # noqa: N812

        rows = ensure_started(rows)
        columns = [name for name in rows.columns if name != POS]
        try:
            result = (
                mark_filtered_rows(rows, self._node.filter or "")
                if marks
                else rows.where(F.expr(self._node.filter or ""))
            )
        except ParseException as error:
            msg = f"filter `{self._node.filter}` is not a predicate in Spark SQL: {_first_line(error)}"
            raise SchemaError(msg, node=self._name) from error
        except AnalysisException as error:
            unknown = (error.getMessageParameters() or {}).get("objectName", "").strip("`")
            near = difflib.get_close_matches(unknown, columns, n=1)
            meant = f" Did you mean `{near[0]}`?" if near else ""
            msg = f"filter `{self._node.filter}` cannot be used: {_first_line(error)}"
            raise SchemaError(
                msg,
                hint=f"Columns: {', '.join(name for name in columns if name != OP)}.{meant}",
                node=self._name,
            ) from error
        refuse_relative_timestamps(result, self._node.filter or "", self._name)
        return result

    def _messages(self, spark: SparkSession, ranges: Mapping[str, tuple[int, int]]) -> DataFrame:
        if not ranges:
            return spark.createDataFrame([], _MESSAGES)
        topic, total, cores = (
            self._node.topic,
            sum(end - start for start, end in ranges.values()),
            spark.sparkContext.defaultParallelism,
        )
        options = (
            _FETCHING
            | spark_options(self._connection)
            | {
                "assign": json.dumps({topic: [int(part) for part in ranges]}),
                "startingOffsets": json.dumps({topic: {part: span[0] for part, span in ranges.items()}}),
                "endingOffsets": json.dumps({topic: {part: span[1] for part, span in ranges.items()}}),
                "includeHeaders": "true",
                "failOnDataLoss": "true",
                "kafka.isolation.level": "read_committed",
                # Fixed, so that the next epoch reuses the executors' consumers.
                "kafka.group.id": self._group,
            }
        )
        if total >= _SMALL and len(ranges) < cores:
            options["minPartitions"] = str(cores)
        reader = spark.read.format("kafka")
        for key, value in options.items():
            reader = reader.option(key, value)
        result = reader.load()
        return result.coalesce(cores) if total < _SMALL and len(ranges) > cores else result


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]

"""Numbered rows as an unbounded source. A position: {"offsets": {"0": number of the next row}}."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from headrace.connectors.spark_types import POS_ARROW
from headrace.connectors.stream_base import ReadLimits, UnboundedSource
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.model.capabilities import SourceCapabilities
from headrace.pipeline.model.connectors import source_entries
from headrace.pipeline.protocol.epochs import Json
from headrace.pipeline.sql.system_columns import OP, POS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VALUE, TIMESTAMP = "value", "timestamp"
_COLUMNS = pa.schema([(VALUE, pa.int64()), (TIMESTAMP, pa.timestamp("us", tz="UTC"))])
_DRIVER_ROWS = 50_000
"""Ranges up to this size are made in the driver."""
_ROW_BYTES = 40
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class RateStream(UnboundedSource):
    """Rows 0, 1, 2 and so on. Exact: a row is computed from its number alone.

    Rows become available from the position that a run starts at. While no run reads, none does.
    """

    capabilities: ClassVar[SourceCapabilities] = source_entries()["rate"].capabilities

    def __init__(
        self,
        name: str,
        node: Any,
        settings: Settings,
        ordinal: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        del settings
        self._name = name
        self._node = node
        self._ordinal = ordinal
        self._clock = clock
        self._begun: tuple[float, int] | None = None
        """When this object first saw a position, and the position."""

    def schema(self) -> pa.Schema:
        """See `UnboundedSource.schema`."""
        return _COLUMNS

    def initial_offsets(self) -> Json:
        """Return the position of the first row."""
        return _position(0)

    def earliest_offsets(self) -> Json:
        """Return the position of the first row, which can always be read."""
        return _position(0)

    def end_offsets(self) -> Json:
        """Return the position after the last row that is available now."""
        return _position(self._available())

    def high_watermarks(self) -> Json:
        """Return the position after the last of `rows`, available or not; without `rows`, `end_offsets`."""
        return self.end_offsets() if self._node.rows is None else _position(self._node.rows)

    def next_end_offsets(self, after: Json, limits: ReadLimits) -> Json:
        """Return the furthest end of one epoch that `rows_per_second` and the limits allow."""
        start = self._begin(after)
        most = min(limits.rows, limits.per_partition or limits.rows)
        if limits.bytes is not None:
            most = min(most, limits.bytes // _ROW_BYTES)
        return _position(max(start, min(self._available(), start + max(1, most))))

    def lags(self, at: Json) -> dict[str, int]:
        """Return the available rows after `at`."""
        start = self._begin(at)
        return {"0": max(0, self._available() - start)}

    def estimate_bytes(self, start: Json, end: Json, most: int) -> int | None:
        """See `UnboundedSource.estimate_bytes`."""
        return min(most, (_offset(end) - _offset(start)) * _ROW_BYTES)

    def read(self, spark: SparkSession, start: Json, end: Json) -> DataFrame:
        """Return the rows [start, end), made by Spark's tasks."""
        from pyspark.sql import functions as F  # noqa: N812

        value, (first, step) = F.col(VALUE), self._times()
        pos = F.struct(
            F.lit(self._ordinal).alias("source"),
            F.lit(0).alias("part"),
            value.alias("off"),
            F.lit(0).cast("bigint").alias("sub"),
        )
        numbers = spark.range(_offset(start), _offset(end)).toDF(VALUE)
        moment = F.timestamp_micros(F.lit(first) + value * F.lit(step))
        return numbers.select(VALUE, moment.alias(TIMESTAMP), F.lit("i").alias(OP), pos.alias(POS))

    def read_table(self, spark: SparkSession, start: Json, end: Json) -> pa.Table | None:
        """Return the rows [start, end), or None if they are many."""
        del spark
        first, last = _offset(start), _offset(end)
        if last - first > _DRIVER_ROWS:
            return None
        values = np.arange(first, last, dtype=np.int64)
        begin, step = self._times()
        zeros = np.zeros(len(values), np.int64)
        places = [zeros.astype(np.int32) + self._ordinal, zeros.astype(np.int32), values, zeros]
        pos = pa.StructArray.from_arrays([pa.array(column) for column in places], fields=list(POS_ARROW))
        moments = pa.array(begin + values * step).cast(_COLUMNS.field(TIMESTAMP).type)
        columns = [pa.array(values), moments, pa.repeat("i", len(values)), pos]
        return pa.table(columns, names=[*_COLUMNS.names, OP, POS])

    def describe(self) -> Json:
        """Return the type and an asset key. There is no outside system."""
        return {"kind": "rate", "asset_key": ["rate", self._name]}

    def _times(self) -> tuple[int, int]:
        """Return the time of row 0 and the interval, in microseconds."""
        return (self._node.start_time - _EPOCH) // _MICROSECOND, self._node.interval // _MICROSECOND

    def _begin(self, position: Json) -> int:
        """Return the row of a position. Count the time from it if it is the first one, or an earlier one."""
        offset = _offset(position)
        if self._begun is None or offset < self._begun[1]:
            self._begun = (self._clock(), offset)
        return offset

    def _available(self) -> int:
        """Return the number of rows that can be read now."""
        speed, rows = self._node.speed, self._node.rows
        if speed is None:
            return rows
        moment, offset = self._begun or (self._clock(), 0)
        result = offset + int((self._clock() - moment) * speed)
        return result if rows is None else min(result, rows)


def _position(offset: int) -> Json:
    return {"offsets": {"0": offset}}


def _offset(position: Json) -> int:
    return position["offsets"]["0"]

"""Converts rows to Kafka messages: key and value as JSON, operation as a header.

`json_decoder` reads these messages back as the same rows. Bytes are hexadecimal text, times are ISO 8601 to
the microsecond (with a zone: in UTC), decimals are numbers with all their digits, 256-bit integers and big
decimals are text, nulls are there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.connectors.arrow_stream import stream_arrow
from headrace.connectors.filters import quote_identifier
from headrace.connectors.frame import EpochFrame
from headrace.connectors.json_text import JSON_OPTIONS, plain_values, with_text_keys
from headrace.connectors.keys import canonical_frame
from headrace.connectors.lakehouse_rows import (
    DRIVER_ROWS,
    NO_NULL_KEY,
    collect_small_rows,
    last_of_sorted,
    sort_by_position,
)
from headrace.connectors.local_relation import collect_arrow
from headrace.connectors.row_errors import row_error
from headrace.connectors.spark_types import spark_schema
from headrace.pipeline.sql.system_columns import OP, POS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

KEY, VALUE = "key", "value"
_PARTITION_BYTES = 16 << 20
"""Bytes of the rows of a large epoch that the driver reads at once, about."""
_ROW_BYTES = 500
"""Bytes of a row where its source does not estimate them."""
_MOST_PARTITIONS = 128


class JsonMessageEncoder:
    """Encodes the rows of one sink. With `tombstones` a delete has no value.

    `deduplicate` keeps the last row of a key in an epoch.
    """

    def __init__(self, sink: str, *, tombstones: bool, deduplicate: bool) -> None:
        self._sink = sink
        self._tombstones = tombstones
        self._deduplicate = deduplicate

    def encode(self, frame: EpochFrame) -> Iterator[pa.Table | pa.RecordBatch]:
        """Yield the messages of an epoch, the rows of a key in the order of their positions.

        The columns are `key` and `value` (binary) and `_gs_op`. A null in a key fails, and so does a delete
        without a key: see `row_errors`.
        """
        if (local := frame.table) is not None:
            names = [*frame.schema.names, OP, POS]
            columns = frame.rows.select(*map(quote_identifier, names)).schema
            rows = frame.spark.createDataFrame(local.select(names), columns)
            table: pa.Table | None = collect_arrow(self._messages(rows, frame))
        else:
            table = collect_small_rows(frame, self._messages(frame.rows, frame))
        deduplicate = self._deduplicate and bool(frame.key)
        if table is None:
            yield from stream_arrow(self._ordered(frame, deduplicate=deduplicate))
        elif table.num_rows:
            table = sort_by_position(table)
            yield sort_by_position(last_of_sorted(table, [KEY])) if deduplicate else table

    def _messages(self, rows: DataFrame, frame: EpochFrame) -> DataFrame:
        """Return `key`, `value`, `_gs_op` and `_gs_pos`, lazily."""
        from pyspark.sql import functions as F  # noqa: N812

        rows = canonical_frame(rows, frame.schema, frame.key)
        kinds = spark_schema(frame.schema)
        columns = {
            field.name: with_text_keys(
                plain_values(F.col(quote_identifier(field.name)), kinds[field.name].dataType), field.type
            ).alias(field.name)
            for field in frame.schema
        }
        value = _json(list(columns.values()))
        is_delete = F.col(OP) == "d"
        if not frame.key:
            hint = "Give the sink a primary_key, or keep deletes out: WHERE _gs_op <> 'd'."
            refused = row_error(
                self._sink, "a delete reached a sink without primary_key", hint, position=F.to_json(POS)
            )
            key, value = F.lit(None).cast("binary"), F.when(is_delete, refused).otherwise(value)
        else:
            key = _json([columns[name] for name in frame.key])
            for name in frame.key:
                refused = row_error(
                    self._sink, f"key column `{name}` is null", NO_NULL_KEY, position=F.to_json(POS)
                )
                key = F.when(F.col(quote_identifier(name)).isNull(), refused).otherwise(key)
            value = F.when(~is_delete, value) if self._tombstones else value
        return rows.select(key.alias(KEY), value.alias(VALUE), OP, POS)

    def _ordered(self, frame: EpochFrame, *, deduplicate: bool) -> DataFrame:
        """Return the messages of a large epoch: each key in one partition, in order."""
        from pyspark.sql import functions as F  # noqa: N812

        messages = self._messages(frame.rows, frame)
        count = frame.estimate or frame.likely or DRIVER_ROWS
        size = frame.size or count * _ROW_BYTES
        least = frame.spark.sparkContext.defaultParallelism
        parts = max(least, min(math.ceil(size / _PARTITION_BYTES), _MOST_PARTITIONS))
        messages = messages.repartition(parts, KEY if frame.key else POS)
        if deduplicate:
            last = F.max_by(F.struct(VALUE, OP, POS), POS).alias("last")
            messages = messages.groupBy(KEY).agg(last).select(KEY, "last.*")
        return messages.sortWithinPartitions(POS).select(KEY, VALUE, OP)


def _json(columns: list[Column]) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.to_json(F.struct(*columns), JSON_OPTIONS).cast("binary")

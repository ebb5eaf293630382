"""Converts rows to Kafka messages: key and value in a format, operation as a header.

Spark writes JSON, or Arrow if the rows are in the driver and all columns have types that both write byte for
byte alike. The columns decide, not the epoch: a key with two spellings would have two partitions. Spark alone
writes Avro, see `avro.encoder`.

`json_decoder` reads messages in JSON back as the same rows. Bytes are hexadecimal text, times are ISO 8601 to
the microsecond (with a zone: in UTC), decimals are numbers with all their digits, 256-bit integers and big
decimals are text, nulls are there.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from headrace.connectors.arrow_stream import stream_arrow
from headrace.connectors.filters import quote_identifier
from headrace.connectors.frame import EpochFrame
from headrace.connectors.json_arrow import SparkTextError, is_supported, write_objects
from headrace.connectors.json_text import JSON_OPTIONS, plain_values, with_text_keys
from headrace.connectors.keys import canonical_frame
from headrace.connectors.lakehouse_rows import (
    DRIVER_ROWS,
    NO_NULL_KEY,
    collect_small_rows,
    last_of_sorted,
    sort_by_position,
)
from headrace.connectors.local_relation import collect_arrow, frame_of_table
from headrace.connectors.row_errors import row_error
from headrace.connectors.spark_types import spark_schema
from headrace.pipeline.errors import DataError
from headrace.pipeline.sql.system_columns import OP, POS
from headrace.pipeline.types.int256 import storage_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

log = logging.getLogger(__name__)
pc: Any = pyarrow.compute
"""Its functions are made at import, so type checkers do not see them."""
KEY, VALUE = "key", "value"
_PLACE = "place"
_SLICE_ROWS, _SLICE_BYTES = 10_000, 64 << 20
"""Rows that are written as JSON at once. Their text must stay below the 2 GiB of an Arrow array."""
_PARTITION_BYTES = 16 << 20
"""Bytes of the rows of a large epoch that the driver reads at once, about."""
_ROW_BYTES = 500
"""Bytes of a row where its source does not estimate them."""
_MOST_PARTITIONS = 128
_KEYLESS_DELETE = "a delete reached a sink without primary_key"
_KEYLESS_HINT = "Give the sink a primary_key, or keep deletes out: WHERE _gs_op <> 'd'."


class MessageEncoder(ABC):
    """Encodes the rows of one sink. With `tombstones` a delete has no value.

    `deduplicate` keeps the last row of a key in an epoch.
    """

    def __init__(self, sink: str, *, tombstones: bool, deduplicate: bool) -> None:
        self._sink = sink
        self._tombstones = tombstones
        self._deduplicate = deduplicate

    @abstractmethod
    def _convert(self, column: Column, field: pa.Field, kind: DataType) -> Column:
        """Return a column as the format has it. `kind` is its type in Spark. Called once per column."""

    @abstractmethod
    def _write_object(self, columns: list[Column], *, is_key: bool) -> Column:
        """Return converted columns as one binary value, of a key or of all columns. Never NULL."""

    def encode(self, frame: EpochFrame) -> Iterator[pa.Table | pa.RecordBatch]:
        """Yield the messages of an epoch, the rows of a key in the order of their positions.

        The columns are `key` and `value` (binary) and `_gs_op`. A null in a key fails, and so does a delete
        without a key: see `row_errors`.
        """
        return self.encode_by_spark(frame)

    def encode_by_spark(self, frame: EpochFrame) -> Iterator[pa.Table | pa.RecordBatch]:
        """Yield the messages of `encode`. Spark writes them."""
        if (local := frame.table) is not None:
            names = [*frame.schema.names, OP, POS]
            columns = frame.rows.select(*map(quote_identifier, names)).schema
            rows = frame_of_table(frame.spark, local.select(names), columns)
            table: pa.Table | None = collect_arrow(self._messages(rows, frame))
        else:
            table = collect_small_rows(frame, self._messages(frame.rows, frame))
        deduplicate = self._deduplicate and bool(frame.key)
        if table is None:
            yield from stream_arrow(self._order_messages(frame, deduplicate=deduplicate))
        elif table.num_rows:
            table = sort_by_position(table)
            yield sort_by_position(last_of_sorted(table, [KEY])) if deduplicate else table

    def _messages(self, rows: DataFrame, frame: EpochFrame) -> DataFrame:
        """Return `key`, `value`, `_gs_op` and `_gs_pos`, lazily."""
        from pyspark.sql import functions as F  # noqa: N812

        rows = canonical_frame(rows, frame.schema, frame.key)
        kinds = spark_schema(frame.schema)
        columns = {
            field.name: self._convert(
                F.col(quote_identifier(field.name)), field, kinds[field.name].dataType
            ).alias(field.name)
            for field in frame.schema
        }
        value = self._write_object(list(columns.values()), is_key=False)
        is_delete = F.col(OP) == "d"
        if not frame.key:
            refused = row_error(self._sink, _KEYLESS_DELETE, _KEYLESS_HINT, position=F.to_json(POS))
            key, value = F.lit(None).cast("binary"), F.when(is_delete, refused).otherwise(value)
        else:
            key = self._write_object([columns[name] for name in frame.key], is_key=True)
            for name in frame.key:
                refused = row_error(
                    self._sink, f"key column `{name}` is null", NO_NULL_KEY, position=F.to_json(POS)
                )
                key = F.when(F.col(quote_identifier(name)).isNull(), refused).otherwise(key)
            value = F.when(~is_delete, value) if self._tombstones else value
        return rows.select(key.alias(KEY), value.alias(VALUE), OP, POS)

    def _order_messages(self, frame: EpochFrame, *, deduplicate: bool) -> DataFrame:
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


class JsonMessageEncoder(MessageEncoder):
    """Encodes rows as JSON objects. `schema` is the payload."""

    def __init__(self, sink: str, schema: pa.Schema, *, tombstones: bool, deduplicate: bool) -> None:
        super().__init__(sink, tombstones=tombstones, deduplicate=deduplicate)
        self._columns = storage_schema(schema)
        self.writes_arrow = all(is_supported(field.type) for field in self._columns)
        """Whether rows in the driver are encoded without Spark."""

    def encode(self, frame: EpochFrame) -> Iterator[pa.Table | pa.RecordBatch]:
        """See `MessageEncoder.encode`. Arrow writes rows in the driver, if it writes what Spark writes."""
        if self.writes_arrow and frame.table is not None:
            try:
                # All of them, before the first one is sent: Spark must not send any of them again.
                return iter([self._encode_table(frame.table, frame.key)])
            except SparkTextError as error:
                log.info("event=encoded_by_spark node=%s error=%s", self._sink, error)
        return self.encode_by_spark(frame)

    def _convert(self, column: Column, field: pa.Field, kind: DataType) -> Column:
        return with_text_keys(plain_values(column, kind), field.type)

    def _write_object(self, columns: list[Column], *, is_key: bool) -> Column:
        from pyspark.sql import functions as F  # noqa: N812

        del is_key
        return F.to_json(F.struct(*columns), JSON_OPTIONS).cast("binary")

    def _encode_table(self, table: pa.Table, key: Sequence[str]) -> pa.Table:
        """Return the messages of rows in the driver. Raise SparkTextError if Spark must write them."""
        if any(table.schema.field(field.name).type != field.type for field in self._columns):
            msg = "its columns have other types than the sink"
            raise SparkTextError(msg)
        self._check_rows(table, key)
        rows = sort_by_position(table)
        is_delete = pc.equal(rows[OP], "d")
        keys = self._write(rows, key) if key else pa.nulls(len(rows), pa.binary())
        if key and self._deduplicate:
            places = pa.table({KEY: keys, _PLACE: np.arange(len(rows))})
            last = np.sort(last_of_sorted(places, [KEY])[_PLACE].to_numpy())
            rows, keys, is_delete = rows.take(last), keys.take(last), is_delete.take(last)
        values = self._write(rows, self._columns.names)
        if key and self._tombstones:
            values = pc.if_else(is_delete, pa.scalar(None, pa.binary()), values)
        return pa.table({KEY: keys, VALUE: values, OP: rows[OP]})

    def _write(self, rows: pa.Table, names: Sequence[str]) -> pa.ChunkedArray:
        """Return a JSON object of some columns for each row."""
        texts: list[pa.Array] = []
        step = max(1, min(_SLICE_ROWS, _SLICE_BYTES * len(rows) // max(1, rows.nbytes)))
        for at in range(0, len(rows), step):
            few = rows.slice(at, step)
            columns = {name: few[name].combine_chunks() for name in names}
            texts.append(write_objects(columns).cast(pa.binary()))
        return pa.chunked_array(texts, pa.binary())

    def _check_rows(self, rows: pa.Table, key: Sequence[str]) -> None:
        """Raise DataError for a null in a key, and for a delete without a key."""
        for name in key:
            if rows[name].null_count:
                place = pc.index(pc.is_null(rows[name]), True).as_py()
                raise self._error(rows, place, f"key column `{name}` is null", NO_NULL_KEY)
        if not key and (place := pc.index(rows[OP], "d").as_py()) >= 0:
            raise self._error(rows, place, _KEYLESS_DELETE, _KEYLESS_HINT)

    def _error(self, rows: pa.Table, place: int, what: str, hint: str) -> DataError:
        position = rows[POS].slice(place, 1).combine_chunks()
        members = dict(zip(position.type.names, position.flatten(), strict=True))
        return DataError(f"position {write_objects(members)[0]}: {what}", hint=hint, node=self._sink)

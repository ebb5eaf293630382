"""Messages in Avro: the schemas of a range, its columns, and its rows by Spark."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from headrace.connectors.avro.resolution import (
    SchemaPair,
    key_columns,
    match_columns,
    resolve_schemas,
)
from headrace.connectors.avro.schema import AvroType
from headrace.connectors.kafka.avro.arrow_decoder import ArrowAvroDecoder
from headrace.connectors.kafka.avro.decoder import AvroMessageDecoder
from headrace.connectors.kafka.avro.reader_schema import AVRO, avro_columns
from headrace.connectors.kafka.config import KafkaSourceConfig
from headrace.connectors.kafka.decoded_rows import complete_batch
from headrace.connectors.kafka.message_batch import MessageBatch
from headrace.connectors.kafka.message_columns import FRAME_BYTES
from headrace.connectors.kafka.message_schemas import MessageSchemas
from headrace.connectors.kafka.schema_frames import find_frames, read_frames
from headrace.connectors.local_relation import collect_arrow, frame_of_table
from headrace.connectors.spark_types import POS_ARROW, row_schema
from headrace.pipeline.config.sections import KafkaConnection
from headrace.pipeline.sql.system_columns import POS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

_SPARK_ROWS = 10_000
"""Messages that Spark decodes in the driver at most. Its tasks decode more of them faster."""


class AvroMessages:
    """Converts the messages of one node. Its reader schema is resolved, see `reader_schema`."""

    def __init__(self, name: str, node: KafkaSourceConfig, connection: KafkaConnection, ordinal: int) -> None:
        self._name = name
        self._node = node
        self._ordinal = ordinal
        self._schemas = MessageSchemas(name, node, connection, AVRO)
        self._frames: set[tuple[bytes, bool]] = set()
        """The frames of messages that Spark has read, see `read_frames`."""

    @cached_property
    def columns(self) -> pa.Schema:
        """The payload as Arrow, and the metadata columns if requested."""
        return avro_columns(self._name, self._node, self._schemas.reader)

    @cached_property
    def _decoder(self) -> AvroMessageDecoder:
        return AvroMessageDecoder(
            self._name,
            self._schemas.reader,
            self._ordinal,
            metadata=self._node.include_metadata,
            tombstone_key=self._node.tombstone_key,
            dead_letters=self._node.on_error == "dead_letter",
            key=self._node.primary_key,
        )

    @cached_property
    def _arrow(self) -> ArrowAvroDecoder | None:
        """The decoder without Spark, if it knows the types of the columns."""
        result = ArrowAvroDecoder(self._schemas.reader)
        return result if result.is_supported and not self._is_skipped else None

    @property
    def driver_rows(self) -> int:
        """See `MessageFormat.driver_rows`."""
        return _SPARK_ROWS if self._arrow is None else sys.maxsize

    def check_order(self) -> None:
        """See `MessageSchemas.check_order`."""
        self._schemas.check_order()

    @property
    def _is_skipped(self) -> bool:
        """Whether payloads are read as they were written, without resolution."""
        ids = self._node.skip_schema_resolution_for_reader_schema_ids
        return self._node.skip_schema_resolution or self._node.reader_schema_id in ids

    def decode(self, messages: DataFrame, *, is_first: bool = False) -> DataFrame:
        """Return the rows of messages, lazily.

        A job reads the schema ids of the messages before, which costs about as much as decoding them. With
        `is_first`, the ids of earlier ranges are used, and a message with another one raises TransientError.
        """
        if not is_first or not self._frames:
            self._frames |= read_frames(messages, of_keys=bool(self._node.tombstone_key))
            is_first = False
        return self._decoder.decode(
            messages,
            self._branches(frame for frame, of_key in self._frames if not of_key),
            self._branches((frame for frame, of_key in self._frames if of_key), of_keys=True),
            may_retry=is_first,
        )

    def decode_batch(self, spark: SparkSession | None, batch: MessageBatch, topic: str) -> pa.Table | None:
        """Return the rows of messages that are in the driver.

        What Arrow does not read, Spark decodes in the driver without a job, unless it is much.
        """
        if self._arrow is not None and (rows := self._decode_with_arrow(self._arrow, batch)) is not None:
            return rows
        if spark is None or len(batch) > _SPARK_ROWS:
            return None
        columns = row_schema(self.columns)
        if not len(batch):
            return cast("pa.Table", collect_arrow(spark.createDataFrame([], columns)))
        keys = batch.keys if self._node.tombstone_key else ()
        of_keys = [key for value, key in zip(batch.values, keys, strict=False) if value is None and key]
        rows = self._decoder.decode(
            frame_of_table(spark, batch.as_table(topic)),
            self._branches(value[:FRAME_BYTES] for value in batch.values if value is not None),
            self._branches((key[:FRAME_BYTES] for key in of_keys), of_keys=True),
            in_driver=True,
        )
        result = collect_arrow(rows)
        return result if self._arrow is None else result.cast(self._schema_like_arrow(result.schema))

    def _schema_like_arrow(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of rows that Arrow decoded. Other rows of a range may be such ones."""
        types = {field.name: field.type for field in self.columns} | {POS: POS_ARROW}
        return pa.schema([pa.field(one.name, types.get(one.name, one.type)) for one in schema])

    def _decode_with_arrow(self, decoder: ArrowAvroDecoder, batch: MessageBatch) -> pa.Table | None:
        values = pa.array(batch.values, pa.binary())
        if values.null_count and not self._node.tombstone_key:
            return None
        keys = pa.array(batch.keys or [None] * len(batch), pa.binary())
        of_keys = keys.filter(values.is_null())
        result = decoder.decode(
            values,
            keys,
            self._schemas.resolve(find_frames(values), _keep_schema),
            self._schemas.resolve(find_frames(of_keys), _keep_schema, of_keys=True),
        )
        if result is None:
            return None
        payload = dict(zip(result.column_names, result.columns, strict=True))
        return complete_batch(payload, batch, self._node, self._ordinal)

    def close(self) -> None:
        """Close the connections to the registry."""
        self._schemas.close()

    def _branches(
        self, frames: Iterable[bytes], *, of_keys: bool = False
    ) -> Mapping[bytes, SchemaPair | str]:
        """Return for each frame how it is read, or why it cannot be. See `MessageSchemas.resolve`."""
        if of_keys:
            reader, resolve = key_columns(self._schemas.reader), resolve_schemas
        else:
            reader, resolve = self._schemas.reader, match_columns if self._is_skipped else resolve_schemas
        return self._schemas.resolve(frames, lambda writer: resolve(writer, reader), of_keys=of_keys)


def _keep_schema(writer: AvroType) -> AvroType:
    return writer

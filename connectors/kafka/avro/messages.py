"""Messages in Avro: the schemas of a range, its columns, and its rows by Spark."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from headrace.connectors.kafka.avro.arrow_decoder import ArrowAvroDecoder
from headrace.connectors.kafka.avro.decoder import AvroMessageDecoder
from headrace.connectors.kafka.avro.reader_schema import AVRO, avro_columns, parse_file_schema
from headrace.connectors.kafka.avro.resolution import (
    SchemaPair,
    key_columns,
    match_columns,
    resolve_schemas,
)
from headrace.connectors.kafka.avro.schema import AvroType
from headrace.connectors.kafka.config import KafkaSourceConfig
from headrace.connectors.kafka.decoded_rows import complete_rows
from headrace.connectors.kafka.message_batch import MessageBatch
from headrace.connectors.kafka.message_columns import FRAME_BYTES
from headrace.connectors.kafka.registry_client import SchemaRegistryClient
from headrace.connectors.kafka.schema_frames import find_frames, read_frames, schema_ids
from headrace.connectors.local_relation import collect_arrow, frame_of_table
from headrace.connectors.spark_types import POS_ARROW, row_schema
from headrace.pipeline.config.sections import KafkaConnection
from headrace.pipeline.errors import InternalError, SchemaError
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
        self._client = SchemaRegistryClient(name, connection, AVRO)
        self._overrides = {one.from_: one.to for one in node.schema_id_overrides}
        self._frames: set[tuple[bytes, bool]] = set()
        """The frames of messages that Spark has read, see `read_frames`."""

    @cached_property
    def _reader(self) -> AvroType:
        if self._node.reader_schema is None:
            msg = "the reader schema is not resolved"
            raise InternalError(msg, node=self._name)
        return parse_file_schema(self._name, self._node.reader_schema)

    @cached_property
    def columns(self) -> pa.Schema:
        """The payload as Arrow, and the metadata columns if requested."""
        return avro_columns(self._name, self._node, self._reader)

    @cached_property
    def _decoder(self) -> AvroMessageDecoder:
        return AvroMessageDecoder(
            self._name,
            self._reader,
            self._ordinal,
            metadata=self._node.include_metadata,
            tombstone_key=self._tombstone_key,
            dead_letters=self._node.on_error == "dead_letter",
            key=self._node.primary_key,
        )

    @cached_property
    def _arrow(self) -> ArrowAvroDecoder | None:
        """The decoder without Spark, if it knows the types of the columns."""
        found = ArrowAvroDecoder(self._reader)
        return found if found.is_supported and not self._is_skipped else None

    @property
    def driver_rows(self) -> int:
        """See `MessageFormat.driver_rows`."""
        return _SPARK_ROWS if self._arrow is None else sys.maxsize

    @property
    def _tombstone_key(self) -> tuple[str, ...]:
        return self._node.primary_key if self._node.tombstone == "delete" else ()

    def check_order(self) -> None:
        """See `SchemaRegistryClient.check_latest`."""
        if self._node.validate_writer_schema_ordering:
            self._client.check_latest(self._node.topic, self._node.reader_schema_id)

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
            self._frames |= read_frames(messages, of_keys=bool(self._tombstone_key))
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
        keys = batch.keys if self._tombstone_key else ()
        of_keys = [key for value, key in zip(batch.values, keys, strict=False) if value is None and key]
        rows = self._decoder.decode(
            frame_of_table(spark, batch.as_table(topic)),
            self._branches(value[:FRAME_BYTES] for value in batch.values if value is not None),
            self._branches((key[:FRAME_BYTES] for key in of_keys), of_keys=True),
            in_driver=True,
        )
        found = collect_arrow(rows)
        return found if self._arrow is None else found.cast(self._schema_like_arrow(found.schema))

    def _schema_like_arrow(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of rows that Arrow decoded. Other rows of a range may be such ones."""
        types = {field.name: field.type for field in self.columns} | {POS: POS_ARROW}
        return pa.schema([pa.field(one.name, types.get(one.name, one.type)) for one in schema])

    def _decode_with_arrow(self, decoder: ArrowAvroDecoder, batch: MessageBatch) -> pa.Table | None:
        values = pa.array(batch.values, pa.binary())
        if values.null_count and not self._tombstone_key:
            return None
        keys = pa.array(batch.keys or [None] * len(batch), pa.binary())
        found = decoder.decode(
            values,
            keys,
            self._writers(find_frames(values)),
            self._writers(find_frames(keys.filter(values.is_null())), of_keys=True),
        )
        if found is None:
            return None
        payload = dict(zip(found.column_names, found.columns, strict=True))
        return complete_rows(payload, batch, self._node, self._ordinal)

    def _writers(self, frames: Iterable[bytes], *, of_keys: bool = False) -> Mapping[bytes, AvroType | None]:
        """Return the schema of each frame. One that the registry lacks, or that is none, is None."""
        found: dict[bytes, AvroType | None] = {}
        for frame, schema_id in schema_ids(frames, self._node.topic, self._name, AVRO.title).items():
            try:
                found[frame] = self._find_writer(schema_id, of_keys=of_keys)
            except SchemaError:
                found[frame] = None
        return found

    def _find_writer(self, schema_id: int, *, of_keys: bool) -> AvroType | None:
        wanted = self._written_id(schema_id, of_keys=of_keys)
        is_reader = wanted == self._node.reader_schema_id and not of_keys
        return self._reader if is_reader else self._client.find_schema(wanted)

    def _written_id(self, schema_id: int, *, of_keys: bool) -> int:
        return schema_id if of_keys else self._overrides.get(schema_id, schema_id)

    def close(self) -> None:
        """Close the connections to the registry."""
        self._client.close()

    def _branches(
        self, frames: Iterable[bytes], *, of_keys: bool = False
    ) -> Mapping[bytes, SchemaPair | str]:
        """Return for each frame how it is read, or why it cannot be. Raise TransientError if none answers.

        Bytes that are no frame have no branch. Raise DataError for more schemas than a range can have.
        """
        ids = schema_ids(frames, self._node.topic, self._name, AVRO.title)
        return {frame: self._branch(ids[frame], of_keys=of_keys) for frame in ids}

    def _branch(self, schema_id: int, *, of_keys: bool) -> SchemaPair | str:
        wanted = self._written_id(schema_id, of_keys=of_keys)
        try:
            writer = self._find_writer(schema_id, of_keys=of_keys)
            if writer is None:
                return f"schema {wanted} is not in the schema registry {self._client.url}"
            if of_keys:
                return resolve_schemas(writer, key_columns(self._reader))
            return (match_columns if self._is_skipped else resolve_schemas)(writer, self._reader)
        except SchemaError as error:
            return f"schema {wanted} cannot be read with the reader schema: {error.message}"

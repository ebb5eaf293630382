"""Converts rows to Kafka messages in Avro, in Confluent's frame. Spark writes them.

The schemas are registered under `<topic>-value` and `<topic>-key` before the first epoch. 256-bit integers,
decimals of more than 38 digits, and keys of maps are text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.connectors.json_text import with_text_keys
from headrace.connectors.kafka.avro.reader_schema import AVRO
from headrace.connectors.kafka.avro.writer_schema import write_message_schema
from headrace.connectors.kafka.encoder import MessageEncoder
from headrace.connectors.kafka.output_format import OutputFormat
from headrace.connectors.kafka.registry_client import SchemaRegistryClient
from headrace.connectors.kafka.schema_frames import frame_of
from headrace.pipeline.config.sections import KafkaCluster
from headrace.pipeline.errors import SchemaError

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

    from headrace.connectors.kafka.config import KafkaSinkConfig


@dataclass(frozen=True, slots=True)
class WrittenSchema:
    """A schema as JSON, and its id in the registry."""

    id: int
    text: str

    @property
    def frame(self) -> bytes:
        """The bytes before each record."""
        return frame_of(self.id)


class AvroFormat(OutputFormat):
    """One Avro record in Confluent's frame for each key and each value. The registry has their schemas."""

    def __init__(self, sink: str, node: KafkaSinkConfig, connection: KafkaCluster) -> None:
        super().__init__(sink, node, connection)
        self._client = SchemaRegistryClient(sink, connection, AVRO, "kafka_sink")

    def check(self, schema: pa.Schema, key: Sequence[str]) -> None:
        """See `OutputFormat.check`."""
        self._write_schemas(schema, key)
        self._client.has_subject(self._subject("value"))

    def register(self, schema: pa.Schema, key: Sequence[str]) -> None:
        """Register the schemas of value and key. Raise SchemaError if the registry refuses one."""
        self._find_schemas(schema, key)

    def create_encoder(self, schema: pa.Schema, key: Sequence[str]) -> MessageEncoder:
        """See `OutputFormat.create_encoder`. The registry is not needed for schemas that `register` had."""
        value, of_key = self._find_schemas(schema, key)
        node = self._node
        return AvroMessageEncoder(
            self._sink, value, of_key, tombstones=node.tombstones, deduplicate=node.deduplicate
        )

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _find_schemas(
        self, schema: pa.Schema, key: Sequence[str]
    ) -> tuple[WrittenSchema, WrittenSchema | None]:
        """Return the schemas of value and key. The registry gets those that it lacks."""
        value, of_key = self._write_schemas(schema, key)
        written_schema = WrittenSchema(self._client.register(self._subject("value"), value), value)
        if of_key is None:
            return written_schema, None
        return written_schema, WrittenSchema(self._client.register(self._subject("key"), of_key), of_key)

    def _write_schemas(self, schema: pa.Schema, key: Sequence[str]) -> tuple[str, str | None]:
        topic = self._node.topic
        try:
            value = write_message_schema(schema, schema.names, topic=topic, name="Value", key=key)
            of_key = write_message_schema(schema, key, topic=topic, name="Key") if key else None
        except SchemaError as error:
            raise SchemaError(error.message, hint=error.hint, node=self._sink) from None
        return value, of_key

    def _subject(self, what: str) -> str:
        return f"{self._node.topic}-{what}"


class AvroMessageEncoder(MessageEncoder):
    """Encodes rows as Avro records with these schemas."""

    def __init__(
        self,
        sink: str,
        value: WrittenSchema,
        key: WrittenSchema | None,
        *,
        tombstones: bool,
        deduplicate: bool,
    ) -> None:
        super().__init__(sink, tombstones=tombstones, deduplicate=deduplicate)
        self._value = value
        self._key = key

    def _convert(self, column: Column, field: pa.Field, kind: DataType) -> Column:
        del kind
        return with_text_keys(column, field.type, of_numbers=True)

    def _write_object(self, columns: list[Column], *, is_key: bool) -> Column:
        from pyspark.sql import functions as F  # noqa: N812
        from pyspark.sql.avro.functions import to_avro

        schema = self._key if is_key and self._key is not None else self._value
        return F.concat(F.lit(schema.frame), to_avro(F.struct(*columns), schema.text))

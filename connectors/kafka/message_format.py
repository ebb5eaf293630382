"""The formats of messages: what each one does, and which one a node has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from headrace.connectors.kafka.avro.messages import AvroMessages
from headrace.connectors.kafka.avro.reader_schema import avro_columns, parse_file_schema, resolve_avro
from headrace.connectors.kafka.config import PLAIN_FORMATS, KafkaSourceConfig
from headrace.connectors.kafka.json_messages import JsonMessages
from headrace.connectors.kafka.json_schema import declared_json_columns, resolve_json_schema
from headrace.connectors.kafka.message_batch import MessageBatch
from headrace.connectors.kafka.plain_messages import PlainMessages, plain_schema
from headrace.connectors.kafka.protobuf.messages import ProtobufMessages
from headrace.connectors.kafka.protobuf.reader_schema import declared_protobuf_columns, resolve_protobuf
from headrace.pipeline.config.sections import KafkaConnection

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_REGISTERED = ("avro", "protobuf", "json_schema")
"""Formats whose schemas are in a registry."""


class MessageFormat(Protocol):
    """How the messages of one node are encoded."""

    @property
    def columns(self) -> pa.Schema:
        """The payload as Arrow, and the metadata columns if requested."""
        ...

    @property
    def driver_rows(self) -> int:
        """The messages that `decode_batch` takes at most."""
        ...

    def check_order(self) -> None:
        """Raise TransientError if messages before the current end may not fit the columns."""
        ...

    def decode(self, messages: DataFrame, *, is_first: bool = False) -> DataFrame:
        """Return the rows of messages, lazily.

        `is_first`: they may raise TransientError, because the range is decoded once more without it.
        """
        ...

    def decode_batch(self, spark: SparkSession | None, batch: MessageBatch, topic: str) -> pa.Table | None:
        """Return the rows of messages that are in the driver, or None if `decode` must.

        A thread calls it without a session. None is then also the answer for messages that need one.
        """
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


def create_format(
    name: str, node: KafkaSourceConfig, connection: KafkaConnection, ordinal: int
) -> MessageFormat:
    """Return the format of a node's messages."""
    if node.format == "avro":
        return AvroMessages(name, node, connection, ordinal)
    if node.format == "protobuf":
        return ProtobufMessages(name, node, connection, ordinal)
    if node.format in PLAIN_FORMATS:
        return PlainMessages(name, node, ordinal)
    return JsonMessages(name, node, connection, ordinal)


def resolve_schema(name: str, node: KafkaSourceConfig, connection: KafkaConnection) -> KafkaSourceConfig:
    """Return the node with the reader schema and the primary key that its schema registry has."""
    known = {"avro": resolve_avro, "protobuf": resolve_protobuf, "json_schema": resolve_json_schema}
    resolve = known.get(node.format)
    return node if resolve is None else resolve(name, node, connection)


def is_resolved(node: KafkaSourceConfig) -> bool:
    """Return whether the columns of a node are known without its registry."""
    return node.format not in _REGISTERED or node.reader_schema is not None


def declared_columns(name: str, node: Any) -> pa.Schema | None:
    """Return the columns that a node of a file or a phase declares, or None if only the registry has them."""
    if node.format in PLAIN_FORMATS:
        return plain_schema(name, node)
    if node.schema_:
        return declared_json_columns(name, node)
    if node.reader_schema is None:
        return None
    if node.format == "json_schema":
        return declared_json_columns(name, node)
    if node.format == "protobuf":
        return declared_protobuf_columns(name, node)
    return avro_columns(name, node, parse_file_schema(name, node.reader_schema))

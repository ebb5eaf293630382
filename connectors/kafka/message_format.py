"""The formats of messages: what each one does, and which one a node has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from headrace.connectors.kafka.avro.messages import AvroMessages
from headrace.connectors.kafka.avro.reader_schema import declared_avro_columns, resolve_avro
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


@dataclass(frozen=True, slots=True)
class RegisteredFormat:
    """A format whose schemas are in a registry."""

    create: Callable[[str, KafkaSourceConfig, KafkaConnection, int], MessageFormat]
    resolve: Callable[[str, KafkaSourceConfig, KafkaConnection], KafkaSourceConfig]
    columns: Callable[[str, Any], pa.Schema]
    """Returns the columns of a node with `reader_schema`."""


_REGISTERED: Mapping[str, RegisteredFormat] = {
    "avro": RegisteredFormat(AvroMessages, resolve_avro, declared_avro_columns),
    "protobuf": RegisteredFormat(ProtobufMessages, resolve_protobuf, declared_protobuf_columns),
    "json_schema": RegisteredFormat(JsonMessages, resolve_json_schema, declared_json_columns),
}


def create_format(
    name: str, node: KafkaSourceConfig, connection: KafkaConnection, ordinal: int
) -> MessageFormat:
    """Return the format of a node's messages."""
    if node.format in PLAIN_FORMATS:
        return PlainMessages(name, node, ordinal)
    registered = _REGISTERED.get(node.format)
    return (registered.create if registered else JsonMessages)(name, node, connection, ordinal)


def resolve_schema(name: str, node: KafkaSourceConfig, connection: KafkaConnection) -> KafkaSourceConfig:
    """Return the node with the reader schema and the primary key that its schema registry has."""
    registered = _REGISTERED.get(node.format)
    return registered.resolve(name, node, connection) if registered else node


def is_resolved(node: KafkaSourceConfig) -> bool:
    """Return whether the columns of a node are known without its registry."""
    return node.format not in _REGISTERED or node.reader_schema is not None


def declared_columns(name: str, node: Any) -> pa.Schema | None:
    """Return the columns that a node of a file or a phase declares, or None if only the registry has them."""
    if node.format in PLAIN_FORMATS:
        return plain_schema(name, node)
    if node.schema_:
        return declared_json_columns(name, node)
    registered = _REGISTERED.get(node.format)
    return registered.columns(name, node) if registered and node.reader_schema is not None else None

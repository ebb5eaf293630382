"""The reader schema of a node in Protobuf: the message whose fields are its columns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headrace.connectors.kafka.config import KafkaSourceConfig
from headrace.connectors.kafka.protobuf.columns import payload_columns
from headrace.connectors.kafka.protobuf.schema import PROTOBUF, ProtobufSchema
from headrace.connectors.kafka.reader_schema import (
    check_key,
    node_columns,
    parse_reader_schema,
    read_reader_schema,
)
from headrace.pipeline.config.sections import KafkaConnection


def resolve_protobuf(name: str, node: KafkaSourceConfig, connection: KafkaConnection) -> KafkaSourceConfig:
    """Return the node with its reader schema and message, so that both are part of the pipeline.

    Raise SchemaError if the message has no columns, and the errors of `read_reader_schema`.
    """
    schema, changes = read_reader_schema(name, node, connection, PROTOBUF)
    check_key(name, node, protobuf_columns(name, node, schema), node.primary_key)
    message = schema.find_message(node.message_type)
    return node.model_copy(update=changes | {"reader_schema": schema.to_text(), "message_type": message.name})


def declared_protobuf_columns(name: str, node: Any) -> pa.Schema:
    """Return the columns of a node with `reader_schema`."""
    return protobuf_columns(name, node, parse_reader_schema(name, node.reader_schema, PROTOBUF))


def protobuf_columns(name: str, node: Any, schema: ProtobufSchema) -> pa.Schema:
    """Return the columns of a node: the payload, and the metadata columns if requested.

    The payload has the fields of the message `message_type`, or of the first one.
    """
    return node_columns(name, node, lambda: payload_columns(schema.find_message(node.message_type)))

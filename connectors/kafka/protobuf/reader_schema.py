"""The reader schema of a node in Protobuf: the message whose fields are its columns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headrace.connectors.kafka.config import KafkaSourceConfig
from headrace.connectors.kafka.message_columns import with_metadata
from headrace.connectors.kafka.protobuf.columns import payload_columns
from headrace.connectors.kafka.protobuf.schema import PROTOBUF, ProtobufSchema, ProtobufType, parse_schema
from headrace.connectors.kafka.reader_schema import check_key, check_payload, read_reader_schema
from headrace.pipeline.config.sections import KafkaConnection
from headrace.pipeline.errors import SchemaError


def resolve_protobuf(name: str, node: KafkaSourceConfig, connection: KafkaConnection) -> KafkaSourceConfig:
    """Return the node with its reader schema and message, so that both are part of the pipeline.

    Raise SchemaError if the message has no columns, and the errors of `read_reader_schema`.
    """
    schema, changes = read_reader_schema(name, node, connection, PROTOBUF, parse_file_schema)
    message = find_message(name, node, schema)
    check_key(name, node, protobuf_columns(name, node, message), node.primary_key)
    return node.model_copy(update=changes | {"reader_schema": schema.to_text(), "message_type": message.name})


def parse_file_schema(name: str, text: str) -> ProtobufSchema:
    """Return the schema of `reader_schema`. Raise SchemaError."""
    try:
        return parse_schema(text)
    except SchemaError as error:
        msg = f"`reader_schema`: {error.message}"
        raise SchemaError(msg, hint=error.hint, node=name) from None


def find_message(name: str, node: Any, schema: ProtobufSchema) -> ProtobufType:
    """Return the message of `message_type`, or the first one. Raise SchemaError if there is none."""
    try:
        return schema.find_message(node.message_type)
    except SchemaError as error:
        raise SchemaError(error.message, hint=error.hint, node=name) from None


def declared_protobuf_columns(name: str, node: Any) -> pa.Schema:
    """Return the columns of a node with `reader_schema`."""
    return protobuf_columns(name, node, find_message(name, node, parse_file_schema(name, node.reader_schema)))


def protobuf_columns(name: str, node: Any, message: ProtobufType) -> pa.Schema:
    """Return the columns of a node: the payload, and the metadata columns if requested."""
    try:
        columns = payload_columns(message)
    except SchemaError as error:
        raise SchemaError(error.message, hint=error.hint, node=name) from None
    check_payload(name, columns)
    return with_metadata(columns, name, metadata=node.include_metadata)

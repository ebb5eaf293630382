"""The reader schema of a node: the schema with its columns, from the file or the registry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from headrace.connectors.kafka.config import KafkaSourceConfig
from headrace.connectors.kafka.message_columns import with_metadata
from headrace.connectors.kafka.registry_client import Schema, SchemaLanguage, SchemaRegistryClient, subject_of
from headrace.pipeline.config.sections import KafkaConnection
from headrace.pipeline.errors import SchemaError
from headrace.pipeline.sql.system_columns import OP

LEAVE_OUT = (
    "Leave the field out of the columns: set `reader_schema` to the schema without it. Or let the producer"
    " change its type."
)
"""The hint for a field that no column can represent."""


def read_reader_schema(
    name: str,
    node: KafkaSourceConfig,
    connection: KafkaConnection,
    language: SchemaLanguage[Schema],
) -> tuple[Schema, dict[str, object]]:
    """Return the reader schema, and the keys of the node that change with it.

    Without `reader_schema` and `reader_schema_id`, it is the latest schema of the topic's values now. Raise
    SchemaError, SettingsError or TransientError if it cannot be read.
    """
    fixed: dict[str, object] = {"validate_writer_schema_ordering": False}
    if node.reader_schema is not None:
        return parse_reader_schema(name, node.reader_schema, language), fixed
    client = SchemaRegistryClient(name, connection, language)
    try:
        if node.reader_schema_id is None:
            latest = client.latest_schema(subject_of(node.topic))
            return latest.schema, {"reader_schema_id": latest.id}
        schema = client.find_schema(node.reader_schema_id)
    finally:
        client.close()
    if schema is None:
        msg = (
            f"the schema registry {client.url} has no schema with `reader_schema_id` {node.reader_schema_id}"
        )
        raise SchemaError(msg, node=name)
    return schema, fixed


def parse_reader_schema(name: str, text: str, language: SchemaLanguage[Schema]) -> Schema:
    """Return the schema of `reader_schema`. Raise SchemaError."""
    try:
        return language.parse(text, ())
    except SchemaError as error:
        msg = f"`reader_schema`: {error.message}"
        raise SchemaError(msg, hint=error.hint, node=name) from None


def node_columns(name: str, node: Any, create_payload: Callable[[], pa.Schema]) -> pa.Schema:
    """Return the columns of a node: the payload, and the metadata columns if requested.

    Raise the SchemaError of `create_payload` for the node, and one for an operation that is no text.
    """
    try:
        columns = create_payload()
    except SchemaError as error:
        raise SchemaError(error.message, hint=error.hint or LEAVE_OUT, node=name) from None
    if OP in columns.names and not pa.types.is_string(columns.field(OP).type):
        msg = f"field `{OP}` must be a string: i, u or d"
        raise SchemaError(msg, node=name)
    return with_metadata(columns, name, metadata=node.include_metadata)


def check_key(name: str, node: KafkaSourceConfig, columns: pa.Schema, key: Sequence[str]) -> None:
    """Raise SchemaError if the columns lack the key, or if tombstones need one and there is none."""
    if missing := [column for column in key if column.lower() not in map(str.lower, columns.names)]:
        msg = f"the primary key has `{missing[0]}`, and the reader schema has no such field"
        raise SchemaError(msg, hint=f"Fields: {', '.join(columns.names)}.", node=name)
    if node.tombstone == "delete" and not key:
        where = "neither the file nor the schema's `doc` has one" if node.format == "avro" else "none is set"
        msg = f"`tombstone: delete` needs a key, and {where}"
        raise SchemaError(msg, hint="Set `primary_key`.", node=name)

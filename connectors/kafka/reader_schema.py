"""The reader schema of a node: the schema with its columns, from the file or the registry."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from headrace.connectors.kafka.config import KafkaSourceConfig
from headrace.connectors.kafka.registry_client import Schema, SchemaLanguage, SchemaRegistryClient, subject_of
from headrace.pipeline.config.sections import KafkaConnection
from headrace.pipeline.errors import SchemaError
from headrace.pipeline.sql.system_columns import OP


def read_reader_schema(
    name: str,
    node: KafkaSourceConfig,
    connection: KafkaConnection,
    language: SchemaLanguage[Schema],
    parse_file_schema: Callable[[str, str], Schema],
) -> tuple[Schema, dict[str, object]]:
    """Return the reader schema, and the keys of the node that change with it.

    Without `reader_schema` and `reader_schema_id`, it is the latest schema of the topic's values now. Raise
    SchemaError, SettingsError or TransientError if it cannot be read.
    """
    fixed: dict[str, object] = {"validate_writer_schema_ordering": False}
    if node.reader_schema is not None:
        return parse_file_schema(name, node.reader_schema), fixed
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


def check_key(name: str, node: KafkaSourceConfig, columns: pa.Schema, key: Sequence[str]) -> None:
    """Raise SchemaError if the columns lack the key, or if tombstones need one and there is none."""
    if missing := [column for column in key if column.lower() not in map(str.lower, columns.names)]:
        msg = f"the primary key has `{missing[0]}`, and the reader schema has no such field"
        raise SchemaError(msg, hint=f"Fields: {', '.join(columns.names)}.", node=name)
    if node.tombstone == "delete" and not key:
        where = "neither the file nor the schema's `doc` has one" if node.format == "avro" else "none is set"
        msg = f"`tombstone: delete` needs a key, and {where}"
        raise SchemaError(msg, hint="Set `primary_key`.", node=name)


def check_payload(name: str, columns: pa.Schema) -> None:
    """Raise SchemaError if the operation in the payload is no text."""
    if OP in columns.names and not pa.types.is_string(columns.field(OP).type):
        msg = f"field `{OP}` must be a string: i, u or d"
        raise SchemaError(msg, node=name)

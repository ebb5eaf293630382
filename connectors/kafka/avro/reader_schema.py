"""The reader schema of a node: the record whose fields are its columns, from the file or the registry."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headrace.connectors.kafka.avro.columns import key_of_doc, record_columns
from headrace.connectors.kafka.avro.schema import AvroType, parse_record, write_schema
from headrace.connectors.kafka.config import KafkaSourceConfig
from headrace.connectors.kafka.message_columns import with_metadata
from headrace.connectors.kafka.registry_client import SchemaLanguage, SchemaRegistryClient
from headrace.pipeline.config.sections import KafkaConnection
from headrace.pipeline.errors import SchemaError
from headrace.pipeline.sql.system_columns import OP

AVRO = SchemaLanguage(
    "AVRO", "Avro", lambda text, references: parse_record(text, [one.text for one in references])
)


def resolve_reader(name: str, node: KafkaSourceConfig, connection: KafkaConnection) -> KafkaSourceConfig:
    """Return the node with its reader schema and primary key, so that both are part of the pipeline.

    Without `reader_schema` and `reader_schema_id`, the reader schema is the latest one of the topic's values
    now. Raise SchemaError if it has no columns, SettingsError or TransientError if it cannot be read.
    """
    changes: dict[str, object] = {}
    if node.reader_schema is not None:
        record = parse_file_schema(name, node.reader_schema)
        changes["validate_writer_schema_ordering"] = False
    else:
        client = SchemaRegistryClient(name, connection, AVRO)
        try:
            record, changes = _read_registry(name, node, client)
        finally:
            client.close()
    columns = avro_columns(name, node, record)
    key = node.primary_key or key_of_doc(record.doc)
    if missing := [column for column in key if column.lower() not in map(str.lower, columns.names)]:
        msg = f"the primary key has `{missing[0]}`, and the reader schema has no such field"
        raise SchemaError(msg, hint=f"Fields: {', '.join(columns.names)}.", node=name)
    if node.tombstone == "delete" and not key:
        msg = "`tombstone: delete` needs a key, and neither the file nor the schema's `doc` has one"
        raise SchemaError(msg, hint="Set `primary_key`.", node=name)
    return node.model_copy(update=changes | {"reader_schema": write_schema(record), "primary_key": key})


def _read_registry(
    name: str, node: KafkaSourceConfig, client: SchemaRegistryClient[AvroType]
) -> tuple[AvroType, dict[str, object]]:
    """Return the reader schema and the keys of the node that change with it."""
    if node.reader_schema_id is None:
        latest = client.latest_schema(subject_of(node.topic))
        return latest.schema, {"reader_schema_id": latest.id}
    record = client.find_schema(node.reader_schema_id)
    if record is None:
        msg = (
            f"the schema registry {client.url} has no schema with `reader_schema_id` {node.reader_schema_id}"
        )
        raise SchemaError(msg, node=name)
    return record, {"validate_writer_schema_ordering": False}


def parse_file_schema(name: str, text: str) -> AvroType:
    """Return the record of `reader_schema`. Raise SchemaError."""
    try:
        return parse_record(text)
    except SchemaError as error:
        msg = f"`reader_schema`: {error.message}"
        raise SchemaError(msg, hint=error.hint, node=name) from None


def subject_of(topic: str) -> str:
    """Return the name under which producers register the schemas of a topic's values."""
    return f"{topic}-value"


def avro_columns(name: str, node: Any, record: AvroType) -> pa.Schema:
    """Return the columns of a node: the payload, and the metadata columns if requested."""
    try:
        columns = record_columns(record)
    except SchemaError as error:
        raise SchemaError(error.message, hint=error.hint, node=name) from None
    if OP in columns.names and not pa.types.is_string(columns.field(OP).type):
        msg = f"field `{OP}` must be a string: i, u or d"
        raise SchemaError(msg, node=name)
    return with_metadata(columns, name, metadata=node.include_metadata)

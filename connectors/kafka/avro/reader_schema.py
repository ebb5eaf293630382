"""The reader schema of a node in Avro: the record whose fields are its columns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headrace.connectors.avro.columns import key_of_doc, record_columns
from headrace.connectors.avro.schema import AvroType, parse_record, write_schema
from headrace.connectors.kafka.config import KafkaSourceConfig
from headrace.connectors.kafka.reader_schema import (
    check_key,
    node_columns,
    parse_reader_schema,
    read_reader_schema,
)
from headrace.connectors.kafka.registry_client import SchemaLanguage
from headrace.pipeline.config.sections import KafkaConnection

AVRO = SchemaLanguage(
    "AVRO", "Avro", lambda text, references: parse_record(text, [one.text for one in references])
)


def resolve_avro(name: str, node: KafkaSourceConfig, connection: KafkaConnection) -> KafkaSourceConfig:
    """Return the node with its reader schema and primary key, so that both are part of the pipeline.

    Raise SchemaError if the schema has no columns, and the errors of `read_reader_schema`.
    """
    record, changes = read_reader_schema(name, node, connection, AVRO)
    key = node.primary_key or key_of_doc(record.doc)
    check_key(name, node, avro_columns(name, node, record), key)
    return node.model_copy(update=changes | {"reader_schema": write_schema(record), "primary_key": key})


def declared_avro_columns(name: str, node: Any) -> pa.Schema:
    """Return the columns of a node with `reader_schema`."""
    return avro_columns(name, node, parse_reader_schema(name, node.reader_schema, AVRO))


def avro_columns(name: str, node: Any, record: AvroType) -> pa.Schema:
    """Return the columns of a node: the payload, and the metadata columns if requested."""
    return node_columns(name, node, lambda: record_columns(record))

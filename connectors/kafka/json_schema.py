"""The columns of a JSON Schema: the properties of an object, with the hints that Kafka Connect writes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.connectors.kafka.config import KafkaSourceConfig
from headrace.connectors.kafka.json_decoder import payload_schema
from headrace.connectors.kafka.reader_schema import check_key, parse_reader_schema, read_reader_schema
from headrace.connectors.kafka.registry_client import SchemaLanguage, SchemaReference
from headrace.pipeline.config.sections import KafkaConnection
from headrace.pipeline.errors import SchemaError

_DECIMAL = "org.apache.kafka.connect.data.Decimal"
_CONNECT = frozenset({"int8", "int16", "int32", "int64", "float32", "float64"})
"""Values of `connect.type` of a number, which are types of `schema` too."""
_PLAIN = {"integer": "int64", "number": "float64", "boolean": "boolean"}
_FORMATS = {"date-time": "timestamp", "date": "date32"}
_MOST_REFERENCES = 20
"""Of one property. More refer to each other."""


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """The columns of messages, as `schema` of a node declares them."""

    columns: Mapping[str, str]

    def to_text(self) -> str:
        """Return a JSON Schema with these columns, which `parse_json_schema` reads."""
        properties = {name: {"headrace.type": kind} for name, kind in self.columns.items()}
        return json.dumps({"type": "object", "properties": properties}, ensure_ascii=False)


def parse_json_schema(text: str, references: Sequence[SchemaReference] = ()) -> JsonSchema:
    """Return the columns of a schema. Raise SchemaError if it is no JSON Schema of an object.

    A property of several types, an object and an array are JSON text in a column of type string.
    """
    try:
        root = json.loads(text)
        others = {one.name: json.loads(one.text) for one in references}
    except ValueError as error:
        msg = f"the schema is not JSON: {error}"
        raise SchemaError(msg) from None
    schema = _resolve(root, root, others)
    properties = schema.get("properties")
    if not isinstance(properties, dict) or not properties:
        msg = "the schema has no `properties`, and only those of an object are columns"
        raise SchemaError(msg, hint="Declare the columns: `data_format: json` with a `schema`.")
    return JsonSchema({name: _column_type(one, root, others) for name, one in properties.items()})


JSON_SCHEMA = SchemaLanguage("JSON", "JSON Schema", parse_json_schema)


def resolve_json_schema(name: str, node: KafkaSourceConfig, connection: KafkaConnection) -> KafkaSourceConfig:
    """Return the node with its reader schema, so that it is part of the pipeline.

    Raise the errors of `read_reader_schema`.
    """
    schema, changes = read_reader_schema(name, node, connection, JSON_SCHEMA)
    columns = payload_schema(name, schema.columns, metadata=node.include_metadata)
    check_key(name, node, columns, node.primary_key)
    return node.model_copy(update=changes | {"reader_schema": schema.to_text()})


def declared_types(name: str, node: Any) -> Mapping[str, str]:
    """Return the columns that a node of JSON messages declares, by `schema` or by `reader_schema`."""
    if node.schema_ or node.reader_schema is None:
        return node.schema_
    return parse_reader_schema(name, node.reader_schema, JSON_SCHEMA).columns


def declared_json_columns(name: str, node: Any) -> pa.Schema:
    """Return the columns of a node of JSON messages, and the metadata columns if requested."""
    return payload_schema(name, declared_types(name, node), metadata=node.include_metadata)


def _column_type(schema: Any, root: Any, others: Mapping[str, Any]) -> str:
    result = _resolve(schema, root, others)
    if own := result.get("headrace.type"):
        return str(own)
    kind = result.get("type")
    if isinstance(kind, list):
        kinds = [one for one in kind if one != "null"]
        kind = kinds[0] if len(kinds) == 1 else None
    if kind == "number" and result.get("title") == _DECIMAL:
        scale = (result.get("connect.parameters") or {}).get("scale")
        return f"decimal(38, {scale})" if str(scale).isdigit() else "string"
    if kind in ("integer", "number"):
        width = result.get("connect.type")
        return width if width in _CONNECT else _PLAIN[kind]
    if kind == "string":
        return _FORMATS.get(str(result.get("format")), "string")
    return _PLAIN.get(str(kind), "string")


def _resolve(schema: Any, root: Any, others: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a schema refers to, without null as an alternative; {} if that is unknown."""
    for _ in range(_MOST_REFERENCES):
        if not isinstance(schema, dict):
            return {}
        choices = schema.get("oneOf") or schema.get("anyOf")
        if isinstance(choices, list):
            left = [one for one in choices if not isinstance(one, dict) or one.get("type") != "null"]
            if len(left) != 1:
                return {}
            schema = left[0]
        elif isinstance(reference := schema.get("$ref"), str):
            document, _, path = reference.partition("#")
            root = others.get(document) if document else root
            schema = _find(root, path)
        else:
            return schema
    return {}


def _find(document: Any, path: str) -> Any:
    """Return the part of a document at a JSON pointer, or None."""
    for step in path.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        document = document.get(key) if isinstance(document, dict) else None
    return document

"""The columns of a JSON Schema."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.connectors.kafka.config import KafkaSourceConfig
from headrace.connectors.kafka.json_schema import (
    declared_json_columns,
    parse_json_schema,
    resolve_json_schema,
)
from headrace.connectors.kafka.registry_client import SchemaReference
from headrace.pipeline.config.sections import KafkaConnection
from headrace.pipeline.errors import SchemaError

DECIMAL = {
    "type": "number",
    "title": "org.apache.kafka.connect.data.Decimal",
    "connect.parameters": {"scale": "4"},
}
SCHEMA = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "small": {"oneOf": [{"type": "null"}, {"type": "integer", "connect.type": "int16"}]},
        "price": DECIMAL,
        "rate": {"type": ["null", "number"]},
        "ok": {"type": "boolean"},
        "name": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "at": {"type": "string", "format": "date-time"},
        "day": {"type": "string", "format": "date"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "place": {"$ref": "#/definitions/place"},
        "country": {"$ref": "country.json#/$defs/code"},
        "two": {"type": ["string", "integer"]},
        "any": True,
        "color": {"enum": ["red"]},
        "self": {"$ref": "#/properties/self"},
        "lost": {"$ref": "other.json"},
    },
    "definitions": {"place": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
COUNTRY = {"$defs": {"code": {"$ref": "#/$defs/text"}, "text": {"type": "string", "format": "date"}}}
COLUMNS = {
    "id": "int64",
    "small": "int16",
    "price": "decimal(38, 4)",
    "rate": "float64",
    "ok": "boolean",
    "name": "string",
    "at": "timestamp",
    "day": "date32",
    "tags": "string",
    "place": "string",
    "country": "date32",
    "two": "string",
    "any": "string",
    "color": "string",
    "self": "string",
    "lost": "string",
}


def test_properties_are_columns() -> None:
    result = parse_json_schema(json.dumps(SCHEMA), [SchemaReference("country.json", json.dumps(COUNTRY))])
    assert result.columns == COLUMNS
    assert parse_json_schema(result.to_text()) == result


def test_the_root_may_refer_to_an_object() -> None:
    text = json.dumps({"$ref": "#/$defs/row", "$defs": {"row": {"properties": {"a": {"type": "integer"}}}}})
    assert parse_json_schema(text).columns == {"a": "int64"}


@pytest.mark.parametrize(
    "schema", [{}, {"type": "string"}, [1], True, {"properties": {}}, {"$ref": "#/nowhere"}]
)
def test_a_schema_without_properties_is_refused(schema: Any) -> None:
    with pytest.raises(SchemaError, match="the schema has no `properties`"):
        parse_json_schema(json.dumps(schema))


def test_a_schema_in_the_file_needs_no_registry() -> None:
    values = {
        "topic": "t",
        "data_format": "json_schema",
        "reader_schema": json.dumps(SCHEMA),
        "primary_key": "id",
    }
    node = KafkaSourceConfig.model_validate(values)
    away = KafkaConnection(schema_registry_url="http://127.0.0.1:1")
    result = resolve_json_schema("src", node, away)
    assert declared_json_columns("src", result).names == list(COLUMNS)
    assert not result.validate_writer_schema_ordering
    assert resolve_json_schema("src", result, away) == result
    with pytest.raises(SchemaError, match="`reader_schema`: the schema is not JSON"):
        resolve_json_schema("src", node.model_copy(update={"reader_schema": "{"}), away)
    with pytest.raises(SchemaError, match="the primary key has `key`"):
        resolve_json_schema("src", node.model_copy(update={"primary_key": ("key",)}), away)

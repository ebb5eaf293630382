"""The JSON Schema of a pipeline file, which editors use to complete, explain and underline."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from headrace.pipeline.errors import PluginError
from headrace.pipeline.model import nodes
from headrace.pipeline.model.partitions import PARTITION_MODELS
from headrace.pipeline.model.plugins import NODES, TAG, model_of
from headrace.pipeline.plugins.api import PluginType
from headrace.pipeline.plugins.discovery import list_installed, load
from headrace.pipeline.protocol.epochs import Json
from headrace.pipeline.types.durations import spell_duration

DRAFT = "http://json-schema.org/draft-07/schema#"
"""The newest draft that the editors' YAML plugins fully support."""

_DURATION = {
    "type": "string",
    "pattern": r"^\s*(\d+(\.\d+)?\s*[a-z]+\s*)+$|\$\{",
    "examples": ["500ms", "5s", "1h 30m"],
}
_DAY = {"type": "string", "pattern": r"^\d{4}-\d{2}(-\d{2})?$|\$\{", "examples": ["2013-01", "2013-01-31"]}
_MOMENT = {"type": "string", "pattern": r"^\d{4}-\d{2}-\d{2}|\$\{", "examples": ["2025-01-31T12:00:00Z"]}
_VARIABLE = {"type": "string", "pattern": r"\$\{"}


class _Generator(GenerateJsonSchema):
    """Pydantic's generator in the spelling of the file: durations, days, columns with commas, `${VAR}`."""

    def timedelta_schema(self, schema: core_schema.TimedeltaSchema) -> JsonSchemaValue:
        del schema
        return dict(_DURATION)

    def date_schema(self, schema: core_schema.DateSchema) -> JsonSchemaValue:
        del schema
        return dict(_DAY)

    def datetime_schema(self, schema: core_schema.DatetimeSchema) -> JsonSchemaValue:
        del schema
        return dict(_MOMENT)

    def float_schema(self, schema: core_schema.FloatSchema) -> JsonSchemaValue:
        return {"anyOf": [super().float_schema(schema), _VARIABLE]}

    def int_schema(self, schema: core_schema.IntSchema) -> JsonSchemaValue:
        return {"anyOf": [super().int_schema(schema), _VARIABLE]}

    def bool_schema(self, schema: core_schema.BoolSchema) -> JsonSchemaValue:
        return {"anyOf": [super().bool_schema(schema), _VARIABLE]}

    def literal_schema(self, schema: core_schema.LiteralSchema) -> JsonSchemaValue:
        result = super().literal_schema(schema)
        return {"anyOf": [result, _VARIABLE]} if "enum" in result else result

    def str_schema(self, schema: core_schema.StringSchema) -> JsonSchemaValue:
        result = super().str_schema(schema)
        return result | {"pattern": rf"{result['pattern']}|\$\{{"} if "pattern" in result else result

    def tuple_schema(self, schema: core_schema.TupleSchema) -> JsonSchemaValue:
        result = super().tuple_schema(schema)
        return (
            {"anyOf": [result, {"type": "string"}]} if result.get("items") == {"type": "string"} else result
        )

    def tagged_union_schema(self, schema: core_schema.TaggedUnionSchema) -> JsonSchemaValue:
        """Return the schema of nodes by their `type`, or of partitions.

        `file_schema` adds plugins, which only their ids identify.
        """
        if set(schema["choices"]) == set(PARTITION_MODELS):
            return super().tagged_union_schema(schema)
        built_in = {tag: choice for tag, choice in schema["choices"].items() if tag != TAG}
        return super().tagged_union_schema({**schema, "choices": built_in, "discriminator": "type"})

    def encode_default(self, dft: Any) -> Any:
        if isinstance(dft, timedelta):
            return spell_duration(dft)
        return (
            dft.model_dump(mode="json", by_alias=True)
            if isinstance(dft, BaseModel)
            else super().encode_default(dft)
        )


def file_schema() -> Json:
    """Return the schema of a whole pipeline file.

    It checks less than `headrace validate`: neither SQL nor the inputs of nodes.
    """
    result = nodes.PipelineModel.model_json_schema(by_alias=True, schema_generator=_Generator)
    for definition in result["$defs"].values():
        if "const" in definition["properties"].get("type", {}):
            # The models have a default so that code need not repeat the type. A file must set it.
            definition["required"] = ["type", *definition.get("required", [])]
            definition["properties"]["type"].pop("default", None)
    _add_plugins(result)
    result["title"] = "Headrace pipeline file"
    transforms = result["properties"]["transforms"]
    transforms["type"] = [transforms["type"], "null"]
    return cast("Json", {"$schema": DRAFT, **result})


def _add_plugins(values: Json) -> None:
    """Add the nodes of the plugins that are installed here and can be loaded."""
    parts = {model.KIND: part for part, model in NODES.items()}
    for plugin in list_installed():
        try:
            part = parts.get(PluginType(load(plugin).kind))
        except PluginError:
            continue
        if part is None:
            continue
        model = model_of(part, plugin.id)
        made = model.model_json_schema(by_alias=True, schema_generator=_Generator)
        values["$defs"] |= made.pop("$defs", {})
        # Options may also be under `options:` or in the environment, so none is required here.
        made["required"] = [key for key in made.get("required", []) if key == "from"] + ["type"]
        made["properties"]["type"].pop("default", None)
        made["additionalProperties"] = model.model_config.get("extra") == "allow"
        values["$defs"][model.__name__] = made
        nodes_of = values["properties"][part]["additionalProperties"]
        if "oneOf" not in nodes_of:
            nodes_of["oneOf"] = [{"$ref": nodes_of.pop("$ref")}] if "$ref" in nodes_of else []
        nodes_of["oneOf"].append({"$ref": f"#/$defs/{model.__name__}"})
        nodes_of.get("discriminator", {}).get("mapping", {})[plugin.id] = f"#/$defs/{model.__name__}"

"""The options of a plugin from node and environment, checked by the plugin's model, with error positions."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast, get_args

from pydantic import BaseModel, SecretBytes, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import InitErrorDetails, PydanticCustomError

from headrace.pipeline.config.plugins import PREFIXES
from headrace.pipeline.config.secrets import Reference, mask_secret
from headrace.pipeline.plugins.api import variable_name

Loc = tuple[str | int, ...]


@dataclass(slots=True)
class RawOptions:
    """Unchecked options. `at`: location of each key in the node. `variables`: keys from the environment."""

    values: dict[str, Any] = field(default_factory=dict)
    at: dict[str, Loc] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)


def gather(
    plugin_id: str, model: type[BaseModel], flat: Mapping[str, Any], under: Mapping[str, Any]
) -> RawOptions:
    """Merge the options. Flat keys override those under `options:`, environment variables override both.

    Drop a required option whose value is empty.
    """
    raw_options = RawOptions(
        {**under, **flat}, {**{key: ("options", key) for key in under}, **{key: (key,) for key in flat}}
    )
    fields = fields_of(model)
    for key, (name, text) in _variables(plugin_id).items():
        raw_options.values[key] = _parse_variable(text, fields.get(key))
        raw_options.variables[key] = name
    for key in [
        key
        for key, value in raw_options.values.items()
        if value in (None, "") and key in fields and fields[key].is_required()
    ]:
        del raw_options.values[key]
    return raw_options


def _variables(plugin_id: str) -> dict[str, tuple[str, str]]:
    result: dict[str, tuple[str, str]] = {}
    for prefix in reversed(PREFIXES):
        start = f"{prefix}{variable_name(plugin_id)}__"
        result |= {
            name[len(start) :].lower(): (name, text)
            for name, text in os.environ.items()
            if name.upper().startswith(start)
        }
    return result


def _parse_variable(text: str, about: FieldInfo | None) -> Any:
    """Return the value of a variable: JSON if it looks like a list or a map and the option is not a text."""
    if about is None or about.annotation in (str, SecretStr) or not text.lstrip().startswith(("[", "{")):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def fields_of(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the fields of a model by their names in a file."""
    return {info.alias or name: info for name, info in model.model_fields.items()}


def secret_keys(model: type[BaseModel]) -> frozenset[str]:
    """Return the options that are or contain a secret. They are never stored or shown."""
    return frozenset(key for key, info in fields_of(model).items() if _is_secret(info.annotation))


def _is_secret(kind: Any) -> bool:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return bool(secret_keys(kind))
    return kind in (SecretStr, SecretBytes) or any(_is_secret(part) for part in get_args(kind))


def check(model: type[BaseModel], raw_options: RawOptions) -> tuple[BaseModel | None, list[InitErrorDetails]]:
    """Return the plugin's model with secrets resolved, or the errors at their locations in the node."""
    values, lines = dict(raw_options.values), []
    for key, info in fields_of(model).items():
        if info.annotation in (SecretStr, SecretStr | None) and key in values:
            result = mask_secret(values[key])
            try:
                values[key] = result.secret() if isinstance(result, Reference) else result
            except ValueError as error:
                loc = ("type",) if key in raw_options.variables else raw_options.at.get(key, (key,))
                lines.append(relocate_error("value_error", f"Value error, {error}", loc, None, None))
    if lines:
        return None, lines
    try:
        return model.model_validate(values), []
    except ValidationError as error:
        return None, list(_locate_errors(error, raw_options, secret_keys(model)))


def _locate_errors(
    error: ValidationError, raw_options: RawOptions, secrets: frozenset[str]
) -> Iterator[InitErrorDetails]:
    for item in error.errors():
        key = str(item["loc"][0]) if item["loc"] else ""
        kind, message = item["type"], item["msg"]
        if key in secrets and kind != "missing":
            kind, message = (
                "value_error",
                "this secret cannot be taken" if kind in ("value_error", "assertion_error") else message,
            )
        if name := raw_options.variables.get(key):
            kind, message = "plugin", f"the variable {name} is wrong: {message.removeprefix('Value error, ')}"
            loc: Loc = ("type",)
        else:
            loc = (*raw_options.at.get(key, (key,) if key else ()), *item["loc"][1:])
        yield relocate_error(kind, message, loc, item.get("input"), item.get("ctx"))


def relocate_error(
    kind: str, message: str, loc: Loc, value: Any, context: Mapping[str, Any] | None
) -> InitErrorDetails:
    """Return a pydantic error at another location."""
    details = {key: str(one) for key, one in (context or {}).items()}
    custom: Any = PydanticCustomError(cast("Any", kind), cast("Any", message), details or None)
    return InitErrorDetails(type=custom, loc=loc, input=value)

"""Wrong settings in words: which one, what it must be, and where it was set. Never shows what may be a secret."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic_core import ErrorDetails

from headrace.pipeline.errors import Place
from headrace.pipeline.problems import WANTED
from headrace.pipeline.tree import shorten

PREFIXES = ("HEADRACE__", "STREAMLING__")
"""Of environment variables, the stronger first."""

_WANTED = WANTED | {
    "int_parsing": "a whole number",
    "greater_than": "above 0",
    "model_type": "a map of settings",
    "dict_type": "a map",
    "path_type": "a path",
}
_SHOWN = frozenset(
    {"int_parsing", "float_parsing", "bool_parsing", "greater_than", "greater_than_equal", "literal_error", "int_from_float"}
)
"""Errors of values that are no text by nature, and so no secret."""


def in_words(
    error: ValidationError, model: type[BaseModel], places: Mapping[tuple[str | int, ...], Place], above: tuple[str, ...] = ()
) -> list[str]:
    """One line per wrong setting. `places` are those of the config file, `above` what the model's own names stand under."""
    return [_line((*above, *(str(part) for part in item["loc"])), len(above), item, model, places) for item in error.errors()]


def _line(
    loc: tuple[str, ...], skip: int, item: ErrorDetails, model: type[BaseModel], places: Mapping[tuple[str | int, ...], Place]
) -> str:
    name, where = ".".join(loc), _origin(loc, places)
    if item["type"] == "extra_forbidden":
        known = sorted(_section(loc[skip:-1], model).model_fields)
        return f"{name}: unknown setting{where}{_meant(loc[-1], known)} There are: {', '.join(known)}."
    if item["type"] == "literal_error":
        allowed = str(item.get("ctx", {}).get("expected", "")).replace("'", "`")
        return f"{name}: must be {allowed}, and is `{shorten(item['input'])}`{where}"
    wanted = _WANTED.get(item["type"])
    if wanted is None:
        return f"{name}: {item['msg'].removeprefix('Value error, ')}{where}"
    found = f", and is `{shorten(item['input'])}`" if item["type"] in _SHOWN and not _secret(loc[skip:], model) else ""
    return f"{name}: must be {wanted}{found}{where}"


def not_json(said: str) -> str:
    """Pydantic's word on a variable that should hold JSON, without what the variable holds."""
    name = said.split('"')[1] if said.count('"') > 1 else ""
    given = [variable for variable in sorted(os.environ) for prefix in PREFIXES if variable.upper().startswith(f"{prefix}{name}".upper())]
    which = given[0] if len(given) == 1 else f"one of {', '.join(given)}"
    return f"{which}: must be JSON, such as " + '{"key": "value"}'


def unknown_variables(model: type[BaseModel]) -> list[str]:
    """Environment variables with our prefix that name no setting. Those of the other prefix are another program's."""
    found = []
    for variable in sorted(os.environ):
        name = variable.upper().removeprefix(PREFIXES[0]).split("__")[0].lower()
        if variable.upper().startswith(PREFIXES[0]) and name not in model.model_fields:
            known = sorted(model.model_fields)
            found.append(f"{variable}: unknown setting `{name}`{_meant(name, known)} There are: {', '.join(known)}.")
    return found


def _origin(loc: tuple[str, ...], places: Mapping[tuple[str | int, ...], Place]) -> str:
    """` (HEADRACE__A__B)` or ` (config.yaml:2:3)`; nothing where it is neither."""
    variables = {variable.upper(): variable for variable in os.environ}
    for end in range(len(loc), 0, -1):
        for prefix in PREFIXES:
            if variable := variables.get(prefix + "__".join(loc[:end]).upper()):
                return f" ({variable})"
        if place := places.get(loc[:end]):
            return f" ({place})"
    return ""


def _section(loc: tuple[str, ...], model: type[BaseModel]) -> type[BaseModel]:
    """The model that the last name of a location is looked up in."""
    for part in loc:
        found = model.model_fields[part].annotation if part in model.model_fields else None
        model = found if isinstance(found, type) and issubclass(found, BaseModel) else model
    return model


def _secret(loc: tuple[str, ...], model: type[BaseModel]) -> bool:
    field = _section(loc[:-1], model).model_fields.get(loc[-1])
    return field is None or field.annotation is SecretStr or SecretStr in get_args(field.annotation)


def _meant(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean `{close[0]}`?" if close else "."


def not_a_map(path: Path, found: Any) -> str:
    """What to say of a config file that holds something else than settings."""
    return f"{path} must be a map of settings, and is {'a list' if isinstance(found, list) else 'a single value'}"

"""Error messages for wrong settings: the name, the expected value, and the places searched.

They show no secrets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from headrace.pipeline.compat.streamling_settings import IGNORED
from headrace.pipeline.config.sources import Layer, Loc, describe_lookup, is_secret, paragraph, type_at
from headrace.pipeline.suggestions import WANTED, suggest_closest
from headrace.pipeline.yaml.reader import shorten

_WANTED = WANTED | {
    "int_parsing": "a whole number",
    "greater_than": "above 0",
    "list_type": "a list",
    "model_type": "a map of settings",
    "dict_type": "a map",
    "path_type": "a path",
}
_SHOWN = frozenset(
    {
        "int_parsing",
        "float_parsing",
        "bool_parsing",
        "greater_than",
        "greater_than_equal",
        "less_than_equal",
        "literal_error",
        "int_from_float",
    }
)
"""Errors of values that are never strings, and so no secrets."""


def describe_settings_errors(
    error: ValidationError, model: type[BaseModel], layers: Sequence[Layer], above: Loc = ()
) -> list[str]:
    """Return one paragraph per wrong setting. `above` is the prefix of the names in the error."""
    result = [((*above, *(str(part) for part in item["loc"])), item) for item in error.errors()]
    return [
        _unknown(loc, model, layers)
        if item["type"] == "extra_forbidden"
        else _wrong(loc, item, model, layers)
        for loc, item in result
    ]


def _unknown(loc: Loc, model: type[BaseModel], layers: Sequence[Layer]) -> str:
    kind = type_at(loc[:-1], model)
    known = sorted(kind.model_fields)
    place = next((f" ({layer.where(loc)})" for layer in layers if layer.has(loc)), "")
    theirs = [name.rpartition(".")[2] for name in IGNORED if name.rpartition(".")[0] == ".".join(loc[:-1])]
    near = suggest_closest(loc[-1], [*known, *theirs]) or "."
    return f"{'.'.join(loc)}: unknown setting{place}{near}\n" + paragraph(f"There are: {', '.join(known)}.")


def _wrong(loc: Loc, item: ErrorDetails, model: type[BaseModel], layers: Sequence[Layer]) -> str:
    wanted = _WANTED.get(item["type"])
    if item["type"] == "literal_error":
        problem = "must be " + str(item.get("ctx", {}).get("expected", "")).replace("'", "`").removeprefix(
            "``, "
        )
    elif item["type"] == "less_than_equal":
        problem = f"must be {item.get('ctx', {}).get('le')} or less"
    else:
        problem = f"must be {wanted}" if wanted else item["msg"].removeprefix("Value error, ")
    if item["type"] in _SHOWN and not is_secret(loc, model) and get_origin(type_at(loc, model)) is not dict:
        problem += f", and is `{shorten(item['input'])}`"
    return f"{'.'.join(loc)}: {problem}\n" + paragraph(describe_lookup(loc, layers))

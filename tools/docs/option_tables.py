"""Tables of options from pydantic models, with the types and defaults of the YAML file."""

from __future__ import annotations

import inspect
import types
from collections.abc import Collection, Iterator, Mapping
from datetime import date, datetime, timedelta
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from headrace.pipeline.model.partitions import PARTITION_MODELS
from headrace.pipeline.model.plugins import PluginNodeConfig
from headrace.pipeline.types.durations import spell_duration

HEAD = "| key | type | default | description |\n|---|---|---|---|\n"
_IDLE = "Streamling's files can have these keys. `headrace validate` warns if one of them is set."
_ELSEWHERE: Mapping[str, str] = {
    "telemetry": "../index.md#telemetry",
    "checks": "../index.md#checks",
}
"""Maps that all nodes share, with their page."""
_PLAIN: Mapping[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "`true` or `false`",
    timedelta: "duration. Examples: `500ms`, `1h 30m`",
    datetime: "timestamp. Example: `2025-01-31T12:00:00Z`",
    date: "date or month. Examples: `2025-01-31`, `2025-01`",
    Any: "any value",
}

_KINDS: Mapping[type[BaseModel], str] = {model: f"by {kind}" for kind, model in PARTITION_MODELS.items()}


def summary(model: type[BaseModel]) -> str:
    """Return the docstring of a model."""
    return inspect.cleandoc(model.__doc__ or "")


def tables(model: type[BaseModel], level: int, idle: Collection[str] = ()) -> Iterator[str]:
    """Yield the table of a model's options, then one for each nested map under a heading of `level`.

    Own options come before inherited ones. `idle` are keys without effect. They come last, and maps among
    them are on the index page.
    """
    fields = {field.alias or name: field for name, field in _sort_fields(model) if name != "type"}
    active = {key: field for key, field in fields.items() if key not in idle}
    yield _table(active)
    yield from _nested_tables(active, level)
    if inactive := {key: field for key, field in fields.items() if key in idle}:
        yield f"{'#' * level} Accepted, without effect\n\n{_IDLE}\n\n{_table(inactive)}"


def _sort_fields(model: type[BaseModel]) -> list[tuple[str, FieldInfo]]:
    """Return own fields before inherited ones, and required fields first in both groups."""
    inherited = {name for base in model.__mro__[1:] if _is_model(base) for name in base.model_fields}
    return sorted(
        model.model_fields.items(), key=lambda entry: (entry[0] in inherited, not _is_required(entry[1]))
    )


def _table(fields: Mapping[str, FieldInfo]) -> str:
    rows = (
        f"| `{key}` | {_type(key, field)} | {default_text(field)} | {_cell(field.description or '')} |\n"
        for key, field in fields.items()
    )
    return HEAD + "".join(rows)


def _type(key: str, field: FieldInfo) -> str:
    text = _cell(_describe_type(field.annotation, field.metadata))
    text = text.replace("list of columns", "list") if key == "owners" else text
    return text.replace("(below)", f"([keys]({_ELSEWHERE[key]}))") if key in _ELSEWHERE else text


def _nested_tables(fields: Mapping[str, FieldInfo], level: int) -> Iterator[str]:
    for key, field in fields.items():
        models = list(_nested_models(field.annotation)) if key not in _ELSEWHERE else []
        for model in models:
            kind = f" {_KINDS.get(model) or f'of `{_discriminator(model)}`'}" if len(models) > 1 else ""
            yield f"{'#' * level} `{key}`{kind}\n\n{summary(model)}\n"
            yield from tables(model, level + 1)


def _discriminator(model: type[BaseModel]) -> str:
    """Return the value that tells one model of a union from the others."""
    first = next(field for field in model.model_fields.values() if get_origin(field.annotation) is Literal)
    return str(get_args(first.annotation)[0])


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _describe_type(kind: Any, metadata: list[Any]) -> str:
    """Return a type in the terms of the YAML file."""
    if get_origin(kind) is Annotated:
        inner, *more = get_args(kind)
        return _describe_type(inner, [*more, *metadata])
    options = (
        [option for option in get_args(kind) if option is not type(None)]
        if get_origin(kind) in (Union, types.UnionType)
        else [kind]
    )
    if len(options) == 1 and options[0] is not kind:
        return _describe_type(options[0], metadata)
    options = [
        get_args(option)[0] if get_origin(option) is Annotated and _is_model(get_args(option)[0]) else option
        for option in options
    ]
    if all(_is_model(option) for option in options):
        return "node" if all(_is_node(option) for option in options) else "map (below)"
    return " or ".join(_describe_single_type(option, metadata) for option in options)


def _describe_single_type(kind: Any, metadata: list[Any]) -> str:
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _describe_type(kind, metadata)
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in args)
    if kind == tuple[str, ...]:
        return "list of columns, or string with commas"
    if origin in (tuple, list, set, frozenset):
        return f"list of {_describe_type(args[0], []).replace('map', 'maps', 1)}"
    if origin is dict:
        value = _describe_type(args[1], [])
        return (
            "map of names to nodes" if value == "node" else f"map of {_describe_type(args[0], [])} to {value}"
        )
    return _PLAIN.get(kind, getattr(kind, "__name__", str(kind))) + _bounds(metadata)


def _bounds(metadata: list[Any]) -> str:
    texts = []
    for bound in metadata:
        for kind, name, word in (
            (Gt, "gt", "above"),
            (Ge, "ge", "from"),
            (Lt, "lt", "below"),
            (Le, "le", "up to"),
        ):
            if isinstance(bound, kind):
                texts.append(f" {word} {getattr(bound, name)}")
    return "".join(texts)


def _is_required(field: FieldInfo) -> bool:
    """Return whether the file must set it. A description can name what applies otherwise."""
    needed = field.is_required() or any(isinstance(bound, MinLen) for bound in field.metadata)
    return needed and not any(word in (field.description or "") for word in ("Defaults to", "By default"))


def default_text(field: FieldInfo) -> str:
    """Return the default of an option as a table shows it."""
    if _is_required(field):
        return "**required**"
    value = None if field.is_required() else field.get_default(call_default_factory=True)
    if value is None or str(value) in ("()", "{}", "[]", "") or isinstance(value, BaseModel):
        return "\u2013"
    if isinstance(value, timedelta):
        return f"`{spell_duration(value)}`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _is_node(model: Any) -> bool:
    field = model.model_fields.get("type")
    return field is not None and (
        get_origin(field.annotation) is Literal or issubclass(model, PluginNodeConfig)
    )


def _nested_models(annotation: Any) -> list[type[BaseModel]]:
    """Return the models of maps inside a type, without those of nodes, which have their own pages."""
    if _is_model(annotation):
        return [] if _is_node(annotation) else [annotation]
    return [model for part in get_args(annotation) for model in _nested_models(part)]

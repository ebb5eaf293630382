"""Translates pydantic's errors about a pipeline file: node, value, allowed values, and location."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from headrace.pipeline.compat import streamling
from headrace.pipeline.errors import PluginError, UserError
from headrace.pipeline.model import nodes
from headrace.pipeline.model.hybrid import SOURCE_TYPE, BoundedPhaseConfig
from headrace.pipeline.model.partitions import partitions_model
from headrace.pipeline.model.plugins import TAG, model_of
from headrace.pipeline.plugins import discovery as plugins
from headrace.pipeline.protocol.epochs import Json
from headrace.pipeline.suggestions import WANTED, suggest_closest
from headrace.pipeline.yaml.reader import PARTS, Path, YamlDocument, node_of, shorten

_TAGS: Mapping[tuple[str, str], type[BaseModel]] = {
    (part, get_args(kind.model_fields["type"].annotation)[0]): kind
    for part, union in zip(
        PARTS, (nodes.AnySourceConfig, nodes.TransformConfig, nodes.AnySinkConfig), strict=True
    )
    for kind in (get_args(get_args(union)[0]) or (get_args(union)[0],))
}
_COLUMN_KEYS = (("primary_key",), ("columns",), ("not_null",), ("unique",))
"""The ends of paths to lists of columns."""


def describe_file_errors(
    error: ValidationError, tree: YamlDocument, model: type[BaseModel] = nodes.PipelineModel
) -> list[UserError]:
    """Return pydantic's errors as mistakes of the file, without those that only follow from others.

    `model` is the expected model of the file.
    """
    result = [(item, _file_path(item["loc"])) for item in error.errors()]
    return [
        _in_words(item, path, tree, model)
        for item, path in result
        # Pydantic also reports a list with wrong entries as too short.
        if path not in tree.spoiled and not (item["type"] == "too_short" and _at(path, tree.value))
    ]


def _in_words(item: ErrorDetails, path: Path, tree: YamlDocument, model: type[BaseModel]) -> UserError:
    match item["type"]:
        case "union_tag_not_found" if _is_in_phase(path):
            path = (*path, "source_type")
            msg, hint = f"`{format_path(path)}` is missing", f"Add `source_type: ...` here. {SOURCE_TYPE}"
        case "union_tag_not_found" if _is_in_node(path):
            path = (*path, _discriminator(item))
            msg, hint = f"`{format_path(path)}` is missing", f"Add `{path[-1]}: ...` here."
        case "union_tag_invalid" if _is_in_node(path):
            path = (*path, _discriminator(item))
            msg, hint = _unknown_value(path, str(item.get("ctx", {}).get("expected_tags", "")), tree)
        case "extra_forbidden":
            msg, hint = _unknown_key(path, tree.value, model)
        case "missing":
            msg, hint = f"`{format_path(path)}` is missing", _missing_hint(path, tree.value, model)
        case "union_tag_not_found":
            msg, hint = "`type` is missing", f"Allowed: {', '.join(types_of(str(path[0])))}."
        case "union_tag_invalid":
            path = (*path, "type")
            msg, hint = _unknown_type(str(path[0]), path, tree)
        case "literal_error":
            msg, hint = _unknown_value(path, str(item.get("ctx", {}).get("expected", "")), tree)
        case "plugin":
            msg, hint = item["msg"], str(item.get("ctx", {}).get("hint", ""))
            return PluginError(msg, hint=hint, node=node_of(path), place=tree.place(path))
        case "too_short":
            what = {"sinks": "a sink", "bounded_sources": "a bounded source"}.get(str(path[-1]), "an entry")
            msg, hint = f"`{format_path(path)}` is empty", f"It needs at least {what}."
        case "too_long":
            allowed = item.get("ctx", {}).get("max_length")
            count = len(_at(path, tree.value))
            msg = f"`{format_path(path)}` has {count} entries, at most {allowed} are allowed"
            hint = "Read several of them by one source, such as a view over the tables."
        case _:
            msg, hint = _wrong_value(path, item, tree)
    return UserError(msg, hint=hint, node=node_of(path), place=tree.place(path))


def _is_in_node(path: Path) -> bool:
    """Return whether a path leads to a map inside a node."""
    return len(path) > 2


def _discriminator(item: ErrorDetails) -> str:
    """Return the key that tells the maps of a union apart."""
    return str(item.get("ctx", {}).get("discriminator", "")).strip("'")


def as_written(problem: UserError, tree: YamlDocument) -> UserError:
    """Return the same mistake with `${NAME}` in place of a variable's value, which may be a secret."""
    message, hint = problem.message, problem.hint
    for path, text in tree.written.items():
        if problem.place == tree.place(path) and (value := str(_at(path, tree.value))).strip():
            message = message.replace(f"`{value}`", f"`{shorten(text)}`")
            hint = hint.replace(value.strip(), text.strip()) if hint.startswith("--- SQL ---") else hint
    return type(problem)(message, hint=hint, node=problem.node, place=problem.place)


def format_path(path: Path) -> str:
    """Return a path for a message, relative to its node or test: `bounded_sources[0].table_name`."""
    inner = path[2:] if len(path) > 1 and path[0] in (*PARTS, "tests") else path
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in inner).removeprefix(".")


def display_value(path: Path, tree: YamlDocument) -> str:
    """Return the value at a path as the file writes it, because a variable's value may be a secret."""
    if path in tree.written:
        return shorten(tree.written[path])
    result = _at(path, tree.value)
    if isinstance(result, bool):
        return str(result).lower()
    return "nothing" if result is None else shorten(result)


def types_of(part: str) -> list[str]:
    """Return the node types that a part of the file can contain."""
    return sorted(name for where, name in _TAGS if where == part)


def _unknown_key(path: Path, plain: Json, model: type[BaseModel]) -> tuple[str, str]:
    key = str(path[-1])
    if path[0] == "sinks" and path[2:] == ("checks",):
        readable = ", ".join(name for name in types_of("sinks") if _has_key("sinks", name, key))
        kind = _at(path[:2], plain).get("type")
        return f"a {kind} sink has no `checks`", f"Checks read a table. Sinks with checks: {readable}."
    allowed = sorted(_fields(path, plain, model))
    close = suggest_closest(key, allowed)
    if not close and (problem := _key_of_other_phase(path, plain)):
        return problem
    if key in streamling.KEYS and not close:
        return f"`{key}` is not available yet", streamling.KEYS[key]
    node = _at(path[:2], plain)
    silent = nodes.without_effect(str(path[0]), str(node.get("type")) if isinstance(node, dict) else "")
    useful = [name for name in allowed if name not in silent]
    return f"unknown key `{shorten(key)}`{close}", f"Allowed: {', '.join(useful)}."


def _has_key(part: str, node_type: str, key: str) -> bool:
    return key in _TAGS[part, node_type].model_fields


def _is_in_phase(path: Path) -> bool:
    """Return whether a path leads to a bounded phase of a hybrid source, or into one."""
    return path[2:3] == ("bounded_sources",) and len(path) > 3


def _key_of_other_phase(path: Path, plain: Json) -> tuple[str, str] | None:
    """Return the mistake if the key belongs to a bounded phase of another `source_type`."""
    if not _is_in_phase(path) or len(path) != 5:
        return None
    key, kind = str(path[-1]), _at(path[:-1], plain).get("source_type")
    phases = {
        get_args(model.model_fields["source_type"].annotation)[0]: model
        for model in _models_in(BoundedPhaseConfig)
    }
    others = [
        name
        for name, model in phases.items()
        if key in {field.alias or name for name, field in model.model_fields.items()}
    ]
    if not others:
        return None
    return (
        f"`{key}` does nothing in a {kind} phase; it is for {' and '.join(others)}",
        "Remove it, or change source_type.",
    )


def _unknown_type(part: str, path: Path, tree: YamlDocument) -> tuple[str, str]:
    one, allowed, name = part[:-1], types_of(part), display_value(path, tree)
    if not isinstance(_at(path, tree.value), str):
        return f"`type` must be a text, and is {_kind(path, tree)}", f"Allowed: {', '.join(allowed)}."
    if streamling.is_plugin(name):
        return f"{one} type `{name}` is a plugin's, and no such plugin is installed", _plugin_hint(
            part, name, allowed
        )
    others = [other for other in PARTS if other != part and name in types_of(other)]
    if others:
        return (
            f"`{name}` is a type of {others[0]}, not of {part}",
            f"Move the node to `{others[0]}`, or use one of: {', '.join(allowed)}.",
        )
    there = [result.id for result in plugins.list_installed()]
    return (
        f"{one} type `{name}` is not known{suggest_closest(name, [*allowed, *there])}",
        f"Allowed: {', '.join(allowed)}{_and(there)}.",
    )


def _plugin_hint(part: str, name: str, allowed: list[str]) -> str:
    """Return the hint for a plugin that is not installed."""
    there = [result.id for result in plugins.list_installed()]
    close = suggest_closest(name, there).removeprefix("; ").capitalize()
    listed = f"Installed plugins: {', '.join(there) or 'none'}."
    return (
        f"{close + ' ' if close else ''}Install the package that has it. {listed} Built-in {part}:"
        f" {', '.join(allowed)}."
    )


def _and(plugin_ids: list[str]) -> str:
    return f"; plugins: {', '.join(plugin_ids)}" if plugin_ids else ""


def _unknown_value(path: Path, expected: str, tree: YamlDocument) -> tuple[str, str]:
    value = display_value(path, tree)
    options = re.findall(r"'([^']*)'|(\d+)", expected)
    names = [text or number for text, number in options]
    if value in names:
        return f"`{format_path(path)}` cannot be the text `{value}`", "Write it without quotes."
    return (
        f"`{format_path(path)}` cannot be `{value}`{suggest_closest(value, names)}",
        f"Allowed: {', '.join(names)}.",
    )


def _missing_hint(path: Path, plain: Json, model: type[BaseModel]) -> str:
    result = _fields(path, plain, model).get(str(path[-1]))
    return f"Add `{path[-1]}: ...` here.{f' {result.description}' if result and result.description else ''}"


def _wrong_value(path: Path, item: ErrorDetails, tree: YamlDocument) -> tuple[str, str]:
    what = (
        f"`{format_path(path)}`"
        if format_path(path)
        else f"this {path[0][:-1]}"
        if path and isinstance(path[0], str)
        else "the file"
    )
    if item["type"] == "value_error":
        text = item["msg"].removeprefix("Value error, ")
        return (f"{what}: {text}" if format_path(path) else text), ""
    value = _kind(path, tree)
    wanted = WANTED.get("columns_type" if path[-1:] in _COLUMN_KEYS else item["type"])
    if item["type"] == "less_than_equal":
        wanted = f"{item.get('ctx', {}).get('le'):g} or less"
    if wanted is None:
        return f"{what} is {value}: {item['msg'][:1].lower()}{item['msg'][1:]}", ""
    if not format_path(path) and node_of(path):
        return (
            f"{what} must be {wanted}, and is {value}",
            f"Write `type: ...` and its other keys below it; types: {', '.join(types_of(str(path[0])))}.",
        )
    hint = (
        "Put it into quotes if it is meant as text."
        if item["type"] == "string_type" and not value.startswith(("a ", "nothing"))
        else ""
    )
    return f"{what} must be {wanted}, and is {value}", hint


def _kind(path: Path, tree: YamlDocument) -> str:
    """Return the value at a path, or its type if the value is long."""
    result = _at(path, tree.value)
    if isinstance(result, dict | list):
        return "a map" if isinstance(result, dict) else "a list"
    if result is None or result == "":
        return "nothing" if result is None else "an empty text"
    return f"`{display_value(path, tree)}`"


def _at(path: Path, plain: Any) -> Any:
    for part in path:
        plain = plain[part]
    return plain


def _file_path(loc: Path) -> Path:
    """Return pydantic's location without the types of nodes and phases after a name or an index."""
    if len(loc) > 2 and ((loc[0], loc[2]) in _TAGS or (loc[0] in PARTS and loc[2] == TAG)):
        loc = (*loc[:2], *loc[3:])
    if loc[:1] == ("partitions",):
        loc = (*loc[:1], *loc[2:])
    if len(loc) > 3 and loc[2] == "pagination":
        return (*loc[:3], *loc[4:])
    return (*loc[:4], *loc[5:]) if len(loc) > 4 and loc[2] == "bounded_sources" else loc


def _fields(path: Path, plain: Json, model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the fields of the model that has the last key of a path, by their names in the file."""
    kind: Any = model
    inside = _at(path[:-1], plain)
    if len(path) > 2 and path[0] in PARTS:
        part, name = str(path[0]), plain[str(path[0])][path[1]]["type"]
        kind = _TAGS.get((part, name)) or model_of(part, name)
        path = path[3:] if (part, name) not in _TAGS and path[2] == "options" and len(path) > 3 else path[2:]
    for part in path[:-1]:
        kind = _inner(kind, part)
    kind = _phase_of(kind, inside) or kind
    if path[:1] == ("partitions",):
        kind = partitions_model(inside)
    return {field.alias or name: field for name, field in (_model_in(kind) or model).model_fields.items()}


def _inner(annotation: Any, part: str | int) -> Any:
    """Return the type of the value under a key or an index of a type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return next(
            (
                field.annotation
                for name, field in annotation.model_fields.items()
                if part in (name, field.alias)
            ),
            annotation,
        )
    inside = get_args(annotation)
    if get_origin(annotation) in (dict, tuple):
        return inside[1 if get_origin(annotation) is dict else 0]
    return next((_inner(other, part) for other in inside if _model_in(other)), annotation)


def _phase_of(annotation: Any, phase: Any) -> type[BaseModel] | None:
    """Return the model of a phase of a hybrid source, by the `source_type` in the file."""
    kind = phase.get("source_type") if isinstance(phase, dict) else None
    models = [model for model in _models_in(annotation) if "source_type" in model.model_fields]
    return next(
        (model for model in models if kind in get_args(model.model_fields["source_type"].annotation)), None
    )


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [result for part in get_args(annotation) for result in _models_in(part)]


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((result for part in get_args(annotation) if (result := _model_in(part))), None)

"""Warnings for valid pipeline files: keys without effect, missing keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from headrace.pipeline.errors import FileLocation, UserError
from headrace.pipeline.model import nodes
from headrace.pipeline.model.graph import key_of, lacks_commit_record, upstream_sources
from headrace.pipeline.model.http import EndpointConfig, find_request_warnings
from headrace.pipeline.model.plugins import PluginSinkConfig, PluginTransformConfig
from headrace.pipeline.validation.dynamic_tables import table_warnings


def warnings_of(model: nodes.PipelineModel, place: Callable[..., FileLocation]) -> Iterator[UserError]:
    """Yield all warnings for a valid file, with their locations."""
    for part in nodes.WITHOUT_EFFECT:
        for name, node in getattr(model, part).items():
            for key in sorted(nodes.without_effect(part, node.type) & node.model_fields_set):
                if key != "deduplicate" or not node.deduplicate:
                    hint = _description(node, key)
                    yield UserError(
                        f"`{key}` has no effect", hint=hint, node=name, place=place(part, name, key)
                    )
    for part in ("sources", "transforms", "sinks"):
        for name, node in getattr(model, part).items():
            for keys, word in find_request_warnings(node) if isinstance(node, EndpointConfig) else ():
                yield UserError(word.message, hint=word.hint, node=name, place=place(part, name, *keys))
    yield from table_warnings(model, place)
    yield from _of_plugins(model, place)
    yield from missing_keys(model, place)


def _of_plugins(model: nodes.PipelineModel, place: Callable[..., FileLocation]) -> Iterator[UserError]:
    for part in nodes.WITHOUT_EFFECT:
        for name, node in getattr(model, part).items():
            for label in getattr(node, "overridden", ()):
                msg = f"the label `{label}` is set by the plugin to `{node.plugin.labels[label]}`"
                yield UserError(
                    msg,
                    hint="Remove it here.",
                    node=name,
                    place=place(part, name, "telemetry", "labels", label),
                )
            if isinstance(node, PluginTransformConfig):
                for key in sorted({"batch_size"} & node.model_fields_set):
                    yield UserError(
                        f"`{key}` has no effect",
                        hint=_description(node, key),
                        node=name,
                        place=place(part, name, key),
                    )
            if isinstance(node, PluginSinkConfig) and lacks_commit_record(node) and node.delivery is None:
                msg = (
                    "the plugin keeps no record of epochs: after a crash it gets rows of the last epoch twice"
                )
                yield UserError(
                    msg,
                    hint="Say `delivery: at_least_once` if that is good.",
                    node=name,
                    place=place(part, name),
                )


def missing_keys(model: nodes.PipelineModel, place: Callable[..., FileLocation]) -> Iterator[UserError]:
    """Yield keyless sources of sinks that could use a key. `enforce_primary_keys` makes them errors."""
    for name, source in model.sources.items():
        appending = [
            sink
            for sink, node in model.sinks.items()
            if node.upserts_by_key and not key_of(model, sink) and name in upstream_sources(model, sink)
        ]
        if not source.primary_key and not getattr(source, "has_late_key", False) and appending:
            msg = f"Can't determine primary key for source '{name}'!"
            hint = (
                f"Without `primary_key`, {_quote_names(appending)} can only append: an update arrives as a"
                " further row, a delete is refused."
            )
            yield UserError(msg, hint=hint, node=name, place=place("sources", name))


def _quote_names(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _description(node: Any, key: str) -> str:
    return str(type(node).model_fields[key].description or "")

"""Checks of dead letters: rejected rows need a sink, and their limit needs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from headrace.pipeline.errors import FileLocation, UserError
from headrace.pipeline.model import nodes
from headrace.pipeline.model.error_outputs import errors_output

PlaceOf = Callable[..., FileLocation]


def check_dead_letters(model: nodes.PipelineModel, place: PlaceOf) -> Iterator[UserError]:
    """Yield sources whose rejected rows no sink reads, and limits without effect."""
    read = {sink.from_ for sink in model.sinks.values()}
    for name, source in model.sources.items():
        stream: Any = getattr(source, "unbounded_source", source)
        path = ("sources", name, *(("unbounded_source",) if stream is not source else ()))
        output = errors_output(name, source)
        if output is not None and output.name in model.nodes():
            msg = f"a node has the name `{output.name}`, which the rejected rows of `{name}` have"
            yield UserError(msg, hint="Rename one of the two.", node=name, place=place(*path, "on_error"))
        if output is not None and output.name not in read:
            msg = f"no sink reads `{output.name}`, so rejected rows would be lost"
            hint = f"Add a sink with `from: {output.name}`, or remove `on_error`."
            yield UserError(msg, hint=hint, node=name, place=place(*path, "on_error"))
        if output is None and _has_own_rate(stream):
            msg = "`max_error_rate` has no effect without `on_error: dead_letter`"
            hint = "Remove it, or set `on_error: dead_letter` and a sink that reads the rejected rows."
            yield UserError(msg, hint=hint, node=name, place=place(*path, "max_error_rate"))


def _has_own_rate(stream: Any) -> bool:
    """Return whether `max_error_rate` has another value than the default, which a stored file has too."""
    field = getattr(type(stream), "model_fields", {}).get("max_error_rate")
    return field is not None and stream.max_error_rate != field.default

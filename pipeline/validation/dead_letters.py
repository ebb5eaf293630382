"""Checks of dead letters: rejected rows of a node need a sink, and keys for them need `on_error`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from headrace.pipeline.errors import FileLocation, UserError
from headrace.pipeline.model import nodes
from headrace.pipeline.model.error_outputs import ErrorsOutput, errors_output, transform_errors

PlaceOf = Callable[..., FileLocation]


def check_dead_letters(model: nodes.PipelineModel, place: PlaceOf) -> Iterator[UserError]:
    """Yield nodes whose rejected rows no sink reads, and limits without effect."""
    for name, source in model.sources.items():
        stream: Any = getattr(source, "unbounded_source", source)
        path = ("sources", name, *(("unbounded_source",) if stream is not source else ()))
        yield from _check_node(model, name, stream, errors_output(name, source), partial(place, *path))
    for name, node in model.transforms.items():
        at = partial(place, "transforms", name)
        output = transform_errors(name, node)
        yield from _check_node(model, name, node, output, at)
        if output is not None and len(reads := node.inputs(name)) > 1:
            msg = f"it reads {len(reads)} nodes, and rejected rows are found among those of one"
            hint = "Compute the columns that may fail in a transform before the UNION ALL."
            yield UserError(msg, hint=hint, node=name, place=at("on_error"))
    for name, sink in model.sinks.items():
        yield from _check_sink(name, sink, place)


def _check_node(
    model: nodes.PipelineModel, name: str, node: Any, output: ErrorsOutput | None, place: PlaceOf
) -> Iterator[UserError]:
    """Yield the mistakes of one source or transform. `place` returns the place of one of its keys."""
    if output is None:
        if _is_set(node, "max_error_rate"):
            msg = "`max_error_rate` has no effect without `on_error: dead_letter`"
            hint = "Remove it, or set `on_error: dead_letter` and a sink that reads the rejected rows."
            yield UserError(msg, hint=hint, node=name, place=place("max_error_rate"))
        return
    if output.name in model.nodes():
        msg = f"a node has the name `{output.name}`, which the rejected rows of `{name}` have"
        yield UserError(msg, hint="Rename one of the two.", node=name, place=place("on_error"))
    if output.name not in {sink.from_ for sink in model.sinks.values()}:
        msg = f"no sink reads `{output.name}`, so rejected rows would be lost"
        hint = f"Add a sink with `from: {output.name}`, or remove `on_error`."
        yield UserError(msg, hint=hint, node=name, place=place("on_error"))


def _check_sink(name: str, sink: Any, place: PlaceOf) -> Iterator[UserError]:
    """Yield keys for refused rows without effect, and a table of errors that is the target itself."""
    on_error = getattr(sink, "on_error", None)
    if on_error == "fail":
        for key in ("errors_table", "max_error_rate"):
            if _is_set(sink, key):
                msg = f"`{key}` has no effect without `on_error: dead_letter`"
                hint = "Remove it, or set `on_error: dead_letter`."
                yield UserError(msg, hint=hint, node=name, place=place("sinks", name, key))
    elif on_error == "dead_letter" and sink.errors_table_name == sink.table:
        msg = f"`errors_table` is `{sink.table}`, the table of the rows"
        hint = "Choose another name."
        yield UserError(msg, hint=hint, node=name, place=place("sinks", name, "errors_table"))


def _is_set(node: Any, key: str) -> bool:
    """Return whether a key has another value than the default, which a stored file has too."""
    field = getattr(type(node), "model_fields", {}).get(key)
    return field is not None and getattr(node, key) != field.default

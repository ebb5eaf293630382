"""Resolves a pipeline file: adds what other systems decide about its columns, such as a registry's schema.

A run resolves its file once, at its start. The ledger stores the result, so that an open or replayed epoch
is read with the same columns although the other system changed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headrace.connectors import registry
from headrace.jobs.sources.pipeline_source import stream_node
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import HeadraceError, PipelineFileError
from headrace.pipeline.file.loader import PipelineFile
from headrace.pipeline.model.hybrid import HybridSourceConfig
from headrace.pipeline.validation.guarantees import check_model


def resolve_file(file: PipelineFile, settings: Settings) -> PipelineFile:
    """Return the file with all sources resolved. Raise the first source's error, with its location."""
    result, problems = try_resolving(file, settings)
    for problem in problems.values():
        raise problem
    return result


def try_resolving(file: PipelineFile, settings: Settings) -> tuple[PipelineFile, dict[str, HeadraceError]]:
    """Return the file with the sources that can be resolved, and the errors of the others by name."""
    sources: dict[str, Any] = dict(file.model.sources)
    problems: dict[str, HeadraceError] = {}
    for name, node in file.model.sources.items():
        try:
            sources[name] = _resolve_source(name, node, settings)
        except HeadraceError as error:
            error.node = error.node or name
            file.locate(error)
            problems[name] = error
    if sources == file.model.sources:
        return file, problems
    result = replace(file, model=file.model.model_copy(update={"sources": sources}))
    if not problems and (wrong := check_model(result.model, result.place)):
        raise PipelineFileError(wrong)
    return result, problems


def _resolve_source(name: str, node: Any, settings: Settings) -> Any:
    stream = stream_node(node)
    if stream is None or hasattr(node, "plugin"):
        return node
    resolved = registry.stream_class_of(stream.type).resolve(name, stream, settings)
    if resolved is stream:
        return node
    if not isinstance(node, HybridSourceConfig):
        return resolved
    phase = node.unbounded_source
    changes = {
        field: value
        for field in type(phase).model_fields
        if field in type(resolved).model_fields
        and (value := getattr(resolved, field)) != getattr(phase, field)
    }
    return node.model_copy(
        update={"unbounded_source": phase.model_copy(update=changes), "primary_key": resolved.primary_key}
    )

"""Handlers whose endpoints cannot be resolved."""

from __future__ import annotations

from headrace.connectors.http.endpoint import resolve_endpoint
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import UserError
from headrace.pipeline.file.loader import PipelineFile
from headrace.pipeline.model.handler import HandlerTransformConfig


def find_endpoint_errors(file: PipelineFile, settings: Settings) -> list[UserError]:
    """Return the errors of handlers that could not send anything. Calls no service."""
    problems: list[UserError] = []
    for name, node in file.model.transforms.items():
        if isinstance(node, HandlerTransformConfig):
            try:
                resolve_endpoint(name, node, settings)
            except UserError as error:
                file.locate(error)
                problems.append(error)
    return problems

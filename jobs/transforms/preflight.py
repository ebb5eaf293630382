"""Checks that the program of a node loads, before its columns are known."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headrace.jobs.transforms.output_schema import final_schema
from headrace.jobs.transforms.python.transform import check_function
from headrace.jobs.transforms.script.transform import script_of
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import FileLocation, UserError


def check_program(name: str, node: Any, settings: Settings, text_at: FileLocation | None) -> None:
    """Raise UserError for a script or a function that does not load. Does nothing for other types."""
    if node.type == "python":
        check_function(node, settings, name)
    if node.type != "script":
        return
    try:
        nothing = pa.schema([])
        script_of(name, node, nothing, final_schema(name, node.schema_, nothing), text_at=text_at).check()
    except ImportError as error:
        msg = f"type `script` needs the package `{error.name}`"
        raise UserError(msg, hint="pip install 'headrace[transforms]'", node=name) from error

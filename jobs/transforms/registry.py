"""The class of each transform type. Modules are imported at first use."""

from __future__ import annotations

from importlib import import_module

from headrace.jobs.transforms.base import RowTransform, TransformContext
from headrace.pipeline.errors import UserError
from headrace.pipeline.model.plugins import PluginTransformConfig

_TRANSFORMS: dict[str, str] = {
    "handler": "http.transform:HandlerRows",
    "script": "script.transform:ScriptRows",
    "python": "python.transform:PythonRows",
}
KEYS = {"python": "function", "script": "script", "handler": "schema_override"}
"""The key of a node, by type, at which errors of its program or its columns are located."""
_NEEDS = "pip install 'headrace[transforms]'"


def open_transform(context: TransformContext) -> RowTransform:
    """Return the transform of a node.

    Raises UserError if a package is missing, or if the node does not fit the columns.
    """
    if isinstance(context.node, PluginTransformConfig):
        from headrace.jobs.transforms.plugin import open_plugin

        return open_plugin(context)
    module, name = _TRANSFORMS[context.node.type].split(":")
    try:
        return getattr(import_module(f"headrace.jobs.transforms.{module}"), name)(context)
    except ImportError as error:
        if (error.name or "").startswith("headrace"):
            raise
        msg = f"type `{context.node.type}` needs the package `{error.name}`"
        raise UserError(msg, hint=_NEEDS, node=context.name) from error

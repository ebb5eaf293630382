"""Headrace replicates data from history to live. Every row arrives exactly once.

This module is the plugin API; see docs/guides/plugins.md. Each name is loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.connectors.base import (
        OP,
        POS,
        BoundedSource,
        Delivery,
        EpochFrame,
        ReadLimits,
        Sink,
        SinkCapabilities,
        SinkContext,
        Snapshot,
        SourceCapabilities,
        UnboundedSource,
        Visibility,
    )
    from headrace.connectors.plugins.sinks import ArrowSink, TransactionalSink
    from headrace.connectors.plugins.sources import ArrowSource, ArrowStream
    from headrace.jobs.sources.side_outputs import SideOutput
    from headrace.jobs.transforms.base import RowTransform, TransformContext
    from headrace.jobs.transforms.plugin import ArrowTransform, fan_out
    from headrace.pipeline.errors import DataError, FencedError, HeadraceError, TargetError, TransientError, UserError
    from headrace.pipeline.plugins.api import Options, Plugin
    from headrace.pipeline.plugins.runtime import PluginContext
    from headrace.pipeline.protocol.epochs import CommitRecord, EpochPlan, WriteCounts

__version__ = "0.1.0"

_HOMES = {
    "connectors.base": "OP POS BoundedSource Delivery EpochFrame ReadLimits Sink SinkCapabilities SinkContext Snapshot SourceCapabilities"
    " UnboundedSource Visibility",
    "connectors.plugins.sinks": "ArrowSink TransactionalSink",
    "connectors.plugins.sources": "ArrowSource ArrowStream",
    "jobs.sources.side_outputs": "SideOutput",
    "jobs.transforms.plugin": "ArrowTransform fan_out",
    "jobs.transforms.base": "RowTransform TransformContext",
    "pipeline.errors": "DataError FencedError HeadraceError TargetError TransientError UserError",
    "pipeline.plugins.api": "Options Plugin",
    "pipeline.plugins.runtime": "PluginContext",
    "pipeline.protocol.epochs": "CommitRecord EpochPlan WriteCounts",
}
_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}

__all__ = [
    "OP",
    "POS",
    "ArrowSink",
    "ArrowSource",
    "ArrowStream",
    "ArrowTransform",
    "BoundedSource",
    "CommitRecord",
    "DataError",
    "Delivery",
    "EpochFrame",
    "EpochPlan",
    "FencedError",
    "HeadraceError",
    "Options",
    "Plugin",
    "PluginContext",
    "ReadLimits",
    "RowTransform",
    "SideOutput",
    "Sink",
    "SinkCapabilities",
    "SinkContext",
    "Snapshot",
    "SourceCapabilities",
    "TargetError",
    "TransactionalSink",
    "TransformContext",
    "TransientError",
    "UnboundedSource",
    "UserError",
    "Visibility",
    "WriteCounts",
    "fan_out",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        msg = f"module 'headrace' has no attribute {name!r}"
        raise AttributeError(msg)
    from importlib import import_module

    value = globals()[name] = getattr(import_module(f"headrace.{_HOME[name]}"), name)
    return value

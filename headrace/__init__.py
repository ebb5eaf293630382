"""Headrace replicates data from history to live. Every row arrives exactly once.

This module is the plugin API; see docs/guides/plugins.md. Each name is loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.connectors.frame import EpochFrame
    from headrace.connectors.plugins.sinks import ArrowSink, ArrowTransactionalSink
    from headrace.connectors.plugins.sources import ArrowSource, ArrowStream
    from headrace.connectors.sink_base import Sink, SinkContext
    from headrace.connectors.source_base import BoundedSource, Snapshot
    from headrace.connectors.stream_base import ReadLimits, UnboundedSource
    from headrace.jobs.sources.side_outputs import SideOutput
    from headrace.jobs.transforms.base import RowTransform, TransformContext
    from headrace.jobs.transforms.plugin import ArrowTransform, fan_out
    from headrace.pipeline.errors import (
        DataError,
        FencedError,
        HeadraceError,
        TargetError,
        TransientError,
        UserError,
    )
    from headrace.pipeline.model.capabilities import (
        Delivery,
        SinkCapabilities,
        SourceCapabilities,
        Visibility,
    )
    from headrace.pipeline.plugins.api import Options, Plugin
    from headrace.pipeline.plugins.runtime import PluginContext
    from headrace.pipeline.protocol.epochs import CommitRecord, EpochPlan, WriteCounts
    from headrace.pipeline.sql.system_columns import OP, POS

__version__ = "0.1.0"

_HOMES = {
    "connectors.frame": "EpochFrame",
    "connectors.sink_base": "Sink SinkContext",
    "connectors.source_base": "BoundedSource Snapshot",
    "connectors.stream_base": "ReadLimits UnboundedSource",
    "pipeline.model.capabilities": "Delivery SinkCapabilities SourceCapabilities Visibility",
    "pipeline.sql.system_columns": "OP POS",
    "connectors.plugins.sinks": "ArrowSink ArrowTransactionalSink",
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
    "ArrowTransactionalSink",
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

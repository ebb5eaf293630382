"""Sources and sinks of nodes: `connectors.catalog` names their classes.

A module, with its driver, is imported when first used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from headrace.connectors.plugins.contract_checks import create_checked
from headrace.connectors.sink_base import Sink, SinkContext
from headrace.connectors.source_base import BoundedSource
from headrace.connectors.stream_base import UnboundedSource
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import InternalError, UserError
from headrace.pipeline.model.capabilities import SinkCapabilities, SourceCapabilities
from headrace.pipeline.model.connectors import (
    SinkEntry,
    SourceEntry,
    connectors,
    load_reference,
    sink_entries,
    source_entries,
    stream_entries,
)
from headrace.pipeline.model.hybrid import HybridSourceConfig
from headrace.pipeline.model.nodes import PipelineModel
from headrace.pipeline.model.plugins import PluginNodeConfig, PluginSinkConfig, PluginSourceConfig
from headrace.pipeline.model.sources import SourceConfig
from headrace.pipeline.plugins.runtime import PluginContext
from headrace.pipeline.protocol.epochs import Json, SinkKey


def _load(kind: str, entry: SourceEntry | SinkEntry | None) -> Any:
    """Import the class of a connector. Raise UserError if its drivers are not installed."""
    if entry is None:
        msg = f"no connector is registered for type `{kind}`"
        raise InternalError(msg)
    try:
        return load_reference(entry.implementation)
    except ImportError as error:
        msg = f"type `{kind}` needs the package `{error.name}`"
        raise UserError(msg, hint=f"pip install 'headrace[{connectors()[kind].extra or kind}]'") from error


def plugin_context(name: str, node: PluginNodeConfig, settings: Settings, ordinal: int = 0) -> PluginContext:
    """Return the context from which a node's plugin is made."""
    labels = node.telemetry.labels if node.telemetry else {}
    return PluginContext(name, node.parsed, node.installed, node.pipeline, settings.home, ordinal, labels)


def bounded_source(name: str, node: Any, settings: Settings, ordinal: int) -> BoundedSource:
    """Create a bounded source for a node without opening it. `ordinal` is the source's rank in `_gs_pos`."""
    if isinstance(node, PluginSourceConfig):
        context = plugin_context(name, node, settings, ordinal)
        return create_checked(lambda: node.plugin.make(context), BoundedSource, node.installed, name)
    return source_class_of(node.type)(node, settings, ordinal, name)


def unbounded_source(name: str, node: Any, settings: Settings, ordinal: int) -> UnboundedSource:
    """Create an unbounded source without opening it. `name` is used in consumer groups and messages."""
    if isinstance(node, PluginSourceConfig):
        context = plugin_context(name, node, settings, ordinal)
        return create_checked(lambda: node.plugin.make(context), UnboundedSource, node.installed, name)
    return stream_class_of(node.type)(name, node, settings, ordinal)


def open_sink(context: SinkContext) -> Sink:
    """Create a sink for one pipeline. It connects in `prepare`."""
    node = context.node
    if not isinstance(node, PluginSinkConfig):
        return sink_class(node)(context)
    own_context = replace(
        context, extra={**context.extra, "plugin": plugin_context(context.key.sink, node, context.settings)}
    )
    return create_checked(lambda: node.plugin.make(own_context), Sink, node.installed, context.key.sink)


def sink_class(node: Any) -> type[Sink]:
    """Return the class of a sink node, for its capabilities."""
    return node.plugin.make if isinstance(node, PluginSinkConfig) else sink_class_of(node.type)  # pyright: ignore[reportReturnType]


def sink_class_of(kind: str) -> type[Sink]:
    """Return the class of a sink's `type`."""
    return _load(kind, sink_entries().get(kind))


def source_class_of(kind: str) -> Any:
    """Return the class of a source's `type`."""
    return _load(kind, source_entries().get(kind))


def stream_class_of(kind: str) -> Any:
    """Return the class of the source without an end of a `type`."""
    return _load(kind, stream_entries().get(kind) or source_entries().get(kind))


def connector_capabilities(model: PipelineModel) -> Iterator[SourceCapabilities | SinkCapabilities]:
    """Yield the capabilities of all sources and sinks of a file, and of the phases of hybrid sources."""
    yield from (source.capabilities for source in connector_sources(model))
    yield from (sink.capabilities for sink in model.sinks.values())


def connector_sources(model: PipelineModel) -> Iterator[Any]:
    """Yield the nodes of all sources of a file. Each phase of a hybrid source has a node of its own."""
    for source in model.sources.values():
        if isinstance(source, HybridSourceConfig):
            yield from (part.node() for part in (*source.bounded_sources, source.unbounded_source))
        else:
            yield source


def describe(name: str, node: Any, settings: Settings) -> list[Json]:
    """Describe a node's physical resources without opening a connection.

    A hybrid source has several entries. Each entry has `kind`, `asset_key` (parts) and, where it makes sense,
    `scope` (the outer parts of the address), `table_name` or `location`.
    """
    if isinstance(node, HybridSourceConfig):
        phases = [part.node() for part in node.bounded_sources]
        return [
            entry
            for part in (*phases, node.unbounded_source.node())
            for entry in describe(name, part, settings)
        ]
    if isinstance(node, SourceConfig | PluginSourceConfig):
        return [
            (unbounded_source if node.is_unbounded else bounded_source)(name, node, settings, 0).describe()
        ]
    import pyarrow as pa

    if isinstance(node, PluginSinkConfig):
        return [
            open_sink(
                SinkContext(SinkKey("", node.pipeline, "main", name), node, settings, pa.schema([]))
            ).describe()
        ]
    key = SinkKey("", "", "main", name)
    return [sink_class(node)(SinkContext(key, node, settings, pa.schema([]))).describe()]

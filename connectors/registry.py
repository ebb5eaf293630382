"""Which class serves which `type` of a pipeline file. Modules, and with them drivers, are imported when first asked for."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any

from headrace.connectors.base import BoundedSource, Sink, SinkContext, UnboundedSource
from headrace.connectors.plugins.contract_checks import create_checked
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import InternalError, UserError
from headrace.pipeline.model.plugins import PluginNodeConfig, PluginSinkConfig, PluginSourceConfig
from headrace.pipeline.plugins.runtime import PluginContext
from headrace.pipeline.protocol.epochs import Json, SinkKey

_BOUNDED = {"clickhouse": "clickhouse:ClickHouseTable", "iceberg": "iceberg:IcebergTable", "file": "files:Files"}
_UNBOUNDED = {"kafka": "kafka:KafkaStream"}
_SINKS = {
    "postgres": "postgres:PostgresSink",
    "delta": "delta:DeltaTableSink",
    "iceberg": "iceberg:IcebergTableSink",
    "print": "console:PrintSink",
    "blackhole": "console:BlackholeSink",
}
_EXTRAS = {"clickhouse": "clickhouse", "kafka": "kafka", "postgres": "postgres", "delta": "delta"}


def _load(table: dict[str, str], kind: str) -> Any:
    if kind not in table:
        msg = f"no connector is registered for type `{kind}`"
        raise InternalError(msg)
    module, name = table[kind].split(":")
    try:
        return getattr(import_module(f"headrace.connectors.{module}"), name)
    except ImportError as error:
        msg = f"type `{kind}` needs the package `{error.name}`"
        raise UserError(msg, hint=f"pip install 'headrace[{_EXTRAS.get(kind, kind)}]'") from error


def plugin_context(name: str, node: PluginNodeConfig, settings: Settings, ordinal: int = 0) -> PluginContext:
    """Return the context from which a node's plugin is made."""
    labels = node.telemetry.labels if node.telemetry else {}
    return PluginContext(name, node.parsed, node.found, node.pipeline, settings.home, ordinal, labels)


def bounded_source(name: str, node: Any, settings: Settings, ordinal: int) -> BoundedSource:
    """Create a bounded source for a node without opening it. `ordinal` is the source's rank in `_gs_pos`."""
    if isinstance(node, PluginSourceConfig):
        context = plugin_context(name, node, settings, ordinal)
        return create_checked(lambda: node.plugin.make(context), BoundedSource, node.found, name)
    return _load(_BOUNDED, node.type)(node, settings, ordinal, name)


def unbounded_source(name: str, node: Any, settings: Settings, ordinal: int) -> UnboundedSource:
    """Create an unbounded source without opening it. `name` is used in consumer groups and messages."""
    if isinstance(node, PluginSourceConfig):
        context = plugin_context(name, node, settings, ordinal)
        return create_checked(lambda: node.plugin.make(context), UnboundedSource, node.found, name)
    return _load(_UNBOUNDED, node.type)(name, node, settings, ordinal)


def open_sink(context: SinkContext) -> Sink:
    """Create a sink for one pipeline. It connects in `prepare`."""
    node = context.node
    if not isinstance(node, PluginSinkConfig):
        return sink_class(node)(context)
    given = replace(context, extra={**context.extra, "plugin": plugin_context(context.key.sink, node, context.settings)})
    return create_checked(lambda: node.plugin.make(given), Sink, node.found, context.key.sink)


def sink_class(node: Any) -> type[Sink]:
    """Return the class of a sink node, for its capabilities."""
    return node.plugin.make if isinstance(node, PluginSinkConfig) else sink_class_of(node.type)  # pyright: ignore[reportReturnType]


def sink_class_of(kind: str) -> type[Sink]:
    """Return the class of a sink's `type`."""
    return _load(_SINKS, kind)


def source_class_of(kind: str) -> type[BoundedSource | UnboundedSource] | None:
    """Return the class of a source's `type`, or None for a type that is made of other sources."""
    return _load(_BOUNDED | _UNBOUNDED, kind) if kind in _BOUNDED or kind in _UNBOUNDED else None


def without_spark(kind: str) -> bool:
    """Return whether sources and sinks of a `type` can be checked without a session."""
    tables = [table for table in (_BOUNDED, _UNBOUNDED, _SINKS) if kind in table]
    return all(_load(table, kind).capabilities.without_spark for table in tables)


def describe(name: str, node: Any, settings: Settings) -> list[Json]:
    """Describe a node's physical resources without opening a connection.

    A hybrid source has several entries. Each entry has `kind`, `asset_key` (parts) and, where it makes sense,
    `table_name` or `location`.
    """
    if node.type == "hybrid":
        phases = [part.node() for part in node.bounded_sources]
        return [entry for part in (*phases, node.unbounded_source.node()) for entry in describe(name, part, settings)]
    if isinstance(node, PluginSourceConfig):
        return [(unbounded_source if node.is_unbounded else bounded_source)(name, node, settings, 0).describe()]
    if node.type in _BOUNDED:
        return [bounded_source(name, node, settings, 0).describe()]
    if node.type in _UNBOUNDED:
        return [unbounded_source(name, node, settings, 0).describe()]
    import pyarrow as pa

    if isinstance(node, PluginSinkConfig):
        return [open_sink(SinkContext(SinkKey("", node.pipeline, "main", name), node, settings, pa.schema([]))).describe()]
    key = SinkKey("", "", "main", name)
    return [sink_class(node)(SinkContext(key, node, settings, pa.schema([]))).describe()]

"""Delta: a table at a path as a sink."""

from __future__ import annotations

from headrace.connectors.delta.sink import DeltaTableSink

__all__ = ["DeltaTableSink"]

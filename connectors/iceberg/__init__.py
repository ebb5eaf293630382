"""Iceberg tables of a hadoop catalog: as bounded sources, pinned by snapshot and split by data files, and as sinks."""

from __future__ import annotations

from headrace.connectors.iceberg.sink import IcebergTableSink
from headrace.connectors.iceberg.source import IcebergTable

__all__ = ["IcebergTable", "IcebergTableSink"]

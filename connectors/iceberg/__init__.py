"""Iceberg tables of a hadoop catalog as bounded sources: pinned by snapshot, split by data files."""

from __future__ import annotations

from headrace.connectors.iceberg.source import IcebergTable

__all__ = ["IcebergTable"]

"""Files as a bounded source: parquet, csv and json lines, pinned by size and time of change."""

from __future__ import annotations

from headrace.connectors.files.source import Files

__all__ = ["Files"]

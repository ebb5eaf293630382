"""ClickHouse as a bounded source: pinned by hard links, split by its sorting key, read as Arrow over HTTP."""

from __future__ import annotations

from headrace.connectors.clickhouse.source import ClickHouseTable

__all__ = ["ClickHouseTable"]

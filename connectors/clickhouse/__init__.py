"""ClickHouse as a bounded source: pinned by hard links, split by its sorting key, read as Arrow over HTTP."""

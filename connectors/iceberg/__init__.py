"""Iceberg tables of a hadoop catalog: sinks, and bounded sources, pinned by snapshot and split by file."""

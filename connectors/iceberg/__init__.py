"""Iceberg tables of a hadoop catalog: as bounded sources, pinned by snapshot and split by data files, and as sinks."""

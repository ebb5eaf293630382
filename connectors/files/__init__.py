"""Files as a bounded source: parquet, csv and json lines, pinned by size and time of change."""

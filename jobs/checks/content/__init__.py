"""The content audit: rows of a sink compared with rows that are computed from the sources again, by another way than the writes."""

"""The content audit: compares the rows of a sink with rows that are computed from the sources again."""

"""Delta: a table at a path as a sink."""

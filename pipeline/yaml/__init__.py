"""YAML with the location of each key, and `${VAR}` in its strings."""

"""Pipeline files: load, JSON Schema, automatic fixes, and the comparison of two versions."""

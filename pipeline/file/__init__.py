"""Pipeline files: reading one, its JSON Schema, automatic repair, and the comparison of two versions."""

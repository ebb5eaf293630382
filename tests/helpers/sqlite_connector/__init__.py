"""A connector for SQLite, as a contributor adds it: this package and an entry in the catalog."""

"""A connector for SQLite, as a committer adds it: this package and one entry in the catalog."""

"""A Postgres table as a bounded source."""

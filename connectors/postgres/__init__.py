"""Postgres: one transaction holds the rows of an epoch and the record of it."""

"""Connections to Postgres, with retries and errors: for sinks, sources and dynamic tables."""

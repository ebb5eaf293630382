"""The target table of a Postgres sink: its checks, its column types and the statements that merge rows."""

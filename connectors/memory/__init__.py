"""The `memory` sink, and its tables for tests: `from headrace.connectors.memory.tables import read_table`."""

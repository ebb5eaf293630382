"""Shared by the tests: servers with data, stand-ins, oracles, and programs that tests start as processes."""

"""Helpers of the tests: servers with data, fakes, oracles, and programs that tests start as processes."""

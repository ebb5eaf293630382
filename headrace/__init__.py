"""Headrace carries data from history to live, every row exactly once."""

__version__ = "0.1.0"

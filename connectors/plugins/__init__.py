"""Connectors that plugins bring: bases that are easy to write on, and the host's side of them."""

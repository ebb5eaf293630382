"""The `python` source: rows of a function of the user's own package."""

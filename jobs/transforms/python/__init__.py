"""Transforms in Python: rows through a function of the user's own package."""

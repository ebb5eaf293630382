"""Plugins: code of other packages, imported when a pipeline file or a setting names it."""

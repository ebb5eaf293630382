"""Transforms in JavaScript and TypeScript: rows through a function of the pipeline file, in a sandbox."""

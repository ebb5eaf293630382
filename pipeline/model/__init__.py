"""The models of a pipeline file: nodes, options, and their graph."""

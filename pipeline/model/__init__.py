"""The models of a pipeline file: nodes, options, and the graph that they form."""

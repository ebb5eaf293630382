"""The demo: real flights from history to live, with a kill in the middle.

At the end all rows are compared.
"""

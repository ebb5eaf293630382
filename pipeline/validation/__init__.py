"""Checks of a pipeline file without a connection, and the messages for mistakes."""

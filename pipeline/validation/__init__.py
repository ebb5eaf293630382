"""Checks of a pipeline file that need no connection, and the messages for mistakes."""

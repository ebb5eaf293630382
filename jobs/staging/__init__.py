"""Stored results of non-deterministic nodes."""

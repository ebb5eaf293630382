"""Staged rows of non-deterministic nodes."""

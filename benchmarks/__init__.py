"""Benchmarks of Headrace next to a minimal program for the same task, in one run."""

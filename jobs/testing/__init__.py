"""Tests of pipelines: given rows go through a run's planner and SQL, on a small session of their own."""

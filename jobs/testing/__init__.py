"""Tests of pipelines: given rows through the same planner and the same SQL as a run's, on a small session of their own."""

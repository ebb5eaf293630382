"""Transforms by type. The planner itself runs the SQL of `sql` transforms."""

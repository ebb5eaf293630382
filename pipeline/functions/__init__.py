"""Functions of `sql` transforms beyond Spark's own: what each means, and how a statement that calls them becomes plain Spark SQL."""

from __future__ import annotations

from headrace.pipeline.functions.expand import expand, function_of, wide_outputs
from headrace.pipeline.functions.registry import ARROW, ERROR, Call, Function, Group, Where, distinct, functions, named, register, written
from headrace.pipeline.functions.syntax import left_alone, with_clauses

__all__ = [
    "ARROW",
    "ERROR",
    "Call",
    "Function",
    "Group",
    "Where",
    "distinct",
    "expand",
    "function_of",
    "functions",
    "left_alone",
    "named",
    "register",
    "wide_outputs",
    "with_clauses",
    "written",
]

"""Functions of `sql` transforms beyond Spark's own: what each means, and how a statement that calls them becomes plain Spark SQL."""

from __future__ import annotations

from headrace.pipeline.functions.grammar import with_clauses
from headrace.pipeline.functions.registry import (
    ARROW,
    ERROR,
    Call,
    Function,
    Group,
    Where,
    distinct,
    functions,
    named,
    offered,
    parsed_names,
    register,
)
from headrace.pipeline.functions.rewrite import expand, function_of, tell_apart

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
    "named",
    "offered",
    "parsed_names",
    "register",
    "tell_apart",
    "with_clauses",
]

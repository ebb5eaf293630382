"""Functions of `sql` transforms beyond Spark's own, and their expansion into plain Spark SQL."""

from __future__ import annotations

from headrace.pipeline.functions.grammar import with_clauses
from headrace.pipeline.functions.registry import (
    ARROW,
    ERROR,
    DialectScope,
    Function,
    FunctionCall,
    Group,
    distinct,
    find_function,
    functions,
    parsed_names,
    register,
    suggestable_names,
)
from headrace.pipeline.functions.rewrite import expand, function_of, number_generated_rows

__all__ = [
    "ARROW",
    "ERROR",
    "DialectScope",
    "Function",
    "FunctionCall",
    "Group",
    "distinct",
    "expand",
    "find_function",
    "function_of",
    "functions",
    "number_generated_rows",
    "parsed_names",
    "register",
    "suggestable_names",
    "with_clauses",
]

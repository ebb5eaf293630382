"""Replaces calls in a statement by their expressions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlglot import exp

from headrace.pipeline.errors import UserError
from headrace.pipeline.functions.clocks import NUMBERS
from headrace.pipeline.functions.registry import (
    Function,
    FunctionCall,
    check_count,
    display_name,
    find_function,
)
from headrace.pipeline.functions.templates import expand_call

_BARE = ("current_time",)
"""Functions that may be called without brackets. A column of that name must be quoted."""


_OUTSIDE = (
    "Call it before the list is made, or make a row of each item: LATERAL VIEW explode(list) e AS x, and"
    " call it on x."
    " A lambda can compare a 256-bit integer with its variables: <, =, BETWEEN."
)


def expand(query: exp.Query, *, node: str = "", now: datetime | None = None) -> None:
    """Replace every call of a registered function, the inner ones first. `now` is the epoch's planned time.

    Raise UserError, with the node, for a wrong number of arguments or an argument that the function cannot
    take.
    """
    calls = [part for part in query.walk() if function_of(part) is not None]
    for place, part in reversed(list(enumerate(calls))):
        function = function_of(part)
        assert function is not None  # noqa: S101  it was just asked
        name, args, options = _call(part)
        call = FunctionCall(display_name(name), tuple(args), options, node, place, now, _is_column(part))
        check_count(function, call)
        made = expand_call(function, call)
        if (
            function.arrow
            and not isinstance(made, exp.Literal)
            and part.find_ancestor(exp.Lambda) is not None
        ):
            msg = (
                f"`{part.sql(dialect='spark')}` is in a lambda, and `{display_name(name)}` takes whole"
                " columns: Spark cannot call it there"
            )
            raise UserError(msg, hint=_OUTSIDE, node=node)
        part.replace(made)


def function_of(node: exp.Expr) -> Function | None:
    """Return the function that an expression calls. None for every other expression."""
    name, args, _ = _call(node)
    return find_function(name, len(args)) if name else None


def _call(node: exp.Expr) -> tuple[str, list[exp.Expr], dict[str, exp.Expr]]:
    """Return name, arguments and clauses of a call. The name is empty for every other expression."""
    if isinstance(node, exp.Anonymous):
        args = [arg for arg in node.expressions if not isinstance(arg, exp.Kwarg)]
        return (
            node.name,
            args,
            {arg.this.name: arg.expression for arg in node.expressions if isinstance(arg, exp.Kwarg)},
        )
    if isinstance(node, exp.JSONObject):
        parts = [
            part
            for pair in node.expressions
            for part in ((pair.this, pair.expression) if isinstance(pair, exp.JSONKeyValue) else (pair,))
        ]
        absent = "ABSENT" in str(node.args.get("null_handling") or "").upper()
        return "json_object_absent_on_null" if absent else "json_object", parts, {}
    if isinstance(node, exp.Is) and isinstance(node.expression, exp.JSON):
        kind = node.expression.args.get("this") or "VALUE"
        return "is_json", [node.this, exp.Literal.string(str(kind))], {}
    if isinstance(node, exp.CurrentTime | exp.Localtime):
        return "current_time", [], {}
    if (
        isinstance(node, exp.Column)
        and node.name.lower() in _BARE
        and not node.table
        and not node.this.args.get("quoted")
    ):
        return node.name, [], {}
    return "", [], {}


def _is_column(part: exp.Expr) -> bool:
    """Return whether an expression is a column of a SELECT, ignoring aliases, parentheses and casts."""
    above = part.parent
    while isinstance(above, (exp.Alias, exp.Paren, exp.Cast)):
        above = above.parent
    return isinstance(above, exp.Select)


def number_generated_rows(select: exp.Select, numbers: Sequence[exp.Expr]) -> None:
    """Make ids in a SELECT depend on the number of the generated row."""
    if numbers:
        texts = [
            exp.Cast(this=number.copy(), to=exp.DataType.build("string", dialect="spark"))
            for number in numbers
        ]
        for mark in [one for one in select.find_all(exp.Literal) if one.meta.get(NUMBERS)]:
            mark.replace(exp.Anonymous(this="concat_ws", expressions=[exp.Literal.string(":"), *texts]))

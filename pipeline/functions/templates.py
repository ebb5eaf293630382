"""Turns templates into expressions.

Function names in a template are Spark's, and stay as they are written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, ClassVar, cast

import sqlglot
from sqlglot import exp
from sqlglot.dialects.spark import Spark

from headrace.pipeline.errors import ROW_ERROR, UserError
from headrace.pipeline.functions.registry import ARROW, ERROR, Function, FunctionCall
from headrace.pipeline.types.int256 import INT256, UINT256

_WHOLE = re.compile(r"-?[0-9]{1,100}")
_KEPT = ("CAST", "TRY_CAST")
_SIMPLE = (exp.Column, exp.Literal, exp.Func, exp.Paren, exp.Null, exp.Boolean, exp.Dot, exp.Bracket, exp.Neg)
INNER = "headrace_inner"
"""The meta key of an expanded call without the check of its result."""
NAME = "headrace_function"
"""The meta key of the function name of an expanded call."""


class _Template(Spark):
    """Spark's grammar without functions that would be written differently."""

    class Parser(Spark.Parser):
        FUNCTIONS: ClassVar[dict[str, Callable[..., Any]]] = {}
        FUNCTION_PARSERS: ClassVar[dict[str, Callable[..., Any]]] = {
            name: parser for name, parser in Spark.Parser.FUNCTION_PARSERS.items() if name in _KEPT
        }


@lru_cache(maxsize=1024)
def _parse_template(template: str) -> exp.Expr:
    return cast("exp.Select", sqlglot.parse_one(f"SELECT {template}", dialect=_Template)).selects[0]


def fill(template: str, args: Sequence[exp.Expr], **named: exp.Expr) -> exp.Expr:
    """Return the template with `_1`, `_2` and `_name` replaced. Its lambda variables begin with `hr_`."""
    values = {f"_{place}": arg for place, arg in enumerate(args, start=1)} | {
        f"_{name}": arg for name, arg in named.items()
    }
    whole = exp.Paren(this=_parse_template(template).copy())
    for column in list(whole.find_all(exp.Column)):
        if not column.table and column.name in values:
            column.replace(_safe(values[column.name]))
    return whole.this if isinstance(whole.this, _SIMPLE) else whole


def _safe(arg: exp.Expr) -> exp.Expr:
    return arg.copy() if isinstance(arg, _SIMPLE) else exp.Paren(this=arg.copy())


def expand_call(function: Function, call: FunctionCall) -> exp.Expr:
    """Return the Spark expression that replaces a call."""
    if function.arrow:
        result = _arrow(function, call)
    elif isinstance(function.sql, str):
        missing = len(call.args) - (function.most or 0)
        extra = [_parse_template(default) for default in function.defaults[missing:]] if missing < 0 else []
        result = with_failures(fill(function.sql, [*call.args, *extra]), call.node)
    else:
        result = function.sql(call)
    result.meta[NAME] = function.name
    return result


def _arrow(function: Function, call: FunctionCall) -> exp.Expr:
    """Return a call of an Arrow function.

    An error in an argument passes through it, and is raised outside.
    """
    if (known := _known_number(function, call)) is not None:
        return known
    args = [arg.meta.get(INNER, arg) for arg in call.args]
    extra = (
        [_parse_template(default) for default in function.defaults[len(args) - (function.most or 0) :]]
        if len(args) < (function.most or 0)
        else []
    )
    inner = exp.Anonymous(this=ARROW + function.name, expressions=[arg.copy() for arg in (*args, *extra)])
    if function.returns != "string":
        return inner
    template = (
        f"CASE WHEN startswith(_1, '{ERROR}') THEN _raise ELSE"
        f" {f'CAST(_1 AS {function.cast})' if function.cast else '_1'} END"
    )
    result = fill(template, [inner], **{"raise": failing(fill("substr(_1, 2)", [inner]), call.node)})
    if not function.cast:
        result.meta[INNER] = inner
    return result


def _known_number(function: Function, call: FunctionCall) -> exp.Expr | None:
    """Return the digits of a literal integer that is in range. None leaves other arguments to the rows."""
    kind = {"to_u256": UINT256, "to_i256": INT256}.get(function.name)
    if kind is None:
        return None
    arg = call.args[0].unnest()
    literal = arg.this if isinstance(arg, exp.Neg) else arg
    text = f"{'-' if literal is not arg else ''}{literal.name}" if isinstance(literal, exp.Literal) else ""
    if not _WHOLE.fullmatch(text) or not kind.lowest <= int(text) <= kind.highest:
        return None
    return exp.Literal.string(str(int(text)))


def with_failures(value: exp.Expr, node: str) -> exp.Expr:
    """Return the expression with each `hr_fail(text)` replaced by an error of this node."""
    for part in [one for one in value.find_all(exp.Anonymous) if one.name == "hr_fail"]:
        part.replace(failing(part.expressions[0], node))
    return value


def failing(what: exp.Expr, node: str) -> exp.Expr:
    """Return an expression that fails the row with this text and the name of the node."""
    return fill(
        "raise_error(concat(_mark, to_json(named_struct('node', _node, 'what', _1, 'hint', ''))))",
        [what],
        mark=exp.Literal.string(ROW_ERROR),
        node=exp.Literal.string(node),
    )


def text_of(arg: exp.Expr) -> str | None:
    """Return the value of a string literal. None for any other expression."""
    return arg.this if isinstance(arg, exp.Literal) and arg.is_string else None


def literal_text(call: FunctionCall, place: int, what: str) -> str:
    """Return the string literal at an argument's index (from 0). Raise UserError for any other expression."""
    text = text_of(call.args[place])
    if text is None:
        msg = f"`{call.name}`: {what} must be written out as a text, found `{call.args[place].sql('spark')}`"
        raise UserError(
            msg,
            hint="Its value decides the columns of the result, so it is needed before any row is read.",
            node=call.node,
        )
    return text


def field_of(variable: str, name: str) -> exp.Expr:
    """Return a field of a lambda's variable."""
    return exp.Dot(this=exp.to_identifier(variable), expression=exp.to_identifier(name, quoted=True))


def quote_json(text: str) -> str:
    """Return a string as JSON."""
    return json.dumps(text, ensure_ascii=False)

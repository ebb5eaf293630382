"""Lists of numbers that Spark has no room for: what a lambda's variables are, and functions that would take their digits for a text."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from sqlglot import exp

from headrace.pipeline.dialect_functions import template
from headrace.pipeline.errors import UserError
from headrace.pipeline.wide_kinds import UNKNOWN, held, is_wide_number, items_of, type_of_wide, wide_of_type

Compare = Callable[[exp.Expr, exp.Expr], exp.Expr]
"""Makes -1, 0 or 1 of two numbers."""

_NUMBER = exp.DataType.build("INT")
_OF_MAPS = ("map_filter", "transform_keys", "transform_values")
_ONE_BESIDE: tuple[type[exp.Expr], ...] = (
    exp.ArrayContains,
    exp.ArrayPosition,
    exp.ArrayRemove,
    exp.ArrayAppend,
    exp.ArrayPrepend,
    exp.ArrayInsert,
)


def bind(given: exp.Expr) -> None:
    """Puts types on the variables of a lambda, wherever they stand in it: those of what its function hands it."""
    if not isinstance(given, exp.Lambda) or given.parent is None:
        return
    names = [one.name.lower() for one in given.expressions]
    kinds = dict(zip(names, [*_handed(given.parent, given), *[UNKNOWN] * len(names)], strict=False))
    for part in given.this.find_all(exp.Identifier, exp.Column):
        above = part.parent
        is_name = isinstance(part, exp.Identifier) and (isinstance(above, exp.Column) or part.arg_key == "alias" or _is_field(part))
        if not is_name and not (isinstance(part, exp.Column) and part.table) and part.name.lower() in kinds:
            part.type = kinds[part.name.lower()]


def _is_field(name: exp.Identifier) -> bool:
    """Whether it names a field of a struct."""
    return (isinstance(name.parent, exp.Dot) and name.arg_key == "expression") or (
        isinstance(name.parent, exp.PropertyEQ) and name.arg_key == "this"
    )


def _handed(call: exp.Expr, given: exp.Lambda) -> list[exp.DataType]:
    """The types of what a function calls a lambda with."""
    if isinstance(call, exp.Reduce):
        start = held(call.args["initial"])
        return [start] if given.arg_key == "finish" else [start, items_of(call.this) or UNKNOWN]
    name = call.name.lower() if isinstance(call, exp.Anonymous) else ""
    lists = [part for part in call.iter_expressions() if not isinstance(part, exp.Lambda)]
    if not lists:
        return []
    if name in _OF_MAPS or name == "map_zip_with":
        parts = [held(one).expressions for one in lists]
        if any(len(part) != 2 for part in parts):
            return []
        return [parts[0][0], *(part[1] for part in parts)]
    if name == "zip_with":
        return [items_of(one) or UNKNOWN for one in lists]
    item = items_of(lists[0]) or UNKNOWN
    return [item, item if isinstance(call, exp.ArraySort) else _NUMBER]


def of_list(node: exp.Expr, compare: Compare, alike: Callable[[exp.Expr, exp.Expr], exp.Expr]) -> exp.Expr:
    """A function of a list of wide numbers that compares them as numbers; every other expression as it is.

    `alike` makes what is looked for in a list, or put into it, a number like another. Raises UserError where it cannot be one.
    """
    if isinstance(node, _ONE_BESIDE) and (kind := wide_of_type(items_of(node.this))) is not None:
        value = node.expression
        if not is_wide_number(value):
            value.replace(alike(value, _variable("hr_x", kind)))
        return node
    if isinstance(node, exp.ArrayContains) and isinstance(node.this, exp.Array) and is_wide_number(node.expression):
        for item in node.this.expressions:
            item.replace(alike(item, node.expression))
        return node
    if isinstance(node, exp.ArrayMax | exp.ArrayMin) and (kind := wide_of_type(items_of(node.this))) is not None:
        return _furthest(node, kind, compare)
    if isinstance(node, exp.ArraySort) and node.expression is None and (kind := wide_of_type(items_of(node.this))) is not None:
        return _sorted(node, kind, compare)
    return node


def _furthest(node: exp.ArrayMax | exp.ArrayMin, kind: pa.DataType, compare: Compare) -> exp.Expr:
    """The largest or smallest item; NULLs are passed over."""
    found, one = _variable("hr_a", kind), _variable("hr_x", kind)
    sign = ">" if isinstance(node, exp.ArrayMax) else "<"
    chosen = f"CASE WHEN hr_a IS NULL THEN hr_x WHEN hr_x IS NULL THEN hr_a WHEN _1 {sign} 0 THEN hr_x ELSE hr_a END"
    made = template(f"aggregate(_0, CAST(NULL AS STRING), (hr_a, hr_x) -> {chosen})", node.this, compare(one, found))
    made.args["initial"].type = type_of_wide(kind)
    return made


def _sorted(node: exp.ArraySort, kind: pa.DataType, compare: Compare) -> exp.Expr:
    """`array_sort` and `sort_array`, by numbers."""
    down, first = (node.args.get(key) for key in ("asc", "nulls_first"))
    if any(isinstance(said, exp.Expr) and not isinstance(said, exp.Boolean) for said in (down, first)):
        msg = f"`{node.sql(dialect='spark')}` has an order that a row decides, over a list of {kind}"
        raise UserError(
            msg, hint="Write true or false, or CASE over both: CASE WHEN up THEN sort_array(xs) ELSE sort_array(xs, false) END."
        )
    left, right = _variable("hr_a", kind), _variable("hr_b", kind)
    sides = (right, left) if isinstance(down, exp.Boolean) and not down.this else (left, right)
    null = -1 if isinstance(first, exp.Boolean) and first.this else 1
    order = f"CASE WHEN hr_a IS NULL AND hr_b IS NULL THEN 0 WHEN hr_a IS NULL THEN {null} WHEN hr_b IS NULL THEN {-null} ELSE _1 END"
    return template(f"array_sort(_0, (hr_a, hr_b) -> {order})", node.this, compare(*sides))


def _variable(name: str, kind: pa.DataType) -> exp.Expr:
    found = exp.to_identifier(name)
    found.type = type_of_wide(kind)
    return found

"""Portable SQL: transforms that mean the same in Spark, in ClickHouse and over Arrow, for bulk copy.

It is a whitelist, typed from the schema of the source, so that values and types are as Spark would give them.
Everything else runs in Spark. Left out on purpose, because the engines differ: arithmetic on decimals and,
except over Arrow, on integers (Spark refuses overflows, ClickHouse wraps), division by anything but a literal
(Spark refuses zero), casts that can fail or round, most string functions, clocks. Translated with care:
floating point (in Spark NaN equals NaN and is the largest number), columns hidden by aliases (ClickHouse
would take the alias).

Over rows in the driver more is portable: what means the same for most values. There Arrow checks the values,
and leaves rows with others to Spark (`guarded`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from sqlglot import exp

from headrace.jobs.planning import portable_decimals as decimals
from headrace.jobs.planning.portable_functions import RULES, guard_cast, read_type
from headrace.jobs.planning.portable_values import (
    INTS,
    NOTHING,
    NUMBER,
    TEXT,
    TIMESTAMP,
    Expression,
    UntranslatableError,
    boolean,
    cast_without_loss,
    common,
    compare,
    double,
    ensure_type,
    integer_kind,
    is_decimal_kind,
    kind_of,
    leave_out,
    literal,
    present_arguments,
    to_integer,
    to_timestamp_literal,
)
from headrace.pipeline.errors import UserError
from headrace.pipeline.sql import statements
from headrace.pipeline.sql.filter_marking import Marking, find_conditions_for_good

_MANY = 200
_LAZY = (exp.Case, exp.If, exp.Coalesce, exp.And, exp.Or, exp.Where)
"""Spark does not compute all of their parts for each row: a part that fails may be one that it skips."""


@dataclass(frozen=True, slots=True)
class PortableSelect:
    """A SELECT over one input: the names and values of its columns, and the condition of its rows."""

    outputs: tuple[tuple[str, Expression], ...]
    condition: Expression | None
    lasting: Expression | None = None
    """The part of the condition that drops rows permanently, see `Marking`. The rest marks them."""


def parse_portable(
    sql: str,
    source_name: str,
    schema: pa.Schema,
    *,
    any_year: bool = False,
    integers: bool = False,
    guarded: bool = False,
    marking: Marking | None = None,
) -> PortableSelect | None:
    """Return a transform, or None if its meaning may differ between engines.

    Args:
        sql: a transform in Spark SQL.
        source_name: the only node that it may read.
        schema: the payload of that node as Spark sees it.
        any_year: the input may have dates of all years.
        integers: the engine refuses integers that overflow, as Spark does.
        guarded: the engine leaves rows to Spark if an operation may mean something else for their values.
        marking: how the transform keeps rows that its filter drops.
    """
    try:
        result = statements.parse(sql)
    except UserError:
        return None
    if not isinstance(result, exp.Select) or "\\" in sql:  # what a backslash means in text differs by engine
        return None
    parser = _SelectParser(source_name, schema, any_year=any_year, integers=integers, guarded=guarded)
    try:
        return parser.parse(result, find_conditions_for_good(result, marking) if marking else ())
    except UntranslatableError:
        return None


class _SelectParser:
    """Parses one SELECT over one input."""

    def __init__(
        self, source_name: str, schema: pa.Schema, *, any_year: bool, integers: bool, guarded: bool
    ) -> None:
        self._source = source_name
        self._any_year = any_year
        self._integers = integers or guarded
        self._guarded = guarded
        self._columns = {field.name: kind_of(field.type) for field in schema}
        self._names = {source_name}
        self._rules: dict[type[exp.Expr], Callable[[Any], Expression]] = {
            exp.Column: self._column, exp.Paren: lambda node: self.value(node.this), exp.Literal: literal,
            exp.Neg: self._negative,
            exp.Boolean: lambda node: Expression("boolean", "Bool", text="true" if node.this else "false"),
            exp.Null: lambda _: NOTHING, exp.Add: self._arithmetic, exp.Sub: self._arithmetic,
            exp.Mul: self._arithmetic, exp.Div: self._division, exp.EQ: self._comparison,
            exp.NEQ: self._comparison, exp.LT: self._comparison, exp.LTE: self._comparison,
            exp.GT: self._comparison, exp.GTE: self._comparison, exp.Between: self._between, exp.In: self._in,
            exp.Like: self._like, exp.And: self._logic, exp.Or: self._logic, exp.Not: self._not,
            exp.Is: self._is, exp.Case: self._case, exp.If: self._if, exp.Coalesce: self._coalesce,
            exp.Cast: self._cast, exp.TryCast: self._cast, exp.DPipe: self._concat, exp.Concat: self._concat,
            exp.Nullif: self._null_if, exp.Trim: self._trim, exp.Length: self._length,
            exp.Mod: self._remainder,
        }  # fmt: skip
        if guarded:
            self._rules |= {kind: partial(rule, self.value) for kind, rule in RULES.items()}

    def parse(self, statement: exp.Select, lasting: Sequence[exp.Expr] = ()) -> PortableSelect:
        """Return the whole statement. `lasting` are conditions of its WHERE."""
        if set(present_arguments(statement)) - {
            "expressions",
            "from_",
            "where",
            "kind",
        } or statement.args.get("kind"):
            raise leave_out(statement)
        table = statement.args["from_"].this if statement.args.get("from_") else None
        if (
            not isinstance(table, exp.Table)
            or set(present_arguments(table)) - {"this", "alias"}
            or table.name != self._source
        ):
            raise leave_out(table)
        if table.alias:
            if present_arguments(table.args["alias"]) != ["this"]:
                raise leave_out(table)
            self._names = {table.alias}
        outputs = tuple(output for node in statement.expressions for output in self._outputs(node))
        names = [name.lower() for name, _ in outputs]
        if len(set(names)) != len(names):
            raise leave_out(statement)
        where = statement.args.get("where")
        return PortableSelect(
            outputs,
            self._truth(where.this) if where else None,
            boolean("and", *map(self._truth, lasting)) if lasting else None,
        )

    def _outputs(self, node: exp.Expr) -> list[tuple[str, Expression]]:
        """Return the names and values of one item of the SELECT list.

        Expressions need an alias: Spark makes names up for the rest.
        """
        every = [(name, Expression("column", kind, text=name)) for name, kind in self._columns.items()]
        if isinstance(node, exp.Star):
            if present_arguments(node):
                raise leave_out(node)
            return every
        if isinstance(node, exp.Column) and isinstance(node.this, exp.Star):
            if node.table not in self._names or present_arguments(node.this):
                raise leave_out(node)
            return every
        if isinstance(node, exp.Column):
            return [(node.name, self._column(node))]
        if not isinstance(node, exp.Alias):
            raise leave_out(node)
        value = self.value(node.this)
        if isinstance(node.this, exp.Column):
            return [(node.alias, value)]
        kind = {TEXT: "String", NUMBER: ""}.get(value.kind, value.kind) or integer_kind(value)
        return [(node.alias, ensure_type(value, kind))]

    def value(self, node: exp.Expr) -> Expression:
        """Return an expression of the whitelist."""
        rule = self._rules.get(type(node))
        if rule is None:
            raise leave_out(node)
        return rule(node)

    def _truth(self, node: exp.Expr) -> Expression:
        value = self.value(node)
        if value.kind != "Bool":
            raise leave_out(node)
        return value

    def _column(self, node: exp.Column) -> Expression:
        if (
            set(present_arguments(node)) - {"this", "table"}
            or (node.table and node.table not in self._names)
            or node.name not in self._columns
        ):
            raise leave_out(node)
        return Expression("column", self._columns[node.name], text=node.name)

    def _negative(self, node: exp.Neg) -> Expression:
        value = self.value(node.this)
        if isinstance(node.this, exp.Literal) and value.kind == NUMBER:
            return Expression("number", NUMBER, text=f"-{value.text}")
        if value.kind == "Float64" or (self._integers and decimals.is_decimal(value)):
            return Expression("negate", value.kind, (value,))
        if value.kind not in INTS or not self._guarded:
            raise leave_out(node)
        return Expression("negate_checked", value.kind, (value,))

    def _arithmetic(self, node: exp.Binary) -> Expression:
        left, right = self.value(node.left), self.value(node.right)
        operation = {exp.Add: "add", exp.Sub: "subtract", exp.Mul: "multiply"}[type(node)]
        if "Float64" in (left.kind, right.kind):
            return Expression(operation, "Float64", (double(left), double(right)))
        if not self._integers:
            raise leave_out(node)
        if decimals.is_decimal(left) or decimals.is_decimal(right):
            return decimals.compute(node, left, right)
        if not self._guarded and node.find_ancestor(*_LAZY):
            raise leave_out(node)
        whole = [to_integer(one) if one.kind == NUMBER else one for one in (left, right)]
        if not {one.kind for one in whole} <= set(INTS):
            raise leave_out(node)
        kind = common(whole)
        return Expression(f"{operation}_checked", kind, tuple(ensure_type(one, kind) for one in whole))

    def _division(self, node: exp.Div) -> Expression:
        left, right = self.value(node.left), self.value(node.right)
        if right.kind == NUMBER and float(right.text) and (left.kind == "Float64" or self._guarded):
            return Expression("divide", "Float64", (double(left), double(right)))
        if not self._guarded or left.literal or right.literal:
            raise leave_out(node)
        return Expression("divide_nonzero", "Float64", (double(left), double(right)))

    def _remainder(self, node: exp.Mod) -> Expression:
        """Integers by a literal, whose sign is that of the dividend in all engines."""
        left, right = self.value(node.this), self.value(node.expression)
        if left.kind not in INTS or right.kind != NUMBER:
            raise leave_out(node)
        right = to_integer(right)
        if int(right.text) <= 0:
            raise leave_out(node)
        kind = common([left, right])
        return Expression("remainder", kind, (ensure_type(left, kind), ensure_type(right, kind)))

    def _comparison(self, node: exp.Binary) -> Expression:
        return self._compare(type(node), self.value(node.left), self.value(node.right))

    def _compare(self, how: type, left: Expression, right: Expression) -> Expression:
        if self._integers and any(map(decimals.is_decimal, (left, right))) and left.kind != right.kind:
            kind = decimals.widen([left, right])
            left, right = decimals.to_decimal(left, kind), decimals.to_decimal(right, kind)
        return compare(how, left, right)

    def _between(self, node: exp.Between) -> Expression:
        if set(present_arguments(node)) - {"this", "low", "high", "negate"}:
            raise leave_out(node)
        result, low, high = (self.value(node.args[key]) for key in ("this", "low", "high"))
        return _apply_not(
            node, boolean("and", self._compare(exp.GTE, result, low), self._compare(exp.LTE, result, high))
        )

    def _in(self, node: exp.In) -> Expression:
        if (
            set(present_arguments(node)) - {"this", "expressions", "negate"}
            or not 0 < len(node.expressions) <= _MANY
        ):
            raise leave_out(node)
        value = self.value(node.this)
        equal = [self._compare(exp.EQ, value, self.value(one)) for one in node.expressions]
        return _apply_not(node, boolean("or", *equal))

    def _like(self, node: exp.Like) -> Expression:
        """Patterns with `%` only. `_` differs outside of ASCII, and Spark matches UTF-16 units."""
        result, pattern = self.value(node.this), self.value(node.expression)
        if (
            set(present_arguments(node)) - {"this", "expression", "negate"}
            or result.kind != "String"
            or pattern.kind != TEXT
        ):
            raise leave_out(node)
        if "_" in pattern.text or max(pattern.text, default="") > "\uffff":
            raise leave_out(node)
        return _apply_not(node, boolean("like", result, pattern))

    def _logic(self, node: exp.Connector) -> Expression:
        operation = "and" if isinstance(node, exp.And) else "or"
        return boolean(operation, self._truth(node.left), self._truth(node.right))

    def _not(self, node: exp.Not) -> Expression:
        return boolean("not", self._truth(node.this))

    def _is(self, node: exp.Is) -> Expression:
        value = self.value(node.this)
        if not isinstance(node.expression, exp.Null) or value.literal:
            raise leave_out(node)
        return boolean("is_null", value)

    def _case(self, node: exp.Case) -> Expression:
        if set(present_arguments(node)) - {"this", "ifs", "default"}:
            raise leave_out(node)
        subject = self.value(node.this) if node.this else None
        conditions = [
            self._truth(branch.this)
            if subject is None
            else self._compare(exp.EQ, subject, self.value(branch.this))
            for branch in node.args["ifs"]
        ]
        default = node.args.get("default")
        return self._choice(conditions, [branch.args["true"] for branch in node.args["ifs"]], default)

    def _if(self, node: exp.If) -> Expression:
        return self._choice([self._truth(node.this)], [node.args["true"]], node.args.get("false"))

    def _choice(
        self, conditions: Sequence[Expression], results: Sequence[exp.Expr], default: exp.Expr | None
    ) -> Expression:
        """Return a CASE: its conditions, their results, and the default."""
        outcome = [self.value(result) for result in results]
        otherwise = self.value(default) if default is not None else NOTHING
        branches = self._widen([*outcome, otherwise])
        return Expression("case", branches[0].kind, (*conditions, *branches))

    def _widen(self, expressions: Sequence[Expression]) -> list[Expression]:
        """Return results of a choice in their common type."""
        if self._integers and any(map(decimals.is_decimal, expressions)):
            kind = decimals.widen(expressions)
            return [decimals.to_decimal(one, kind) for one in expressions]
        kind = common(expressions)
        return [ensure_type(one, kind) for one in expressions]

    def _coalesce(self, node: exp.Coalesce) -> Expression:
        result = self._widen([self.value(one) for one in (node.this, *node.expressions)])
        return Expression("coalesce", result[0].kind, tuple(result))

    def _null_if(self, node: exp.Nullif) -> Expression:
        value = self.value(node.this)
        if value.literal:
            raise leave_out(node)
        equal = self._compare(exp.EQ, value, self.value(node.expression))
        return Expression("case", value.kind, (equal, ensure_type(NOTHING, value.kind), value))

    def _text(self, node: exp.Expr) -> Expression:
        """Return the text that is the only argument of a function."""
        value = self.value(node.this)
        if value.kind != "String" or set(present_arguments(node)) - {"this"}:
            raise leave_out(node)
        return value

    def _trim(self, node: exp.Trim) -> Expression:
        return Expression("trim", "String", (self._text(node),))

    def _length(self, node: exp.Length) -> Expression:
        return ensure_type(Expression("length", "UInt64", (self._text(node),)), "Int32")

    def _concat(self, node: exp.DPipe | exp.Concat) -> Expression:
        parts = [node.left, node.right] if isinstance(node, exp.DPipe) else node.expressions
        result = [self.value(part) for part in parts]
        if len(result) < 2 or any(one.kind not in ("String", TEXT) for one in result):
            raise leave_out(node)
        return Expression("concat", "String", tuple(ensure_type(one, "String") for one in result))

    def _cast(self, node: exp.Cast) -> Expression:
        """Casts that neither fail nor lose anything, and dates and times written out as literals."""
        if set(present_arguments(node)) - {"this", "to", "safe"}:
            raise leave_out(node)
        result, wanted = self.value(node.this), read_type(node.to)
        if result.kind == TEXT and node.to.is_type("date", "timestamp", "timestamptz"):
            return to_timestamp_literal(result, "Date32" if node.to.is_type("date") else TIMESTAMP)
        if wanted is None or (result.kind == TEXT and wanted != "String"):
            raise leave_out(node)
        if self._guarded and (cast := guard_cast(result, wanted)) is not None:
            return cast
        if is_decimal_kind(wanted):
            if not self._integers:
                raise leave_out(node)
            return decimals.cast_exactly(result, wanted)
        return cast_without_loss(result, wanted, any_year=self._any_year)


def _apply_not(node: exp.Expr, expression: Expression) -> Expression:
    """Return the expression with the NOT that some sqlglot nodes contain themselves."""
    return boolean("not", expression) if node.args.get("negate") else expression

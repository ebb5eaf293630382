"""Translates transforms from Spark SQL to ClickHouse, for bulk copy, if both mean the same.

The translation is a whitelist, typed from the schema of the source, so that values and types are as Spark
would give them. Everything else runs in Spark. Left out on purpose, because the engines differ: arithmetic on
integers and decimals (Spark refuses overflows, ClickHouse wraps), division by anything but a literal (Spark
refuses zero), casts that can fail or round, string functions, clocks. Translated with care: floating point
(in Spark NaN equals NaN and is the largest number), columns hidden by aliases (ClickHouse would take the
alias).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from sqlglot import exp

from headrace.connectors.clickhouse.reader import SPLIT
from headrace.connectors.clickhouse.types import quote
from headrace.jobs.planning.clickhouse_values import (
    INTS,
    NULL,
    NUMBER,
    TEXT,
    TIMESTAMP,
    TypedSql,
    UntranslatableError,
    common,
    compare,
    double,
    integer_kind,
    kind_of,
    leave_out,
    literal,
    to_timestamp_literal,
    typed,
)
from headrace.pipeline.errors import UserError
from headrace.pipeline.sql import statements as transforms

_CASTS = {
    "TINYINT": "Int8",
    "SMALLINT": "Int16",
    "INT": "Int32",
    "BIGINT": "Int64",
    "DOUBLE": "Float64",
    "TEXT": "String",
    "VARCHAR": "String",
}
_MANY = 200


def translate(sql: str, source_name: str, schema: pa.Schema, over: str = SPLIT) -> str | None:
    """Return the ClickHouse statement over the rows of one split, or None if its meaning may differ there.

    Args:
        sql: a transform in Spark SQL.
        source_name: the only source that it may read.
        schema: the source's payload as Spark sees it.
        over: what the statement reads from in ClickHouse: the split, or the translation of the previous
            transform in brackets.
    """
    try:
        found = transforms.parse(sql)
    except UserError:
        return None
    if not isinstance(found, exp.Select) or "\\" in sql:  # what a backslash means in text differs by engine
        return None
    try:
        return _Translator(source_name, schema, over).select(found)
    except UntranslatableError:
        return None


class _Translator:
    """Translates one SELECT over one source."""

    def __init__(self, source_name: str, schema: pa.Schema, over: str) -> None:
        self._source = source_name
        self._over = over
        self._columns = {field.name: kind_of(field.type) for field in schema}
        self._names = {source_name}
        self._rules: dict[type[exp.Expr], Callable[[Any], TypedSql]] = {
            exp.Column: self._column, exp.Paren: lambda node: self.value(node.this), exp.Literal: literal,
            exp.Neg: self._negative,
            exp.Boolean: lambda node: TypedSql("true" if node.this else "false", "Bool"),
            exp.Null: lambda _: TypedSql("NULL", NULL), exp.Add: self._arithmetic, exp.Sub: self._arithmetic,
            exp.Mul: self._arithmetic, exp.Div: self._division, exp.EQ: self._comparison,
            exp.NEQ: self._comparison, exp.LT: self._comparison, exp.LTE: self._comparison,
            exp.GT: self._comparison, exp.GTE: self._comparison, exp.Between: self._between, exp.In: self._in,
            exp.Like: self._like, exp.And: self._logic, exp.Or: self._logic, exp.Not: self._not,
            exp.Is: self._is, exp.Case: self._case, exp.If: self._if, exp.Coalesce: self._coalesce,
            exp.Cast: self._cast, exp.TryCast: self._cast, exp.DPipe: self._concat, exp.Concat: self._concat,
        }  # fmt: skip

    def select(self, found: exp.Select) -> str:
        """Return the whole statement.

        It has two levels, so that no alias hides a column from an expression.
        """
        if set(_present_arguments(found)) - {"expressions", "from_", "where", "kind"} or found.args.get(
            "kind"
        ):
            raise leave_out(found)
        table = found.args["from_"].this if found.args.get("from_") else None
        if (
            not isinstance(table, exp.Table)
            or set(_present_arguments(table)) - {"this", "alias"}
            or table.name != self._source
        ):
            raise leave_out(table)
        if table.alias:
            if _present_arguments(table.args["alias"]) != ["this"]:
                raise leave_out(table)
            self._names = {table.alias}
        outputs = [output for node in found.expressions for output in self._outputs(node)]
        names = [name.lower() for name, _ in outputs]
        if len(set(names)) != len(names):
            raise leave_out(found)
        inner = ", ".join(f"{text} AS _headrace_out_{place}" for place, (_, text) in enumerate(outputs))
        outer = ", ".join(
            f"_headrace_out_{place} AS {quote(name)}" for place, (name, _) in enumerate(outputs)
        )
        where = found.args.get("where")
        condition = f" WHERE {self._truth(where.this).sql}" if where else ""
        return f"SELECT {outer} FROM (SELECT {inner} FROM {self._over}{condition})"  # noqa: S608  every part is from the whitelist

    def _outputs(self, node: exp.Expr) -> list[tuple[str, str]]:
        """(name, SQL) of what one item of the SELECT list gives.

        Expressions need an alias: Spark makes names up for the rest.
        """
        if isinstance(node, exp.Star):
            if _present_arguments(node):
                raise leave_out(node)
            return [(name, quote(name)) for name in self._columns]
        if isinstance(node, exp.Column) and isinstance(node.this, exp.Star):
            if node.table not in self._names or _present_arguments(node.this):
                raise leave_out(node)
            return [(name, quote(name)) for name in self._columns]
        if isinstance(node, exp.Column):
            return [(node.name, self._column(node).sql)]
        if not isinstance(node, exp.Alias):
            raise leave_out(node)
        found = self.value(node.this)
        if isinstance(node.this, exp.Column):
            return [(node.alias, found.sql)]
        if found.kind == TEXT:
            found = TypedSql(found.sql, "String")
        elif found.kind == NUMBER:
            found = TypedSql(found.sql, integer_kind(found))
        return [(node.alias, typed(found, found.kind))]

    def value(self, node: exp.Expr) -> TypedSql:
        """Any expression of the whitelist."""
        rule = self._rules.get(type(node))
        if rule is None:
            raise leave_out(node)
        return rule(node)

    def _truth(self, node: exp.Expr) -> TypedSql:
        found = self.value(node)
        if found.kind != "Bool":
            raise leave_out(node)
        return found

    def _column(self, node: exp.Column) -> TypedSql:
        if (
            set(_present_arguments(node)) - {"this", "table"}
            or (node.table and node.table not in self._names)
            or node.name not in self._columns
        ):
            raise leave_out(node)
        return TypedSql(quote(node.name), self._columns[node.name])

    def _negative(self, node: exp.Neg) -> TypedSql:
        found = self.value(node.this)
        if isinstance(node.this, exp.Literal) and found.kind == NUMBER:
            return TypedSql(f"-{found.sql}", NUMBER)
        if found.kind != "Float64":
            raise leave_out(node)
        return TypedSql(f"(-{found.sql})", "Float64")

    def _arithmetic(self, node: exp.Binary) -> TypedSql:
        left, right = self.value(node.left), self.value(node.right)
        if "Float64" not in (left.kind, right.kind):
            raise leave_out(node)
        sign = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*"}[type(node)]
        return TypedSql(f"({double(left)} {sign} {double(right)})", "Float64")

    def _division(self, node: exp.Div) -> TypedSql:
        left, right = self.value(node.left), self.value(node.right)
        if left.kind != "Float64" or right.kind != NUMBER or not float(right.sql):
            raise leave_out(node)
        return TypedSql(f"({left.sql} / {double(right)})", "Float64")

    def _comparison(self, node: exp.Binary) -> TypedSql:
        return compare(type(node), self.value(node.left), self.value(node.right))

    def _between(self, node: exp.Between) -> TypedSql:
        if set(_present_arguments(node)) - {"this", "low", "high", "negate"}:
            raise leave_out(node)
        found, low, high = (self.value(node.args[key]) for key in ("this", "low", "high"))
        return _negated(node, f"({compare(exp.GTE, found, low).sql} AND {compare(exp.LTE, found, high).sql})")

    def _in(self, node: exp.In) -> TypedSql:
        if (
            set(_present_arguments(node)) - {"this", "expressions", "negate"}
            or not 0 < len(node.expressions) <= _MANY
        ):
            raise leave_out(node)
        found = self.value(node.this)
        return _negated(
            node, f"({' OR '.join(compare(exp.EQ, found, self.value(one)).sql for one in node.expressions)})"
        )

    def _like(self, node: exp.Like) -> TypedSql:
        """Patterns with `%` only. `_` differs outside of ASCII, and Spark matches UTF-16 units."""
        found, pattern = self.value(node.this), self.value(node.expression)
        if (
            set(_present_arguments(node)) - {"this", "expression", "negate"}
            or found.kind != "String"
            or pattern.kind != TEXT
        ):
            raise leave_out(node)
        if "_" in pattern.sql or max(pattern.sql) > "\uffff":
            raise leave_out(node)
        return _negated(node, f"({found.sql} LIKE {pattern.sql})")

    def _logic(self, node: exp.Connector) -> TypedSql:
        operator = "AND" if isinstance(node, exp.And) else "OR"
        return TypedSql(f"({self._truth(node.left).sql} {operator} {self._truth(node.right).sql})", "Bool")

    def _not(self, node: exp.Not) -> TypedSql:
        return TypedSql(f"(NOT {self._truth(node.this).sql})", "Bool")

    def _is(self, node: exp.Is) -> TypedSql:
        found = self.value(node.this)
        if not isinstance(node.expression, exp.Null) or found.literal:
            raise leave_out(node)
        return TypedSql(f"isNull({found.sql})", "Bool")

    def _case(self, node: exp.Case) -> TypedSql:
        if set(_present_arguments(node)) - {"this", "ifs", "default"}:
            raise leave_out(node)
        subject = self.value(node.this) if node.this else None
        conditions = [
            self._truth(branch.this) if subject is None else compare(exp.EQ, subject, self.value(branch.this))
            for branch in node.args["ifs"]
        ]
        default = node.args.get("default")
        return self._choice(conditions, [branch.args["true"] for branch in node.args["ifs"]], default)

    def _if(self, node: exp.If) -> TypedSql:
        return self._choice([self._truth(node.this)], [node.args["true"]], node.args.get("false"))

    def _choice(
        self, conditions: Sequence[TypedSql], results: Sequence[exp.Expr], default: exp.Expr | None
    ) -> TypedSql:
        found = [self.value(result) for result in results]
        otherwise = self.value(default) if default is not None else TypedSql("NULL", NULL)
        kind = common([*found, otherwise])
        pairs = " ".join(
            f"WHEN {when.sql} THEN {typed(then, kind)}" for when, then in zip(conditions, found, strict=True)
        )
        return TypedSql(f"(CASE {pairs} ELSE {typed(otherwise, kind)} END)", kind)

    def _coalesce(self, node: exp.Coalesce) -> TypedSql:
        found = [self.value(one) for one in (node.this, *node.expressions)]
        kind = common(found)
        return TypedSql(f"coalesce({', '.join(typed(one, kind) for one in found)})", kind)

    def _concat(self, node: exp.DPipe | exp.Concat) -> TypedSql:
        parts = [node.left, node.right] if isinstance(node, exp.DPipe) else node.expressions
        found = [self.value(part) for part in parts]
        if len(found) < 2 or any(one.kind not in ("String", TEXT) for one in found):
            raise leave_out(node)
        return TypedSql(f"concat({', '.join(typed(one, 'String') for one in found)})", "String")

    def _cast(self, node: exp.Cast) -> TypedSql:
        """Casts that neither fail nor lose anything, and dates and times written out as literals."""
        if set(_present_arguments(node)) - {"this", "to", "safe"}:
            raise leave_out(node)
        found, type_text = self.value(node.this), node.to.sql(dialect="").upper()
        if found.kind == TEXT and type_text in ("DATE", "TIMESTAMP", "TIMESTAMPTZ"):
            return to_timestamp_literal(found, "Date32" if type_text == "DATE" else TIMESTAMP)
        if node.to.expressions:
            raise leave_out(node)
        wanted = _CASTS.get(type_text)
        if wanted is None or (found.kind == TEXT and wanted != "String"):
            raise leave_out(node)
        if found.kind in (NULL, TEXT) or found.kind == wanted:
            return TypedSql(typed(found, wanted), wanted)
        if found.kind == NUMBER:
            if wanted == "Float64":
                return TypedSql(double(found), wanted)
            found = TypedSql(found.sql, integer_kind(found))
        widens = found.kind in INTS and wanted in INTS and INTS.index(found.kind) <= INTS.index(wanted)
        exact = wanted == "Float64" and found.kind in (*INTS, "Float32")
        written = wanted == "String" and found.kind in (*INTS, "Date32")
        if not (widens or exact or written):
            raise leave_out(node)
        return TypedSql(typed(found, wanted), wanted)


def _negated(node: exp.Expr, sql: str) -> TypedSql:
    """Return the expression with the NOT that some sqlglot nodes contain themselves."""
    return TypedSql(f"(NOT {sql})" if node.args.get("negate") else sql, "Bool")


def _present_arguments(node: exp.Expr) -> list[str]:
    """Return the arguments of a node that are set. The parser adds empty ones."""
    return [key for key, value in node.args.items() if value]

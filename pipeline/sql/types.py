"""Rewrites statements whose meaning in Spark depends on the types of their columns.

Operators on numbers of more than 38 digits become functions (`int256`). `/` of integers becomes DIV for
dialects in which it gives an integer. A type that cannot be inferred is UNKNOWN and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from sqlglot import exp
from sqlglot.errors import SqlglotError

from headrace.pipeline.errors import UserError
from headrace.pipeline.functions import function_of
from headrace.pipeline.sql.dialects.spark import DIALECT
from headrace.pipeline.sql.dialects.translation import template
from headrace.pipeline.sql.generators import GeneratorCall, find_generator, is_generator
from headrace.pipeline.sql.int256.rewrite import is_cast_to_int256, rewrite, takes_int256
from headrace.pipeline.sql.int256.types import (
    INTEGERS,
    UNKNOWN,
    bind_lambda,
    common_type,
    field_type,
    holds_wide,
    infer_type,
    type_of_wide,
    wide_of_type,
)
from headrace.pipeline.sql.system_columns import relation_names
from headrace.pipeline.types.int256 import INT256, UINT256

_RESULTS = {
    "array_size": "INT", "cardinality": "INT", "locate": "INT", "length": "INT", "dayofweek": "INT",
    "array_position": "BIGINT", "unix_millis": "BIGINT", "unix_micros": "BIGINT", "regexp_count": "INT",
    "u256_compare": "INT", "i256_compare": "INT", "to_int64": "BIGINT", "u256_to_string": "STRING",
    "i256_to_string": "STRING", "hash": "INT", "xxhash64": "BIGINT", "crc32": "BIGINT", "instr": "INT",
    "find_in_set": "INT", "octet_length": "INT", "weekday": "INT", "json_array_length": "INT",
    "bitwise_count": "INT", "width_bucket": "BIGINT", "regexp_instr": "INT", "bigint": "BIGINT",
    "monotonically_increasing_id": "BIGINT", "url_encode": "STRING", "get_json_object": "STRING",
    "make_valid_utf8": "STRING", "schema_of_json": "STRING",
}  # fmt: skip
"""The result types of functions that sqlglot does not know."""

_OWN = {
    "int": "INT",
    "bigint": "BIGINT",
    "text": "STRING",
    "bool": "BOOLEAN",
    "boolean": "BOOLEAN",
    "double": "DOUBLE",
}
_OWN_WIDE = {"uint256": UINT256, "int256": INT256}
"""The declared result types of Headrace's own functions."""

Types = Mapping[str, exp.DataType]
"""The columns of a node by name, in order."""


def spark_type(spelled: str) -> exp.DataType:
    """Return the type with this spelling in Spark. UNKNOWN if sqlglot does not know it."""
    try:
        return exp.DataType.build(spelled, dialect=DIALECT)
    except (ValueError, SqlglotError):
        return UNKNOWN


def needs_types(query: exp.Query, wide: bool) -> bool:
    """Return whether types decide anything in a statement.

    `wide` means that one of its inputs has numbers of more than 38 digits.
    """
    return wide or any(
        (isinstance(part, exp.Div) and part.args.get("typed"))
        or isinstance(part, exp.Unnest)
        or is_cast_to_int256(part)
        or takes_int256(part)
        for part in query.walk()
    )


@dataclass(slots=True)
class _TypeScope:
    """The columns that a SELECT reads, by the relation that contains them. All names are in lower case."""

    relations: list[tuple[frozenset[str], dict[str, exp.DataType]]]
    """The qualifiers of a relation's columns, and its columns."""
    aliases: dict[str, exp.DataType] = field(default_factory=dict)

    def columns_of(self, qualifier: str) -> dict[str, exp.DataType]:
        """Return the columns of one relation, or of all relations if the qualifier is empty."""
        result: dict[str, exp.DataType] = {}
        for names, columns in self.relations:
            if not qualifier or qualifier.lower() in names:
                result |= columns
        return result

    def find(self, parts: list[str]) -> exp.DataType:
        """Return the type of a dotted name: a column, or a field of one."""
        columns = self.aliases | self.columns_of("")
        for length in range(len(parts) - 1, 0, -1):
            if any(".".join(parts[:length]) in names for names, _ in self.relations):
                columns, parts = self.columns_of(".".join(parts[:length])), parts[length:]
                break
        result = columns.get(parts[0], UNKNOWN)
        for part in parts[1:]:
            result = field_type(result, part) or UNKNOWN
        return result


class _Typer:
    """Sets the types in one statement and rewrites it by them, in place."""

    def __init__(self, nodes: Mapping[str, Types]) -> None:
        self._nodes = nodes

    def query(self, query: exp.Expr, around: Mapping[str, Types]) -> dict[str, exp.DataType]:
        """Return the types of a statement's columns in order. Raise UserError for a refused operator."""
        known = dict(around)
        for cte in getattr(query, "ctes", ()):
            known[cte.alias.lower()] = _rename_types(self.query(cte.this, known), cte.alias_column_names)
        if isinstance(query, exp.Subquery):
            return _rename_types(self.query(query.this, known), query.alias_column_names)
        if isinstance(query, exp.SetOperation):
            left, right = self.query(query.left, known), self.query(query.right, known)
            others = (
                [right.get(name, UNKNOWN) for name in left]
                if query.args.get("by_name")
                else list(right.values())
            )
            return {
                name: _branch_type(name, kind, other)
                for (name, kind), other in zip(left.items(), [*others, *[UNKNOWN] * len(left)], strict=False)
            }
        return self._select(query, known) if isinstance(query, exp.Select) else {}

    def _select(self, select: exp.Select, known: Mapping[str, Types]) -> dict[str, exp.DataType]:
        clause = select.args.get("from_")
        types: dict[str, exp.DataType] = {}
        if clause is not None and isinstance(clause.this, exp.Subquery):
            types = self.query(clause.this, known)
        elif clause is not None and isinstance(clause.this, exp.Table):
            name = ".".join(part.name for part in clause.this.parts)
            types = _rename_types(
                dict(known.get(name.lower()) or self._nodes.get(name) or {}), clause.this.alias_column_names
            )
        scope = _TypeScope(
            [(frozenset(relation_names(select)), {name.lower(): kind for name, kind in types.items()})]
        )
        for part in [*(select.args.get("joins") or []), *(select.args.get("laterals") or [])]:
            self._add_generator(part, scope)
        if select.args.get("where") is not None:
            self._expression(select.args["where"].this, scope)
        result: dict[str, exp.DataType] = {}
        for item in [_open_struct(item, scope) for item in select.expressions]:
            if item.is_star:
                result |= _star_columns(item, scope)
                continue
            is_named = isinstance(item, exp.Alias | exp.Column | exp.Dot)
            name = item.alias_or_name if is_named else item.sql(dialect=DIALECT)
            value = self._expression(item.unalias(), scope)
            result[name] = value.type or UNKNOWN
            if not is_named and holds_wide(value.type):
                value.replace(exp.alias_(value.copy(), name, quoted=True))
            if isinstance(item, exp.Alias):
                scope.aliases[item.alias.lower()] = value.type or UNKNOWN
        return result

    def _add_generator(self, part: exp.Expr, scope: _TypeScope) -> None:
        """Add the columns of a generator after FROM."""
        generator = next((one for one in part.walk() if is_generator(one)), None)
        for argument in list(generator.iter_expressions()) if generator is not None else ():
            if not isinstance(argument, exp.TableAlias):
                self._expression(argument, scope)
        if (call := find_generator(part)) is None:
            return
        lists = [self._expression(one, scope).type or UNKNOWN for one in call.lists]
        made = [column for kind in lists for column in _columns_of_generator(call, kind)]
        if call.numbered and made:
            made = [("pos", exp.DataType.build("INT")), *made]
        names = [one.name for one in call.names] or [name for name, _ in made]
        columns = {name.lower(): kind for name, (_, kind) in zip(names, made, strict=False)}
        scope.relations.append((frozenset({call.alias.lower()}), columns))

    def _expression(self, root: exp.Expr, scope: _TypeScope) -> exp.Expr:
        """Return the expression with types, rewritten. It replaces the old one in the statement."""
        for column in root.find_all(exp.Column):
            column.type = scope.find([part.name.lower() for part in column.parts])
        for call in root.find_all(exp.Func):
            own = function_of(call) if isinstance(call, exp.Anonymous) else None
            name = call.name if isinstance(call, exp.Anonymous) else call.sql_name()
            if own is not None and own.result in _OWN_WIDE:
                call.type = type_of_wide(_OWN_WIDE[own.result])
            elif spelled := _OWN.get(own.result) if own else _RESULTS.get(name.lower()):
                call.type = exp.DataType.build(spelled, dialect=DIALECT)
        for part, is_complete in _visits(root):
            if not is_complete:
                bind_lambda(part)
                continue
            made = rewrite(part)
            made = _divide(made) if isinstance(made, exp.Div) and made.args.get("typed") else made
            if part is root:
                root = made if made is part or part.parent is None else part.replace(made)
            elif made is not part:
                part.replace(made)
        root.type = infer_type(root)
        return root


def _columns_of_generator(call: GeneratorCall, kind: exp.DataType) -> list[tuple[str, exp.DataType]]:
    """Return the columns that a generator makes from one list or map. None if its type cannot be inferred."""
    parts = kind.expressions
    if kind.this == exp.DType.MAP and len(parts) == 2:
        return list(zip(("key", "value"), parts, strict=True))
    if kind.this != exp.DType.ARRAY or len(parts) != 1:
        return []
    if not call.structs:
        return [("col", parts[0])]
    return [(one.name, one.kind or UNKNOWN) for one in parts[0].expressions if isinstance(one, exp.ColumnDef)]


def _visits(root: exp.Expr) -> Iterator[tuple[exp.Expr, bool]]:
    """Yield every part of an expression twice: False before its own parts, and True after them."""
    waiting = [(root, False)]
    while waiting:
        part, is_complete = waiting.pop()
        yield part, is_complete
        if not is_complete:
            waiting.append((part, True))
            waiting += [(one, False) for one in reversed(list(part.iter_expressions()))]


def _open_struct(item: exp.Expr, scope: _TypeScope) -> exp.Expr:
    """Replace `unnest` of a struct by the star of its fields."""
    call = item.unalias()
    if (
        not isinstance(call, exp.Unnest)
        or len(call.expressions) != 1
        or not isinstance(call.expressions[0], exp.Column)
    ):
        return item
    parts = call.expressions[0].parts
    if scope.find([part.name.lower() for part in parts]).this != exp.DType.STRUCT:
        return item
    keys = ("table", "db", "catalog")
    return item.replace(exp.Column(this=exp.Star(), **dict(zip(keys, reversed(parts), strict=False))))


def _divide(division: exp.Div) -> exp.Expr:
    """Return `/` of a dialect in which integers divide to an integer.

    Raise UserError if a type is missing for that.
    """
    kinds = [infer_type(side) for side in (division.left, division.right)]
    if any(kind.this == exp.DType.UNKNOWN for kind in kinds) and all(
        kind.this in (*INTEGERS, exp.DType.UNKNOWN) for kind in kinds
    ):
        msg = (
            f"the types of `{division.sql(dialect=DIALECT)}` cannot be inferred, and decide whether it"
            " gives a whole number"
        )
        raise UserError(
            msg,
            hint="Give both sides a type with CAST, such as CAST(x AS bigint) or CAST(x AS double"
            " precision).",
        )
    if not all(kind.this in INTEGERS for kind in kinds):
        division.set("typed", False)
        return division
    widest = max((kind.this for kind in kinds), key=INTEGERS.index)
    return exp.cast(template("(_0 DIV _1)", division.left, division.right), widest.value, dialect=DIALECT)


def _star_columns(star: exp.Expr, scope: _TypeScope) -> dict[str, exp.DataType]:
    """Return the columns that a star means: those of all relations, of one, or the fields of a struct."""
    inner = star.this if isinstance(star, exp.Column) else star
    left_out = {column.name.lower() for column in inner.args.get("except_") or ()}
    qualifier = [part.name.lower() for part in star.parts[:-1]] if isinstance(star, exp.Column) else []
    columns = scope.columns_of(".".join(qualifier))
    if qualifier and (struct := scope.find(qualifier)).this == exp.DType.STRUCT:
        columns = {
            one.name.lower(): one.kind or UNKNOWN
            for one in struct.expressions
            if isinstance(one, exp.ColumnDef)
        }
    return {name: kind for name, kind in columns.items() if name not in left_out}


def _rename_types(types: dict[str, exp.DataType], names: list[str]) -> dict[str, exp.DataType]:
    return dict(zip(names, types.values(), strict=False)) if names else types


def _branch_type(name: str, left: exp.DataType, right: exp.DataType) -> exp.DataType:
    """Return the type of a column in two branches.

    Raise UserError if the types differ and one is a wide number.
    """
    if (result := common_type([left, right])) is not None:
        return result
    msg = (
        f"column `{name}` is {_spell_type(left)} in one branch of UNION ALL, and {_spell_type(right)} in"
        " another"
    )
    raise UserError(msg, hint="Make them the same with CAST, to_u256, to_i256, or u256_to_string.")


def _spell_type(kind: exp.DataType) -> str:
    wide = wide_of_type(kind)
    return (
        str(wide) if wide is not None else "of unknown type" if kind == UNKNOWN else kind.sql(dialect=DIALECT)
    )


@dataclass(frozen=True, slots=True)
class WideColumns:
    """The columns of a statement, in lower case, that Spark stores as strings.

    They are wide numbers, and lists, maps and structs that contain them.
    """

    numbers: dict[str, pa.DataType]
    nested: dict[str, exp.DataType]


def apply_types(query: exp.Query, nodes: Mapping[str, Types], *, node: str = "") -> WideColumns:
    """Rewrite a statement by the types of its inputs, in place, and return its wide columns."""
    try:
        result = _Typer(nodes).query(query, {})
    except UserError as error:
        raise type(error)(error.message, hint=error.hint, node=node) from None
    numbers = {
        name.lower(): wide for name, kind in result.items() if (wide := wide_of_type(kind)) is not None
    }
    return WideColumns(
        numbers,
        {
            name.lower(): kind
            for name, kind in result.items()
            if name.lower() not in numbers and holds_wide(kind)
        },
    )

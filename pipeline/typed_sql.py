"""Statements by the types of what they read: what only types decide is put into Spark's words here.

That is numbers that Spark has no room for, whose operators become functions (`wide_sql`), and `/` of dialects in which whole numbers divide to whole
numbers. Names are looked up in the one relation that a SELECT reads; a type that cannot be told is UNKNOWN and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from sqlglot import exp
from sqlglot.errors import SqlglotError

from headrace.pipeline.dialects import DIALECT, template
from headrace.pipeline.errors import UserError
from headrace.pipeline.functions import function_of
from headrace.pipeline.hidden import relation_names
from headrace.pipeline.unnest import Call, is_generator, unnested
from headrace.pipeline.wide_kinds import UNKNOWN, field_type, held, holds_wide, is_wide_number, told, wide_of_type
from headrace.pipeline.wide_lists import bind
from headrace.pipeline.wide_sql import is_wide_cast, rewritten

_INTEGERS = (exp.DType.TINYINT, exp.DType.SMALLINT, exp.DType.INT, exp.DType.BIGINT)
_RESULTS = {
    "array_size": "INT", "cardinality": "INT", "locate": "INT", "length": "INT", "dayofweek": "INT", "array_position": "BIGINT",
    "unix_millis": "BIGINT", "unix_micros": "BIGINT", "regexp_count": "INT", "u256_compare": "INT", "i256_compare": "INT",
    "to_int64": "BIGINT", "u256_to_string": "STRING", "i256_to_string": "STRING", "hash": "INT", "xxhash64": "BIGINT", "crc32": "BIGINT",
    "instr": "INT", "find_in_set": "INT", "octet_length": "INT", "weekday": "INT", "json_array_length": "INT", "bitwise_count": "INT",
    "width_bucket": "BIGINT", "regexp_instr": "INT", "bigint": "BIGINT", "monotonically_increasing_id": "BIGINT", "url_encode": "STRING",
    "get_json_object": "STRING", "make_valid_utf8": "STRING", "schema_of_json": "STRING",
}  # fmt: skip
"""Functions that sqlglot does not know, by their results."""

_OWN = {"int": "INT", "bigint": "BIGINT", "text": "STRING", "bool": "BOOLEAN", "boolean": "BOOLEAN", "double": "DOUBLE"}
"""The same for our own functions, by what they say of their results."""

Types = Mapping[str, exp.DataType]
"""The columns of a node, in their order, by their names."""


def spark_type(said: str) -> exp.DataType:
    """A type as Spark spells it, UNKNOWN for one that sqlglot does not know."""
    try:
        return exp.DataType.build(said, dialect=DIALECT)
    except (ValueError, SqlglotError):
        return UNKNOWN


def needs_types(query: exp.Query, wide: bool) -> bool:
    """Whether types say anything of a statement; `wide`: one of its inputs has numbers that Spark has no room for."""
    return wide or any(
        (isinstance(part, exp.Div) and part.args.get("typed")) or isinstance(part, exp.Unnest) or is_wide_cast(part) or is_wide_number(part)
        for part in query.walk()
    )


@dataclass(slots=True)
class _Scope:
    """The columns that a SELECT reads, by their names in lower case, and what they may be qualified with."""

    columns: dict[str, exp.DataType]
    names: set[str]
    aliases: dict[str, exp.DataType] = field(default_factory=dict)

    def find(self, parts: list[str]) -> exp.DataType:
        """The type of a dotted name: a column, or a field of one."""
        for length in range(len(parts) - 1, 0, -1):
            if ".".join(parts[:length]) in self.names:
                parts = parts[length:]
                break
        found = self.columns.get(parts[0]) or self.aliases.get(parts[0]) or UNKNOWN
        for part in parts[1:]:
            found = field_type(found, part) or UNKNOWN
        return found


class Typer:
    """Puts types on one statement and rewrites what they decide, in place."""

    def __init__(self, nodes: Mapping[str, Types]) -> None:
        self._nodes = nodes

    def query(self, query: exp.Expr, around: Mapping[str, Types]) -> dict[str, exp.DataType]:
        """The types of a statement's columns in order. Raises UserError for what cannot be computed, or whose type must be known."""
        known = dict(around)
        for cte in getattr(query, "ctes", ()):
            known[cte.alias.lower()] = _renamed(self.query(cte.this, known), cte.alias_column_names)
        if isinstance(query, exp.Subquery):
            return _renamed(self.query(query.this, known), query.alias_column_names)
        if isinstance(query, exp.SetOperation):
            left, right = self.query(query.left, known), self.query(query.right, known)
            others = [right.get(name, UNKNOWN) for name in left] if query.args.get("by_name") else list(right.values())
            return {
                name: _common(name, kind, other)
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
            types = _renamed(dict(known.get(name.lower()) or self._nodes.get(name) or {}), clause.this.alias_column_names)
        scope = _Scope({name.lower(): kind for name, kind in types.items()}, relation_names(select))
        for part in [*(select.args.get("joins") or []), *(select.args.get("laterals") or [])]:
            self._items(part, scope)
        if select.args.get("where") is not None:
            self._expression(select.args["where"].this, scope)
        found: dict[str, exp.DataType] = {}
        for item in [_fields(item, scope) for item in select.expressions]:
            if item.is_star:
                found |= _starred(item, types, scope.names)
                continue
            value = self._expression(item.unalias(), scope)
            found[item.alias_or_name or value.sql(dialect=DIALECT)] = value.type or UNKNOWN
            if isinstance(item, exp.Alias):
                scope.aliases[item.alias.lower()] = value.type or UNKNOWN
        return found

    def _items(self, part: exp.Expr, scope: _Scope) -> None:
        """The columns of a generator that stands behind FROM."""
        made = next((one for one in part.walk() if is_generator(one)), None)
        for given in list(made.iter_expressions()) if made is not None else ():
            if not isinstance(given, exp.TableAlias):
                self._expression(given, scope)
        if (call := unnested(part)) is None:
            return
        found = [column for one in call.lists for column in _made(call, held(one))]
        names = [one.name for one in call.names] or [name for name, _ in found]
        pos = [("pos", exp.DataType.build("INT"))] if call.numbered and found else []
        names = [name for name, _ in pos] + names if pos and not call.names else names
        scope.columns |= {name.lower(): kind for name, (_, kind) in zip(names, [*pos, *found], strict=False)}
        scope.names.add(call.alias.lower())

    def _expression(self, root: exp.Expr, scope: _Scope) -> exp.Expr:
        """The expression with types, rewritten; it takes the place of the old one."""
        for column in root.find_all(exp.Column):
            column.type = scope.find([part.name.lower() for part in column.parts])
        for call in root.find_all(exp.Func):
            own = function_of(call) if isinstance(call, exp.Anonymous) else None
            name = call.name if isinstance(call, exp.Anonymous) else call.sql_name()
            if said := _OWN.get(own.result) if own else _RESULTS.get(name.lower()):
                call.type = exp.DataType.build(said, dialect=DIALECT)
        for part, whole in _visits(root):
            if not whole:
                bind(part)
                continue
            made = rewritten(part)
            made = _divided(made) if isinstance(made, exp.Div) and made.args.get("typed") else made
            if made is part:
                continue
            if part is root:
                root = made if part.parent is None else part.replace(made)
            else:
                part.replace(made)
        root.type = root.type if isinstance(root, exp.Column) and wide_of_type(root.type) is not None else held(root)
        return root


def _made(call: Call, kind: exp.DataType) -> list[tuple[str, exp.DataType]]:
    """The columns that a generator makes of one list or map; none where its type cannot be told."""
    parts = kind.expressions
    if kind.this == exp.DType.MAP and len(parts) == 2:
        return list(zip(("key", "value"), parts, strict=True))
    if kind.this != exp.DType.ARRAY or len(parts) != 1:
        return []
    if not call.structs:
        return [("col", parts[0])]
    return [(one.name, one.kind or UNKNOWN) for one in parts[0].expressions if isinstance(one, exp.ColumnDef)]


def _visits(root: exp.Expr) -> Iterator[tuple[exp.Expr, bool]]:
    """Every part of an expression twice: before its own parts, which come in their order, and after them."""
    waiting = [(root, False)]
    while waiting:
        part, whole = waiting.pop()
        yield part, whole
        if not whole:
            waiting.append((part, True))
            waiting += [(one, False) for one in reversed(list(part.iter_expressions()))]


def _fields(item: exp.Expr, scope: _Scope) -> exp.Expr:
    """`unnest` of a struct is its fields."""
    call = item.unalias()
    if not isinstance(call, exp.Unnest) or len(call.expressions) != 1 or not isinstance(call.expressions[0], exp.Column):
        return item
    parts = call.expressions[0].parts
    if scope.find([part.name.lower() for part in parts]).this != exp.DType.STRUCT:
        return item
    keys = ("table", "db", "catalog")
    return item.replace(exp.Column(this=exp.Star(), **dict(zip(keys, reversed(parts), strict=False))))


def _divided(division: exp.Div) -> exp.Expr:
    """`/` of a dialect in which whole numbers divide to whole numbers."""
    kinds = [told(side) for side in (division.left, division.right)]
    if any(kind.this == exp.DType.UNKNOWN for kind in kinds) and all(kind.this in (*_INTEGERS, exp.DType.UNKNOWN) for kind in kinds):
        msg = f"whether `{division.sql(dialect=DIALECT)}` divides whole numbers cannot be told"
        raise UserError(msg, hint="Say the type of both sides with CAST, such as CAST(x AS bigint) or CAST(x AS double precision).")
    if not all(kind.this in _INTEGERS for kind in kinds):
        division.set("typed", False)
        return division
    widest = max((kind.this for kind in kinds), key=_INTEGERS.index)
    return exp.cast(template("(_0 DIV _1)", division.left, division.right), widest.value, dialect=DIALECT)


def _starred(star: exp.Expr, types: Types, names: set[str]) -> dict[str, exp.DataType]:
    """The columns that a star stands for; none for that of a struct."""
    inner = star.this if isinstance(star, exp.Column) else star
    if isinstance(star, exp.Column) and star.table.lower() not in names:
        return {}
    left_out = {column.name.lower() for column in inner.args.get("except_") or ()}
    return {name: kind for name, kind in types.items() if name.lower() not in left_out}


def _renamed(types: dict[str, exp.DataType], names: list[str]) -> dict[str, exp.DataType]:
    return dict(zip(names, types.values(), strict=False)) if names else types


def _common(name: str, left: exp.DataType, right: exp.DataType) -> exp.DataType:
    """The type of a column of two branches; NULL fits to any."""
    if left == right or right.this == exp.DType.NULL:
        return left
    if left.this == exp.DType.NULL:
        return right
    if _is_empty(right):
        return left
    if _is_empty(left):
        return right
    wide = [wide_of_type(kind) for kind in (left, right)]
    if holds_wide(left) or holds_wide(right):
        said = [str(one) if one is not None else _spelled(kind) for one, kind in zip(wide, (left, right), strict=True)]
        msg = f"column `{name}` is {said[0]} in one branch of UNION ALL, and {said[1]} in another"
        raise UserError(msg, hint="Make them the same with CAST, to_u256, to_i256, or u256_to_string.")
    if left.this in _INTEGERS and right.this in _INTEGERS:
        return max((left, right), key=lambda kind: _INTEGERS.index(kind.this))
    return UNKNOWN


def _is_empty(kind: exp.DataType) -> bool:
    """Whether it is the type of a list or a map that nothing gives a type."""
    return kind.this in (exp.DType.ARRAY, exp.DType.MAP) and all(part.this == exp.DType.NULL for part in kind.expressions)


def _spelled(kind: exp.DataType) -> str:
    return "of a type that cannot be told" if kind.this == exp.DType.UNKNOWN else kind.sql(dialect=DIALECT)


@dataclass(frozen=True, slots=True)
class Told:
    """What is known of a statement's columns, in lower case: those that Spark has no room for, and lists, maps and structs that hold such."""

    wide: dict[str, pa.DataType]
    held: dict[str, exp.DataType]


def typed(query: exp.Query, nodes: Mapping[str, Types], *, node: str = "") -> Told:
    """Rewrites a statement by the types of its inputs, in place."""
    try:
        found = Typer(nodes).query(query, {})
    except UserError as error:
        raise type(error)(error.message, hint=error.hint, node=node) from None
    wide = {name.lower(): kind for name, said in found.items() if (kind := wide_of_type(said)) is not None}
    return Told(wide, {name.lower(): said for name, said in found.items() if name.lower() not in wide and holds_wide(said)})

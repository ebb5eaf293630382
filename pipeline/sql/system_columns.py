"""The two system columns of every row, and how a SELECT propagates them. Users see them only on request.

Users may read and set `_gs_op`. They may not set `_gs_pos`, the order that decides the last row of a key.
Both are at the end of every SELECT, so that the branches of a UNION ALL match by position.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from headrace.pipeline.errors import ROW_ERROR, UserError
from headrace.pipeline.sql.dialects.translation import template

OP = "_gs_op"
POS = "_gs_pos"
POS_TYPE = "struct<source: int, part: int, off: bigint, sub: bigint>"
HIDDEN = (OP, POS)
ORDINALS_PER_NODE = 10
"""Values of `_gs_pos.source` per source node: bounded phases count up from 0, the stream is the last."""
FAN_OUT = 1 << 20
"""A row-generating transform numbers its rows from 0: `sub` becomes `sub * FAN_OUT + number`.

Three such transforms fit in a chain. More rows from one row, or an overflow of `sub`, are an error. A UNION
ALL numbers rows by its branches.
"""

OPERATIONS = ("i", "u", "d")
_TOO_MANY = f"one row makes {FAN_OUT} rows or more, which have no order then"
_TOO_DEEP = "more than three row-generating transforms in a chain; the limit is three"
_LARGEST = (2**63 - 1) // FAN_OUT - 1
_CHECKED = (
    "transform(array(CAST(_0 AS STRING)), _x -> CASE WHEN _x IN ('i', 'u', 'd') THEN _x ELSE"
    " raise_error(concat(_1, to_json("
    f"named_struct('node', _2, 'what', concat('column `{OP}` says `', coalesce(_x, 'NULL'), '`'), 'hint',"
    " _3)))) END)[0]"
)


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks of one SELECT (`filter_marking`): the position of a row, and whether it is not marked."""

    position: exp.Expr
    alive: exp.Expr


@dataclass(frozen=True, slots=True)
class Branch:
    """The index of a SELECT in a UNION ALL: `sub` becomes `sub * count + at`."""

    at: int
    count: int


def branches(query: exp.Query, sources: Mapping[str, Collection[str]]) -> dict[int, Branch]:
    """Return the SELECTs, by `id()`, of every UNION ALL through which one row may pass twice.

    Without a number, both results would have the same position. `sources` has the sources upstream of each
    node that the statement reads. A node without an entry counts as one source.
    """
    ctes = {cte.alias: cte.this for cte in query.find_all(exp.CTE)}

    def behind(part: exp.Expr, seen: frozenset[str]) -> set[str]:
        result: set[str] = set()
        for table in part.find_all(exp.Table):
            name = ".".join(one.name for one in table.parts)
            if name in ctes and name not in seen:
                result |= behind(ctes[name], seen | {name})
            else:
                result.update(sources.get(name, (name,)))
        return result

    by_part: dict[int, Branch] = {}
    for union in query.find_all(exp.Union):
        if isinstance(union.parent, exp.Union) or (
            isinstance(union.parent, exp.Subquery) and isinstance(union.parent.parent, exp.Union)
        ):
            continue
        parts = list(_parts(union))
        origins = [behind(part, frozenset()) for part in parts]
        if sum(map(len, origins)) > len(set().union(*origins)):
            by_part |= {id(part): Branch(at, len(parts)) for at, part in enumerate(parts)}
    return by_part


def _parts(query: exp.Expr) -> Iterator[exp.Expr]:
    if isinstance(query, exp.Union):
        yield from _parts(query.this)
        yield from _parts(query.expression)
    elif isinstance(query, exp.Subquery):
        yield from _parts(query.this)
    else:
        yield query


def add_system_columns(
    select: exp.Select,
    hidden: Sequence[str],
    numbers: Sequence[exp.Expr],
    node: str = "",
    branch: Branch | None = None,
    marks: Marks | None = None,
) -> None:
    """Add the system columns at the end of a SELECT, once each.

    Args:
        select: changed in place.
        hidden: names of the columns.
        numbers: the row numbers of generated rows, outermost first. Empty if no row is generated.
        node: the node of the statement, for errors that rows raise.
        branch: see `branches`.
        marks: the position of a row that may be marked, with its numbers in it.

    Raise UserError if the statement sets `_gs_pos`, or sets `_gs_op` to a string that is no operation.
    """
    own: dict[str, exp.Expr] = {}
    for item in list(select.expressions):
        name = item.alias_or_name.lower()
        if name in hidden and not item.is_star:
            own[name] = item.unalias()
            item.pop()
    for star in find_stars(select):
        left_out = star.args.get("except_") or []
        there = {column.name.lower() for column in left_out}
        star.set(
            "except_",
            [
                *left_out,
                *(exp.to_identifier(column, quoted=True) for column in hidden if column not in there),
            ],
        )
    for column in hidden:
        value = own.get(column) or exp.column(column, quoted=True)
        plain = isinstance(value, exp.Column) and value.name.lower() == column
        if column == POS:
            if not plain:
                msg = f"`{POS}` is the order of rows, and cannot be set"
                raise UserError(msg, hint="Give the column another name.")
            value = (
                marks.position
                if marks
                else add_row_number(value, numbers, node, branch)
                if numbers or branch
                else value
            )
        elif column == OP and not plain:
            value = _check_operation(value, node)
            value = template(f"CASE WHEN _0 THEN _1 ELSE `{OP}` END", marks.alive, value) if marks else value
        bare = isinstance(value, exp.Column) and not value.table and value.name.lower() == column
        select.append("expressions", value if bare else exp.alias_(value, column, quoted=True))


def find_stars(select: exp.Select) -> Iterator[exp.Star]:
    """Yield the stars that mean all columns of the inputs of a SELECT, including those inside functions."""
    names = relation_names(select)
    for item in select.expressions:
        for star in item.find_all(exp.Star):
            parent = star.parent
            if (
                not isinstance(parent, exp.Column)
                or ".".join(part.name for part in parent.parts[:-1]).lower() in names
            ):
                yield star


def relation_names(select: exp.Select) -> set[str]:
    """Return the qualifiers of the columns of the relation after FROM, in lower case."""
    clause = select.args.get("from_")
    read = clause.this if clause is not None else None
    if read is None:
        return set()
    if read.alias:
        return {read.alias.lower()}
    if isinstance(read, exp.Table):
        return {".".join(part.name for part in read.parts).lower(), read.name.lower()}
    return set()


def _check_operation(value: exp.Expr, node: str) -> exp.Expr:
    """Return an operation that a statement computes, with a check per row.

    Raise UserError for a literal that is no operation.
    """
    hint = f"Allowed: {', '.join(OPERATIONS)}."
    if isinstance(value, exp.Literal):
        if not value.is_string or value.name not in OPERATIONS:
            msg = f"column `{OP}` says `{value.name}`"
            raise UserError(msg, hint=hint)
        return value
    return template(_CHECKED, value, *map(exp.Literal.string, (ROW_ERROR, node, hint)))


def add_row_number(
    position: exp.Expr, numbers: Sequence[exp.Expr], node: str = "", branch: Branch | None = None
) -> exp.Expr:
    """Return the position of each generated row.

    An outer generator gives no number for a row without items.
    """
    many = _failing(_TOO_MANY, "Cut the list before, with slice or filter.", node)
    deep = _failing(_TOO_DEEP, "Make them in one transform, such as with flatten.", node)
    sub = template("_0.sub", position)
    for number in numbers:
        sub = template(
            f"CASE WHEN coalesce(_1, 0) >= {FAN_OUT} THEN CAST(raise_error(_2) AS BIGINT)"
            f" WHEN _0 > {_LARGEST} THEN CAST(raise_error(_3) AS BIGINT) ELSE _0 * {FAN_OUT} + coalesce(_1,"
            " 0) END",
            sub,
            number,
            many,
            deep,
        )
    if branch:  # Spark's own arithmetic fails on overflow
        sub = template(f"_0 * {branch.count} + {branch.at}", sub)
    return template(
        "named_struct('source', _0.source, 'part', _0.part, 'off', _0.off, 'sub', _1)", position, sub
    )


def _failing(what: str, hint: str, node: str) -> exp.Literal:
    return exp.Literal.string(ROW_ERROR + json.dumps({"node": node, "what": what, "hint": hint}))

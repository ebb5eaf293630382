"""Row-generating functions (`explode`, `unnest` ...): in the SELECT list, as LATERAL VIEW, or after FROM.

All become lateral views that also return the number of each row, so that `_gs_pos` stays an order. Empty and
NULL lists give no row, unless the outer form is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from sqlglot import exp

from headrace.pipeline.errors import UserError
from headrace.pipeline.sql.dialects.functions import template

_OUTER = ("explode_outer", "posexplode_outer", "inline_outer")
_KNOWN = ("inline_outer", "explode_outer", "posexplode_outer")


def is_generator(part: exp.Expr) -> bool:
    """Return whether an expression makes any number of rows from one. `json_tuple` makes exactly one row."""
    if isinstance(part, exp.Anonymous):
        return part.name.lower() in _KNOWN
    return isinstance(part, exp.Explode | exp.Inline | exp.Stack | exp.Unnest)


def fans_out(query: exp.Query) -> bool:
    """Return whether a statement can give more rows than it reads."""
    return any(is_generator(part) for part in query.walk())


@dataclass(frozen=True, slots=True)
class GeneratorCall:
    """One row-generating call, with the alias and the names of its columns.

    `outer` keeps a row without items.
    """

    call: exp.Expr
    alias: str = ""
    names: tuple[exp.Identifier, ...] = ()
    outer: bool = False
    ordinal: bool = False
    """The last name is the number, counted from 1 (WITH ORDINALITY)."""

    @property
    def lists(self) -> list[exp.Expr]:
        """The lists whose items become rows."""
        if isinstance(self.call, exp.Unnest | exp.Anonymous):
            return list(self.call.expressions)
        if isinstance(self.call, exp.Stack):
            return [_rows_of_stack(self.call)]
        return [self.call.this]

    @property
    def numbered(self) -> bool:
        """Whether its first column is the item's number."""
        return isinstance(self.call, exp.Posexplode) or (
            isinstance(self.call, exp.Anonymous) and self.call.name.lower() == "posexplode_outer"
        )

    @property
    def structs(self) -> bool:
        """Whether the fields of the items are its columns."""
        return isinstance(self.call, exp.Inline | exp.Stack) or (
            isinstance(self.call, exp.Anonymous) and self.call.name.lower() == "inline_outer"
        )


def find_generator(part: exp.Expr) -> GeneratorCall | None:
    """Return the generator in a join or a LATERAL VIEW. None for a join with another table."""
    outer = isinstance(part, exp.Join) and part.side == "LEFT"
    read = part.this if isinstance(part, exp.Join) else part
    call = (
        read
        if isinstance(read, exp.Unnest)
        else read.this
        if isinstance(read, exp.Lateral | exp.Table)
        else None
    )
    if call is None or not is_generator(call):
        return None
    alias = read.args.get("alias")
    names = tuple(alias.columns) if alias is not None else ()
    name = alias.name if alias is not None else ""
    number = read.args.get("offset") if isinstance(read, exp.Unnest) else None
    if isinstance(number, exp.Identifier):
        names = (*names, number)
    outer = outer or bool(read.args.get("outer")) or _is_outer(call)
    bare = (
        call.copy()
        if not isinstance(call, exp.Unnest)
        else exp.Unnest(expressions=[one.copy() for one in call.expressions])
    )
    if isinstance(call, exp.Unnest) and not names:
        names = (exp.to_identifier(name or "unnest", quoted=True),)
    return GeneratorCall(bare, name, names, outer, ordinal=bool(number))


def _is_outer(call: exp.Expr) -> bool:
    return isinstance(call, exp.ExplodeOuter) or (
        isinstance(call, exp.Anonymous) and call.name.lower() in _OUTER
    )


def _rows_of_stack(stack: exp.Stack) -> exp.Expr:
    """Return stack(2, a, b, c) as the list of its rows."""
    count = int(stack.this.name) if isinstance(stack.this, exp.Literal) and stack.this.name.isdigit() else 0
    if count < 1:
        msg = "the number of rows of stack must be written out, and be 1 or more"
        raise UserError(msg, hint="stack(2, a, b) makes two rows.")
    values = stack.expressions
    width = max(1, -(-len(values) // count))
    rows = [values[at * width : (at + 1) * width] for at in range(count)]
    made = []
    for row in rows:
        cells = [*row, *(exp.Null() for _ in range(width - len(row)))]
        made.append(_struct("col", [cell.copy() for cell in cells]))
    return exp.Array(expressions=made)


def _call(name: str, *arguments: exp.Expr) -> exp.Anonymous:
    return exp.Anonymous(this=name, expressions=list(arguments))


def _struct(prefix: str, cells: list[exp.Expr]) -> exp.Anonymous:
    return _call(
        "named_struct",
        *(part for at, cell in enumerate(cells) for part in (exp.Literal.string(f"{prefix}{at}"), cell)),
    )


@dataclass(slots=True)
class _Spread:
    """The rewrite of one SELECT."""

    select: exp.Select
    views: list[exp.Lateral] = field(default_factory=list)
    numbers: list[exp.Expr] = field(default_factory=list)
    shown: list[exp.Expr] = field(default_factory=list)
    """The columns of `*` in addition to the relation after FROM."""
    emptied: list[exp.Expr] | None = None
    """If set, a row without items stays, and the column that is NULL for such a row is added here."""
    numbering: dict[str, str] = field(default_factory=dict)
    """The hidden number column of a user's lateral view, by the view's alias."""

    def lateral(
        self, call: GeneratorCall, columns: list[exp.Identifier], alias: str, *, outer: bool = False
    ) -> None:
        self.views.append(
            exp.Lateral(
                this=call.call,
                view=True,
                outer=outer,
                alias=exp.TableAlias(this=exp.to_identifier(alias, quoted=True), columns=columns),
            )
        )

    def add(self, call: GeneratorCall, *, named: bool) -> str:
        """Add the lateral views of a generator. Return the alias of its columns.

        `named` means that the user can refer to that alias.
        """
        if self.emptied is not None and not call.outer:
            alias = self.add(replace(call, outer=True), named=named)
            self.emptied.append(self.numbers[-1])
            return alias
        at = len(self.numbers)
        alias = call.alias or f"_gs_u{at}"
        number = exp.to_identifier(f"_gs_n{at}", quoted=True)
        items = _zip_lists(call.lists) if len(call.lists) > 1 else call.lists[0]
        if call.structs or call.ordinal or len(call.lists) > 1:
            self._two(call, items, alias, number, f"_gs_v{at}", f"_gs_s{at}")
            if named:
                self.shown.append(_star_of(alias))
            return alias
        source = GeneratorCall(exp.Posexplode(this=items))
        if call.numbered:
            self.lateral(source, [name.copy() for name in call.names], alias, outer=call.outer)
            self.numbers.append(_in(alias, call.names[0].name if call.names else "pos"))
        elif call.names:
            self.lateral(source, [number, *(name.copy() for name in call.names)], alias, outer=call.outer)
            self.numbers.append(_in(alias, number.name))
            self.numbering[alias.lower()] = number.name
        else:
            self.lateral(source, [], alias, outer=call.outer)
            self.numbers.append(_in(alias, "pos"))
            self.numbering[alias.lower()] = "pos"
        if named:
            self.shown.append(
                _star_of(alias, *([self.numbering[alias.lower()]] if alias.lower() in self.numbering else []))
            )
        return alias

    def _two(
        self, call: GeneratorCall, items: exp.Expr, alias: str, number: exp.Identifier, hidden: str, item: str
    ) -> None:
        """Add one view for the items and their number, and one for the columns computed from an item."""
        self.lateral(
            GeneratorCall(exp.Posexplode(this=items)),
            [number, exp.to_identifier(item, quoted=True)],
            hidden,
            outer=call.outer,
        )
        n, value = _in(hidden, number.name), _in(hidden, item)
        self.numbers.append(n)
        if call.structs:
            made = value
        else:
            width = len(call.lists)
            cells = [value] if width == 1 else [_call("get", one.copy(), n.copy()) for one in call.lists]
            cells += [template("_0 + 1", n)] if call.ordinal else []
            made = _struct("c", cells)
        self.lateral(
            GeneratorCall(exp.Inline(this=exp.Array(expressions=[made]))),
            [name.copy() for name in call.names],
            alias,
        )


def _in(alias: str, name: str) -> exp.Column:
    return exp.column(exp.to_identifier(name, quoted=True), exp.to_identifier(alias, quoted=True))


def _star_of(alias: str, *left_out: str) -> exp.Column:
    star = (
        exp.Star(except_=[exp.to_identifier(name, quoted=True) for name in left_out])
        if left_out
        else exp.Star()
    )
    return exp.Column(this=star, table=exp.to_identifier(alias, quoted=True))


def _zip_lists(lists: list[exp.Expr]) -> exp.Expr:
    """Return a list with as many items as the longest of several lists."""
    sizes = [_call("array_size", one.copy()) for one in lists]
    return template("array_repeat(true, _0)", _call("greatest", *sizes, exp.Literal.number(0)))


def spread(select: exp.Select, emptied: list[exp.Expr] | None = None) -> list[exp.Expr]:
    """Replace all generators of a SELECT by lateral views. Return the row numbers, outermost first.

    With `emptied`, rows without items stay. It receives the columns that are NULL only for such a row. Raise
    UserError if two generators are in one SELECT list and are not both `unnest`.
    """
    work = _Spread(select, emptied=emptied)
    joins = select.args.get("joins") or []
    for part in [*joins, *(select.args.get("laterals") or [])]:
        if (call := find_generator(part)) is not None:
            work.add(call, named=True)
        elif isinstance(part, exp.Lateral):
            work.views.append(part.copy())
    listed = list(_find_generators(select))
    if not work.numbers and not listed:
        return []
    if any(isinstance(item, exp.Star) for item in select.expressions):
        _open_stars(work)
    _mark_stars(work)
    if listed:
        _from_the_list(work, listed)
    select.set("joins", [join for join in joins if find_generator(join) is None] or None)
    select.set("laterals", work.views)
    return work.numbers


def _find_generators(select: exp.Select) -> Iterator[exp.Expr]:
    """Yield the generators in a SELECT list."""
    for item in select.expressions:
        yield from (
            part
            for part in item.find_all(exp.Explode, exp.Inline, exp.Stack, exp.Unnest, exp.Anonymous)
            if is_generator(part)
        )


def _open_stars(work: _Spread) -> None:
    """Replace `*` by the star of the relation after FROM and the stars of the user's views.

    The columns of the views that are added here are not in them.
    """
    select = work.select
    read = select.args["from_"].this
    if isinstance(read, exp.Subquery) and not read.alias:
        read.set("alias", exp.TableAlias(this=exp.to_identifier("_gs_t", quoted=True)))
    name = read.alias_or_name
    items: list[exp.Expr] = []
    for item in select.expressions:
        if isinstance(item, exp.Star):
            own = exp.Column(this=item.copy(), table=exp.to_identifier(name, quoted=True))
            items += [own, *(shown.copy() for shown in work.shown)]
        else:
            items.append(item)
    select.set("expressions", items)


def _mark_stars(work: _Spread) -> None:
    """Exclude the row number from `e.*` over a lateral view of the user."""
    for item in work.select.expressions:
        if (
            isinstance(item, exp.Column)
            and isinstance(item.this, exp.Star)
            and (hidden := work.numbering.get(item.table.lower()))
        ):
            left_out = item.this.args.get("except_") or []
            if hidden not in [column.name for column in left_out]:
                item.this.set("except_", [*left_out, exp.to_identifier(hidden, quoted=True)])


def _from_the_list(work: _Spread, listed: list[exp.Expr]) -> None:
    """Replace the generators of the SELECT list by lateral views and their columns."""
    calls = list({part.sql(dialect="spark"): part for part in listed}.values())
    if len(calls) > 1:
        _side_by_side(work, listed, calls)
        return
    if len(listed) > 1 and type(listed[0]) is not exp.Unnest:
        msg = "two row-generating functions in one SELECT list"
        raise UserError(msg, hint="Write it as one LATERAL VIEW, and its column as often as you like.")
    (call,) = calls
    item = call.parent
    names = _names(call)
    if not isinstance(item, exp.Select | exp.Alias | exp.Aliases) and _several(call):
        msg = f"`{call.sql(dialect='spark')}` gives several columns, and stands inside of another expression"
        raise UserError(msg, hint="Write it as a LATERAL VIEW.")
    hidden = tuple(exp.to_identifier(f"_gs_x{at}", quoted=True) for at in range(len(names)))
    alias = work.add(GeneratorCall(call.copy(), names=hidden, outer=_is_outer(call)), named=False)
    columns: list[exp.Expr] = [
        exp.alias_(_in(alias, hid.name), name) for hid, name in zip(hidden, names, strict=True)
    ]
    if not names:
        columns = [
            _star_of(alias, *([work.numbering[alias.lower()]] if alias.lower() in work.numbering else []))
        ]
    whole = item if isinstance(item, exp.Alias | exp.Aliases) else call
    if len(listed) == 1 and whole.parent is work.select:
        _instead(work.select, whole, columns)
        return
    for part in listed:
        _put(part, _in(alias, hidden[0].name))


def _side_by_side(work: _Spread, listed: list[exp.Expr], calls: list[exp.Expr]) -> None:
    """Combine several `unnest` in one list. The shorter lists give NULL after their end."""
    if not all(type(part) is exp.Unnest and len(part.expressions) == 1 for part in calls):
        msg = "two row-generating functions in one SELECT list"
        raise UserError(
            msg,
            hint="Write each as a LATERAL VIEW, for every pair; or as unnest, for the first with the first.",
        )
    names = tuple(exp.to_identifier(f"_gs_x{at}", quoted=True) for at in range(len(calls)))
    alias = work.add(
        GeneratorCall(exp.Unnest(expressions=[part.expressions[0].copy() for part in calls]), names=names),
        named=False,
    )
    columns = {
        call.sql(dialect="spark"): _in(alias, name.name) for call, name in zip(calls, names, strict=True)
    }
    for part in listed:
        _put(part, columns[part.sql(dialect="spark")].copy())


def _names(call: exp.Expr) -> tuple[exp.Identifier, ...]:
    """Return the column names of a generator in a SELECT list. Empty if Spark's own names apply."""
    item = call.parent
    if isinstance(item, exp.Aliases):
        return tuple(name.copy() for name in item.expressions)
    if isinstance(item, exp.Alias) and not _several(call):
        return (item.args["alias"].copy(),)
    if type(call) is exp.Unnest or not isinstance(item, exp.Select):
        return (exp.to_identifier("unnest", quoted=True),)
    return ()


def _several(call: exp.Expr) -> bool:
    generator_call = GeneratorCall(call)
    return generator_call.numbered or generator_call.structs


def _put(part: exp.Expr, column: exp.Column) -> None:
    """Replace a generator by its column. A bare `unnest` gets that name."""
    part.replace(exp.alias_(column, "unnest") if isinstance(part.parent, exp.Select) else column)


def _instead(select: exp.Select, item: exp.Expr, columns: list[exp.Expr]) -> None:
    items = select.expressions
    at = next(at for at, one in enumerate(items) if one is item)
    select.set("expressions", [*items[:at], *columns, *items[at + 1 :]])

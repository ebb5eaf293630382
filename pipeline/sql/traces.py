"""Traces columns of a result to the input columns, by name.

It reads only the SQL, and may return too many.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from headrace.pipeline.sql.generators import find_generator, is_generator

WANTED = "headrace_wanted"
"""Meta key of an item of a SELECT list: it computes a wanted column."""
PLAIN = "headrace_plain"
"""Meta key of a SELECT: the columns that are passed on unchanged as wanted ones."""
BY_ITEM = "headrace_by_item"
"""Meta key of a SELECT: a wanted column is computed from the items of a list."""
_LIST_COLUMNS = ("col", "pos", "key", "value")
"""Spark's default names of the columns of a list."""


def trace(query: exp.Query, columns: Collection[str]) -> dict[str, set[str]]:
    """Return the input columns, in lower case, from which `columns` of the result are computed, by node.

    Store details in the `meta` of the statement's parts.
    """
    work = _Trace()
    work.query(query, _Wanted({name.lower() for name in columns}), {})
    return work.inputs


def trace_distinct(query: exp.Query, columns: Collection[str]) -> dict[str, set[str]]:
    """Return the input columns whose values differ only if `columns` of the result differ, by node.

    The result has such a column unchanged, cast, or in an expression that keeps values apart, for example
    `concat('a-', id)` or `md5(id)`. `lower(id)` gives one result for two values.
    """
    work = _Trace(distinct=True)
    work.query(query, _Wanted({name.lower() for name in columns}), {})
    return work.inputs


def trace_plain(query: exp.Query, columns: Collection[str]) -> None:
    """Find the columns of each SELECT that only pass on these result columns.

    Store them in its `meta` under `PLAIN`.
    """
    for select in query.find_all(exp.Select):
        select.meta.pop(PLAIN, None)
    trace(query, columns)


def plain_inputs(query: exp.Query, columns: Collection[str]) -> frozenset[str]:
    """Return the columns that one SELECT over one node passes on unchanged as `columns`.

    Empty for any other statement.
    """
    if (
        not isinstance(query, exp.Select)
        or len(list(query.find_all(exp.Select))) > 1
        or query.args.get("joins")
    ):
        return frozenset()
    result: set[str] = set()
    wanted = {name.lower() for name in columns}
    listed = {item.alias_or_name.lower() for item in query.expressions if not item.is_star}
    for item in query.expressions:
        value = item.unalias()
        if item.is_star:
            result |= wanted - listed
        elif (
            item.alias_or_name.lower() in wanted
            and isinstance(value, exp.Column)
            and not isinstance(value.this, exp.Star)
        ):
            result.add(value.name.lower())
    return frozenset(result - set(_made_columns(query)))


@dataclass(slots=True)
class _Wanted:
    """Columns by name. Also by index if that is known, as for the branches of a UNION ALL."""

    names: set[str]
    places: set[int] | None = None


@dataclass(slots=True)
class _Trace:
    inputs: dict[str, set[str]] = field(default_factory=dict)
    distinct: bool = False
    """Only follow expressions that keep different values apart."""

    def query(self, query: exp.Expr, wanted: _Wanted, around: dict[str, set[str]]) -> None:
        ctes = {**around, **{cte.alias.lower(): set[str]() for cte in getattr(query, "ctes", ())}}
        if isinstance(query, exp.Subquery):
            self.query(query.this, _by_alias(query.alias_column_names, wanted), ctes)
        elif isinstance(query, exp.SetOperation):
            places = wanted.places if wanted.places is not None else _places(query, wanted.names)
            by_place = places is not None and not query.args.get("by_name")
            self.query(query.left, _Wanted(wanted.names, places) if by_place else wanted, ctes)
            self.query(query.right, _Wanted(wanted.names, places) if by_place else wanted, ctes)
        elif isinstance(query, exp.Select):
            self._select(query, wanted, ctes)
        for cte in reversed(getattr(query, "ctes", ())):
            own = ctes[cte.alias.lower()]
            earlier = {name: names for name, names in ctes.items() if name != cte.alias.lower()}
            self.query(cte.this, _by_alias(cte.alias_column_names, _Wanted(own)), earlier)

    def _select(self, select: exp.Select, wanted: _Wanted, ctes: dict[str, set[str]]) -> None:
        items = select.expressions
        starred = any(item.is_star for item in items)
        by_place = wanted.places is not None and not starred
        chosen = {
            at
            for at, item in enumerate(items)
            if (at in (wanted.places or ()) if by_place else _is_named(item, wanted.names))
        }
        while more := _to_the_left(items, chosen):
            chosen |= more
        refs = {name for at in chosen for name in self._read(items[at])}
        if self.distinct:
            listed = {item.alias_or_name.lower() for item in items if not item.is_star}
            passed = refs | (wanted.names - listed if starred else set())
            self._from(select, passed - set(_made_columns(select)), ctes)
            return
        refs |= wanted.names if starred else set()
        for at in chosen:
            items[at].meta[WANTED] = True
        bare = {
            items[at].unalias().name.lower() for at in chosen if isinstance(items[at].unalias(), exp.Column)
        }
        select.meta[PLAIN] = select.meta.get(PLAIN, set()) | bare | (wanted.names if starred else set())
        by_item = any(is_generator(part) for at in chosen for part in items[at].walk())
        for part in [*(select.args.get("laterals") or []), *(select.args.get("joins") or [])]:
            if (call := find_generator(part)) is None:
                refs |= set(_columns(part))
                continue
            if refs.intersection({name.name.lower() for name in call.names} or _LIST_COLUMNS):
                by_item = True
                refs |= {name for one in call.lists for name in _columns(one)}
        select.meta[BY_ITEM] = bool(select.meta.get(BY_ITEM)) or by_item
        self._from(select, refs, ctes)

    def _read(self, item: exp.Expr) -> Iterator[str]:
        """Yield the columns that an item of a SELECT list reads, or with `distinct` keeps apart."""
        if not self.distinct or all(_keeps_apart(part) for part in item.unalias().walk()):
            yield from _columns(item)

    def _from(self, select: exp.Select, refs: set[str], ctes: dict[str, set[str]]) -> None:
        clause = select.args.get("from_")
        read = clause.this if clause is not None else None
        if isinstance(read, exp.Subquery):
            self.query(read, _Wanted(refs), ctes)
        elif isinstance(read, exp.Table):
            name = ".".join(part.name for part in read.parts)
            ctes.get(
                name.lower(), self.inputs.setdefault(name, set()) if name.lower() not in ctes else set()
            ).update(refs)


_INJECTIVE = (
    exp.Column,
    exp.Identifier,
    exp.Literal,
    exp.Paren,
    exp.Concat,
    exp.ConcatWs,
    exp.DPipe,
    exp.MD5,
    exp.SHA,
    exp.SHA2,
    exp.Hex,
    exp.Unhex,
    exp.ToBase64,
    exp.DataType,
    exp.DataTypeParam,
)
"""Expressions that give different results for different values of a column, or nearly so, as hashes."""
_INJECTIVE_FUNCTIONS = ("xxhash64", "base64", "struct", "to_json")
_COARSE_TYPES = (exp.DataType.Type.DATE, exp.DataType.Type.BOOLEAN)
"""Types into which many values are cast as one."""


def _keeps_apart(part: exp.Expr) -> bool:
    """Return whether an expression gives different results for different values of its columns."""
    if isinstance(part, exp.Cast | exp.TryCast):
        return part.to.this not in _COARSE_TYPES
    if isinstance(part, exp.Anonymous):
        return part.name.lower() in _INJECTIVE_FUNCTIONS
    if isinstance(part, exp.Add | exp.Sub | exp.Coalesce):
        return len(list(part.find_all(exp.Column))) == 1
    return isinstance(part, _INJECTIVE)


def _made_columns(select: exp.Select) -> Iterator[str]:
    """Yield the names of columns that LATERAL VIEW makes."""
    for part in select.args.get("laterals") or []:
        yield from (name.name.lower() for name in part.find_all(exp.Identifier))


def _by_alias(columns: Sequence[str], wanted: _Wanted) -> _Wanted:
    """Return the wanted columns below `AS t(a, b)`, which names columns by their index."""
    if not columns:
        return wanted
    places = {at for at, name in enumerate(columns) if name.lower() in wanted.names}
    return _Wanted(wanted.names, places)


def _places(query: exp.SetOperation, names: set[str]) -> set[int] | None:
    """Return the indexes of wanted columns in the first branch of a UNION ALL. None if it has a `*`."""
    first: exp.Expr = query
    while isinstance(first, exp.SetOperation | exp.Subquery):
        first = first.this
    items = first.expressions
    return (
        None
        if any(item.is_star for item in items)
        else {at for at, item in enumerate(items) if _is_named(item, names)}
    )


def _is_named(item: exp.Expr, names: set[str]) -> bool:
    if isinstance(item, exp.Aliases):
        return any(name.name.lower() in names for name in item.expressions)
    return item.alias_or_name.lower() in names and not item.is_star


def _to_the_left(items: Sequence[exp.Expr], chosen: set[int]) -> set[int]:
    """Return the items whose alias a chosen item further right may refer to."""
    return {
        at
        for at, item in enumerate(items)
        if at not in chosen
        and isinstance(item, exp.Alias)
        and any(item.alias.lower() in set(_columns(items[other])) for other in chosen if other > at)
    }


def _columns(part: exp.Expr) -> Iterator[str]:
    """Yield the names of all columns in an expression.

    Of `a.b`, which may be a struct's field, yield both.
    """
    for column in part.find_all(exp.Column):
        yield from (name.name.lower() for name in column.parts if isinstance(name, exp.Identifier))

"""Rewrites one SELECT so that its WHERE marks rows instead of dropping them. `retractions` has the reason.

    SELECT id, 10 / v AS w FROM t WHERE v <> 0

becomes, with `_gs_pos` as one of the system columns,

    SELECT id, CASE WHEN _gs_at.sub >= 0 THEN 10 / v END AS w, …, _gs_at AS _gs_pos
    FROM (SELECT *, <the position, or a mark> AS _gs_at FROM t) AS t

The predicate is computed once. Spark evaluates that form over local rows without a job. A SELECT with a join
or a generator gets a lateral view of one row instead:

    FROM t … LATERAL VIEW inline(array(named_struct('_gs_at', <the position, or a mark>))) _gs_m AS _gs_at
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from sqlglot import exp

from headrace.pipeline.errors import UserError
from headrace.pipeline.sql.dialects.spark import DIALECT
from headrace.pipeline.sql.dialects.translation import template
from headrace.pipeline.sql.generators import GeneratorCall, fans_out, is_generator, spread
from headrace.pipeline.sql.source_filters import parse_filter
from headrace.pipeline.sql.system_columns import OP, POS, Branch, Marks, add_row_number, find_stars
from headrace.pipeline.sql.total import is_repeatable, is_total, without_errors
from headrace.pipeline.sql.traces import BY_ITEM, PLAIN, WANTED, plain_inputs, trace, trace_plain

FAILED = -1
"""`_gs_pos.sub` of a row that a filter dropped."""
EMPTIED = -2
"""`_gs_pos.sub` of a row whose list had no items."""
_VIEW, _AT = "_gs_m", "_gs_at"
_MARK = "named_struct('source', _0.source, 'part', _0.part, 'off', _0.off, 'sub', CAST({sub} AS BIGINT))"


@dataclass(frozen=True, slots=True)
class Marking:
    """The columns that a statement keeps of dropped rows: the columns `wanted` of its result.

    `marked` means that rows that it reads may be marked. `keys` are the wanted columns from which the key of
    every downstream sink is computed. `plain` are those that arrive there unchanged.
    """

    wanted: frozenset[str]
    marked: bool
    keys: frozenset[str] = frozenset()
    plain: frozenset[str] = frozenset()


class Marker:
    """The rewrite of one statement."""

    def __init__(self, query: exp.Query, marking: Marking, node: str) -> None:
        trace(query, marking.wanted)
        trace_plain(query, marking.keys)
        self._node = node
        self._plain = plain_inputs(query, marking.plain)
        nested = len(list(query.find_all(exp.Select))) > 1
        self._marked = marking.marked or (nested and (query.find(exp.Where) is not None or fans_out(query)))

    def mark(self, select: exp.Select, branch: Branch | None) -> tuple[list[exp.Expr], Marks | None]:
        """Rewrite a SELECT, except for its system columns.

        Return its row numbers, and its marks if it has any. Raise UserError for a key or a list that may fail
        for rows that the filter drops.
        """
        where = select.args.get("where")
        apart = bool(generators(select)) and not select.meta.get(BY_ITEM)
        if where is not None and not self._marked and not apart and self._is_for_good(where.this, select):
            return spread(select), None
        if where is None and not self._marked and not apart:
            return spread(select), None
        self._check_lists(select, apart=apart)
        emptied: list[exp.Expr] = []
        numbers = spread(select, emptied if apart else None)
        if where is None and not self._marked and not emptied:
            return numbers, None
        position = exp.column(exp.to_identifier(POS, quoted=True))
        passes = self._passes(select, position) if where is not None else None
        placed = _position_of_row(position, numbers, branch, self._node, passes, emptied)
        if passes is not None or emptied:
            position = _add_subquery(select, placed) or _add_view(select, placed)
            placed = position.copy()
        alive = template("_0.sub >= 0", position)
        self._guard(select, alive)
        return numbers, Marks(placed, alive)

    def _passes(self, select: exp.Select, position: exp.Expr) -> exp.Expr:
        """Return the whole predicate. Conditions that drop rows permanently stay in WHERE."""
        condition = select.args["where"].this
        plain = [part.copy() for part in _conjuncts(condition) if self._is_for_good(part, select)]
        select.set("where", exp.Where(this=exp.and_(*plain)) if plain else None)
        passes = condition.copy()
        if self._marked:
            _shield(passes, template("_0.sub >= 0", position))
        return passes

    def _is_for_good(self, condition: exp.Expr, select: exp.Select) -> bool:
        keys = select.meta.get(PLAIN, set())
        return all(is_for_good(part, keys, self._plain) for part in _conjuncts(condition))

    def _guard(self, select: exp.Select, alive: exp.Expr) -> None:
        """Do not compute an expression for a marked row if it may fail.

        Key columns are tried without errors.
        """
        for item in list(select.expressions):
            value = item.unalias()
            if (
                item.is_star
                or isinstance(item, exp.Aliases)
                or item.alias_or_name.lower() in (OP, POS)
                or is_total(value)
            ):
                continue
            if item.meta.get(WANTED):
                tried: exp.Expr | None = (
                    value if isinstance(value.unnest(), exp.Case | exp.If) else without_errors(value)
                )
                if tried is None:
                    key = f"the key column `{item.alias_or_name}`"
                    raise self._refusal(key, value)
                made = template("CASE WHEN _0 THEN _1 ELSE _2 END", alive, value, tried)
            else:
                value = value.copy()
                _shield(value, alive)
                made = template("CASE WHEN _0 THEN _1 END", alive, value)
            if isinstance(item, exp.Alias):
                item.set("this", made)
            elif _is_later_branch(select):
                item.replace(made)
            else:
                msg = (
                    f"`{value.sql(dialect=DIALECT)}` has no name, and a WHERE decides for which rows it"
                    " is computed"
                )
                raise UserError(msg, hint="Give the column a name: AS name.")

    def _check_lists(self, select: exp.Select, *, apart: bool) -> None:
        """Check lists, because they become rows before the filter is applied.

        If no key needs their items, a row that fails the filter has no items.
        """
        where = select.args.get("where")
        clauses = [*(select.args.get("laterals") or []), *(select.args.get("joins") or [])]
        alive = template("_0.sub >= 0", exp.column(exp.to_identifier(POS, quoted=True)))
        if where is not None and not clauses:
            alive = exp.and_(alive, where.this.copy())
        for part in generators(select):
            for one in GeneratorCall(part).lists:
                if is_total(one) or isinstance(one.unnest(), exp.Case | exp.If):
                    continue
                if not apart or isinstance(part, exp.Stack) or (where is not None and clauses):
                    what = "the list that rows are made of"
                    raise self._refusal(what, one)
                one.replace(template("CASE WHEN _0 THEN _1 END", alive, one))

    def _refusal(self, what: str, value: exp.Expr) -> UserError:
        text = value.sql(dialect=DIALECT, comments=False)
        msg = (
            f"{what} is `{text}`, which may fail for rows that the filter leaves out, and at a sink with"
            " a key these are deletes"
        )
        hint = (
            "Say when it is computed: CASE WHEN … THEN … END, or use a function that gives NULL instead"
            " of failing, such as try_cast."
        )
        return UserError(msg, hint=hint, node=self._node)


def leaves_for_good(query: exp.Query, keys: Collection[str], plain: Collection[str]) -> bool:
    """Return whether no row that the WHERE of a statement drops needs a mark.

    `keys` and `plain` are those of `Marking`.
    """
    return all(for_good for _, for_good in _judge_conditions(query, keys, plain))


def find_conditions_for_good(query: exp.Query, marking: Marking) -> list[exp.Expr]:
    """Return the conditions of a statement that drop rows permanently."""
    return [part for part, for_good in _judge_conditions(query, marking.keys, marking.plain) if for_good]


def _judge_conditions(
    query: exp.Query, keys: Collection[str], plain: Collection[str]
) -> Iterator[tuple[exp.Expr, bool]]:
    """Yield the conditions of the WHERE clauses, and whether they drop rows permanently."""
    query = query.copy()
    trace_plain(query, keys)
    inputs = plain_inputs(query, plain)
    for select in query.find_all(exp.Select):
        if (where := select.args.get("where")) is not None:
            for part in _conjuncts(where.this):
                yield part, is_for_good(part, select.meta.get(PLAIN, set()), inputs)


def is_for_good(part: exp.Expr, keys: Collection[str], plain: Collection[str] = ()) -> bool:
    """Return whether a condition drops rows permanently.

    It does if it tests only the operation, or only that a key column is not NULL. It also does if it has the
    same result for all rows of one key, because it uses nothing but `plain` columns.
    """
    columns = list(part.find_all(exp.Column))
    names = {column.name.lower() for column in columns}
    if names == {OP}:
        return True
    if names and names <= set(plain) and not any(column.table for column in columns) and is_repeatable(part):
        return True
    inner = part.unnest()
    return (
        isinstance(inner, exp.Not)
        and isinstance(inner.this.unnest(), exp.Is)
        and isinstance(inner.this.unnest().expression, exp.Null)
        and isinstance(inner.this.unnest().this, exp.Column)
        and names <= set(keys)
    )


def generators(select: exp.Select) -> list[exp.Expr]:
    """Return the row-generating functions of a SELECT itself."""
    return [part for part in select.walk() if is_generator(part) and part.find_ancestor(exp.Select) is select]


def _conjuncts(condition: exp.Expr) -> Iterator[exp.Expr]:
    bare = condition.unnest()
    if isinstance(bare, exp.And):
        yield from _conjuncts(bare.left)
        yield from _conjuncts(bare.right)
    else:
        yield condition


def _position_of_row(
    position: exp.Expr,
    numbers: Sequence[exp.Expr],
    branch: Branch | None,
    node: str,
    passes: exp.Expr | None,
    emptied: Sequence[exp.Expr],
) -> exp.Expr:
    """Return the position of a row: unchanged, a mark, or with its number among rows of one source row."""
    normal = add_row_number(position, numbers, node, branch) if numbers or branch else position.copy()
    if passes is None and not emptied and normal == position:
        return normal
    cases = exp.Case().when(template("_0.sub < 0", position), position.copy())
    if passes is not None:
        cases = cases.when(
            template("NOT coalesce(_0, false)", passes), template(_MARK.format(sub=FAILED), position)
        )
    for number in emptied:
        cases = cases.when(template("_0 IS NULL", number), template(_MARK.format(sub=EMPTIED), position))
    return cases.else_(normal)


def _add_subquery(select: exp.Select, placed: exp.Expr) -> exp.Column | None:
    """Read the relation after FROM through a subquery with the marks. Return their column.

    Return None for a SELECT that needs `_add_view`.
    """
    read = select.args["from_"].this
    alias = read.args.get("alias")
    if (
        select.args.get("joins")
        or select.args.get("laterals")
        or not isinstance(read, exp.Table | exp.Subquery)
        or {key for key, value in read.args.items() if value} - {"this", "alias"}
        or (alias is not None and alias.columns)
    ):
        return None
    at = exp.to_identifier(_AT, quoted=True)
    name = exp.to_identifier(read.alias_or_name or _VIEW, quoted=True)
    # The relation is moved, not copied: the caller rewrites the SELECTs inside it later.
    marks = [exp.Star(), exp.alias_(placed, at.copy())]
    inner = exp.Select(expressions=marks, from_=exp.From(this=read))
    select.args["from_"].set("this", exp.Subquery(this=inner, alias=exp.TableAlias(this=name)))
    _exclude_mark(find_stars(select))
    return exp.Column(this=at)


def _add_view(select: exp.Select, placed: exp.Expr) -> exp.Column:
    """Add a lateral view of one row with the marks. Return their column."""
    at, name = exp.to_identifier(_AT, quoted=True), exp.to_identifier(_VIEW, quoted=True)
    stars = [star for item in select.expressions for star in item.find_all(exp.Star)]
    _exclude_mark(star for star in stars if not isinstance(star.parent, exp.Column))
    made = exp.Anonymous(this="named_struct", expressions=[exp.Literal.string(_AT), placed])
    view = exp.Lateral(
        this=exp.Inline(this=exp.Array(expressions=[made])),
        view=True,
        alias=exp.TableAlias(this=name, columns=[at]),
    )
    select.set("laterals", [*(select.args.get("laterals") or []), view])
    return exp.column(at.copy(), name.copy())


def _exclude_mark(stars: Iterable[exp.Star]) -> None:
    for star in stars:
        star.set("except_", [*(star.args.get("except_") or []), exp.to_identifier(_AT, quoted=True)])


def _shield(value: exp.Expr, alive: exp.Expr) -> None:
    """Pass NULL to functions in Spark's workers for marked rows.

    Spark calls them for all rows, even inside CASE.
    """
    for call in list(value.find_all(exp.Anonymous)):
        if call.find_ancestor(exp.Lambda) is not None or any(
            isinstance(one, exp.Lambda) for one in call.expressions
        ):
            continue
        arguments = [
            one if isinstance(one, exp.Literal) else template("CASE WHEN _0 THEN _1 END", alive, one)
            for one in call.expressions
        ]
        call.set("expressions", arguments)


def _is_later_branch(select: exp.Select) -> bool:
    """Return whether a SELECT is a branch of a UNION ALL and another branch names its columns."""
    at: exp.Expr = select
    while isinstance(at.parent, exp.SetOperation | exp.Subquery):
        if (
            isinstance(at.parent, exp.SetOperation)
            and at.parent.expression is at
            and not at.parent.args.get("by_name")
        ):
            return True
        at = at.parent
    return False


def conditions_for_good(predicate: str) -> list[str]:
    """Return the conditions of a source's filter, in Spark's SQL, that test only the operation.

    They drop rows permanently, and mark none.
    """
    if OP not in predicate or (query := parse_filter(predicate)) is None:
        return []
    parts = _conjuncts(query.args["where"].this)
    return [part.sql(dialect=DIALECT) for part in parts if is_for_good(part, ())]

"""Constructs that a per-row transform does not support, with the reason and the alternative."""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from headrace.pipeline.errors import UserError
from headrace.pipeline.sql.generators import find_generator, is_generator

_FAR = "It needs rows beyond the one at hand. Do it in the target, or in a view over it."
_LAST = "Give the sink these columns as its `primary_key`: it keeps the last row of each key."
_CHANCE = (
    "It gives other rows when an epoch is written again. Take rows by their values: WHERE"
    " pmod(hash(id), 100) < 10."
)
_ORDER = (
    "The rows of an epoch have no order that a reader of the target sees. Order them where they are read."
)
_CONSTANT = "Its rows would appear once per epoch. Name a source or a transform after FROM."
_PLAIN = (
    "Put it into the SELECT list, or after FROM, of a subquery or a transform of its own, and its"
    " WHERE around that."
)

_REFUSED: dict[type[exp.Expr], tuple[str, str]] = {
    exp.AggFunc: ("an aggregate", _FAR),
    exp.Group: ("GROUP BY", _FAR),
    exp.Having: ("HAVING", _FAR),
    exp.Window: ("a window function", _FAR),
    exp.Qualify: ("QUALIFY", _FAR),
    exp.Sort: ("SORT BY", _ORDER),
    exp.Cluster: ("CLUSTER BY", _ORDER),
    exp.Distribute: ("DISTRIBUTE BY", _ORDER),
    exp.Order: ("ORDER BY", _FAR),
    exp.Limit: ("LIMIT", _FAR),
    exp.Fetch: ("FETCH FIRST", _FAR),
    exp.Offset: ("OFFSET", _FAR),
    exp.Intersect: ("INTERSECT", _FAR),
    exp.Except: ("EXCEPT", _FAR),
    exp.TableSample: ("TABLESAMPLE", _CHANCE),
    exp.MatchRecognize: ("MATCH_RECOGNIZE", _FAR),
    exp.QueryTransform: (
        "TRANSFORM ... USING",
        "It starts a program per task. Write what it does as SQL, or as a transform of its own.",
    ),
    exp.Values: ("VALUES", _CONSTANT),
    exp.Into: ("SELECT INTO", "A sink says where rows go."),
}


_AGGREGATES = tuple(
    f"json_{kind}agg_{nulls}_on_null" for kind in ("array", "object") for nulls in ("null", "absent")
)
"""Flink's aggregates, which sqlglot parses as ordinary functions."""

AGGREGATE = ("unsupported plan: an aggregate is not possible in a per-row transform", _FAR)
"""Message and hint for an aggregate that only Spark knows."""


def check(query: exp.Query) -> None:
    """Raise UserError, "unsupported plan: ...", for the first construct that a per-row transform lacks."""
    for part in query.walk():
        for what, hint in _wrong(part):
            msg = f"unsupported plan: {what} is not possible in a per-row transform"
            raise UserError(msg, hint=hint)


def _wrong(part: exp.Expr) -> Iterator[tuple[str, str]]:
    if isinstance(part, exp.Distinct):
        yield ("DISTINCT ON", _LAST) if part.args.get("on") is not None else ("DISTINCT", _FAR)
    if isinstance(part, exp.Join):
        yield from _join(part)
    if isinstance(part, exp.Pivot):
        yield (
            ("UNPIVOT", "Write it with stack, which makes several rows of one.")
            if part.args.get("unpivot")
            else ("PIVOT", _FAR)
        )
    if isinstance(part, exp.Union) and part.args.get("distinct"):
        yield "UNION without ALL", _FAR
    if isinstance(part, exp.With) and part.args.get("recursive"):
        yield "WITH RECURSIVE", _FAR
    if isinstance(part, exp.Select):
        yield from _select(part)
    if isinstance(part, exp.Anonymous) and part.name.lower() in _AGGREGATES:
        yield "an aggregate", _FAR
    if is_generator(part):
        yield from _generator(part)
    yield from (message for kind, message in _REFUSED.items() if isinstance(part, kind))


def _join(join: exp.Join) -> Iterator[tuple[str, str]]:
    if find_generator(join) is None:
        yield "a join", _FAR
    elif (condition := join.args.get("on")) is not None and not (
        isinstance(condition, exp.Boolean) and condition.this
    ):
        yield "a condition on the items of a list in ON", "Write ON true, and the condition into WHERE."
    elif join.side in ("RIGHT", "FULL") or join.args.get("using"):
        yield (
            f"{join.side or 'USING'} with the items of a list",
            "Write CROSS JOIN, or LEFT JOIN ... ON true.",
        )


def _select(select: exp.Select) -> Iterator[tuple[str, str]]:
    parent = select.parent
    while isinstance(parent, exp.Subquery | exp.SetOperation):
        parent = parent.parent
    if parent is not None and not isinstance(parent, exp.From | exp.CTE | exp.Join):
        within = isinstance(select.find_ancestor(exp.Where, exp.Select), exp.Where)
        yield "a subquery in WHERE" if within else "a subquery in an expression", _FAR
    clause = select.args.get("from_")
    if clause is None:
        yield "a SELECT without FROM", _CONSTANT
    elif not isinstance(clause.this, exp.Subquery | exp.Values) and not (
        isinstance(clause.this, exp.Table) and isinstance(clause.this.this, exp.Identifier)
    ):
        yield "a function alone after FROM", _CONSTANT


def _generator(part: exp.Expr) -> Iterator[tuple[str, str]]:
    """Yield problems of a generator that is not in a SELECT list, LATERAL VIEW or FROM clause."""
    name = (
        part.name
        if isinstance(part, exp.Anonymous)
        else part.sql_name()
        if isinstance(part, exp.Func)
        else "unnest"
    )
    name = name.lower()
    inside = part.find_ancestor(exp.Where, exp.Select)
    if isinstance(inside, exp.Where):
        yield f"`{name}` in WHERE", _PLAIN
    at = part.parent
    while at is not None and not isinstance(at, exp.Select | exp.Lateral | exp.Join):
        if is_generator(at):
            yield f"`{name}` inside of another such function", _PLAIN
            return
        at = at.parent

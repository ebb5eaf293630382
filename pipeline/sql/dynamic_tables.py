"""Dynamic tables in SQL: the calls that look them up, and the statement that fills one."""

from __future__ import annotations

from sqlglot import exp

from headrace.pipeline.errors import UserError
from headrace.pipeline.sql import statements

FUNCTION = "dynamic_table_check"
VALUE = "value"
"""The column of a dynamic table when it is shown as rows."""


def calls(query: exp.Expr) -> list[exp.Anonymous]:
    """Return the calls of `dynamic_table_check` in a statement."""
    return [call for call in query.find_all(exp.Anonymous) if call.name.lower() == FUNCTION]


def looked_up_tables(text: str, *, node: str = "", dialect: str = "spark") -> tuple[str, ...]:
    """Return the tables that a statement looks up, in order of appearance.

    Raise UserError for a call that is not `dynamic_table_check('table', value)`, and for invalid SQL.
    """
    if FUNCTION not in text.lower():
        return ()
    return tuple(
        dict.fromkeys(
            _table(call, node) for call in calls(statements.parse(text, node=node, dialect=dialect))
        )
    )


def _table(call: exp.Anonymous, node: str) -> str:
    hint = f"Write {FUNCTION}('name_of_the_table', column)."
    if len(call.expressions) != 2:
        msg = (
            f"{FUNCTION} takes a table's name and a value: two arguments, and is given"
            f" {len(call.expressions)}"
        )
        raise UserError(msg, hint=hint, node=node)
    name = call.expressions[0]
    if not (isinstance(name, exp.Literal) and name.is_string):
        msg = (
            f"{FUNCTION} takes the table's name as a literal text, and is given"
            f" `{name.sql(dialect=statements.DIALECT)}`"
        )
        raise UserError(msg, hint=hint, node=node)
    return name.name


def check_population(text: str, *, node: str = "", dialect: str = "spark") -> None:
    """Raise UserError, with Streamling's message, for SQL that cannot fill a dynamic table."""
    refused = "only Projection and Filter SQL queries are supported for dynamic tables"
    try:
        query = statements.parse(text, node=node, dialect=dialect)
    except UserError as error:
        if not error.message.startswith("unsupported plan: "):
            raise
        what = error.message.removeprefix("unsupported plan: ").split(" is not possible")[0]
        hint = "Do the rest in a transform of its own, and read that one here."
        msg = f"{refused}, and this has {what}"
        raise UserError(msg, hint=hint, node=node) from None
    hint = "Write SELECT one_text FROM one_node WHERE condition."
    plain = isinstance(query, exp.Select) and not query.ctes and len(list(query.find_all(exp.Select))) == 1
    if (
        not plain
        or query.find(exp.Explode, exp.Inline, exp.Unnest, exp.Lateral)
        or len(list(query.find_all(exp.Table))) != 1
    ):
        msg = f"{refused}, over one source or transform"
        raise UserError(msg, hint=hint, node=node)
    if len(query.expressions) != 1 or query.expressions[0].is_star:
        count = (
            "is a `*`" if any(item.is_star for item in query.expressions) else f"are {len(query.expressions)}"
        )
        msg = f"only one projection expression is supported for dynamic tables, and there {count}"
        raise UserError(msg, hint=hint, node=node)

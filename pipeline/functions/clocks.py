"""Clocks that are fixed within an epoch, and ids that a replay reproduces."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlglot import exp

from headrace.pipeline.functions.registry import DialectScope, Function, FunctionCall, Group
from headrace.pipeline.functions.templates import fill

_START = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH = "They all mean the epoch's planned time, so that a replay computes the same rows."


def _time(call: FunctionCall) -> exp.Expr:
    return exp.Literal.string((call.now or _START).astimezone(UTC).strftime("%H:%M:%S.%f"))


def _today(call: FunctionCall) -> exp.Expr:
    return exp.cast(
        exp.Literal.string((call.now or _START).astimezone(UTC).strftime("%Y-%m-%d")), "date", dialect="spark"
    )


NUMBERS = "headrace_numbers"
"""Marks the literal that is replaced by the numbers of generated rows."""


def _uuid7(call: FunctionCall) -> exp.Expr:
    """Return 48 bits of the epoch's milliseconds, then 74 bits from row position, node and call."""
    numbers = exp.Literal.string("")
    numbers.meta[NUMBERS] = True
    milliseconds = int((call.now or _START).timestamp() * 1000)
    head = f"{milliseconds:012x}"
    row = (
        "md5(CAST(concat_ws(':', _call, CAST(_gs_pos.source AS STRING), CAST(_gs_pos.part AS STRING),"
        " CAST(_gs_pos.off AS STRING),"
        " CAST(_gs_pos.sub AS STRING), _numbers) AS BINARY))"
    )
    return fill(
        f"concat(_head, substr({row}, 1, 3), '-', translate(substr({row}, 4, 1), '0123456789abcdef',"
        " '89ab89ab89ab89ab'),"
        f" substr({row}, 5, 3), '-', substr({row}, 8, 12))",
        [],
        head=exp.Literal.string(f"{head[:8]}-{head[8:]}-7"),
        numbers=numbers,
        call=exp.Literal.string(f"{call.node}/{call.place}"),
    )


FUNCTIONS = (
    Function(
        name="now",
        signature="now()",
        group=Group.CLOCK,
        result="timestamp",
        least=0,
        most=0,
        where=DialectScope.SPARK,
        sql="now()",
        aliases=("current_timestamp",),
        meaning=f"The moment, in UTC. {_EPOCH}",
        examples=(("now()", "2025-03-04 05:06:07.89"), ("current_timestamp", "2025-03-04 05:06:07.89")),
    ),
    Function(
        name="current_date",
        signature="current_date()",
        group=Group.CLOCK,
        result="date",
        least=0,
        most=0,
        where=DialectScope.SPARK,
        sql="current_date()",
        meaning="The day of `now()`.",
        examples=(("current_date()", "2025-03-04"), ("current_date", "2025-03-04")),
    ),
    Function(
        name="today",
        signature="today()",
        group=Group.CLOCK,
        result="date",
        least=0,
        most=0,
        sql=_today,
        meaning="The day of `now()`.",
        examples=(("today()", "2025-03-04"),),
    ),
    Function(
        name="current_time",
        signature="current_time()",
        group=Group.CLOCK,
        result="text",
        least=0,
        most=0,
        sql=_time,
        meaning="The time of day of `now()`, as text: Spark's columns have no times.",
        examples=(("current_time()", "05:06:07.890000"), ("current_time", "05:06:07.890000")),
    ),
    Function(
        name="uuid7",
        signature="uuid7()",
        group=Group.CLOCK,
        result="text",
        least=0,
        most=0,
        sql=_uuid7,
        meaning="A UUID of version 7, its own for every row and every call; a replay gives the same. Its"
        " time is that of `now()`.",
        examples=(("substr(uuid7(), 1, 15)", "01955f8c-0992-7"), ("uuid7() = uuid7()", "false")),
    ),
)

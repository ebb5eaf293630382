"""What Spark's analyzer made of a frame. pyspark does not expose it, so it is read in the JVM."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, cast

from headrace.pipeline.errors import SchemaError
from headrace.pipeline.sql.statements import is_relative_timestamp, may_have_relative_timestamps

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TIMES = ("date", "timestamp", "timestamp_ntz")


def expressions(frame: DataFrame) -> Iterator[Any]:
    """Yield every expression of the analyzed plan as a JVM object, parents before children."""
    plans: list[Any] = [cast("Any", frame)._jdf.queryExecution().analyzed()]  # noqa: SLF001  there is no other way to it
    while plans:
        plan = plans.pop()
        plans += inner(plan.children())
        result = inner(plan.expressions())
        while result:
            one = result.pop()
            yield one
            result += inner(one.children())


def inner(sequence: Any) -> list[Any]:
    """Return a JVM sequence as a list."""
    return [sequence.apply(place) for place in range(sequence.size())]


def refuse_relative_timestamps(frame: DataFrame, text: str, node: str, known: Collection[str] = ()) -> None:
    """Raise SchemaError if a string such as `'today'` in the SQL `text` is cast to a timestamp.

    Spark would read the clock each time an epoch is computed. Strings in `known` are handled elsewhere.
    """
    if not may_have_relative_timestamps(text):
        return
    for cast_ in expressions(frame):
        if cast_.nodeName().lower() not in ("cast", "try_cast") or cast_.dataType().typeName() not in _TIMES:
            continue
        (value,) = inner(cast_.children())
        word = value.toString().strip() if value.nodeName() == "Literal" else ""
        if is_relative_timestamp(word) and word not in known:
            kind = cast_.dataType().typeName().upper()
            msg = (
                f"'{word}' is implicitly cast to {kind}, which gives another time whenever an epoch is"
                " computed"
            )
            hint = (
                f"In a sql transform CAST('{word}' AS {kind}), now() and current_date() tell the epoch's"
                " time. A source has none."
            )
            raise SchemaError(msg, hint=hint, node=node)

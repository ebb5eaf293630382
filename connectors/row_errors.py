"""Invalid rows: an expression that fails the task at the row, and the way from its error to a message.

Nothing is collected and nothing is read twice: the marker travels inside Spark's own exception.
`RowConditions` can also collect the reasons as a column, for sources with dead letters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING

from headrace.connectors.task_failures import TaskFailure
from headrace.pipeline.errors import (
    ROW_ERROR,
    DataError,
    HeadraceError,
    PipelineStateError,
    RetentionError,
    TransientError,
)
from headrace.pipeline.protocol.epochs import Json

if TYPE_CHECKING:
    from pyspark.sql import Column

_MISSING_FILE = re.compile(r"FAILED_READ_FILE\.FILE_NOT_EXIST\] [^\n]*?while reading file (\S+?)\.? ")
"""Spark's error for a file that a table's own maintenance, such as VACUUM, has removed."""
_DECIMAL_ARGUMENTS = re.compile(r"\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)")


def row_error(node: str, what: Column | str, hint: str = "", **facts: Column) -> Column:
    """Return an expression of any type that fails the task.

    `what` is the message; `facts` (strings, numbers) give the location. Only rows that reach the expression
    evaluate it. `explain_failure` turns the failure into a DataError.
    """
    from pyspark.sql import functions as F  # noqa: N812

    text = F.lit(what) if isinstance(what, str) else what
    fields = [
        F.lit(node).alias("node"),
        text.alias("what"),
        F.lit(hint).alias("hint"),
        F.struct(*[v.alias(k) for k, v in facts.items()]),
    ]
    return F.raise_error(
        F.concat(F.lit(ROW_ERROR), F.to_json(F.struct(*fields[:3], fields[3].alias("facts"))))
    )


@dataclass(frozen=True, slots=True)
class RowCheck:
    """A condition that a row must fulfil. NULL counts as false."""

    holds: Column
    what: Column
    """The reason why a row is rejected."""
    error: Column
    """Fails the task, see `row_error`."""


class RowConditions:
    """The checks of the rows of one node, in their order.

    A row that fails a check fails the task. With `collect`, it gets NULL for the guarded values instead, and
    `reason` returns why.
    """

    def __init__(self, node: str, *, collect: bool = False) -> None:
        self._node = node
        self._checks: list[RowCheck] = []
        self.collect = collect

    def require(self, holds: Column, what: Column | str, hint: str = "", **facts: Column) -> RowCheck:
        """Add a check. For `what`, `hint` and `facts` see `row_error`."""
        from pyspark.sql import functions as F  # noqa: N812

        text = F.lit(what) if isinstance(what, str) else what
        self._checks.append(RowCheck(holds, text, row_error(self._node, text, hint, **facts)))
        return self._checks[-1]

    def require_or_retry(self, holds: Column, what: str) -> RowCheck:
        """Add a check that fails the task with TransientError, so that the epoch is tried again."""
        from pyspark.sql import functions as F  # noqa: N812

        failure = TaskFailure.of(TransientError(what, node=self._node)).to_json()
        self._checks.append(RowCheck(holds, F.lit(what), F.raise_error(F.lit(ROW_ERROR + failure))))
        return self._checks[-1]

    def guard(self, value: Column, *checks: RowCheck) -> Column:
        """Return `value` for rows that fulfil the checks. Only these rows evaluate it."""
        from pyspark.sql import functions as F  # noqa: N812

        for check in reversed(checks):
            guarded = F.when(check.holds, value)
            value = guarded if self.collect else guarded.otherwise(check.error)
        return value

    def reason(self) -> Column:
        """Return the reason of the first check that a row fails, or NULL."""
        from pyspark.sql import functions as F  # noqa: N812

        failed = [F.when(~F.coalesce(one.holds, F.lit(False)), one.what) for one in self._checks]
        return F.coalesce(*failed, F.lit(None).cast("string"))


def task_error(error: HeadraceError) -> RuntimeError:
    """Return the error for a Python task to raise; `explain_failure` restores its class, hint and node."""
    return RuntimeError(ROW_ERROR + TaskFailure.of(error).to_json())


def explain_failure(error: BaseException) -> HeadraceError | None:
    """Return the HeadraceError of a failed Spark action, or None if it is not about rows or offsets.

    This is DataError for a row that `row_error` refused, the error that a task raised with `task_error`,
    RetentionError if Kafka lost offsets while they were read, or PipelineStateError if a data file of a table
    no longer exists.
    """
    for text in _texts(error):
        if (at := text.find(ROW_ERROR)) >= 0:
            match, _ = json.JSONDecoder().raw_decode(text, at + len(ROW_ERROR))
            return TaskFailure(**match).error() if "kind" in match else _data_error(match)
        if "OffsetOutOfRangeException" in text or "Some data may have been lost" in text:
            msg = "Kafka no longer holds offsets that this epoch was planned with"
            hint = (
                "Retention or delete-records passed the stream's position while it was read. Lengthen"
                " retention.ms; then replay."
            )
            return RetentionError(msg, hint=hint)
        if match := _MISSING_FILE.search(text):
            msg = f"a data file of the version that is read no longer exists: {match[1]}"
            hint = (
                "Its rows cannot be read again exactly. Start the history over, and let the table's"
                " maintenance keep the files of old versions for longer."
            )
            return PipelineStateError(msg, hint=hint)
    return None


@contextmanager
def translate_row_errors() -> Iterator[None]:
    """Raise what `explain_failure` returns for the failure of a Spark action. Other errors pass unchanged."""
    try:
        yield
    except HeadraceError:
        raise
    except Exception as error:
        if result := explain_failure(error):
            raise result from error
        raise


def _data_error(values: Json) -> HeadraceError:
    facts = dict(values.get("facts", {}))
    payload, columns = facts.pop("payload", None), facts.pop("columns", None)
    where = ", ".join(f"{name} {value}" for name, value in facts.items())
    reason = _reason(payload, json.loads(columns)) if payload is not None and columns is not None else ""
    tail = f": {reason}" if reason else ""
    shown = f"\n  payload: {payload[:300]}{'…' if len(payload) > 300 else ''}" if payload is not None else ""
    return DataError(
        f"{where}: {values['what']}{tail}{shown}" if where else f"{values['what']}{tail}{shown}",
        hint=values.get("hint", ""),
        node=values["node"],
    )


def _reason(payload: str, columns: dict[str, str]) -> str:
    """Return why a JSON payload is invalid, or "" if unknown; `columns` are the declared types."""
    try:
        value = json.loads(payload)
    except ValueError as error:
        return str(error)
    if not isinstance(value, dict):
        return f"one object per message is expected, found {_kind(value)}"
    for name, kind in columns.items():
        if name in value and value[name] is not None and not _fits(value[name], kind):
            return f"column `{name}` is {kind}, found {_kind(value[name])} {json.dumps(value[name])[:80]}"
    return ""


def _fits(value: object, kind: str) -> bool:
    """Return whether a JSON value can be a column of a type, as the pipeline file writes it."""
    if kind in ("string", "utf8"):
        return True
    if kind == "binary" or kind.startswith(("date", "time")):
        return isinstance(value, str)
    if kind == "boolean" or isinstance(value, bool):
        return kind == "boolean" and isinstance(value, bool)
    if kind.startswith("decimal"):
        return isinstance(value, int | float | str) and _has_room(str(value), kind)
    if kind.startswith(("i", "u")):
        return (isinstance(value, int) and _in_range(value, kind)) or (
            isinstance(value, str) and kind.endswith("256")
        )
    return isinstance(value, int | float)


def _has_room(text: str, kind: str) -> bool:
    precision, scale = _DECIMAL_ARGUMENTS.findall(kind)[0] if "(" in kind else ("38", "9")
    try:
        return abs(Decimal(text)) < Decimal(10) ** (int(precision) - int(scale or 0))
    except InvalidOperation:
        return False


def _in_range(value: int, kind: str) -> bool:
    bits = int(kind.lstrip("uint"))
    return 0 <= value < 2**bits if kind.startswith("u") else -(2 ** (bits - 1)) <= value < 2 ** (bits - 1)


def _kind(value: object) -> str:
    names = {
        bool: "a boolean",
        int: "a number",
        float: "a number",
        str: "a text",
        list: "an array",
        dict: "an object",
        type(None): "null",
    }
    return names.get(type(value), type(value).__name__)


def _texts(error: BaseException) -> Iterator[str]:
    """Yield every message of the exception and its causes, in Python and in the JVM."""
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        yield str(at)
        yield str(getattr(at, "_stackTrace", "") or "")
        java = getattr(at, "java_exception", None)
        while java is not None:
            yield str(java.toString())
            java = java.getCause()
        at = at.__cause__ or at.__context__

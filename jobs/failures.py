"""What Spark, py4j and worker failures mean in Headrace's own errors."""

from __future__ import annotations

import re

from headrace.connectors.rowerrors import explain_failure
from headrace.pipeline.errors import DataError, HeadraceError, InternalError, TransientError, UserError

_CAUSE = re.compile(r"headrace\.pipeline\.errors\.(\w+): (?:node '([^']+)': )?(.*)")
_LOST = (
    "ConnectException",
    "Connection refused",
    "Broken pipe",
    "SocketException",
    "TimeoutException",
    "EOFException",
    "Job aborted due to",
    "Python worker exited",
)


def as_headrace_error(error: BaseException, node: str = "") -> HeadraceError:
    """The error that a user should see for a failure inside Spark.

    Errors that Headrace raised in a worker or in an expression keep their class and text; wrong data that Spark itself
    noticed (a cast, an overflow, a division) is the user's; a lost worker or connection is worth another try.
    """
    if isinstance(error, HeadraceError):
        return error
    if explained := explain_failure(error):
        explained.node = explained.node or node
        return explained
    text = str(error)
    if found := _CAUSE.search(text):
        from headrace.pipeline import errors

        kind = getattr(errors, found[1], UserError)
        return kind(found[3].strip(), node=found[2] or node)
    condition = getattr(error, "getCondition", lambda: None)()
    if condition and _is_data(condition):
        said = getattr(error, "getMessage", lambda: text)() or text
        return DataError(re.sub(r"^\[[A-Z_.0-9]+\] ", "", said.split("\n")[0]).strip(), node=node)
    if type(error).__name__ in ("Py4JNetworkError", "Py4JError", "ConnectionRefusedError") or any(word in text for word in _LOST):
        return TransientError(text.split("\n", maxsplit=1)[0][:500], node=node)
    return InternalError(f"{type(error).__name__}: {text.split(chr(10), maxsplit=1)[0][:500]}", node=node)


def _is_data(condition: str) -> bool:
    """Spark's error conditions that come from values, not from the plan."""
    return condition.startswith(
        (
            "CAST_",
            "ARITHMETIC_",
            "DIVIDE_BY_ZERO",
            "NUMERIC_",
            "INVALID_ARRAY_INDEX",
            "MALFORMED_RECORD",
            "USER_RAISED",
            "DATETIME_",
            "CANNOT_PARSE",
        )
    )

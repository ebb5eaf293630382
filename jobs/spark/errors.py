"""Translates failures of Spark, py4j and workers to the errors of Headrace."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from headrace.connectors.row_errors import explain_failure
from headrace.jobs.spark.analysis_errors import SPARK_CODES
from headrace.pipeline.errors import (
    DataError,
    HeadraceError,
    InternalError,
    SparkJvmError,
    TransientError,
    UserError,
    WorkerError,
)

_CAUSE = re.compile(r"headrace\.pipeline\.errors\.(\w+): (?:node '([^']+)': )?(.*)")
_RAISED = re.compile(r"^\w[\w.]*(?:Error|Exception|Invalid|Exit)\b[^\n]*", re.MULTILINE)
_BYPASS = re.compile(r' If necessary set "[^"]+" to "false" to bypass this error[^.]*\.')
"""Spark's advice to set an option that would change the results of all rows."""
_PLACE = re.compile(
    r"== SQL \(line 1, position (?P<at>\d+)\) ==\n(?P<shown>[^\n]*)\n(?P<before> *)(?P<part>\^+)"
)
"""The part of a statement that failed for a row, as Spark quotes it."""
_FORMAT = re.compile(r"java\.util\.\w*Format\w*Exception: ([^\n]*)")
"""A format of format_string or printf that does not fit its values: Spark passes on Java's own error."""
_LOST = (
    "ConnectException",
    "Connection refused",
    "Broken pipe",
    "SocketException",
    "TimeoutException",
    "EOFException",
)
_CRASHED = (
    "Python worker exited",
    "Python worker failed to connect back",
    "Job aborted due to",
    "Job aborted.",
)
"""A task that ended abnormally.

The cause may pass, as when the system took the memory for something else, or it may not.
"""
_OUT_OF_MEMORY = ("java.lang.OutOfMemoryError", "UNABLE_TO_ACQUIRE_MEMORY", "spark.driver.maxResultSize")
_STOPPED = ("SparkContext was shut down", "stopped SparkContext")
"""Jobs of a JVM that ends, as it does when its memory is used up."""
_GATEWAY = ("Py4JNetworkError", "Py4JError", "ConnectionRefusedError")
MORE_MEMORY = (
    "Raise spark.driver_memory (HEADRACE__SPARK__DRIVER_MEMORY); an epoch that is planned already keeps its"
    " size."
    " Lower epoch.max_bytes for later ones."
)


def as_headrace_error(
    error: BaseException, node: str = "", texts: Mapping[str, str] | None = None
) -> HeadraceError:
    """Return the error that a user should see for a failure inside Spark.

    Errors that Headrace raised in a worker or in an expression keep their class and text. Values that Spark
    rejects (a cast, an overflow, a division) are errors of the user. A lost connection is retriable, and so
    is a lost worker a few times. `texts` are the statements of transforms (`PipelinePlanner.texts`): an error
    in one of them names the transform and the part that failed.
    """
    if isinstance(error, HeadraceError):
        return error
    if explained := explain_failure(error):
        explained.node = explained.node or node
        return explained
    text = str(error)
    if match := _CAUSE.search(text):
        from headrace.pipeline import errors

        kind = getattr(errors, match[1], UserError)
        return kind(match[3].strip(), node=match[2] or node)
    if (wrong := _wrong_value(error, text, node, texts or {})) is not None:
        return wrong
    if (ended := _ended_abnormally(error, text, node)) is not None:
        return ended
    return InternalError(f"{type(error).__name__}: {_error_line(text)[:500]}", node=node)


def _ended_abnormally(error: BaseException, text: str, node: str) -> HeadraceError | None:
    """Return the error of a JVM, a task or a connection that ended, or None for any other error."""
    first, crashed = text.split("\n", maxsplit=1)[0][:500], [word in text for word in _CRASHED]
    result: HeadraceError | None = None
    if any(word in text for word in _OUT_OF_MEMORY):
        result = SparkJvmError("Spark ran out of memory", hint=MORE_MEMORY)
    elif any(word in text for word in _STOPPED):
        result = SparkJvmError(
            "Spark's session ended", hint="Run the pipeline again; spark.log in the home's logs may say why."
        )
    elif type(error).__name__ in _GATEWAY:
        result = SparkJvmError(
            "the connection to Spark's JVM broke",
            hint="Run the pipeline again; spark.log in the home's logs may say why.",
        )
    elif any(word in text for word in _LOST) and not any(crashed[:2]):
        result = TransientError(first, node=node)
    elif any(crashed):
        result = WorkerError(first, node=node)
    return result


@contextmanager
def translate_spark_errors() -> Iterator[None]:
    """Translate failures inside this block to HeadraceError.

    Failures that would be internal errors stay as they are.

    The block must end before the session stops, because Spark errors are read through the JVM.
    """
    try:
        yield
    except HeadraceError:
        raise
    except Exception as error:
        translated = as_headrace_error(error)
        if isinstance(translated, InternalError):
            raise
        raise translated from error


def _error_line(text: str) -> str:
    """Return the line of a long message that describes the error.

    In the traceback of a Python worker, it is the last line that names an exception.
    """
    named = _RAISED.findall(text) if "Traceback (most recent call last)" in text else []
    return named[-1] if named else text.strip().split("\n", maxsplit=1)[0]


def _wrong_value(error: BaseException, text: str, node: str, texts: Mapping[str, str]) -> DataError | None:
    """Return the error of a value that an expression cannot take. None for any other error."""
    condition = getattr(error, "getCondition", lambda: None)()
    place = _PLACE.search(text)
    if condition and (place or _is_data(condition)):
        message = getattr(error, "getMessage", lambda: text)() or text
        match = _BYPASS.sub("", SPARK_CODES.sub("", message.split("\n")[0])).strip()
        part = place["shown"][len(place["before"]) :][: len(place["part"])] if place else ""
        by = next(
            (name for name, one in texts.items() if place and one.startswith(part, int(place["at"]) - 1)),
            node,
        )
        return DataError(match, hint=f"In {part}" if part else "", node=by)
    if match := _FORMAT.search(text):
        hint = "A whole number is %d, one with a fraction %f, a text, and an integer of 256 bits, %s."
        return DataError(f"a format does not fit its value: {match[1].strip()}", hint=hint, node=node)
    return None


def _is_data(condition: str) -> bool:
    """Return whether Spark's error condition comes from values, not from the plan."""
    return condition.startswith(
        (
            "CAST_",
            "ARITHMETIC_",
            "CONVERSION_",
            "DIVIDE_BY_ZERO",
            "DUPLICATED_MAP_KEY",
            "INVALID_FORMAT",
            "INVALID_INDEX_OF_ZERO",
            "INVALID_PARAMETER_VALUE",
            "INVALID_URL",
            "NULL_MAP_KEY",
            "REMAINDER_BY_ZERO",
            "NUMERIC_",
            "INVALID_ARRAY_INDEX",
            "MALFORMED_RECORD",
            "USER_RAISED",
            "DATETIME_",
            "CANNOT_PARSE",
        )
    )

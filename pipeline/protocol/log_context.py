"""Log context: every log line of a running pipeline has its pipeline, run, epoch and node.

`log_context` sets them for a block. `with_log_context` passes them to a thread that the block starts.
`LogContextFilter` on a handler adds them to records. `TextLogFormatter` and `JsonLogFormatter` write them.
"""

from __future__ import annotations

import contextvars
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, ParamSpec, TypeVar

FIELDS = ("pipeline", "run_id", "epoch", "node")
"""The fields in their order in a text line."""

_OWN = set(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "where"}
_where: contextvars.ContextVar[Mapping[str, Any]] = contextvars.ContextVar("headrace_where")

P = ParamSpec("P")
T = TypeVar("T")


@contextmanager
def log_context(**fields: Any) -> Iterator[None]:
    """Add these fields, except empty ones, to all log lines of the block. Outer fields also apply."""
    token = _where.set(
        {**_where.get({}), **{key: value for key, value in fields.items() if value not in (None, "")}}
    )
    try:
        yield
    finally:
        _where.reset(token)


def with_log_context(function: Callable[P, T]) -> Callable[P, T]:
    """Return the function for use in another thread. It logs with the current log context of this thread."""
    context = contextvars.copy_context()

    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return context.run(function, *args, **kwargs)

    return run


def current_log_context() -> Mapping[str, Any]:
    """Return the log context of this thread."""
    return _where.get({})


class LogContextFilter(logging.Filter):
    """Adds the log context of the thread to every record. Values passed as `extra` take precedence."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the context fields to the record and return True."""
        result = current_log_context()
        for key in FIELDS:
            if key in result and not hasattr(record, key):
                setattr(record, key, result[key])
        return True


class TextLogFormatter(logging.Formatter):
    """Formats `time level logger message [pipeline=… run_id=… epoch=… node=…]`, without empty brackets."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s %(message)s%(where)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line. An exception follows on separate lines."""
        text = " ".join(f"{key}={getattr(record, key)}" for key in FIELDS if hasattr(record, key))
        record.where = f" [{text}]" if text else ""
        return super().format(record)


class JsonLogFormatter(logging.Formatter):
    """Formats one flat JSON object per line.

    It has time, level, logger, message, the log context, and the `extra` values.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {key: value for key, value in record.__dict__.items() if key not in _OWN}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def formatter(log_format: str) -> logging.Formatter:
    """Return the formatter for the setting `log_format`: text or json."""
    return JsonLogFormatter() if log_format == "json" else TextLogFormatter()

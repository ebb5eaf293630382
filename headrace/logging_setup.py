"""Logging of the command line: text or JSON on standard error, and a report for unexpected errors."""

from __future__ import annotations

import logging
import os
import platform
import socketserver
import sys
import traceback
from collections import deque
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stamina.instrumentation import RetryDetails, set_on_retry_hooks

from headrace import __version__
from headrace.pipeline.protocol.log_context import LogContextFilter, formatter

_RECENT_LINES = 500


class RecentLogs(logging.Handler):
    """Keeps the last lines in memory, for the error report."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: deque[str] = deque(maxlen=_RECENT_LINES)

    def emit(self, record: logging.LogRecord) -> None:
        """Store the record."""
        self.lines.append(self.format(record))


_recent = RecentLogs()
_context_filter = LogContextFilter()


def _not_py4j(record: logging.LogRecord) -> bool:
    """Return False for py4j's lines about a JVM that ended. The caller of the JVM raises the error itself."""
    return "py4j" not in record.pathname


def _log_dropped_connection(self: socketserver.BaseServer, request: Any, client_address: Any) -> None:
    """Log errors of pyspark's accumulator server, whose base class would print a traceback."""
    del self, request
    logging.getLogger(__name__).debug("event=connection_dropped address=%s", client_address)


def _log_retry(details: RetryDetails) -> None:
    """Log a retry. The hooks of stamina would print the arguments of the call, on standard output."""
    logging.getLogger(__name__).info(
        "event=retry_scheduled attempt=%s seconds=%.2f error=%s",
        details.retry_num,
        details.wait_for,
        type(details.caused_by).__name__,
    )


def configure_logging(*, level: int, log_format: str = "text") -> None:
    """Send log lines of `level` and above to standard error. The last call wins."""
    stderr_handler = logging.StreamHandler(sys.stderr)
    stderr_handler.setLevel(level)
    stderr_handler.addFilter(_not_py4j)
    _recent.setFormatter(formatter("text"))
    for handler in (stderr_handler, _recent):
        handler.addFilter(_context_filter)
    root = logging.getLogger()
    root.handlers = [stderr_handler, _recent]
    set_log_format(log_format)
    root.setLevel(min(level, logging.INFO))
    socketserver.BaseServer.handle_error = _log_dropped_connection
    set_on_retry_hooks((_log_retry,))
    for name in (
        "py4j",
        "clickhouse_connect",
        "urllib3.connectionpool",
    ):  # clickhouse_connect sets urllib3's own level
        logging.getLogger(name).setLevel(logging.ERROR)


def read_log_format() -> str:
    """Return the log format of the environment, which applies until the settings are read."""
    return os.environ.get("HEADRACE__LOG_FORMAT") or os.environ.get("STREAMLING__LOG_FORMAT") or "text"


def set_log_format(log_format: str) -> None:
    """Write lines as `text` or `json` from now on.

    The environment sets the format early, the settings can change it.
    """
    for handler in logging.getLogger().handlers:
        if handler is not _recent:
            handler.setFormatter(formatter(log_format))


def write_error_report(error: BaseException, home: Path) -> Path:
    """Write a report about an unexpected error for maintainers. Return its path."""
    folder = home / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"error-{datetime.now(UTC):%Y%m%dT%H%M%S}-{os.getpid()}.log"
    head = [
        f"headrace {__version__}, Python {platform.python_version()}, {platform.platform()}",
        f"command: {' '.join(sys.argv[1:2])}",
    ]
    path.write_text(
        "\n".join([*head, "", *traceback.format_exception(error), "Last log lines:", *_recent.lines, ""])
    )
    return path

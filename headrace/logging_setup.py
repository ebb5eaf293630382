"""Logging of a front launched_by: lines on standard error, as text or JSON, and a report where something unexpected happened."""

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

from headrace import __version__
from headrace.pipeline.protocol.log_context import LogContextFilter, formatter

_KEPT = 500


class Recent(logging.Handler):
    """Keeps the last lines in memory, for the report."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: deque[str] = deque(maxlen=_KEPT)

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps the record."""
        self.lines.append(self.format(record))


_recent = Recent()
_where = LogContextFilter()


def _not_py4j(record: logging.LogRecord) -> bool:
    """False for what py4j says about a JVM that went away: the error itself is raised and told by whoever asked the JVM."""
    return "py4j" not in record.pathname


def _dropped(self: socketserver.BaseServer, request: Any, client_address: Any) -> None:
    """The same from pyspark's accumulator server, whose base class would print a traceback."""
    del self, request
    logging.getLogger(__name__).debug("connection=%s ended=early", client_address)


def set_up(*, level: int, log_format: str = "text") -> None:
    """Sends log lines of `level` and above to standard error. May be called again: the last call holds."""
    shown = logging.StreamHandler(sys.stderr)
    shown.setLevel(level)
    shown.addFilter(_not_py4j)
    _recent.setFormatter(formatter("text"))
    for handler in (shown, _recent):
        handler.addFilter(_where)
    root = logging.getLogger()
    root.handlers = [shown, _recent]
    use_format(log_format)
    root.setLevel(min(level, logging.INFO))
    socketserver.BaseServer.handle_error = _dropped
    for chatty in ("py4j", "clickhouse_connect", "urllib3.connectionpool"):  # clickhouse_connect sets urllib3's own level
        logging.getLogger(chatty).setLevel(logging.ERROR)


def use_format(log_format: str) -> None:
    """Writes lines as `text` or `json` from now on: known early from the environment, later from the settings."""
    for handler in logging.getLogger().handlers:
        if handler is not _recent:
            handler.setFormatter(formatter(log_format))


def report(error: BaseException, home: Path) -> Path:
    """Writes what a maintainer needs to know about an unexpected error; returns the file."""
    folder = home / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"error-{datetime.now(UTC):%Y%m%dT%H%M%S}-{os.getpid()}.log"
    head = [f"headrace {__version__}, Python {platform.python_version()}, {platform.platform()}", f"command: {' '.join(sys.argv[1:2])}"]
    path.write_text("\n".join([*head, "", *traceback.format_exception(error), "Last log lines:", *_recent.lines, ""]))
    return path

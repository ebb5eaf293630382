"""Consoles for the commands, and formatting of numbers."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from headrace.pipeline.errors import HeadraceError

ERROR_PAGE = "docs/reference/errors.md"
"""The page that explains the codes of errors, in the repository."""

WIDTH = 80
"""The width without a terminal, and the largest width of tables and reports."""


def stdout_console() -> Console:
    """Return a console for standard output. It has colors only on a terminal and without NO_COLOR."""
    return _console(stderr=False)


def stderr_console() -> Console:
    """Return a console for standard error: progress, warnings, errors."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    return Console(stderr=stderr, highlight=False, soft_wrap=not terminal, width=None if terminal else WIDTH)


def show_error(*errors: HeadraceError) -> None:
    """Print `error[CODE]: message` with its hint, once per mistake of a file, and the page of the codes."""
    from headrace.pipeline.errors import error_code

    problems = [problem for error in errors for problem in getattr(error, "problems", (error,))]
    for problem in problems:
        text = Text(f"error[{error_code(problem)}]: ", style="bold red", end="\n")
        text.append(str(problem), style="default not bold")
        stderr_console().print(text, soft_wrap=True)
    pages = ", ".join(
        f"{ERROR_PAGE}#{code.lower()}" for code in dict.fromkeys(error_code(problem) for problem in problems)
    )
    stderr_console().print(Text(f"See {pages}", style="dim"), soft_wrap=True)


def show_failure(error: Exception) -> None:
    """Print an error of Headrace with its hint. Print another error on one line, and write a report."""
    from headrace import logging_setup
    from headrace.pipeline.errors import HeadraceError

    if isinstance(error, HeadraceError):
        show_error(error)
        return
    home = Path(os.environ.get("HEADRACE_HOME") or os.environ.get("HEADRACE__HOME") or ".headrace")
    show_internal_error(error, logging_setup.write_error_report(error, home))


def show_internal_error(error: Exception, report: Path) -> None:
    """Print an error that is none of Headrace's on one line, and the file with its details."""
    from headrace.pipeline.errors import InternalError

    stderr_console().print(
        f"error[{InternalError.code}]: {type(error).__name__}: {error}".splitlines()[0],
        markup=False,
        soft_wrap=True,
    )
    stderr_console().print(
        f"  Internal error. Details were written to {report}. Please report it.",
        markup=False,
        soft_wrap=True,
    )


def show_warning(warning: HeadraceError) -> None:
    """Print `warning: message` with its hint."""
    text = Text("warning: ", style="bold yellow", end="\n")
    text.append(str(warning), style="default not bold")
    stderr_console().print(text, soft_wrap=True)


def print_json(value: Any) -> None:
    """Print JSON to standard output. Lines are not wrapped."""
    stdout_console().print(json.dumps(value, indent=2, default=str), markup=False, soft_wrap=True)


def format_count(number: int | None) -> str:
    """Format 336776 as `336,776`, and None as `?`."""
    return "?" if number is None else f"{number:,}"


def format_rate(rows: int, seconds: float) -> str:
    """Format rows per second."""
    if seconds <= 0 or not rows:
        return "-"
    rate = rows / seconds
    return f"{rate:,.0f} rows/s" if rate >= 10 else f"{rate:.1f} rows/s"


def format_duration(seconds: float) -> str:
    """Format seconds as `0.4 s`, `12 s` or `3 min 05 s`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"


def format_size(octets: int) -> str:
    """Format bytes as `12.3 MB`."""
    return f"{octets / 1e6:,.1f} MB"

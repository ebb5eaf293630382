"""What the commands print with: two consoles of at least 80 columns' worth of care, and how numbers are written."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from headrace.pipeline.errors import HeadraceError

ERROR_PAGE = "docs/reference/errors.md"
"""The page that explains the codes of errors, in the repository."""

WIDTH = 80
"""What is printed without a terminal, and all that tables and reports may use."""


def out() -> Console:
    """Standard output. Colour only on a terminal, and not with NO_COLOR."""
    return _console(stderr=False)


def err() -> Console:
    """Standard error: progress, notices, errors."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    return Console(stderr=stderr, highlight=False, soft_wrap=not terminal, width=None if terminal else WIDTH)


def show_error(*errors: HeadraceError) -> None:
    """Print `error[CODE]: message` with its hint, once per mistake of a pipeline file, and where the codes are explained."""
    from headrace.pipeline.errors import error_code

    problems = [problem for error in errors for problem in getattr(error, "problems", (error,))]
    for problem in problems:
        text = Text(f"error[{error_code(problem)}]: ", style="bold red", end="\n")
        text.append(str(problem), style="default not bold")
        err().print(text, soft_wrap=True)
    pages = ", ".join(f"{ERROR_PAGE}#{code.lower()}" for code in dict.fromkeys(error_code(problem) for problem in problems))
    err().print(Text(f"See {pages}", style="dim"), soft_wrap=True)


def show_warning(warning: HeadraceError) -> None:
    """Print `warning: message` with its hint."""
    text = Text("warning: ", style="bold yellow", end="\n")
    text.append(str(warning), style="default not bold")
    err().print(text, soft_wrap=True)


def print_json(value: Any) -> None:
    """For programs: JSON on standard output, as long as its lines may be."""
    out().print(json.dumps(value, indent=2, default=str), markup=False, soft_wrap=True)


def count(number: int | None) -> str:
    """336776 as `336,776`; what is not known as `?`."""
    return "?" if number is None else f"{number:,}"


def rate(rows: int, seconds: float) -> str:
    """Rows per second, to three digits or so."""
    if seconds <= 0 or not rows:
        return "-"
    found = rows / seconds
    return f"{found:,.0f} rows/s" if found >= 10 else f"{found:.1f} rows/s"


def span(seconds: float) -> str:
    """`0.4 s`, `12 s`, `3 min 05 s`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"


def size(octets: int) -> str:
    """Bytes as `12.3 MB`."""
    return f"{octets / 1e6:,.1f} MB"

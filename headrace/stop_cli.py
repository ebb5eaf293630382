"""The commands that end runs and keep them from starting: stop, pause, resume."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from headrace.cli_options import File, Timeout

Reason = Annotated[
    str | None,
    typer.Option("--reason", help="Shown by `headrace status` and in Dagster.", show_default=False),
]


def stop(file: File, *, reason: Reason = None, timeout: Timeout = 60.0) -> None:
    """End the active run of a pipeline, wherever it runs.

    A later run may start. A supervisor in Dagster waits until the job is launched. Exit code 1 if the run has
    not ended after the timeout; the request stays.
    """
    from headrace.commands.stop import stop as work

    work(file, reason=reason or "", timeout=timedelta(seconds=timeout))


def pause(file: File, *, reason: Reason = None, timeout: Timeout = 60.0) -> None:
    """End the active run, and let no further run start.

    Supervisors and schedules wait, `headrace run` is refused, repairs are allowed. `headrace resume` ends the
    pause.
    """
    from headrace.commands.stop import pause as work

    work(file, reason=reason or "", timeout=timedelta(seconds=timeout))


def resume(file: File) -> None:
    """End the pause of a pipeline."""
    from headrace.commands.stop import resume as work

    work(file)

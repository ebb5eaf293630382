"""`headrace replay`, `accept-target`, `recover`, `rewind`, `reset`: repairs that need a user's decision."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import typer

from headrace import logging_setup
from headrace.commands.progress import progress_screen
from headrace.console import format_count, stderr_console, stdout_console
from headrace.pipeline.config.settings import Settings, load_settings
from headrace.pipeline.errors import UserError
from headrace.pipeline.file.loader import PipelineFile, load_pipeline
from headrace.shutdown import GracefulShutdown


def replay(path: Path, sink: str, from_epoch: int | None, *, recompute: bool = False) -> None:
    """Write the epochs from `from_epoch` on to one sink again, as planned. Other sinks do not change."""
    file, settings = load_file(path)
    from headrace.jobs.run.repair import replay as work  # imports Spark, which takes a second

    with (
        progress_screen(stderr_console(), file.name) as listener,
        GracefulShutdown(listener.on_stop_signal) as stopper,
    ):
        result = stopper.run(
            lambda: work(
                file,
                settings,
                sink=sink,
                from_epoch=from_epoch,
                recompute=recompute,
                listener=listener,
                stop=stopper.event,
            ),
        )
    if not result.epochs:
        stdout_console().print(
            f"{file.name}: nothing to replay, {sink} already contains epoch {result.last_epoch}"
        )
        return
    counts = result.counts[sink]
    stdout_console().print(
        f"{file.name}: epochs {result.first_epoch} to {result.last_epoch} written to {sink} again,"
        f" {format_count(counts.rows)} rows"
    )


def accept_target(path: Path, sink: str) -> None:
    """Accept the current rows of a sink's target as the ledger's state. Write no rows."""
    file, settings = load_file(path)
    from headrace.jobs.run.repair import accept_target as work  # imports Spark, which takes a second

    with GracefulShutdown() as stopper:
        stopper.run(lambda: work(file, settings, sink=sink))
    stdout_console().print(
        f"{file.name}: the target of {sink} is accepted; the next epoch continues from here"
    )


def take_over(path: Path, sink: str, *, ask: bool) -> None:
    """End the claims of other pipelines on a sink's target, and accept it. Ask for confirmation if `ask`."""
    file, settings = load_file(path)
    if ask:
        stderr_console().print(
            f"Other pipelines that write the target of sink {sink} are refused there from now on. Their"
            " rows stay in the target.",
            soft_wrap=True,
        )
        typer.confirm("Take it over?", abort=True, err=True)
    from headrace.jobs.run.repair import accept_target as work  # imports Spark, which takes a second

    with GracefulShutdown() as stopper:
        stopper.run(lambda: work(file, settings, sink=sink, take_over=True))
    stdout_console().print(
        f"{file.name}: {sink} is the only claim to its target; the next epoch continues from here"
    )


def recover(path: Path) -> None:
    """Rebuild a lost ledger from the sinks' commit records."""
    file, settings = load_file(path)
    from headrace.jobs.run.repair import rebuild as work  # imports Spark, which takes a second

    with GracefulShutdown() as stopper:
        uuid = stopper.run(lambda: work(file, settings))
    stdout_console().print(
        f"{file.name}: ledger rebuilt from the commit records of the sinks, pipeline {uuid}"
    )


def rewind(path: Path, to: str, *, dry_run: bool, yes: bool) -> None:
    """Set the pipeline back to the end of an earlier epoch."""
    from headrace.jobs.run import interventions

    file, settings = load_file(path)
    confirm_changes(
        interventions.rewind(file, settings, to=to, dry_run=True).changes, dry_run=dry_run, yes=yes
    )
    if not dry_run:
        interventions.rewind(file, settings, to=to)
        stdout_console().print(f"{file.name}: rewound; continue with `headrace run {path}`", soft_wrap=True)


def skip_open(path: Path, *, dry_run: bool) -> None:
    """Close an open epoch that can never be written."""
    from headrace.jobs.run import interventions

    file, settings = load_file(path)
    with GracefulShutdown() as stopper:
        result = stopper.run(lambda: interventions.skip_open(file, settings, dry_run=dry_run))
    for line in result.changes:
        stdout_console().print(line, soft_wrap=True, markup=False)


def reset(path: Path, *, keep: bool, empty: bool, dry_run: bool, yes: bool) -> None:
    """Start a pipeline over. Ask about existing target rows if no option decides it."""
    from headrace.jobs.run import interventions

    file, settings = load_file(path)
    if not keep and not empty:
        if not sys.stdin.isatty() or yes or dry_run:
            msg = "a reset needs either --keep-targets or --empty-targets"
            raise UserError(
                msg,
                hint=f"headrace reset {path} --empty-targets (suggested), or headrace reset {path}"
                " --keep-targets",
            )
        empty = typer.confirm("Delete all target rows first? (No keeps them.)", default=True)
    confirm_changes(
        interventions.reset(file, settings, empty=empty, dry_run=True).changes, dry_run=dry_run, yes=yes
    )
    if not dry_run:
        with GracefulShutdown() as stopper:
            stopper.run(lambda: interventions.reset(file, settings, empty=empty))
        stdout_console().print(
            f"{file.name}: reset; `headrace run {path}` starts with a new snapshot", soft_wrap=True
        )


def load_file(path: Path) -> tuple[PipelineFile, Settings]:
    """Load the file and the settings, and log in the format that they set."""
    file, settings = load_pipeline(path), load_settings()
    logging_setup.set_log_format(settings.log_format)
    return file, settings


def confirm_changes(changes: Sequence[str], *, dry_run: bool, yes: bool) -> None:
    """Print the changes, and ask for confirmation."""
    for line in changes:
        stdout_console().print(line, soft_wrap=True, markup=False)
    if dry_run:
        stdout_console().print("Nothing was changed (--dry-run).")
    elif not yes:
        if not sys.stdin.isatty():
            msg = "this command needs confirmation, and no terminal is attached"
            raise UserError(msg, hint="Add --yes to confirm, or --dry-run to print the changes.")
        typer.confirm("Continue?", abort=True)

"""`headrace replay`, `accept-target`, `rewind` and `reset`: what a user decides when a pipeline cannot go on by itself."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import typer

from headrace import logging_setup
from headrace.commands.progress import progress_screen
from headrace.console import count, err, out
from headrace.pipeline.config.settings import Settings, load_settings
from headrace.pipeline.errors import UserError
from headrace.pipeline.file.loader import PipelineFile, load_pipeline
from headrace.shutdown import Stopper


def replay(path: Path, sink: str, from_epoch: int | None, *, recompute: bool = False) -> None:
    """Writes the epochs from `from_epoch` on to one sink again, as they were planned. The other sinks are not touched."""
    file, settings = _load(path)
    from headrace.jobs.run.repair import replay as work  # Spark, which takes a second to import

    with progress_screen(err(), file.name) as listener, Stopper(listener.asked_to_stop) as stopper:
        result = stopper.call(
            lambda: work(file, settings, sink=sink, from_epoch=from_epoch, recompute=recompute, listener=listener, stop=stopper.event),
        )
    if not result.epochs:
        out().print(f"{file.name}: nothing to write again, {sink} holds epoch {result.last_epoch} already")
        return
    counts = result.counts[sink]
    out().print(f"{file.name}: epochs {result.first_epoch} to {result.last_epoch} written to {sink} again, {count(counts.rows)} rows")


def accept_target(path: Path, sink: str) -> None:
    """Accept the current rows of a sink's target as the ledger's state. Write no rows."""
    file, settings = _load(path)
    from headrace.jobs.run.repair import accept_target as work  # Spark, which takes a second to import

    with Stopper() as stopper:
        stopper.call(lambda: work(file, settings, sink=sink))
    out().print(f"{file.name}: the target of {sink} is accepted; the next epoch continues from here")


def take_over(path: Path, sink: str, *, ask: bool) -> None:
    """Ends the claims of other pipelines to a sink's target, and accept the target. Ask for confirmation if `ask`."""
    file, settings = _load(path)
    if ask:
        err().print(
            f"Other pipelines that write the target of sink {sink} are refused there from now on. Their rows stay in the target.",
            soft_wrap=True,
        )
        typer.confirm("Take it over?", abort=True, err=True)
    from headrace.jobs.run.repair import accept_target as work  # Spark, which takes a second to import

    with Stopper() as stopper:
        stopper.call(lambda: work(file, settings, sink=sink, take_over=True))
    out().print(f"{file.name}: {sink} is the only claim to its target; the next epoch continues from here")


def recover(path: Path) -> None:
    """Rebuild a lost ledger from the records that the sinks hold."""
    file, settings = _load(path)
    from headrace.jobs.run.repair import rebuild as work  # Spark, which takes a second to import

    with Stopper() as stopper:
        uuid = stopper.call(lambda: work(file, settings))
    out().print(f"{file.name}: ledger rebuilt from the commit records of the sinks, pipeline {uuid}")


def rewind(path: Path, to: str, *, dry_run: bool, yes: bool) -> None:
    """Set the lane back to where an earlier epoch ended."""
    from headrace.jobs.run import interventions

    file, settings = _load(path)
    _decide(interventions.rewind(file, settings, to=to, dry_run=True).changes, dry_run=dry_run, yes=yes)
    if not dry_run:
        interventions.rewind(file, settings, to=to)
        out().print(f"{file.name}: rewound; continue with `headrace run {path}`", soft_wrap=True)


def skip_open(path: Path, *, dry_run: bool) -> None:
    """Close an open epoch that can never be written."""
    from headrace.jobs.run import interventions

    file, settings = _load(path)
    with Stopper() as stopper:
        done = stopper.call(lambda: interventions.skip_open(file, settings, dry_run=dry_run))
    for line in done.changes:
        out().print(line, soft_wrap=True, markup=False)


def reset(path: Path, *, keep: bool, empty: bool, dry_run: bool, yes: bool) -> None:
    """Start a pipeline over; asks what becomes of the targets where no option says it."""
    from headrace.jobs.run import interventions

    file, settings = _load(path)
    if not keep and not empty:
        if not sys.stdin.isatty() or yes or dry_run:
            msg = "a reset needs either --keep-targets or --empty-targets"
            raise UserError(msg, hint=f"headrace reset {path} --empty-targets (suggested), or headrace reset {path} --keep-targets")
        empty = typer.confirm("Delete all target rows first? (No keeps them.)", default=True)
    _decide(interventions.reset(file, settings, empty=empty, dry_run=True).changes, dry_run=dry_run, yes=yes)
    if not dry_run:
        with Stopper() as stopper:
            stopper.call(lambda: interventions.reset(file, settings, empty=empty))
        out().print(f"{file.name}: reset; `headrace run {path}` starts with a new snapshot", soft_wrap=True)


def _load(path: Path) -> tuple[PipelineFile, Settings]:
    """Load the file and the settings, and log in the format that they set."""
    file, settings = load_pipeline(path), load_settings()
    logging_setup.use_format(settings.log_format)
    return file, settings


def _decide(changes: Sequence[str], *, dry_run: bool, yes: bool) -> None:
    """Print what would change, and ask whether to do it."""
    for line in changes:
        out().print(line, soft_wrap=True, markup=False)
    if dry_run:
        out().print("Nothing was changed (--dry-run).")
    elif not yes:
        if not sys.stdin.isatty():
            msg = "this command needs confirmation, and no terminal is attached"
            raise UserError(msg, hint="Add --yes to confirm, or --dry-run to print the changes.")
        typer.confirm("Continue?", abort=True)

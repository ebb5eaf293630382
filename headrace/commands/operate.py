"""`headrace restart`, `rebuild`, `prune`, `compact` and `vacuum`, with the changes printed first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from headrace.commands.repair import confirm_changes, load_file, replay
from headrace.commands.stop import describe_user
from headrace.console import stdout_console
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import UserError
from headrace.pipeline.file.loader import PipelineFile


def restart(path: Path, *, timeout: float, dry_run: bool, yes: bool) -> None:
    """End the active run as a success, and wait for its end."""
    from headrace.jobs.run import operations

    file, settings = load_file(path)
    changes = operations.restart(file, settings, by=describe_user(), timeout=timeout, dry_run=True)
    confirm_changes(changes, dry_run=dry_run, yes=yes)
    if not dry_run:
        done = operations.restart(file, settings, by=describe_user(), timeout=timeout, dry_run=False)
        _show(done[:1])  # the rest is among the changes


def rebuild(path: Path, sink: str, *, dry_run: bool, yes: bool) -> None:
    """Write all epochs to one sink again."""
    from headrace.jobs.run import operations

    file, settings = load_file(path)
    changes = operations.replay(file, settings, sink=sink, from_epoch=1, dry_run=True)
    confirm_changes(changes, dry_run=dry_run, yes=yes)
    if not dry_run:
        replay(path, sink, 1)


def prune(path: Path, *, keep: int | None, dry_run: bool, yes: bool) -> None:
    """Roll up all epochs but the last `keep`, by default those of the settings."""
    from headrace.jobs.run import operations

    file, settings = load_file(path)
    keep = keep or settings.ledger.keep_epochs
    if keep is None:
        msg = "the setting `ledger.keep_epochs` is null: all epochs are kept"
        raise UserError(msg, hint=f"headrace prune {path} --keep NUMBER")
    confirm_changes(operations.prune(file, settings, keep=keep, dry_run=True), dry_run=dry_run, yes=yes)
    if not dry_run:
        _show(operations.prune(file, settings, keep=keep, dry_run=False))


def compact(path: Path, sink: str | None, *, dry_run: bool, yes: bool) -> None:
    """Rewrite small files of the tables of sinks."""
    from headrace.jobs.run import maintenance  # imports Spark, which takes a second

    file, settings = load_file(path)
    _maintain(
        file, settings, partial(maintenance.compact, file, settings, sink=sink), dry_run=dry_run, yes=yes
    )


def vacuum(path: Path, sink: str | None, *, hours: int | None, dry_run: bool, yes: bool) -> None:
    """Remove files of the tables of sinks that no kept version needs."""
    from headrace.jobs.run import maintenance  # imports Spark, which takes a second

    file, settings = load_file(path)
    work = partial(maintenance.vacuum, file, settings, sink=sink, hours=hours)
    _maintain(file, settings, work, dry_run=dry_run, yes=yes)


def _maintain(
    file: PipelineFile, settings: Settings, work: Callable[..., Sequence[str]], *, dry_run: bool, yes: bool
) -> None:
    """Print what the work would do, and do it after a confirmation, with one Spark."""
    from headrace.jobs.run.maintenance import spark_on_demand

    with spark_on_demand(file, settings) as start_spark:
        confirm_changes(work(start_spark=start_spark, dry_run=True), dry_run=dry_run, yes=yes)
        if not dry_run:
            _show(work(start_spark=start_spark, dry_run=False))


def _show(lines: Sequence[str]) -> None:
    for line in lines:
        stdout_console().print(line, soft_wrap=True, markup=False)

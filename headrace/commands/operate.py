"""`headrace restart`, `rebuild` and `prune`: maintenance, with the changes printed first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headrace.commands.repair import confirm_changes, load_file, replay
from headrace.commands.stop import describe_user
from headrace.console import stdout_console
from headrace.pipeline.errors import UserError


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


def _show(lines: Sequence[str]) -> None:
    for line in lines:
        stdout_console().print(line, soft_wrap=True, markup=False)

"""The commands that repair a pipeline: replay, rewind, reset, accept-target, recover."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli_options import DryRun, File, Yes


def replay(
    file: File,
    *,
    sink: Annotated[
        str | None, typer.Option("--sink", help="Name of the sink in the file.", show_default=False)
    ] = None,
    from_epoch: Annotated[
        int | None,
        typer.Option(
            "--from",
            min=1,
            help="First epoch to replay. Default: the epoch after the last one in the sink.",
            show_default=False,
        ),
    ] = None,
    recompute: Annotated[
        bool,
        typer.Option(
            "--recompute",
            help="Recompute rows whose stored results are missing. They can differ from the rows in other"
            " sinks.",
        ),
    ] = False,
    skip_open: Annotated[
        bool,
        typer.Option(
            "--skip-open",
            help="Close an open epoch that can no longer be read. Sinks without it skip its rows.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --skip-open: print the changes without making them.")
    ] = False,
) -> None:
    """Write past epochs to one sink again."""
    if (
        skip_open == (sink is not None)
        or (skip_open and (from_epoch or recompute))
        or (dry_run and not skip_open)
    ):
        msg = "use either --sink NAME, or --skip-open (optionally with --dry-run)"
        raise typer.BadParameter(msg)
    from headrace.commands import repair

    if sink is None:
        repair.skip_open(file, dry_run=dry_run)
    else:
        repair.replay(file, sink, from_epoch, recompute=recompute)


def rewind(
    file: File,
    *,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="EPOCH|TIME",
            help="Epoch number, or ISO 8601 timestamp in UTC.",
            show_default=False,
        ),
    ],
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Set the streams back to the end of an earlier epoch."""
    from headrace.commands import repair

    repair.rewind(file, to, dry_run=dry_run, yes=yes)


def reset(
    file: File,
    *,
    keep: Annotated[
        bool,
        typer.Option("--keep-targets", help="Keep existing target rows. Every sink needs a primary key."),
    ] = False,
    empty: Annotated[bool, typer.Option("--empty-targets", help="Delete all target rows first.")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Restart a pipeline: new history snapshot, new handoff."""
    if keep and empty:
        msg = "use either --keep-targets or --empty-targets"
        raise typer.BadParameter(msg)
    from headrace.commands import repair

    repair.reset(file, keep=keep, empty=empty, dry_run=dry_run, yes=yes)


def accept_target(
    file: File,
    *,
    sink: Annotated[str, typer.Option("--sink", help="Name of the sink in the file.", show_default=False)],
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over",
            help="End the claim of another pipeline on the target. It can no longer write there.",
        ),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="With --take-over: do not ask for confirmation.")
    ] = False,
) -> None:
    """Accept the current state of a sink's target."""
    from headrace.commands import repair

    if take_over:
        repair.take_over(file, sink, ask=not yes)
    else:
        repair.accept_target(file, sink)


def recover(file: File) -> None:
    """Rebuild a lost ledger from the sinks' commit records."""
    from headrace.commands import repair

    repair.recover(file)

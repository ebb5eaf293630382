"""The commands that maintain a pipeline and its tables. Each prints its changes first."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli_options import DryRun, File, Timeout, Yes

MaintainedSink = Annotated[
    str | None,
    typer.Option(
        "--sink", help="Name of the sink in the file. Default: all with such a table.", show_default=False
    ),
]


def restart(file: File, *, timeout: Timeout = 60.0, dry_run: DryRun = False, yes: Yes = False) -> None:
    """End the active run; a supervisor starts the next.

    The run ends as a success. Exit code 1 if it has not ended after the timeout; the same command continues.
    """
    from headrace.commands import operate

    operate.restart(file, timeout=timeout, dry_run=dry_run, yes=yes)


def rebuild(
    file: File,
    *,
    sink: Annotated[str, typer.Option("--sink", help="Name of the sink in the file.", show_default=False)],
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Write all epochs to one sink again.

    Rows of other programs stay. A sink without a key needs an empty target. Refused while a run is active.
    """
    from headrace.commands import operate

    operate.rebuild(file, sink, dry_run=dry_run, yes=yes)


def compact(file: File, *, sink: MaintainedSink = None, dry_run: DryRun = False, yes: Yes = False) -> None:
    """Rewrite small files of Delta and Iceberg tables.

    A run may write meanwhile. If both change the same files, the first commit wins: the compaction fails, or
    the run repeats an epoch.
    """
    from headrace.commands import operate

    operate.compact(file, sink, dry_run=dry_run, yes=yes)


def vacuum(
    file: File,
    *,
    sink: MaintainedSink = None,
    older_than: Annotated[
        int | None,
        typer.Option(
            "--older-than",
            min=0,
            metavar="HOURS",
            help="Keep the files of versions of the last HOURS. Default: the retention of the table.",
            show_default=False,
        ),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Remove unneeded files of Delta and Iceberg tables.

    No kept version needs them. Snapshots of Iceberg expire. Readers of older versions fail afterwards. A run
    may write meanwhile.
    """
    from headrace.commands import operate

    operate.vacuum(file, sink, hours=older_than, dry_run=dry_run, yes=yes)


def prune(
    file: File,
    *,
    keep: Annotated[
        int | None,
        typer.Option(
            "--keep",
            min=1,
            help="Number of the newest epochs to keep. Default: the setting `ledger.keep_epochs`.",
            show_default=False,
        ),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Roll up old epochs of a pipeline in the ledger. They can no longer be replayed."""
    from headrace.commands import operate

    operate.prune(file, keep=keep, dry_run=dry_run, yes=yes)

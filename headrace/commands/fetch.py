"""`python -m headrace.commands.fetch jars` (or `archive`): what the first run would wait for, ahead of it."""

from __future__ import annotations

import sys

from headrace.console import err, show_error, size
from headrace.jobs.spark.cds_archive import ensure_archive, has_archive
from headrace.jobs.spark.jars import cached_jars, ensure_jars
from headrace.pipeline.errors import HeadraceError


def jars() -> None:
    """Downloads Spark's libraries, if they are not in the user's cache. Raises ServiceError where they cannot be had."""
    if cached_jars() is not None:
        return
    console = err()
    console.print("==> JVM libraries (120 MB the first time)")
    with console.status("starting") as status:
        ensure_jars((lambda come, what: status.update(f"{size(come)} {what}")) if console.is_terminal else None)


def archive() -> None:
    """Archives the classes that Spark loads, if that was not done yet."""
    if has_archive():
        return
    console = err()
    console.print("==> An archive of Java classes, so that Spark starts faster (half a minute, once)")
    with console.status("training"):
        ensure_archive()


def main() -> int:
    """0, or 1 with the reason on standard error."""
    try:
        {"jars": jars, "archive": archive}[sys.argv[1]]()
    except HeadraceError as error:
        show_error(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

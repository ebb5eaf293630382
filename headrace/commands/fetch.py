"""`python -m headrace.commands.fetch`: the JVM jars and the class-data archive, ahead of the first run."""

from __future__ import annotations

import sys

from headrace.jobs.archive import ensure_archive, has_archive
from headrace.jobs.jars import cached_jars, ensure_jars
from headrace.pipeline.errors import HeadraceError
from headrace.screen import err, show_error, size


def fetch() -> None:
    """Does what has not been done yet. Raises ServiceError where the jars can not be had."""
    console = err()
    if cached_jars() is None:
        console.print("==> JVM libraries (about 280 MB the first time)")
        with console.status("starting") as status:
            ensure_jars((lambda come, what: status.update(f"{size(come)} {what}")) if console.is_terminal else None)
    if not has_archive():
        console.print("==> An archive of Java classes, so that Spark starts faster (half a minute, once)")
        with console.status("training"):
            ensure_archive()


def main() -> int:
    """0, or 1 with the reason on standard error."""
    try:
        fetch()
    except HeadraceError as error:
        show_error(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

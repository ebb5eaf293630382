"""`python -m headrace.commands.fetch jars` (or `archive`): prepare in advance what the first run needs.

`lock` writes jars.lock after a change of ivy.xml.
"""

from __future__ import annotations

import sys

from headrace.console import format_size, show_error, stderr_console
from headrace.jobs.spark.cds_archive import ensure_archive, has_archive
from headrace.jobs.spark.jars import cached_jars, ensure_jars, lock_jars
from headrace.pipeline.errors import HeadraceError


def fetch_jars() -> None:
    """Download Spark's libraries if the user's cache does not have them. Raise ServiceError if that fails."""
    if cached_jars() is not None:
        return
    console = stderr_console()
    console.print("==> JVM libraries (120 MB the first time)")
    with console.status("starting") as status:
        ensure_jars(
            (lambda size, name: status.update(f"{format_size(size)} {name}")) if console.is_terminal else None
        )


def build_archive() -> None:
    """Build the archive of the classes that Spark loads, if it does not exist yet."""
    if has_archive():
        return
    console = stderr_console()
    console.print("==> An archive of Java classes, so that Spark starts faster (half a minute, once)")
    with console.status("training"):
        ensure_archive()


def main() -> int:
    """Run the script. Return 0, or 1 after printing the reason to standard error."""
    try:
        {"jars": fetch_jars, "archive": build_archive, "lock": lock_jars}[sys.argv[1]]()
    except HeadraceError as error:
        show_error(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

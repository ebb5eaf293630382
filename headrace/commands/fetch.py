"""`python -m headrace.commands.fetch`: the JVM jars, ahead of the first run, with the bytes that come."""

from __future__ import annotations

import sys

from headrace.jobs.jars import cached_jars, ensure_jars
from headrace.pipeline.errors import HeadraceError
from headrace.screen import err, show_error, size


def fetch() -> None:
    """Downloads the jars if they are not in the user's cache. Raises ServiceError where that is not possible."""
    if cached_jars() is not None:
        return
    console = err()
    console.print("==> JVM libraries (about 280 MB the first time)")
    if not console.is_terminal:
        ensure_jars()
        return
    with console.status("starting") as status:
        ensure_jars(lambda come, what: status.update(f"{size(come)} {what}"))


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

"""Downloads Java libraries by the Ivy that pyspark ships."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from headrace.jobs.spark.java import find_java
from headrace.pipeline.errors import ServiceError

Progress = Callable[[int, str], None]
"""Called about three times a second while downloading, with the number of bytes and the current file."""
_SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_NAMED = 5
"""How many missing artifacts an error names."""


@dataclass(frozen=True, slots=True)
class IvyDownload:
    """The artifacts of an Ivy file, and the places that `pattern` gives them.

    `transcript` gets the output of Ivy, `cache` keeps what is downloaded. Two downloads at once have two
    caches.
    """

    ivy: Path
    groups: Sequence[str]
    pattern: str
    transcript: Path
    cache: Path
    types: Sequence[str] = ("jar", "bundle")

    @property
    def arguments(self) -> list[str]:
        """The arguments of Ivy."""
        return [
            *("-ivy", str(self.ivy), "-cache", str(self.cache)),
            *("-confs", *self.groups, "-types", *self.types, "-retrieve", self.pattern),
        ]


def retrieve(
    downloads: Sequence[IvyDownload], settings: str, progress: Progress | None = None, java: str | None = None
) -> None:
    """Download at the same time what several Ivy files name.

    `settings` is the path of Ivy's settings. Raise ServiceError if an artifact cannot be downloaded.
    """
    program = [str(find_java(java).path), *_SHORT_LIVED, "-cp", str(_ivy_jar()), "org.apache.ivy.Main"]
    program += ["-settings", settings]
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(_start_ivy(program, download)) for download in downloads]
        _wait(processes, downloads, progress)
    failed = [download for process, download in zip(processes, downloads, strict=True) if process.returncode]
    if failed:
        raise _download_error(failed)


@contextlib.contextmanager
def _start_ivy(program: Sequence[str], download: IvyDownload) -> Iterator[subprocess.Popen[bytes]]:
    with (
        download.transcript.open("w") as out,
        subprocess.Popen(
            [*program, *download.arguments], stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
        ) as process,
    ):
        try:
            yield process
        except BaseException:
            process.kill()
            raise


def _wait(
    processes: Sequence[subprocess.Popen[bytes]],
    downloads: Sequence[IvyDownload],
    progress: Progress | None,
) -> None:
    before = sum(_size(download.cache) for download in downloads)
    come = 0  # never shown shrinking: Ivy moves files about
    while running := [process for process in processes if process.poll() is None]:
        with contextlib.suppress(subprocess.TimeoutExpired):
            running[0].wait(timeout=0.3)
        if progress:
            come = max(come, sum(_size(download.cache) for download in downloads) - before)
            progress(come, _current([download.transcript for download in downloads]))


def _download_error(failed: Sequence[IvyDownload]) -> ServiceError:
    output = "\n".join(download.transcript.read_text(errors="replace") for download in failed)
    missing = re.findall(r":: (\S+#\S+): not found|\[FAILED\s*\] (\S+)", output)
    names = sorted({first or second for first, second in missing})
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    text = ", ".join(names[:_NAMED]) + more or output.strip()[-600:]
    msg = f"cannot download the jars that Spark needs: {text}"
    hint = (
        "Is Maven Central reachable? Behind a mirror, point HEADRACE_IVY_SETTINGS at an"
        " ivysettings.xml of your own."
    )
    return ServiceError(msg, hint=hint)


def _ivy_jar() -> Path:
    spec = find_spec("pyspark")
    result = (
        sorted(Path(spec.submodule_search_locations[0], "jars").glob("ivy-*.jar"))
        if spec and spec.submodule_search_locations
        else []
    )
    if not result:
        msg = "pyspark's jars/ivy-*.jar is not there"
        raise ServiceError(msg, hint="Install pyspark from PyPI; a pyspark without jars cannot be used.")
    return result[-1]


def _current(transcripts: Sequence[Path]) -> str:
    for transcript in transcripts:
        text = transcript.read_text(errors="replace")
        if names := re.findall(r"^downloading \S*/([^/\s]+)", text, re.MULTILINE):
            return names[-1]
    return "resolving"


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # Ivy renames its partial files while we look
            total += path.stat().st_size if path.suffix in {".jar", ".part"} else 0
    return total

"""External calls that tasks wait for. Metrics and errors of a task reach the driver only when it ends.

A worker process stores one note per node in a folder of the pipeline under the staging path, which workers
and driver share. The heartbeat of the driver reads the notes. A note has an expiry time, so that the note of
a killed worker expires.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from headrace.jobs.staging.paths import safe_filename
from headrace.pipeline.config.settings import Settings

_FOLDER = ".waits"
"""The folder next to the stored results."""


def waits_folder(settings: Settings, pipeline: str) -> Path:
    """Return the folder with the notes of a pipeline's tasks."""
    return settings.staging_folder / pipeline / _FOLDER


@dataclass(frozen=True, slots=True)
class PendingCall:
    """The note of one process for one node.

    Picklable. A missing `folder` is created; write errors are ignored.
    """

    folder: Path
    node: str

    @property
    def _path(self) -> Path:
        return self.folder / f"{safe_filename(self.node)}-{os.uname().nodename}-{os.getpid()}.json"

    def note(self, message: str, good_for: float) -> None:
        """Write what the task waits for.

        The note expires after `good_for` seconds unless it is written again.
        """
        temporary = self._path.with_suffix(".new")
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            temporary.write_text(
                json.dumps({"node": self.node, "message": message, "until": time.time() + good_for}),
                encoding="utf-8",
            )
            temporary.replace(self._path)

    def over(self) -> None:
        """Remove the note."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


def read_pending_calls(folder: Path) -> dict[str, str]:
    """Return the current wait of each node's tasks, from the notes in the folder. Remove expired notes."""
    result: dict[str, str] = {}
    try:
        paths = sorted(folder.glob("*.json"))
    except OSError:
        return result
    for path in paths:
        with suppress(OSError, ValueError, KeyError, TypeError):
            note = json.loads(path.read_text(encoding="utf-8"))
            if float(note["until"]) < time.time():
                path.unlink()
            else:
                result[str(note["node"])] = str(note["message"])
    return result

"""Starting a warm engine for the next command, while a run goes on."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence

from headrace.handover import FIRST_ENVIRONMENT
from headrace.jobs.planning.compiled_pipeline import node_types
from headrace.jobs.run.events import EpochCommitted, Event, Listener
from headrace.jobs.spark.session import is_started
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.file.loader import PipelineFile


def start_engine(settings: Settings, kinds: Iterable[str]) -> None:
    """Start an engine for the next command with this environment, unless there is one.

    The engine is no child of this process, which ends all its children at its own end.
    """
    folder = settings.home / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "headrace.warm_engine", *sorted(set(kinds))]
    with (folder / "warm_engine.log").open("ab") as output:
        subprocess.run(
            command,
            env=FIRST_ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            check=False,
        )


def start_engine_on_commit(settings: Settings, files: Sequence[PipelineFile], listener: Listener) -> Listener:
    """Return a listener that also starts an engine after the first commit of a run that uses Spark.

    Before that, an engine would take processor time from the run.
    """
    if not settings.spark.warm_engine_secs:
        return listener
    started = threading.Event()

    def listen(event: Event) -> None:
        listener(event)
        if isinstance(event, EpochCommitted) and not started.is_set() and is_started():
            started.set()
            kinds = frozenset().union(*map(node_types, files))
            threading.Thread(target=start_engine, args=(settings, kinds), name="headrace-engine").start()

    return listen

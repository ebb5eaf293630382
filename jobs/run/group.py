"""Several pipelines in one process with one Spark session. Each has its own lease, ledger entries and stop.

Twenty small streams share one JVM instead of having one each.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from headrace.connectors.lazy_session import LazySession
from headrace.jobs.planning.compiled_pipeline import node_types
from headrace.jobs.run.events import Event, Listener, RunResult, Until
from headrace.jobs.run.runner import run
from headrace.jobs.spark.session import start_session, stop_session
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import UserError
from headrace.pipeline.file.loader import PipelineFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_LOOK = 0.2
"""Seconds between two looks at the stop of the group."""


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A pipeline of a group, with the listener of its run."""

    file: PipelineFile
    listener: Listener


def run_group(
    members: Sequence[GroupMember],
    settings: Settings,
    *,
    until: Until,
    stop: threading.Event,
    on_end: Callable[[GroupMember, RunResult | Exception], None],
    launched_by: str = "cli",
) -> int:
    """Run pipelines at the same time. Return the number of those that failed.

    A pipeline that fails does not end the others. At most as many pipelines as the machine has cores open at
    the same time.

    Args:
        members: the pipelines.
        settings: connections, ledger, Spark. All pipelines have the same.
        until: when each of them stops. `job_mode` in a file means HISTORY for that file.
        stop: set it to stop all of them. A request in the ledger stops one.
        on_end: called in the pipeline's thread with its result, or the error that ended it.
        launched_by: what started the group.

    Raises:
        UserError: two files have the same pipeline name. Nothing was started.
    """
    _check_names(members)
    kinds = frozenset().union(*(node_types(member.file) for member in members))
    spark = LazySession(lambda: start_session(settings, kinds))
    opening = threading.Semaphore(os.cpu_count() or 2)
    stops = [threading.Event() for _ in members]

    def run_member(member: GroupMember, own_stop: threading.Event) -> bool:
        turn = _OpeningTurn(opening, member.listener)
        try:
            with turn:
                result = run(
                    member.file,
                    settings,
                    until=until,
                    listener=turn.on_event,
                    stop=own_stop,
                    launched_by=launched_by,
                    spark=cast("SparkSession", spark),
                )
        except Exception as error:  # noqa: BLE001  the other pipelines go on
            on_end(member, error)
            return False
        on_end(member, result)
        return True

    try:
        with ThreadPoolExecutor(len(members), thread_name_prefix="pipeline") as pool:
            runs = [pool.submit(run_member, *pair) for pair in zip(members, stops, strict=True)]
            while not all(one.done() for one in runs):
                if stop.wait(_LOOK):
                    for own_stop in stops:
                        own_stop.set()
                    break
            return sum(not one.result() for one in runs)
    finally:
        if spark.started_session is not None:
            stop_session(spark.started_session)


class _OpeningTurn:
    """A place among the pipelines that open now, until the pipeline's first event or its end."""

    def __init__(self, opening: threading.Semaphore, listener: Listener) -> None:
        self._opening, self._listener = opening, listener
        self._waits = False

    def __enter__(self) -> None:
        self._opening.acquire()
        self._waits = True

    def __exit__(self, *_: object) -> None:
        self._leave()

    def on_event(self, event: Event) -> None:
        """Pass the event on."""
        self._leave()
        self._listener(event)

    def _leave(self) -> None:
        if self._waits:
            self._waits = False
            self._opening.release()


def _check_names(members: Sequence[GroupMember]) -> None:
    seen: dict[str, PipelineFile] = {}
    for member in members:
        other = seen.setdefault(member.file.name, member.file)
        if other is not member.file:
            msg = f"two files have the pipeline `{member.file.name}`: {other.path} and {member.file.path}"
            raise UserError(msg, hint="Give one of them another `name`.", place=member.file.place("name"))

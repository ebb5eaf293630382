"""The end of a run that Dagster or a request in the ledger stopped."""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
import threading
from contextlib import suppress
from typing import Any, Self

import dagster as dg
from dagster import DagsterExecutionInterruptedError

from headrace.jobs.run.events import RunResult
from headrace.pipeline.protocol.ledger import StopAction
from headrace.shutdown import kill_children

log = logging.getLogger(__name__)

_POLL_SECONDS = 1.5
_LIMIT_SECONDS = 26.0
"""Seconds between the detection of a termination and the forced end.

With the interval of the polls and the time to kill, no process is left 30 s after a termination.
"""
_REPORT_SECONDS = 1.0
_ENDED = (dg.DagsterRunStatus.CANCELING, dg.DagsterRunStatus.CANCELED, dg.DagsterRunStatus.FAILURE)


class RunStatusWatch:
    """Reads the status of the run while a step executes. A context manager.

    Dagster delivers a termination through the code server. If the server has died, and if a run is marked as
    failed while its process lives, only the status in the storage shows it. `canceled` is set then. If the
    process has not ended after `limit` seconds, its children and the process itself are killed if the process
    is Dagster's.
    """

    def __init__(
        self,
        instance: dg.DagsterInstance,
        run_id: str,
        *,
        poll: float = _POLL_SECONDS,
        limit: float = _LIMIT_SECONDS,
    ) -> None:
        self.canceled = threading.Event()
        self._instance, self._run_id = instance, run_id
        self._poll, self._limit = poll, limit
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-run-status", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the polls. The limit stays in force until the process ends."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(self._poll):
            if self._read_status() in _ENDED:
                self.canceled.set()
                break
        else:
            return
        log.warning("event=run_terminated run_id=%s", self._run_id[:8])
        if _is_dagster_process():
            threading.Event().wait(self._limit)
            self._force_exit()

    def _read_status(self) -> dg.DagsterRunStatus | None:
        """Return the run's status. None if the storage cannot be read, which is no termination."""
        try:
            run = self._instance.get_run_by_id(self._run_id)
        except Exception as error:  # noqa: BLE001  every storage has its own errors
            log.warning("event=run_status_unknown run_id=%s error=%s", self._run_id[:8], type(error).__name__)
            return None
        return run.status if run else None

    def _force_exit(self) -> None:
        log.error("event=run_killed run_id=%s seconds=%.0f", self._run_id[:8], self._limit)
        kill_children()
        reporter = threading.Thread(target=self._report_canceled, daemon=True)
        reporter.start()
        reporter.join(_REPORT_SECONDS)
        os._exit(1)

    def _report_canceled(self) -> None:
        with suppress(Exception):
            run = self._instance.get_run_by_id(self._run_id)
            if run and run.status is dg.DagsterRunStatus.CANCELING:
                self._instance.report_run_canceled(
                    run, "The process was killed, because it did not end in time."
                )


def end_if_requested(context: Any, result: RunResult, *, is_pause_success: bool) -> None:
    """End the Dagster run as canceled if a request in the ledger ended the pipeline's run.

    `is_pause_success`: a pause is a regular end, so that a supervisor continues after it.
    """
    if result.stop_reason not in list(StopAction) or (
        is_pause_success and result.stop_reason == StopAction.PAUSE
    ):
        return
    context.instance.report_run_canceling(
        context.run, f"A request in the ledger (headrace {result.stop_reason}) ended the run."
    )
    raise DagsterExecutionInterruptedError


def _is_dagster_process() -> bool:
    """Return whether this process executes a run or a step for Dagster, and nothing else."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return multiprocessing.parent_process() is not None or (main is not None and main.parent == "dagster")

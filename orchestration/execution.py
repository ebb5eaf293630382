"""Run a pipeline inside a Dagster step.

The pipeline runs in its own thread, because Dagster stops a step by an exception in the main thread at any
point, and that must not tear an epoch. The main thread waits, reports, and turns a termination into a stop
request.
"""

from __future__ import annotations

import logging
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar, cast

import dagster as dg
from dagster import DagsterExecutionInterruptedError

from headrace.connectors.lazy_session import LazySession
from headrace.jobs.run.events import CheckResult, Event, RunMessage, RunResult, Until
from headrace.orchestration.partition_load import load_partitions
from headrace.orchestration.pipelines import Pipeline
from headrace.orchestration.turns import wait_for_turn
from headrace.pipeline.errors import HeadraceError, LeaseHeldError, PausedError, error_code
from headrace.pipeline.protocol.log_context import LogContextFilter, formatter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.orchestration.spark import PipelineSparkResource

log = logging.getLogger(__name__)

STOP_SECONDS = 45.0
"""Seconds that a run has to end after a stop. The run itself finishes or drops its epoch within 30 s."""
RETRIES, RETRY_SECONDS = 2, 15.0
_POLL_SECONDS = 0.5

T = TypeVar("T")


def run_pipeline(
    pipeline: Pipeline,
    spark: PipelineSparkResource,
    *,
    until: Until,
    run_id: str,
    retries: int = 0,
    partitions: Sequence[str] | None = None,
    refresh: bool = False,
    max_run_time: timedelta | None = None,
    on_event: Callable[[Event], None],
    on_tick: Callable[[], None] = lambda: None,
    is_canceled: Callable[[], bool] = lambda: False,
) -> RunResult:
    """Run the pipeline to its end. Deliver its events in order in the calling thread.

    If another run of the pipeline is active, or the pipeline is paused, wait, without a Spark session. A
    `refresh` is requested from the active run. `on_tick` and `is_canceled` are called at least every second.
    A termination of the Dagster run, by an interrupt or by `is_canceled`, stops the pipeline after the
    current epoch, and is raised when the pipeline has ended. Errors are raised as `to_dagster_error` converts
    them.
    """
    from headrace.jobs.run.runner import (
        run,
    )  # imports Spark, which only runs may do, not the loading of definitions

    events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
    stop = threading.Event()

    def work() -> RunResult:
        settings = spark.settings(pipeline.settings())
        _log_to_stderr(settings.log_format)
        session = LazySession(lambda: spark.session(settings, pipeline.node_types))

        def start(is_refresh: bool) -> RunResult | None:
            # Another run can take the lease between the wait and this one.
            with suppress(LeaseHeldError, PausedError), spark.translate_errors(settings):
                return run(
                    pipeline.file,
                    settings,
                    until=until,
                    partitions=partitions,
                    refresh=is_refresh,
                    listener=events.put,
                    stop=stop,
                    max_run_time=max_run_time,
                    launched_by="dagster",
                    run_id=run_id,
                    spark=cast("SparkSession", session),
                )
            return None

        def report(message: str) -> None:
            events.put(RunMessage(message))

        result: RunResult | None = None
        if partitions or refresh:
            result = load_partitions(
                pipeline,
                partitions or (),
                start,
                refresh=refresh,
                by=f"Dagster run {run_id[:8]}",
                is_last_attempt=retries >= RETRIES,
                stop=stop,
                report=report,
            )
        else:
            while result is None and wait_for_turn(pipeline, stop, report):
                result = start(False)
        if result is None:
            raise DagsterExecutionInterruptedError
        return result

    future: Future[RunResult] = Future()
    future.add_done_callback(lambda _: events.put(None))  # wakes the loop below
    try:
        # Inside, because a signal may arrive before the call returns.
        _start_thread(work, f"pipeline-{pipeline.name}", future)
        while not future.done():
            _deliver_events(events, on_event, _POLL_SECONDS)
            on_tick()
            if is_canceled():
                raise DagsterExecutionInterruptedError  # noqa: TRY301  the handler below stops the pipeline
        _deliver_events(events, on_event, 0.0)
    except BaseException:
        stop.set()
        log.info("event=stop_requested pipeline=%s", pipeline.file.name)
        if not future.cancel():  # which succeeds if the thread has not begun
            _wait_until_stopped(future)
        _deliver_events(events, on_event, 0.0)
        raise
    try:
        return future.result()
    except HeadraceError as error:
        raise to_dagster_error(error, retries) from error


def to_dagster_error(error: HeadraceError, retries: int) -> dg.Failure | dg.RetryRequested:
    """Return the error that a step raises: a retry request if a retry can help, else a failure.

    A retry policy on the step would also retry a termination. The pipeline would then continue after a run
    that Dagster shows as canceled.
    """
    if error.retriable and retries < RETRIES:
        return dg.RetryRequested(max_retries=RETRIES, seconds_to_wait=RETRY_SECONDS * 2**retries)
    metadata: dict[str, dg.MetadataValue] = {"code": dg.MetadataValue.text(error_code(error))}
    if error.node:
        metadata["node"] = dg.MetadataValue.text(error.node)
    if error.place:
        metadata["place"] = dg.MetadataValue.text(str(error.place))
    if error.hint:
        metadata["what to do"] = dg.MetadataValue.text(error.hint)
    return dg.Failure(description=str(error), metadata=metadata, allow_retries=False)


def run_checks(
    pipeline: Pipeline,
    spark: PipelineSparkResource,
    sinks: Sequence[str],
    *,
    content: bool = True,
    content_rows: int | None = None,
    is_canceled: Callable[[], bool] = lambda: False,
) -> list[CheckResult]:
    """Check the pipeline's sinks against the real systems. Raise HeadraceError if they are unreachable.

    `content` adds `content_matches`, with a sample of `content_rows`. Use the Spark session of the run. An
    internal error of the comparison does not fail a run whose rows are written. `is_canceled` ends the wait
    for the checks.
    """
    from headrace.jobs.checks.audit import ContentAuditOptions, audit

    settings = spark.settings(pipeline.settings())
    content = content and bool(pipeline.comparable_sinks & set(sinks))

    def work() -> list[CheckResult]:
        session = LazySession(lambda: spark.session(settings, pipeline.node_types))
        with spark.translate_errors(settings):
            return audit(
                pipeline.file,
                settings,
                sinks=sinks,
                spark=cast("SparkSession", session),
                content=ContentAuditOptions(content_rows, raises=False) if content else None,
            )

    # In a thread, because a first session in the main thread would replace Dagster's interrupt handlers.
    return wait_for_thread(work, "checks", is_canceled)


def wait_for_thread(work: Callable[[], T], name: str, is_canceled: Callable[[], bool]) -> T:
    """Return the result of `work`, which runs in a thread. `is_canceled` ends the wait for it."""
    future: Future[T] = Future()
    _start_thread(work, name, future)
    while not wait([future], timeout=_POLL_SECONDS).done:
        if is_canceled():
            raise DagsterExecutionInterruptedError
    return future.result()


def _start_thread(work: Callable[[], T], name: str, future: Future[T]) -> None:
    """Run `work` in a daemon thread, unless `future`, which gets its result, is canceled before it begins.

    A run that hangs after a stop must not keep the process, whose end also ends its JVM.
    """

    def body() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001  raised again in the waiting thread
            future.set_exception(error)

    threading.Thread(target=body, name=name, daemon=True).start()


def _deliver_events(
    events: queue.SimpleQueue[Event | None], on_event: Callable[[Event], None], wait: float
) -> None:
    """Deliver all events of the queue. Wait up to `wait` seconds for the first one."""
    try:
        event = events.get(timeout=wait) if wait else events.get_nowait()
        while True:
            if event is not None:
                on_event(event)
            event = events.get_nowait()
    except queue.Empty:
        return


def _wait_until_stopped(future: Future[RunResult]) -> None:
    """Wait until the run has ended, despite further interrupts, but at most `STOP_SECONDS`."""
    deadline = time.monotonic() + STOP_SECONDS
    while not future.done() and time.monotonic() < deadline:
        try:
            future.exception(timeout=_POLL_SECONDS)
        except (TimeoutError, DagsterExecutionInterruptedError):
            continue
    if not future.done():
        log.error("event=stop_timed_out seconds=%.0f", STOP_SECONDS)


def _log_to_stderr(log_format: str) -> None:
    """Send Headrace's log lines to the run's standard error, with pipeline, run, epoch and node.

    Add the handler once per process.
    """
    logger = logging.getLogger("headrace")
    if not logger.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(formatter(log_format))
        handler.addFilter(LogContextFilter())
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)

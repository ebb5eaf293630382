"""Driving a lane from inside a Dagster step.

The lane works in a thread of its own, because Dagster stops a step by raising in the main thread wherever it happens to be,
and an epoch in flight must not be torn. The main thread waits, reports, and passes a stop on as a wish.
"""

from __future__ import annotations

import logging
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

import dagster as dg
from dagster import DagsterExecutionInterruptedError

from headrace.jobs.run.events import CheckResult, Event, RunResult, Until
from headrace.orchestration.pipelines import Pipeline
from headrace.pipeline.errors import HeadraceError, error_code
from headrace.pipeline.protocol.log_context import LogContextFilter, formatter

if TYPE_CHECKING:
    from headrace.orchestration.spark import LaneSpark

log = logging.getLogger(__name__)

STOP_WITHIN = 45.0
"""Seconds that a lane gets to end after a stop: it finishes or drops the epoch in flight within 30 by itself."""
RETRIES, RETRY_AFTER = 2, 15.0
_LOOK = 0.5

T = TypeVar("T")


def run_lane(
    pipeline: Pipeline,
    spark: LaneSpark,
    *,
    until: Until,
    run_id: str,
    retries: int = 0,
    windows: Sequence[str] | None = None,
    max_run_time: timedelta | None = None,
    on_event: Callable[[Event], None],
    on_tick: Callable[[], None] = lambda: None,
) -> RunResult:
    """Runs the lane to its end and hands its events over, in order, in the calling thread; `on_tick` comes at least every second.

    A termination of the Dagster run stops the lane at an epoch's border and is raised again once the lane has ended.
    Raises what `verdict` makes of an error where the lane fails.
    """
    from headrace.jobs.run.runner import run  # Spark is imported in the run alone, never where definitions are loaded

    events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
    stop = threading.Event()

    def work() -> RunResult:
        settings = spark.settings(pipeline.settings())
        _log_to_stderr(settings.log_format)
        return run(
            pipeline.file,
            settings,
            until=until,
            partitions=windows,
            listener=events.put,
            stop=stop,
            max_run_time=max_run_time,
            launched_by="dagster",
            run_id=run_id,
            spark=spark.session(settings, pipeline.kinds),
        )

    future = _in_thread(work, f"lane-{pipeline.name}")
    future.add_done_callback(lambda _: events.put(None))  # wakes the loop below
    try:
        while not future.done():
            _hand_over(events, on_event, _LOOK)
            on_tick()
        _hand_over(events, on_event, 0.0)
    except BaseException:
        stop.set()
        log.info("stopping pipeline=%s at the next epoch's border", pipeline.file.name)
        _wait(future)
        _hand_over(events, on_event, 0.0)
        raise
    try:
        return future.result()
    except HeadraceError as error:
        raise verdict(error, retries) from error


def verdict(error: HeadraceError, retries: int) -> dg.Failure | dg.RetryRequested:
    """What a step raises for an error: the reason for people, or a wish to try again where it may pass by itself.

    A retry policy on the step would also retry a termination, and the lane would go on behind a run that reads as canceled.
    """
    if error.retriable and retries < RETRIES:
        return dg.RetryRequested(max_retries=RETRIES, seconds_to_wait=RETRY_AFTER * 2**retries)
    metadata: dict[str, dg.MetadataValue] = {"code": dg.MetadataValue.text(error_code(error))}
    if error.node:
        metadata["node"] = dg.MetadataValue.text(error.node)
    if error.place:
        metadata["place"] = dg.MetadataValue.text(str(error.place))
    if error.hint:
        metadata["what to do"] = dg.MetadataValue.text(error.hint)
    return dg.Failure(description=str(error), metadata=metadata, allow_retries=False)


def check_results(pipeline: Pipeline, spark: LaneSpark, sinks: Sequence[str], *, content: bool = True) -> list[CheckResult]:
    """What the real systems say about the lane's sinks, `content_matches` on request. Raises HeadraceError where they cannot be asked.

    Works in the run's own Spark session. An internal error of the comparison does not fail a run whose rows are written.
    """
    from headrace.jobs.checks.audit import ContentAuditOptions, audit
    from headrace.jobs.spark.errors import translate_spark_errors

    settings = spark.settings(pipeline.settings())
    content = content and bool(pipeline.comparable & set(sinks))
    needs_spark = content or any(pipeline.file.model.sinks[sink].type in ("delta", "iceberg") for sink in sinks)
    # In a thread: a first session in the main thread would replace Dagster's handlers of interrupts.
    session = _in_thread(lambda: spark.session(settings, pipeline.kinds), "checks-spark").result() if needs_spark else None
    with translate_spark_errors():
        return audit(pipeline.file, settings, sinks=sinks, spark=session, content=ContentAuditOptions(raises=False) if content else None)


def _in_thread(work: Callable[[], T], name: str) -> Future[T]:
    """A daemon thread: a lane that hangs after a stop must not keep the process, whose end also ends its JVM."""
    future: Future[T] = Future()

    def body() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001  carried over to the waiting thread
            future.set_exception(error)

    threading.Thread(target=body, name=name, daemon=True).start()
    return future


def _hand_over(events: queue.SimpleQueue[Event | None], on_event: Callable[[Event], None], wait: float) -> None:
    """Everything that is in the queue; waits up to `wait` seconds for a first event."""
    try:
        event = events.get(timeout=wait) if wait else events.get_nowait()
        while True:
            if event is not None:
                on_event(event)
            event = events.get_nowait()
    except queue.Empty:
        return


def _wait(future: Future[RunResult]) -> None:
    """Until the lane has ended, through further interrupts, but not for ever."""
    deadline = time.monotonic() + STOP_WITHIN
    while not future.done() and time.monotonic() < deadline:
        try:
            future.exception(timeout=_LOOK)
        except (TimeoutError, DagsterExecutionInterruptedError):
            continue
    if not future.done():
        log.error(
            "the lane did not end within %.0f s of a stop; the process ends without it, its epoch will be finished by the next", STOP_WITHIN
        )


def _log_to_stderr(log_format: str) -> None:
    """Headrace's own log lines go to the run's captured standard error, once per process, with pipeline, run, epoch and node."""
    logger = logging.getLogger("headrace")
    if not logger.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(formatter(log_format))
        handler.addFilter(LogContextFilter())
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)

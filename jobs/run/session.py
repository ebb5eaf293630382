"""The Spark session of a run: started on first use, stopped with the run, and why its JVM died."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from headrace.connectors.lazy_session import LazySession, find_started_session
from headrace.jobs.planning.compiled_pipeline import node_types
from headrace.jobs.spark.errors import translate_spark_errors
from headrace.jobs.spark.job_tags import inherit_job_tag, tag_jobs, untag_jobs
from headrace.jobs.spark.session import (
    cancel_jobs,
    explain_death,
    jvm_alive,
    jvm_process,
    start_session,
    stop_session,
)
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import SparkJvmError
from headrace.pipeline.file.loader import PipelineFile
from headrace.pipeline.protocol.epochs import Json
from headrace.pipeline.protocol.log_context import with_log_context

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ABORT_AFTER = 25.0
"""Seconds that an epoch in flight gets after a stop was requested."""


class RunSession:
    """The session of one run: the caller's, which stays as it is, or one of its own."""

    def __init__(self, file: PipelineFile, settings: Settings, callers: SparkSession | None) -> None:
        self._file = file
        self._settings = settings
        self._callers = callers
        self.on_start: Callable[[Json | None], None] = lambda _: None
        """Called with the JVM's process before the run first uses a session that was not started."""
        is_started = callers is not None and find_started_session(callers) is not None
        self.spark = cast("SparkSession", callers if is_started else LazySession(self._start))
        """The session. It starts on first use: some pipelines never need it."""

    @property
    def jvm(self) -> Json | None:
        """The process of the JVM. None if there is none yet, or if it is not on this host."""
        return jvm_process(self._started_session) if self._started_session is not None else None

    @property
    def is_started(self) -> bool:
        """Whether something has used the session, so that there is a JVM."""
        return self._started_session is not None

    @property
    def _started_session(self) -> SparkSession | None:
        return find_started_session(self.spark)

    def _start(self) -> SparkSession:
        if isinstance(self._callers, LazySession):
            spark = self._callers.start()
        else:
            spark = start_session(self._settings, node_types(self._file))
        try:
            self.on_start(jvm_process(spark))
        except BaseException:
            if self._callers is None:
                stop_session(spark)
            raise
        inherit_job_tag(spark)
        return spark

    def explain_death(self, patience: float) -> SparkJvmError | None:
        """Return why the JVM ended; None while it runs. `patience`: seconds that it gets to end."""
        return (
            explain_death(self._started_session, self._settings, patience) if self._started_session else None
        )

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Translate Spark failures raised inside this block, and explain why Spark's JVM died if it did."""
        try:
            with translate_spark_errors():
                yield
        except SparkJvmError as error:
            death = self.explain_death(5.0)
            if death is None or death.message == error.message:
                raise
            raise death from error

    def abort_after_stop(self, stop: threading.Event) -> Callable[[], None]:
        """Cancel Spark's jobs if an epoch does not end in time after `stop`. Call the result at the end.

        A cancelled epoch is as safe as a crash.
        """
        done, tag = threading.Event(), tag_jobs(self._started_session)
        watch = with_log_context(self._abort_late)
        threading.Thread(target=watch, args=(stop, done, tag), name="headrace-abort", daemon=True).start()

        def end() -> None:
            done.set()
            started = self._started_session
            untag_jobs(started if self._callers is not None and started and jvm_alive(started) else None, tag)

        return end

    def _abort_late(self, stop: threading.Event, done: threading.Event, tag: str) -> None:
        while not stop.wait(1.0):
            if done.is_set():
                return
        if done.wait(ABORT_AFTER):
            return
        if self._started_session is not None:
            cancel_jobs(self._started_session, tag if self._callers is not None else None)

    def stop(self) -> None:
        """Stop the session, unless it is the caller's."""
        if self._callers is None and self._started_session is not None:
            stop_session(self._started_session)

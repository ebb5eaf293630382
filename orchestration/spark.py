"""The Spark session of a Dagster run.

This module imports Spark (through dagster-pyspark): only runs may import it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from dagster import InitResourceContext
from dagster_pyspark import PySparkResource
from pydantic import PrivateAttr
from pyspark.sql import SparkSession

from headrace.jobs.spark.errors import translate_spark_errors
from headrace.jobs.spark.session import explain_death, jvm_alive, start_session, stop_session
from headrace.pipeline.config.settings import Settings, load_settings
from headrace.pipeline.errors import SparkJvmError

_DEATH_SECONDS = 5.0
"""Seconds that a JVM with a broken connection gets to end, before its death is explained."""


class PipelineSparkResource(PySparkResource):
    """dagster-pyspark's resource, started on first use and stopped with the run.

    The first caller decides which extensions are loaded. A caller that needs more gets a new session, and so
    does the first caller after the JVM died. Do not keep a session across steps. Pipelines, their checks and
    downstream assets share it: one JVM per run, and none after it.
    """

    _node_types: frozenset[str] = PrivateAttr(default=frozenset())
    _lock: Any = PrivateAttr(default_factory=threading.Lock)

    def setup_for_execution(self, context: InitResourceContext) -> None:
        """Start nothing. A run that is refused, or has only pure Python steps, needs no JVM."""

    def session(self, settings: Settings, node_types: Iterable[str]) -> SparkSession:
        """Return the session with Headrace's jars and the extensions of `node_types`.

        Raise ServiceError and SettingsError. Call it in a separate thread if Dagster's interrupts matter:
        Spark replaces the main thread's handlers.
        """
        with self._lock:
            wanted = self._node_types | frozenset(node_types)
            if self._spark_session is not None and (
                wanted != self._node_types or not jvm_alive(self._spark_session)
            ):
                self._stop()
            if self._spark_session is None:
                self._spark_session = start_session(self.settings(settings), wanted)
                self._node_types = wanted
            return self._spark_session

    @contextmanager
    def translate_errors(self, settings: Settings) -> Iterator[None]:
        """Translate failures of Spark inside this block. Explain why its JVM died if it did.

        A session whose JVM died, or does not answer, is stopped, so that no later step or retry uses it.
        """
        try:
            with translate_spark_errors():
                yield
        except SparkJvmError as error:
            with self._lock:
                session = self._spark_session
                death = explain_death(session, settings, _DEATH_SECONDS) if session is not None else None
                self._stop()
            if death is None or death.message == error.message:
                raise
            raise death from error

    def settings(self, settings: Settings) -> Settings:
        """Return the settings with this resource's `spark_config` over their own."""
        conf = settings.spark.conf | {str(key): str(value) for key, value in self.spark_config.items()}
        return settings.model_copy(update={"spark": settings.spark.model_copy(update={"conf": conf})})

    @property
    def spark_session(self) -> SparkSession:
        """The session for other assets of the project, with this process's settings.

        It can read Delta tables.
        """
        return self.session(load_settings(), ("delta",))

    def teardown_after_execution(self, context: InitResourceContext) -> None:
        """Stop Spark and its JVM, after failures and terminations too."""
        del context
        with self._lock:
            self._stop()

    def _stop(self) -> None:
        if self._spark_session is not None:
            stop_session(self._spark_session)
        self._spark_session, self._node_types = None, frozenset()

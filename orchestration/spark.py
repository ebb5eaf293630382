"""The Spark session of a Dagster run. Imports dagster-pyspark, and with it Spark: only runs may import this module."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from dagster import InitResourceContext
from dagster_pyspark import PySparkResource
from pydantic import PrivateAttr
from pyspark.sql import SparkSession

from headrace.jobs.spark.session import jvm_alive, start_session, stop_session
from headrace.pipeline.config.settings import Settings, load_settings


class LaneSpark(PySparkResource):
    """dagster-pyspark's resource with a start that waits until somebody asks, and with a stop.

    The first asker decides which extensions are loaded; one who needs more gets a new session, and so does one who comes after the
    JVM has died. Keep none across steps.
    Lanes, their checks and assets behind them share it: one JVM per run, and none after it.
    """

    _kinds: frozenset[str] = PrivateAttr(default=frozenset())
    _lock: Any = PrivateAttr(default_factory=threading.Lock)

    def setup_for_execution(self, context: InitResourceContext) -> None:
        """Starts nothing: a run that is refused, or has only pure Python steps, pays for no JVM."""

    def session(self, settings: Settings, kinds: Iterable[str]) -> SparkSession:
        """The session with Headrace's jars and what the node types `kinds` need. Raises ServiceError and SettingsError.

        To be called in a thread of its own where Dagster's interrupts matter: Spark replaces the main thread's handlers.
        """
        with self._lock:
            wanted = self._kinds | frozenset(kinds)
            if self._spark_session is not None and (wanted != self._kinds or not jvm_alive(self._spark_session)):
                self._stop()
            if self._spark_session is None:
                self._spark_session = start_session(self.settings(settings), wanted)
                self._kinds = wanted
            return self._spark_session

    def settings(self, settings: Settings) -> Settings:
        """The settings with this resource's `spark_config` over their own."""
        conf = settings.spark.conf | {str(key): str(value) for key, value in self.spark_config.items()}
        return settings.model_copy(update={"spark": settings.spark.model_copy(update={"conf": conf})})

    @property
    def spark_session(self) -> SparkSession:
        """The session for an asset of one's own, by the settings of this process, able to read Delta tables."""
        return self.session(load_settings(), ("delta",))

    def teardown_after_execution(self, context: InitResourceContext) -> None:
        """Stops Spark and its JVM, after failures and terminations too."""
        del context
        with self._lock:
            self._stop()

    def _stop(self) -> None:
        if self._spark_session is not None:
            stop_session(self._spark_session)
        self._spark_session, self._kinds = None, frozenset()

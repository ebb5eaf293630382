"""A Spark session that starts when something uses it.

A stream from Kafka into Postgres whose messages pass through the driver never does: no JVM, a start in two
seconds instead of seven, and a fifth of the memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from headrace.connectors.local_relation import frame_of_table
from headrace.connectors.spark_types import row_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


class LazySession:
    """Stands for a SparkSession. `start` is called once, by the first thread that needs the session.

    PySpark's functions for columns need a started session. Code that calls them before it uses the session
    or one of its frames must call `ensure_started` first.
    """

    def __init__(self, start: Callable[[], SparkSession]) -> None:
        self._start = start
        self._session: SparkSession | None = None
        self._lock = threading.Lock()

    @property
    def started_session(self) -> SparkSession | None:
        """The session, or None before its first use."""
        return self._session

    @property
    def is_starting(self) -> bool:
        """Whether a thread is starting the session now."""
        return self._lock.locked()

    def start(self) -> SparkSession:
        """Return the session. Start it first if necessary."""
        with self._lock:
            if self._session is None:
                self._session = self._start()
            return self._session

    def newSession(self) -> SparkSession:  # noqa: N802  PySpark's name
        """Return a session with its own views, as lazy as this one."""
        return cast("SparkSession", LazySession(lambda: self.start().newSession()))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.start(), name)


class LazyFrame:
    """Stands for a DataFrame with these columns, which is created when its rows are first used."""

    def __init__(self, create: Callable[[], DataFrame], columns: StructType) -> None:
        self._create = create
        self._frame: DataFrame | None = None
        self._lock = threading.RLock()
        self.schema = columns

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return self.schema.names

    def start(self) -> DataFrame:
        """Return the frame."""
        with self._lock:
            if self._frame is None:
                self._frame = self._create()
            return self._frame

    def __getattr__(self, name: str) -> Any:
        return getattr(self.start(), name)

    def __getitem__(self, item: Any) -> Any:
        return self.start()[item]


def find_started_session(spark: SparkSession) -> SparkSession | None:
    """Return the session, or None if it is lazy and nothing has used it."""
    return spark.started_session if isinstance(spark, LazySession) else spark


def is_starting(spark: SparkSession | None) -> bool:
    """Return whether the session is lazy and a thread is starting it now."""
    return isinstance(spark, LazySession) and spark.is_starting


def ensure_session(spark: SparkSession) -> SparkSession:
    """Return the session itself, which is started."""
    return spark.start() if isinstance(spark, LazySession) else spark


def create_frame(spark: SparkSession, rows: pa.Table | Sequence[Any], payload: pa.Schema) -> DataFrame:
    """Return a frame of rows in the driver. Do not start the session before the frame is used."""

    def create() -> DataFrame:
        schema = row_schema(payload)
        if isinstance(rows, pa.Table):
            return frame_of_table(spark, rows, schema)
        return spark.createDataFrame(rows, schema)

    return defer_frame(spark, create, payload)


def defer_frame(spark: SparkSession, create: Callable[[], DataFrame], payload: pa.Schema) -> DataFrame:
    """Return the frame of `create`: the payload and the system columns.

    Do not start the session before the frame is used.
    """
    if find_started_session(spark) is not None:
        return create()
    return cast("DataFrame", LazyFrame(create, row_schema(payload)))


def ensure_started(frame: DataFrame) -> DataFrame:
    """Return a frame whose session is started."""
    return frame.start() if isinstance(frame, LazyFrame) else frame

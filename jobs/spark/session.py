"""The Spark session of a run: one per process, started with only what its pipeline needs."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import psutil

from headrace.jobs.spark.cds_archive import archive_options
from headrace.jobs.spark.errors import MORE_MEMORY
from headrace.jobs.spark.jars import ensure_jars
from headrace.jobs.spark.java import find_java
from headrace.jobs.spark.jvm import JvmProcess, needs_jvm
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import ServiceError, SettingsError, SparkJvmError, TransientError
from headrace.pipeline.protocol.epochs import Json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

# The guarantees depend on these: stored results differ by attempt, and two copies of one attempt must not
# write; a missing or damaged file of stored results or of a source is an error, not fewer rows.
_FIXED = {
    "spark.speculation": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
}

_OUT_OF_MEMORY = (52, 3)
"""Exit codes: Spark's own, and that of -XX:+ExitOnOutOfMemoryError."""

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"

_LATER_OPTIMIZATION = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000"
    " -XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
"""Ten times the JVM's own thresholds.

With those, the optimizing compiler takes a quarter of the processor time of a start, for code that runs only
then. Code that runs for every row reaches these thresholds in its first seconds.
"""

_ONE_JVM = {
    # With a local master, driver and executor are one process, so a late heartbeat means that the machine was
    # suspended. By default, Spark removes the executor after 120 s and exits 10 minutes later (code 56).
    "spark.storage.blockManagerHeartbeatTimeoutMs": "365d",
}

_DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # It looks for the file, then renames, as Delta's default for `file:` does. The default does so through
    # Hadoop's FileContext, which starts five processes (`readlink`, `chmod`) per commit.
    "spark.delta.logStore.file.impl": "io.delta.storage.LocalLogStore",
}

_LOCAL_DELTA = {
    # Delta writes the checksum of a version with it. The default starts five more processes per commit.
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming.checkpointing"
    ".FileSystemBasedCheckpointFileManager",
}


def _defaults(settings: Settings, kinds: frozenset[str]) -> dict[str, str]:
    cores = os.cpu_count() or 2
    conf = {
        "spark.app.name": "headrace",
        "spark.master": settings.spark.master,
        "spark.driver.memory": settings.spark.driver_memory,
        # Python has several copies of what the driver gets.
        "spark.driver.maxResultSize": "512m",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.scheduler.mode": "FAIR",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
        "spark.sql.execution.arrow.maxBytesPerBatch": "16m",
        # It takes several calls of the JVM per column, to name lines of Headrace in Spark's errors.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": str((settings.home / "warehouse").resolve()),
        "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
        "spark.databricks.delta.snapshotPartitions": "2",
        _JAVA_OPTIONS: f"-Dlog4j2.configurationFile={files('headrace.jobs.spark') / 'log4j2.xml'}"
        f" {_collector(settings.spark.jvm_options)}{_LATER_OPTIMIZATION} -Duser.timezone=UTC"
        f" {settings.spark.jvm_options}".rstrip(),
    }
    if settings.spark.master.startswith("local"):
        conf |= {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"} | _ONE_JVM
        conf |= _LOCAL_DELTA if "delta" in kinds else {}
    return conf | (_DELTA if "delta" in kinds else {})


def _collector(jvm_options: str) -> str:
    """Return the option of the garbage collector, unless the user chooses one: Java refuses two."""
    return "" if re.search(r"-XX:\+Use\w+GC\b", jvm_options) else "-XX:+UseParallelGC "


def spark_conf(settings: Settings, kinds: Iterable[str]) -> Mapping[str, str]:
    """Return the session's configuration.

    `kinds` are the node types of the pipeline: only their extensions are loaded. Raises SettingsError if
    `spark.conf` overrides a setting that the guarantees depend on.
    """
    for key, value in _FIXED.items():
        if settings.spark.conf.get(key, value) != value:
            msg = f"spark.conf: `{key}` must be {value}, found `{settings.spark.conf[key]}`"
            raise SettingsError(
                msg,
                hint="Exactly-once rests on it. Remove the key from HEADRACE__SPARK__CONF or config.yaml.",
            )
    conf = _defaults(settings, frozenset(kinds)) | settings.spark.conf | _FIXED
    jars = [
        str(path) for path in ensure_jars(java=str(settings.java_home) if settings.java_home else None).spark
    ]
    if settings.spark.master.startswith("local"):
        conf["spark.driver.extraClassPath"] = ":".join(
            jars
        )  # no copying and no class loader of their own, as spark.jars would have
    else:
        conf["spark.jars"] = ",".join(jars)
    return conf


def without_optimizing_compiler(settings: Settings) -> Settings:
    """Return the settings for a session that reads no data.

    The JVM's optimizing compiler takes a third of the CPU seconds of such a session, and ends before it pays.
    The user's own JVM options take precedence.
    """
    options = f"-XX:TieredStopAtLevel=1 {settings.spark.jvm_options}".rstrip()
    return settings.model_copy(update={"spark": settings.spark.model_copy(update={"jvm_options": options})})


def start_session(settings: Settings, kinds: Iterable[str]) -> SparkSession:
    """Start Spark, or return the session that this process already has.

    Raises ServiceError without Java or jars, SettingsError for a forbidden `spark.conf`.
    """
    conf = spark_conf(settings, kinds)
    return _take_prepared(conf) or SessionStart(settings, conf).finish()


class SessionStart:
    """A session that is being started. The JVM boots from the constructor on, unless there is one.

    Raises ServiceError without Java.
    """

    def __init__(self, settings: Settings, conf: Mapping[str, str]) -> None:
        self.conf = conf
        self._settings = settings
        self._started = time.monotonic()
        self._java = find_java(str(settings.java_home) if settings.java_home else None)
        os.environ["JAVA_HOME"] = str(self._java.home)
        # Workers would otherwise take the first python3 on the path.
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        archive = archive_options(self._java)
        self._options = {**conf, _JAVA_OPTIONS: f"{conf[_JAVA_OPTIONS]} {archive}"} if archive else conf
        log_file = settings.home / "logs" / "spark.log"
        self._jvm = JvmProcess(self._options, log_file) if needs_jvm() else None

    def finish(self, on_jvm: Callable[[Any], None] = lambda _: None) -> SparkSession:
        """Return the session when it is ready. `on_jvm` is called with a JVM of its own before that.

        Raises ServiceError if the JVM ends or refuses the session, TransientError if a cluster does.
        """
        import pyspark.testing.utils  # noqa: F401  PySpark imports it, and pandas, at the JVM's first call
        from pyspark.sql import SparkSession

        builder = SparkSession.Builder()
        for key, value in self._options.items():
            builder = builder.config(key, value)
        _hush()
        if self._jvm is not None:
            on_jvm(self._jvm.connect().jvm)
        with _explained_start(self._settings.spark.master):
            spark = builder.getOrCreate()
        log.info(
            "event=spark_started master=%s java=%s seconds=%.1f",
            self.conf["spark.master"],
            self._java.version,
            time.monotonic() - self._started,
        )
        return spark

    def cancel(self) -> None:
        """End the JVM, if the start has one of its own."""
        if self._jvm is not None:
            self._jvm.kill()


class PreparedSession:
    """A session that a thread starts before the pipeline's run asks for it."""

    def __init__(self, start: SessionStart, on_jvm: Callable[[Any], None] = lambda _: None) -> None:
        self.start = start
        self.session: Future[SparkSession] = Future()
        self._thread = threading.Thread(
            target=self._finish, args=(on_jvm,), name="headrace-spark", daemon=True
        )
        self._thread.start()

    def _finish(self, on_jvm: Callable[[Any], None]) -> None:
        try:
            self.session.set_result(self.start.finish(on_jvm))
        except BaseException as error:  # noqa: BLE001  it is raised again where the session is used
            self.session.set_exception(error)

    def end(self) -> None:
        """End the session and its JVM, whether it is ready or not. Never raises."""
        if not self.session.done():
            self.start.cancel()
            self._thread.join()
        if self.session.exception() is None:
            stop_session(self.session.result())


_prepared: list[PreparedSession] = []


def prepare_session(
    settings: Settings, kinds: Iterable[str], on_jvm: Callable[[Any], None] = lambda _: None
) -> PreparedSession:
    """Begin to start Spark. `start_session` returns the session for the same settings."""
    prepared = PreparedSession(SessionStart(settings, spark_conf(settings, kinds)), on_jvm)
    _prepared.append(prepared)
    return prepared


def discard_prepared() -> None:
    """End a session that was prepared and that nothing has used. Never raises."""
    while _prepared:
        _prepared.pop().end()


def _take_prepared(conf: Mapping[str, str]) -> SparkSession | None:
    """Return the prepared session, once. End it if it has other settings, or if its JVM died meanwhile."""
    if not _prepared:
        return None
    prepared = _prepared.pop()
    if prepared.start.conf == conf and jvm_alive(spark := prepared.session.result()):
        return spark
    prepared.end()
    return None


def is_started() -> bool:
    """Return whether this process has Spark."""
    context = sys.modules.get("pyspark.core.context")
    return context is not None and context.SparkContext._active_spark_context is not None  # noqa: SLF001


def _hush() -> None:
    """Disable PySpark's loggers, which print SQL errors with Java traces. PySpark also raises the errors."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True


@contextmanager
def _explained_start(master: str) -> Iterator[None]:
    """Raise TransientError if a cluster does not start the session, ServiceError if the JVM refuses it."""
    from py4j.protocol import Py4JError, Py4JJavaError

    try:
        yield
    except Py4JError as error:
        if not master.startswith("local"):
            # Spark's own exception is about its stopped session. The reason is in its log.
            msg = f"Spark could not start on {master}"
            hint = (
                "Start the master, and let its workers reach this host. spark.log in the home's logs has"
                " more."
            )
            raise TransientError(msg, hint=hint) from error
        if not isinstance(error, Py4JJavaError):
            raise
        # Read here: the text of the error is in the JVM.
        reason = str(error.java_exception.toString()).splitlines()[0]
        msg = f"Spark's session could not start: {reason}"
        raise ServiceError(msg, hint="Check `spark.conf`. spark.log in the home's logs has more.") from None


def jvm_process(spark: SparkSession) -> Json | None:
    """Return pid and creation time of the JVM on this host, or None if it is not of this process or is dead.

    A successor kills a JVM that outlives its driver.
    """
    gateway = spark.sparkContext._gateway  # noqa: SLF001  pyspark keeps the process nowhere else
    process = getattr(gateway, "proc", None)
    if process is None:
        return None
    try:
        return {"pid": process.pid, "create_time": psutil.Process(process.pid).create_time()}
    except psutil.NoSuchProcess:
        return None


def jvm_alive(spark: SparkSession) -> bool:
    """Return whether the JVM of the session is running. True for one that this process did not start."""
    process = getattr(spark.sparkContext._gateway, "proc", None)  # noqa: SLF001
    return process is None or process.poll() is None


def explain_death(spark: SparkSession, settings: Settings, patience: float = 0.0) -> SparkJvmError | None:
    """Return why the JVM of a session ended; None while it runs. `patience`: seconds that it gets to end.

    The text is the same for the same cause, so that failures can be counted.
    """
    process = getattr(spark.sparkContext._gateway, "proc", None)  # noqa: SLF001
    deadline = time.monotonic() + patience
    while process is not None and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    if process is None or (code := process.poll()) is None:
        return None
    memory = f"spark.driver_memory is {settings.spark.driver_memory}"
    ended = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    why = "; the system may have run out of memory" if code == -signal.SIGKILL else ""
    why = f": it ran out of memory; {memory}" if code in _OUT_OF_MEMORY else why
    return SparkJvmError(
        f"Spark's JVM {ended}{why}",
        hint=f"{MORE_MEMORY} The JVM's last words are in {settings.home}/logs/spark.log.",
    )


def cancel_jobs(spark: SparkSession, tag: str | None) -> None:
    """Cancel the jobs with a tag, or all jobs. Never raises: the signal that stops a run can end its JVM."""
    context = spark.sparkContext
    _quietly(context.cancelAllJobs if tag is None else lambda: context.cancelJobsWithTag(tag))


def stop_session(spark: SparkSession, *, patience: float = 10.0) -> None:
    """Stop Spark and its JVM.

    The process can start another one afterwards. Never raises: the JVM may be dead. `patience` is how many
    seconds the JVM gets before it is killed.
    """
    from pyspark import SparkContext

    gateway = spark.sparkContext._gateway  # noqa: SLF001
    process = getattr(gateway, "proc", None)
    if jvm_alive(spark):
        _quietly(spark.stop)
    if gateway is None or process is None:
        return
    _quietly(gateway.shutdown)
    _quietly(process.stdin.close)  # the JVM ends with its standard input
    try:
        process.wait(timeout=patience)
    except Exception:  # noqa: BLE001  whatever keeps it: it must not outlive the run
        process.kill()
        process.wait()
    _forget(spark)
    SparkContext._gateway = None  # noqa: SLF001
    SparkContext._jvm = None  # noqa: SLF001


def _quietly(function: Callable[[], object]) -> None:
    try:
        function()
    except Exception as error:  # noqa: BLE001  py4j raises many kinds when its other end is gone
        log.debug(
            "event=spark_stop_failed step=%s error=%s", getattr(function, "__qualname__", function), error
        )


def _forget(spark: SparkSession) -> None:
    """Clear what pyspark stores about a session whose JVM died before it could be stopped."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession as Session

    if SparkContext._active_spark_context is spark.sparkContext:  # noqa: SLF001
        SparkContext._active_spark_context = None  # noqa: SLF001
    Session._instantiatedSession = None  # noqa: SLF001
    Session._activeSession = None  # noqa: SLF001

"""The session of a run, and a machine that is suspended."""

import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from helpers.checkout import ROOT

from headrace.jobs.spark.session import cancel_jobs, spark_conf, without_optimizing_compiler
from headrace.pipeline.config.sections import SparkSettings
from headrace.pipeline.config.settings import Settings

SUSPENDED = """
import os, signal, sys, time
from pathlib import Path
from helpers.spark_settings import SHORT_LIVED_SPARK
from headrace.jobs.spark.session import jvm_alive, jvm_process, start_session, stop_session
from headrace.pipeline.config.settings import Settings
short = {
    "spark.executor.heartbeatInterval": "500ms",
    "spark.executor.heartbeat.maxFailures": "3",
    "spark.network.timeout": "2s",
    "spark.network.timeoutInterval": "500ms",
}
spark = start_session(
    Settings(home=Path(sys.argv[1]), spark=SHORT_LIVED_SPARK.model_copy(update={"conf": short})), ()
)
pid = jvm_process(spark)["pid"]
os.kill(pid, signal.SIGSTOP)
time.sleep(4)  # longer than the timeout, after which a cluster's executor is lost
os.kill(pid, signal.SIGCONT)
deadline = time.monotonic() + 10
while jvm_alive(spark) and time.monotonic() < deadline:
    time.sleep(0.1)
print(spark.range(10).repartition(2).count() if jvm_alive(spark) else spark.sparkContext._gateway.proc.poll())
stop_session(spark)
print(jvm_process(spark))
"""


@pytest.mark.slow
def test_session_survives_a_suspended_machine(tmp_path: Path) -> None:
    """Without `_ONE_JVM`, the JVM exits with code 56 after the third heartbeat that Spark does not accept."""
    done = subprocess.run(
        [sys.executable, "-c", SUSPENDED, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.stdout.split() == ["10", "None"], done.stderr


def test_options_of_the_user_follow_those_of_a_session_that_reads_no_data() -> None:
    """The JVM takes the last of two values."""
    settings = Settings(spark=SparkSettings(jvm_options="-XX:TieredStopAtLevel=4"))
    short = without_optimizing_compiler(settings).spark.jvm_options
    assert short.split() == ["-XX:TieredStopAtLevel=1", "-XX:TieredStopAtLevel=4"]


@pytest.mark.parametrize("options", ["", "-Xss4m", "-XX:+UseSerialGC", "-Xmn1g -XX:+UseG1GC"])
def test_session_has_one_garbage_collector(options: str) -> None:
    """Java refuses two."""
    conf = spark_conf(Settings(spark=SparkSettings(jvm_options=options)), ())
    assert conf["spark.driver.extraJavaOptions"].count("GC") == 1


@pytest.mark.parametrize("tag", [None, "run"])
def test_jobs_of_a_dead_jvm_are_cancelled_silently(tag: str | None) -> None:
    spark = MagicMock()
    for cancel in (spark.sparkContext.cancelAllJobs, spark.sparkContext.cancelJobsWithTag):
        cancel.side_effect = ConnectionRefusedError
    cancel_jobs(spark, tag)
    assert spark.sparkContext.cancelAllJobs.called == (tag is None)
    assert spark.sparkContext.cancelJobsWithTag.called == (tag is not None)

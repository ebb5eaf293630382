"""Spark that starts in a thread while a run is imported, in a process without Spark."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.checkout import ROOT

SCRIPT = """
import json, os, sys, threading
from pathlib import Path
import psutil
from helpers.spark_settings import SHORT_LIVED_SPARK
from headrace.jobs.run.early_session import spark_in_background
from headrace.jobs.spark.session import jvm_process, start_session, stop_session
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import HeadraceError
from headrace.pipeline.file.loader import parse_pipeline

def pipeline(sql):
    return parse_pipeline(f'''
name: early
sources: {{src: {{type: rate, rows_per_second: 1}}}}
transforms: {{out: {{type: sql, primary_key: value, sql: "{sql}"}}}}
sinks: {{sink: {{type: blackhole, from: out}}}}
''')

def jvms():
    return [child.pid for child in psutil.Process().children(recursive=True) if child.name() == "java"]

def settings(**spark):
    return Settings(home=Path(sys.argv[1]), spark=SHORT_LIVED_SPARK.model_copy(update=spark))

report = lambda **values: print(json.dumps(values))
"""

USED = """
file = pipeline("SELECT initcap(cast(value AS string)) AS value FROM src")
with spark_in_background([file], settings()):
    booting = any(thread.name == "headrace-spark" for thread in threading.enumerate())
    spark = start_session(settings(), ["rate", "sql", "blackhole"])
    rows = spark.sql("SELECT upper('straße') AS value").collect()
    own = jvm_process(spark)["pid"]
    report(booting=booting, value=rows[0].value, jvms=jvms() == [own], secret="PYSPARK_GATEWAY_SECRET" in os.environ)
report(after=jvms() == [own])
stop_session(spark)
report(stopped=jvms() == [])
"""

UNUSED = """
with spark_in_background([pipeline("SELECT abs(value) AS value FROM src")], settings()):
    pass
report(jvms=jvms(), threads=[thread.name for thread in threading.enumerate()])
spark = start_session(settings(), [])
report(rows=spark.range(3).count())
stop_session(spark)
"""

OTHER_SETTINGS = """
with spark_in_background([pipeline("SELECT abs(value) AS value FROM src")], settings()):
    spark = start_session(settings(conf={"spark.sql.shuffle.partitions": "7"}), ["rate", "sql", "blackhole"])
    report(jvms=len(jvms()), partitions=spark.conf.get("spark.sql.shuffle.partitions"))
    stop_session(spark)
"""

REFUSED = """
try:
    with spark_in_background([pipeline("SELECT abs(value) AS value FROM src")], settings(jvm_options="-Xms8g")):
        start_session(settings(jvm_options="-Xms8g"), ["rate", "sql", "blackhole"])
except HeadraceError as error:
    report(message=error.message, hint=error.hint)
spark = start_session(settings(), [])
report(rows=spark.range(3).count())
stop_session(spark)
"""


WRONG_CONF = """
try:
    start_session(settings(conf={"spark.serializer": "none"}), [])
except HeadraceError as error:
    report(message=error.message)
"""


def run_script(body: str, home: Path) -> list[dict[str, object]]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT + body, str(home)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_run_gets_the_session_that_was_prepared(tmp_path: Path) -> None:
    assert run_script(USED, tmp_path) == [
        {"booting": True, "value": "STRASSE", "jvms": True, "secret": False},
        {"after": True},
        {"stopped": True},
    ]


@pytest.mark.slow  # two starts of Spark; a refused session has the same end, daily
def test_unused_session_ends_and_another_one_can_start(tmp_path: Path) -> None:
    assert run_script(UNUSED, tmp_path) == [{"jvms": [], "threads": ["MainThread"]}, {"rows": 3}]


@pytest.mark.slow  # two starts of Spark
def test_session_of_other_settings_replaces_the_prepared_one(tmp_path: Path) -> None:
    assert run_script(OTHER_SETTINGS, tmp_path) == [{"jvms": 1, "partitions": "7"}]


def test_wrong_option_of_the_jvm_names_the_setting_and_the_log(tmp_path: Path) -> None:
    refused, after = run_script(REFUSED, tmp_path)
    assert refused["message"] == (
        "Spark's JVM ended with exit code 1 before it was ready: Initial heap size set to a larger value than"
        " the maximum heap size"
    )
    assert "spark.jvm_options" in str(refused["hint"])
    assert "Initial heap size" in (tmp_path / "logs" / "spark.log").read_text()
    assert after == {"rows": 3}


def test_wrong_conf_is_explained_after_the_end_of_the_jvm(tmp_path: Path) -> None:
    """The text of an exception of the JVM cannot be read any more when the command prints it."""
    [refused] = run_script(WRONG_CONF, tmp_path)
    assert "could not start: java.lang.ClassNotFoundException: none" in str(refused["message"])


@pytest.mark.parametrize("sql", ["SELECT ilike FROM src", "SELECT UPPER(name) FROM src"])
def test_case_functions_are_recognized_in_statements(sql: str) -> None:
    from headrace.jobs.run.early_session import _CASE_FUNCTIONS

    assert _CASE_FUNCTIONS.search(sql)
    assert not _CASE_FUNCTIONS.search("SELECT uppermost, follower FROM src")


PORTABLE = """
with spark_in_background([pipeline("SELECT upper(cast(value AS string)) AS value FROM src")], settings()):
    report(threads=[thread.name for thread in threading.enumerate()])
"""


def test_portable_sql_starts_no_session(tmp_path: Path) -> None:
    assert run_script(PORTABLE, tmp_path) == [{"threads": ["MainThread"]}]

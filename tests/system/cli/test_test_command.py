"""`headrace test` and pytest as processes: output, files and exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from helpers.pipeline_cases import ORDERS, write
from helpers.spark_settings import SHORT_LIVED_SPARK_ENVIRONMENT

from headrace.jobs.spark.java import find_java

TESTS = """\
  good_amount:
    description: two fifty
    given: {orders: {rows: [{id: 1, cents: 250}]}}
    expect:
      priced:
        columns: [id, amount]
        rows:
          - {id: 1, amount: 2.50} # a comment
  wrong_amount:
    given: {orders: {rows: [{id: 1, cents: 250}, {id: 2, cents: 1}]}}
    expect:
      orders_pg:
        columns: [id, amount]
        rows:
          - {id: 1, amount: 2.60} # another
          - {id: 2, amount: 0.01}
  broken:
    given: {orders: {rows: [{id: 1, cents: abc}]}}
    expect: {priced: {rows: []}}
"""


def start(folder: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command as on a developer's machine.

    Pytest does not cut long lines where `CI` or `BUILD_NUMBER` is set.
    """
    other = ("HEADRACE", "STREAMLING", "COLUMNS", "PYTEST", "CI", "BUILD_NUMBER")
    clean = {key: value for key, value in os.environ.items() if not key.startswith(other)}
    clean |= SHORT_LIVED_SPARK_ENVIRONMENT | env
    command = [sys.executable, "-m", *args]
    return subprocess.run(
        command, cwd=folder, env=clean, capture_output=True, text=True, timeout=240, check=False
    )


def headrace(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return start(folder, "headrace", "test", *args)


def test_a_run_reports_each_test_and_the_rows_that_differ(tmp_path: Path) -> None:
    write(tmp_path, TESTS)
    result = headrace(tmp_path, "--junitxml", "out/report.xml")
    assert result.returncode == 1, result.stderr
    lines = result.stdout.splitlines()
    words = [line.split()[:2] for line in lines if line.startswith("orders.test.yaml::")]
    assert words == [
        [f"orders.test.yaml::{name}", word]
        for name, word in (("good_amount", "PASSED"), ("wrong_amount", "FAILED"), ("broken", "FAILED"))
    ]
    assert "orders_pg: 2 rows came, 2 expected: 1 different" in lines
    assert "      amount: expected 2.60, came 2.50" in lines
    assert "2 failed, 1 passed in " in lines[-1]
    assert "Traceback" not in result.stdout + result.stderr
    assert max(len(line) for line in lines if str(tmp_path) not in line) <= 80
    report = ET.parse(tmp_path / "out" / "report.xml").getroot()
    (suite,) = report
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "2", "0")
    assert [case.get("name") for case in suite] == ["good_amount", "wrong_amount", "broken"]
    assert [[child.tag for child in case] for case in suite] == [[], ["failure"], ["failure"]]
    assert "amount: expected 2.60, came 2.50" in str(suite[1][0].text)


@pytest.mark.slow  # tests/unit/jobs/testing/test_update_snapshots.py has the daily ones of what is rewritten
@pytest.mark.parametrize("predicate", ["id > 1", "initcap(cast(id as string)) > '1'"], ids=["arrow", "spark"])
def test_a_filter_marks_rows_without_a_session_of_others(predicate: str, tmp_path: Path) -> None:
    filtered = ORDERS.replace("    topic: orders\n", f"    topic: orders\n    filter: {predicate}\n")
    cases = "  kept:\n    given: {orders: {rows: [{id: 1}, {id: 2}]}}\n"
    write(tmp_path, cases + "    expect: {orders: {columns: id, rows: [{id: 2}]}}\n", filtered)
    result = headrace(tmp_path)
    assert result.returncode == 0, result.stdout


def test_update_replaces_the_expected_rows_and_reports_it(tmp_path: Path) -> None:
    path = write(tmp_path, TESTS)
    before = path.read_text()
    result = headrace(tmp_path, "--update", "-k", "not broken")
    assert result.returncode == 1, result.stderr
    assert "orders.test.yaml:14:7: `orders_pg` now expects 2 rows" in result.stdout
    assert path.read_text() == before.replace("amount: 2.60} # another", "amount: 2.50} # another")
    again = headrace(tmp_path, "-k", "amount")
    assert again.returncode == 0, again.stdout
    assert "2 passed, 1 deselected in " in again.stdout.splitlines()[-1]


@pytest.mark.slow  # tests/unit/jobs/testing has the daily ones of what is not rewritten
def test_a_test_that_ended_with_an_error_is_not_updated(tmp_path: Path) -> None:
    path = write(tmp_path, TESTS)
    before = path.read_text()
    result = headrace(tmp_path, "--update", "-k", "broken", "-v")
    assert result.returncode == 1
    assert "not updated: " in result.stdout
    assert path.read_text() == before


def test_a_wrong_file_does_not_keep_others_from_running(tmp_path: Path) -> None:
    write(tmp_path, TESTS)
    (tmp_path / "bad.test.yaml").write_text("pipeline: orders.yaml\ntests: {a: {expct: {}}, b: 5}\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    (tmp_path / "conftest.py").write_text("raise RuntimeError\n")
    result = headrace(tmp_path, "-k", "good", "--junitxml", "r.xml")
    assert result.returncode == 1
    assert [place for place in ("2:9", "2:13", "2:25") if f"bad.test.yaml:{place}: " in result.stdout] == [
        "2:9",
        "2:13",
        "2:25",
    ]
    assert "did you mean `expect`?" in result.stdout
    assert "orders.test.yaml::good_amount PASSED" in result.stdout
    (suite,) = ET.parse(tmp_path / "r.xml").getroot()
    assert suite.get("errors") == "1"


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (("empty",), 5, "no tests found"),
        (("-k", "nothing"), 5, "3 deselected"),
        (("nowhere.yaml",), 2, "`nowhere.yaml` is neither a file nor a folder"),
        (("-k", "a and"), 4, "Wrong expression passed to '-k': a and"),
    ],
)
def test_exit_codes_without_a_test(args: tuple[str, ...], code: int, message: str, tmp_path: Path) -> None:
    write(tmp_path, TESTS)
    (tmp_path / "empty").mkdir()
    result = headrace(tmp_path, *args)
    assert result.returncode == code
    assert message in " ".join((result.stdout + result.stderr).replace("│", " ").split())
    assert not (tmp_path / ".headrace" / "logs").exists()


def pytest_in(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    plugin = ("-p", "headrace.pytest_plugin", "-p", "no:cacheprovider", "-rA")
    return start(
        folder, "pytest", *plugin, *args, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1", JAVA_HOME=str(find_java().home)
    )


def test_pytest_collects_files_of_tests_and_tells_a_failure_as_the_command_does(tmp_path: Path) -> None:
    write(tmp_path, TESTS)
    (tmp_path / "with.yaml").write_text(
        f"{ORDERS}tests:\n  inside: {{expect: {{orders_pg: {{rows: []}}}}}}\n"
    )
    (tmp_path / "bad.test.yaml").write_text("pipeline: orders.yaml\ntests: 5\n")
    result = pytest_in(tmp_path, "--continue-on-collection-errors")
    assert result.returncode == 1, result.stderr
    assert "2 failed, 1 passed, 1 error" in result.stdout.splitlines()[-1]
    assert "PASSED orders.test.yaml::good_amount" in result.stdout
    assert "orders_pg: 2 rows came, 2 expected: 1 different" in result.stdout
    assert "      amount: expected 2.60, came 2.50" in result.stdout
    assert "bad.test.yaml:2:1: `tests` must be a map of keys and values, and is `5`" in result.stdout
    assert "with.yaml" not in result.stdout
    assert "Traceback" not in result.stdout
    named = pytest_in(tmp_path, "with.yaml", "orders.test.yaml", "-k", "inside or good")
    assert (named.returncode, "2 passed" in named.stdout) == (0, True), named.stdout


OWN = """\
def test_own():
    from pyspark.sql import SparkSession

    conf = {"spark.ui.enabled": "false", "spark.sql.session.timeZone": "America/New_York"}
    builder = SparkSession.builder.master("local[1]")
    for key, value in conf.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    assert spark.range(3).count() == 3
    assert spark.conf.get("spark.sql.session.timeZone") == "America/New_York"
"""


@pytest.mark.slow  # the daily test of the plugin is the one above
def test_a_session_of_the_tests_own_is_used_and_left_as_it_is(tmp_path: Path) -> None:
    zoned = ORDERS.replace("placed_at FROM", "CAST(note AS TIMESTAMP) AS at FROM")
    inputs, at = "orders: {rows: [{id: 1, note: '2025-01-01 10:00:00'}]}", "2025-01-01T10:00:00Z"
    write(
        tmp_path,
        f"  zoned:\n    given: {{{inputs}}}\n    expect: {{priced: {{columns: [id, at], rows: [{{id: 1, at:"
        f" {at}}}]}}}}\n",
        zoned,
    )
    for name in ("a_test.py", "z_test.py"):
        (tmp_path / name).write_text(OWN)
    result = pytest_in(tmp_path, "a_test.py", "orders.test.yaml", "z_test.py")
    assert (result.returncode, "3 passed" in result.stdout) == (0, True), result.stdout


def test_the_plugin_imports_nothing_heavy_until_a_file_is_collected(tmp_path: Path) -> None:
    heavy = ["pydantic", "pyspark", "pyarrow", "ruamel", "sqlglot", "pandas", "typer", "rich"]
    (tmp_path / "test_light.py").write_text(
        "import sys\n\ndef test_light():\n    assert 'headrace.pytest_plugin' in sys.modules\n"
        f"    assert not set({heavy}) & set(sys.modules)\n"
    )
    result = pytest_in(tmp_path)
    assert (result.returncode, "1 passed" in result.stdout) == (0, True), result.stdout

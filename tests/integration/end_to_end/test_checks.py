"""Every asset check has a case in which it fails, and its description names the problem."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from functools import partial

import psycopg
import pytest
import typer
from helpers.pipeline_world import World, caught_up_world
from pyspark.sql import SparkSession

from headrace.commands import inspect
from headrace.jobs.checks.audit import audit
from headrace.jobs.run.events import CheckResult
from headrace.jobs.run.repair import accept_target, replay
from headrace.pipeline.errors import PipelineStateError
from headrace.pipeline.file.loader import load_pipeline
from headrace.services import Services


@pytest.fixture(scope="module")
def ran(services: Services, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A pipeline that has caught up."""
    with caught_up_world(services, spark, tmp_path_factory.mktemp("checks")) as world:
        yield world


@pytest.fixture
def carried(ran: World) -> Iterator[World]:
    """The same for one test, which may break it: ledger and Postgres are put back afterwards."""
    ledger = ran.ledger.with_name("before.db")
    shutil.copy(ran.ledger, ledger)
    with psycopg.connect(ran.conninfo) as connection:
        connection.execute("CREATE TABLE target_before AS TABLE target")
        connection.execute("CREATE TABLE records_before AS TABLE headrace.records")
    yield ran
    shutil.copy(ledger, ran.ledger)
    with psycopg.connect(ran.conninfo) as connection:
        for table in ("target", "headrace.records"):
            connection.execute(f"TRUNCATE {table}")
        connection.execute("INSERT INTO target TABLE target_before")
        connection.execute("INSERT INTO headrace.records TABLE records_before")
        connection.execute("DROP TABLE target_before, records_before")


def checks(world: World, spark: SparkSession) -> dict[tuple[str, str], CheckResult]:
    return {
        (one.name, one.sink): one for one in audit(load_pipeline(world.file), world.settings(), spark=spark)
    }


@pytest.fixture
def print_audit(
    carried: World, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[], str]:
    """Return a function that executes `headrace audit` in the session of the tests and returns its output."""
    monkeypatch.setattr("headrace.jobs.checks.audit.audit", partial(audit, spark=spark))
    monkeypatch.setattr("headrace.commands.inspect.load_settings", carried.settings)

    def call() -> str:
        capsys.readouterr()
        with contextlib.suppress(typer.Exit):  # a check failed
            inspect.audit(carried.file, as_json=False)
        return capsys.readouterr().out

    return call


def in_ledger(world: World, statement: str, *values: object) -> list[tuple]:
    connection = sqlite3.connect(world.ledger)
    with connection:
        result = connection.execute(statement, values).fetchall()
    connection.close()
    return result


def test_all_are_green_after_a_run(carried: World, spark: SparkSession) -> None:
    result = checks(carried, spark)
    assert len(result) == 6
    assert {one.passed for one in result.values()} == {True}


def test_a_row_removed_or_doubled_in_the_sink(carried: World, spark: SparkSession) -> None:
    with psycopg.connect(carried.conninfo) as connection:
        connection.execute("DELETE FROM target WHERE id = (SELECT min(id) FROM target)")
    lost = checks(carried, spark)["row_count_matches", "pg"]
    assert lost.passed is False
    assert (lost.numbers["lost"], lost.numbers["doubled"]) == (1, 0)
    with psycopg.connect(carried.conninfo) as connection:
        connection.execute("INSERT INTO target (id, name) VALUES (-1, 'x'), (-2, 'y')")
    doubled = checks(carried, spark)["row_count_matches", "pg"]
    assert doubled.passed is False
    assert (doubled.numbers["lost"], doubled.numbers["doubled"]) == (0, 1)


def test_printed_commands_repair_a_table(
    carried: World, spark: SparkSession, print_audit: Callable[[], str]
) -> None:
    assert "To repair" not in print_audit()
    with psycopg.connect(carried.conninfo) as connection:
        connection.execute("DELETE FROM target WHERE id = (SELECT min(id) FROM target)")
    result = print_audit()
    for command in (f"replay {carried.file} --sink pg --from 1", f"accept-target {carried.file} --sink pg"):
        assert f"headrace {command}  " in result
    file, settings = load_pipeline(carried.file), carried.settings()
    accept_target(file, settings, sink="pg", spark=spark)
    assert checks(carried, spark)["row_count_matches", "pg"].passed is True
    replay(file, settings, sink="pg", from_epoch=1, spark=spark)
    assert checks(carried, spark)["row_count_matches", "pg"].passed is True
    carried.check(spark)


def test_a_row_removed_from_delta(carried: World, spark: SparkSession) -> None:
    first = carried.in_delta(spark)[0][0]
    row = spark.sql(f"SELECT * FROM delta.`{carried.lake}` WHERE id = {first}").toArrow()
    spark.sql(f"DELETE FROM delta.`{carried.lake}` WHERE id = {first}")
    result = checks(carried, spark)
    assert result["row_count_matches", "lake"].passed is False
    assert result["row_count_matches", "pg"].passed is True
    spark.createDataFrame(row).write.format("delta").mode("append").save(str(carried.lake))
    assert checks(carried, spark)["row_count_matches", "lake"].passed is True


def test_a_hole_in_the_ledger(carried: World, spark: SparkSession) -> None:
    in_ledger(carried, "DELETE FROM headrace_ledger_epoch WHERE number = 2")
    result = checks(carried, spark)["exactly_once_epochs", "pg"]
    assert result.passed is False
    assert "epochs 2 to 2 are missing" in result.message


def test_an_offset_skipped_between_two_epochs(carried: World, spark: SparkSession) -> None:
    ((last,),) = in_ledger(carried, "SELECT max(number) FROM headrace_ledger_epoch")
    ((text,),) = in_ledger(carried, "SELECT plan FROM headrace_ledger_epoch WHERE number = ?", last)
    plan = json.loads(text)
    plan["start"]["src"]["stream"]["offsets"]["0"] += 7
    in_ledger(carried, "UPDATE headrace_ledger_epoch SET plan = ? WHERE number = ?", json.dumps(plan), last)
    result = checks(carried, spark)["exactly_once_epochs", "lake"]
    assert result.passed is False
    assert "src partition 0" in result.message


def test_a_record_that_is_not_the_ledgers(carried: World, spark: SparkSession) -> None:
    with psycopg.connect(carried.conninfo) as connection:
        connection.execute(
            "UPDATE headrace.records SET epoch = epoch - 1, body = jsonb_set(body, '{epoch}',"
            " to_jsonb(epoch - 1))"
        )
    result = checks(carried, spark)["exactly_once_epochs", "pg"]
    assert result.passed is False
    assert "the sink's record is at epoch" in result.message


def test_a_stream_that_did_not_begin_at_the_fence(carried: World, spark: SparkSession) -> None:
    ((text,),) = in_ledger(carried, "SELECT position FROM headrace_ledger_lane")
    position = json.loads(text)
    fence = position["src"]["fence"]
    position["src"]["began"] = fence | {"offsets": fence["offsets"] | {"0": fence["offsets"]["0"] + 1}}
    in_ledger(carried, "UPDATE headrace_ledger_lane SET position = ?", json.dumps(position))
    result = checks(carried, spark)["handoff_has_no_gap", "pg"]
    assert result.passed is False
    assert "the stream began at" in result.message


def test_a_pipeline_that_never_ran_has_nothing_to_check(world: World, spark: SparkSession) -> None:
    with pytest.raises(PipelineStateError, match="no epochs"):
        audit(load_pipeline(world.file), world.settings(), spark=spark)


def test_declared_checks_run_in_the_audit(
    carried: World, spark: SparkSession, print_audit: Callable[[], str]
) -> None:
    """Of both sinks, each with its severity, in one command."""
    text = carried.file.read_text()
    declared = text.replace(
        "table: target,",
        "table: target, checks: {names: {not_null: [id, name]}, low: {range: {column: id, min: 1000000}},"
        " steady: {row_count: {min: 1, max_change: 1%, within: 2d}}},",
    ).replace("type: delta,", "type: delta, checks: {few: {row_count: {max: 3}, severity: warning}},")
    carried.file.write_text(declared)
    try:
        result = checks(carried, spark)
        assert len(result) == 10
        rows = result["row_count_matches", "pg"].numbers["rows"]
        assert result["names", "pg"].message == f"no NULL in `id`, `name` ({rows:,} rows)"
        low = result["low", "pg"]
        assert (low.passed, low.severity, low.numbers["violations"]) == (False, "error", rows)
        assert [list(row) for row in low.numbers["samples"]] == [["id"]] * 5
        steady = result["steady", "pg"]
        assert steady.passed is True
        assert "the change within 2d is not known: the target was empty at its start" in steady.message
        few = result["few", "lake"]
        assert (few.passed, few.is_error) == (False, False)
        printed = print_audit()
        assert "FAIL low of pg" in printed
        assert "WARN few of lake" in printed
        assert "row: id=" in printed
        assert "To repair" not in printed, "no command repairs the rows of the sources"
    finally:
        carried.file.write_text(text)

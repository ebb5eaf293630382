"""Results of `headrace validate` from real servers and Spark's analyzer.

It leaves no trace there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import clickhouse_connect
import psycopg
import pyarrow as pa
import pytest
from helpers.pipeline_world import (
    PIPELINE,
    World,
    clickhouse_database,
    filled_world,
    postgres_database,
)
from pyspark.sql import SparkSession

from headrace.jobs.checks.preflight import PreflightResult, check_pipeline
from headrace.jobs.planning.compiled_pipeline import CompiledPipeline
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import PipelineFileError
from headrace.pipeline.file.loader import parse_pipeline
from headrace.services import Services

Look = Callable[..., PreflightResult]


@pytest.fixture(scope="module")
def shared(services: Services, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One world for all tests, because a check leaves no trace in it."""
    folder = tmp_path_factory.mktemp("preflight")
    with (
        postgres_database(services) as conninfo,
        clickhouse_database(services) as database,
        filled_world(services, folder, database, conninfo) as made,
    ):
        yield made


@pytest.fixture
def world(shared: World) -> Iterator[World]:
    """The world, without the table that a test creates in Postgres."""
    yield shared
    with psycopg.connect(shared.conninfo) as connection:
        connection.execute("DROP TABLE IF EXISTS target")


@pytest.fixture
def look(world: World, spark: SparkSession) -> Look:
    """Checks the world's pipeline, with texts of its file replaced."""

    def at(*changes: tuple[str, str], settings: Settings | None = None) -> PreflightResult:
        text = PIPELINE.format(**world.file_values)
        for old, new in changes:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        return check_pipeline(parse_pipeline(text, "p.yaml"), settings or world.settings(), lambda: spark)

    return at


def problems(findings: PreflightResult) -> list[tuple[str, int | None, str]]:
    return [
        (problem.node, problem.place.line if problem.place else None, problem.message)
        for problem in findings.errors
    ]


def test_a_good_file_leaves_nothing_unchecked_and_no_trace(world: World, look: Look) -> None:
    result = look()
    assert (problems(result), result.unchecked, result.warnings) == ([], {}, [])
    assert result.schemas["pg"].field("day").type == pa.date32()
    assert result.schemas["shaped"].names == ["id", "day", "name", "amount"]
    with psycopg.connect(world.conninfo) as connection:
        assert connection.execute(
            "SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace"
        ).fetchone() == (0,)
    with clickhouse_connect.get_client(
        **world.services.clickhouse.client_arguments(database=world.database)
    ) as client:
        assert [row[0] for row in client.query("SHOW TABLES").result_rows] == ["history"]
    assert not world.lake.exists()
    assert not world.ledger.exists()


def test_every_wrong_statement_is_told_and_what_reads_it_is_not(look: Look) -> None:
    more = (
        'amount * 2 as amount from src"}\n'
        '  again: {type: sql, sql: "select id, nam from shaped"}\n'
        '  other: {type: sql, sql: "select id, dayy from src"}\n'
        '  below: {type: sql, sql: "select id, nothing from other"}'
    )
    result = look(
        ('amount * 2 as amount from src"}', more),
        ("from: shaped, table: target", "from: again, table: target"),
        ("from: shaped, path", "from: below, path"),
    )
    assert [(node, line) for node, line, _ in problems(result)] == [("again", 12), ("other", 13)]
    assert "`nam`" in result.errors[0].message
    assert "`dayy`" in result.errors[1].message


def test_a_key_that_sql_loses_is_told_where_it_is_lost(look: Look) -> None:
    result = look(("select id, day,", "select day,"))
    assert [node for node, _, _ in problems(result)] == ["shaped"]
    assert 'columns ["id"] not found in schema' in result.errors[0].message


@pytest.mark.parametrize(
    ("old", "new", "node", "message"),
    [
        ("{database}.history", "{database}.histori", "src", "does not exist in ClickHouse"),
        ("split_rows: 500", "split_rows: 500, filter: amont > 1", "src", "amont"),
        (
            "schema: {{id: int64",
            "filter: amont > 1, schema: {{id: int64",
            "src",
            "filter `amont > 1` cannot be used",
        ),
        ("topic: {topic}", "topic: {topic}x", "src", "does not exist at"),
        ("offset_table: {{}}", "offset_table: {{offset_column: off}}", "src", "has no column off"),
        ("column: day", "column: dai", "src", "has no column dai"),
        (
            "name: string, amount",
            "name: string, weight: int64, amount",
            "src",
            "lacks the columns weight of the stream",
        ),
        ("table: target", "table: target, update_where: {{amont: '>'}}", "pg", "no column 'amont'"),
        (
            "from: shaped, table",
            "from: shaped, telemetry: {{event_time: {{column: name}}}}, table",
            "pg",
            "event time: `name` is string",
        ),
    ],
)
def test_what_only_the_systems_know(
    world: World, look: Look, old: str, new: str, node: str, message: str
) -> None:
    known = {"database": world.database, "topic": world.name}
    result = look((old.format(**known), new.format(**known)))
    assert [(name, message in text) for name, _, text in problems(result)] == [(node, True)]
    assert result.errors[0].place is not None


def test_a_target_that_is_there_is_proved(world: World, look: Look) -> None:
    with psycopg.connect(world.conninfo) as connection:
        connection.execute("CREATE TABLE target (id bigint, day date, name text, amount text)")
    assert [(node, "amount" in text) for node, _, text in problems(look())] == [("pg", True)]
    with psycopg.connect(world.conninfo) as connection:
        connection.execute("ALTER TABLE target ALTER amount TYPE bigint USING 0")
    assert "no unique index over the key (id)" in look().errors[0].message
    with psycopg.connect(world.conninfo) as connection:
        connection.execute("ALTER TABLE target ADD PRIMARY KEY (id)")
    assert look().errors == []


def test_a_delta_table_that_is_there_is_proved(
    world: World, look: Look, spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "lake")
    spark.sql("SELECT 1L AS id, 'x' AS name").write.format("delta").save(path)
    result = look((str(world.lake), path))
    assert [(node, "`day` (date) is missing" in text) for node, _, text in problems(result)] == [
        ("lake", True)
    ]


def test_what_cannot_be_reached_is_said_to_be_unchecked_and_sql_is_checked_all_the_same(
    world: World, look: Look
) -> None:
    away = world.settings().model_copy(deep=True)
    away.kafka_source.brokers = "127.0.0.1:1"
    away.clickhouse_source.url = "http://127.0.0.1:1"
    away.postgres_sink.port = 1
    result = look(("select id, day,", "select id, dai,"), settings=away)
    assert [node for node, _, _ in problems(result)] == ["shaped"]
    assert "127.0.0.1:1" in result.unchecked["src"]
    result = look(settings=away)
    assert (problems(result), set(result.unchecked)) == ([], {"src", "pg"})


def _no_spark() -> NoReturn:
    msg = "Spark was started"
    raise AssertionError(msg)


def test_a_file_without_sql_starts_no_spark(world: World) -> None:
    text = f"""
sources: {{src: {{type: clickhouse, table_name: {world.database}.history, primary_key: id}}}}
transforms: {{}}
sinks: {{pg: {{type: postgres, from: src, table: target}}}}
"""
    pipeline = check_pipeline(parse_pipeline(text, "p.yaml"), world.settings(), _no_spark)
    assert (pipeline.errors, pipeline.unchecked) == ([], {})
    assert "id" in pipeline.schemas["pg"].names


def test_a_missing_key_is_a_warning_or_by_a_setting_a_mistake(world: World, spark: SparkSession) -> None:
    text = f"""
sources: {{src: {{type: clickhouse, table_name: {world.database}.history}}}}
transforms: {{}}
sinks: {{pg: {{type: postgres, from: src, table: target}}}}
"""
    file = parse_pipeline(text, "p.yaml")
    pipeline = check_pipeline(file, world.settings(), _no_spark)
    assert ([w.node for w in pipeline.warnings], pipeline.errors) == (["src"], [])
    pipeline = check_pipeline(
        file, world.settings().model_copy(update={"enforce_primary_keys": True}), _no_spark
    )
    assert ([e.node for e in pipeline.errors], pipeline.warnings) == (["src"], [])
    with pytest.raises(PipelineFileError, match="Can't determine primary key for source 'src'!"):
        CompiledPipeline(file, world.settings().model_copy(update={"enforce_primary_keys": True}), spark)


def test_a_topic_that_the_pipeline_reads_is_no_target(world: World, look: Look) -> None:
    result = look(
        (
            "lake: {type: delta, from: shaped, path: " + str(world.lake) + "}",
            f"lake: {{type: kafka, from: shaped, topic: {world.name}}}",
        )
    )
    assert problems(result) == [
        ("lake", 14, f"topic `{world.name}` is a source of this pipeline too: its rows would come again")
    ]

"""A transform with another column, and a sink whose table takes it, in the middle of the history."""

from __future__ import annotations

import threading
from typing import Any

import psycopg
import pytest
from helpers.pipeline_world import World
from pyspark.sql import SparkSession

from headrace.connectors.postgres.sink import PostgresSink
from headrace.jobs.run.events import EpochCommitted, Event, RunResult, Until
from headrace.jobs.run.repair import replay
from headrace.jobs.run.runner import run
from headrace.pipeline.errors import SchemaError, SinkStateError
from headrace.pipeline.file.loader import load_pipeline
from headrace.pipeline.protocol.epochs import WriteCounts

FILE = """
name: widened
sources:
  src: {{type: clickhouse, table_name: {database}.history, split_rows: 250, primary_key: id}}
transforms:
  shaped: {{type: sql, sql: "select {columns} from src"}}
sinks:
  pg: {{type: postgres, from: shaped, table: widened{evolution}}}
  second: {{type: postgres, from: shaped, table: second{evolution}}}
epoch: {{history_rows: 750}}
"""
ADD = ", schema_evolution: add_columns"


def test_a_column_of_a_later_file_is_added(
    world: World, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The epoch that was begun with the former file is finished with it, after the table was changed."""
    path = world.folder / "widened.yaml"

    def start(columns: str, evolution: str = "", *, stop_after: int = 1_000) -> RunResult:
        path.write_text(FILE.format(database=world.database, columns=columns, evolution=evolution))
        stop, epochs = threading.Event(), 0

        def listen(event: Event) -> None:
            nonlocal epochs
            epochs += isinstance(event, EpochCommitted)
            if epochs >= stop_after:
                stop.set()

        return run(
            load_pipeline(path),
            world.settings(),
            until=Until.HISTORY,
            listener=listen,
            stop=stop,
            spark=spark,
        )

    def count(columns: str, table: str = "widened") -> tuple[Any, ...]:
        with psycopg.connect(world.conninfo) as connection:
            result = connection.execute(f"SELECT {columns} FROM {table}".encode()).fetchone()
        assert result
        return result

    start("id, name", stop_after=1)
    (first,) = count("count(*)")
    with pytest.raises(SchemaError, match=r"no column 'day'.*\n.*schema_evolution: add_columns"):
        start("id, name, day")

    def fail(sink: PostgresSink, *arguments: Any, **options: Any) -> WriteCounts:
        if "second" in sink.target:
            msg = "a fault of this test"
            raise SinkStateError(msg)
        return write(sink, *arguments, **options)

    write = PostgresSink.write_direct
    with monkeypatch.context() as patch:
        patch.setattr(PostgresSink, "write_direct", fail)
        with pytest.raises(SinkStateError):
            start("id, name")
    assert start("id, name, day", ADD).history_complete

    rows, days = count("count(*), count(day)")
    assert count("count(*), count(day)", "second") == (rows, days)
    assert 0 < first < rows
    assert 0 < days < rows - first, "the begun epoch has the columns of its own file"
    replay(load_pipeline(path), world.settings(), sink="pg", from_epoch=1, spark=spark)
    assert count("count(*), count(day)") == (rows, days), "each epoch is computed with its own file"

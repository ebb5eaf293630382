"""Changes of which a target or a transform rejects some amounts, of history and of the stream."""

from __future__ import annotations

import json
from datetime import date, timedelta

import psycopg
from pyspark.sql import SparkSession

from helpers.kafka_sink import read_messages
from helpers.pipeline_world import FROM_TOPIC, HISTORY, HYBRID_SOURCE, MONTHS_AND_EPOCHS, Row, World

PIPELINE = (
    HYBRID_SOURCE
    + """\
transforms:
  shaped:
    type: sql
    on_error: dead_letter
    max_error_rate: {rate}
    sql: "SELECT id, day, name, amount + CAST(if(amount % {every} = 0, 'x', '0') AS BIGINT) AS amount FROM src"
sinks:
  pg: {{type: postgres, from: shaped, table: target}}
  lake: {{type: delta, from: shaped, path: {lake}}}
  bad: {{type: postgres, from: shaped.errors, table: broken}}
  bad_lake: {{type: delta, from: shaped.errors, path: {lake}-errors}}
"""
    + MONTHS_AND_EPOCHS
)
Rejected = tuple[str, int, int]
"""Operation, id and amount."""


class RejectingWorld:
    """A world whose transform cannot compute amounts that are multiples of `every`."""

    def __init__(self, world: World, rate: float = 1, every: int = 97) -> None:
        self._world = world
        self._every = every
        self.write_file(rate)

    def write_file(self, rate: float) -> None:
        """Write the pipeline file with a limit of rejected rows."""
        world = self._world
        world.file.write_text(PIPELINE.format(**world.file_values, rate=rate, every=self._every))

    def check(self, spark: SparkSession) -> None:
        """All four sinks have exactly the rows that they must have."""
        rows, rejected = replay_changes(self._world, self._every)
        assert rejected
        result = self._world.in_postgres()
        assert result == rows, ({*result} - {*rows}, {*rows} - {*result})
        lake = spark.read.format("delta").load(str(self._world.lake)).select("id", "day", "name", "amount")
        assert sorted(tuple(row) for row in lake.collect()) == rows
        columns = ["operation", "row", "reason", "node", "epoch", "position"]
        errors = spark.read.format("delta").load(f"{self._world.lake}-errors").select(*columns)
        in_lake = sorted(tuple(row) for row in errors.collect())
        assert self.in_postgres() == in_lake
        originals = [(operation, json.loads(row)) for operation, row, *_ in in_lake]
        assert sorted((operation, row["id"], row["amount"]) for operation, row in originals) == rejected
        assert {reason[:17] for _, _, reason, *_ in in_lake} == {"The value 'x' of "}
        assert {node for *_, node, _, _ in in_lake} == {"shaped"}

    def in_postgres(self) -> list[tuple[str, ...]]:
        """Return all rejected rows in Postgres."""
        with psycopg.connect(self._world.conninfo) as connection:
            query = 'SELECT operation, "row", reason, node, epoch, position FROM broken'
            return sorted(connection.execute(query).fetchall())


def replay_changes(world: World, every: int = 97) -> tuple[list[Row], list[Rejected]]:
    """Return the rows of the target, and the rejected ones, worked out change by change.

    Amounts that are multiples of `every` are rejected.
    """
    rows: dict[int, Row] = {}
    rejected: list[Rejected] = []

    def apply(op: str, row: Row) -> None:
        key, *_, amount = row
        if op == "d":
            rows.pop(key, None)
        elif amount % every == 0:
            rejected.append((op, key, amount))
        else:
            rows[key] = row

    for key in range(HISTORY):
        apply("i", (key, date(2024, 1, 1) + timedelta(days=key % 60), f"n{key}", key * 3))
    for message in read_messages(world.services.kafka.brokers, world.name):
        if message.partition == 0 and message.offset < FROM_TOPIC:
            continue
        row = json.loads(message.value or b"")
        op = (message.operation or "c").replace("c", "i")
        apply(op, (row["id"], date.fromisoformat(row["day"]), row["name"], row["amount"]))
    return sorted(rows.values()), sorted(rejected)

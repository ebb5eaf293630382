"""Shared by the Postgres tests: sinks, plans, frames."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql
from psycopg.conninfo import make_conninfo
from pydantic import SecretStr

from headrace.connectors.frame import EpochFrame
from headrace.connectors.postgres.config import PostgresSinkConfig as Node
from headrace.connectors.postgres.sink import PostgresSink
from headrace.connectors.sink_base import SinkContext
from headrace.pipeline.config.sections import PostgresConnection, SparkSettings
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.protocol.epochs import CommitRecord, EpochPlan, Phase, SinkKey

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
PLANNED = datetime(2026, 1, 1, tzinfo=UTC)


def eventually(holds: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Polls until `holds()` is true, and returns what it gave."""
    deadline = time.monotonic() + seconds
    while not (result := holds()):
        assert time.monotonic() < deadline, f"not true within {seconds} s: {holds}"
        time.sleep(0.02)
    return result


@dataclass
class Bench:
    """One target table in its own schema, with ways to look at it."""

    parameters: dict[str, str]
    spark: Any
    schema: str = field(default_factory=lambda: f"t{uuid.uuid4().hex[:10]}")
    pipeline: str = field(default_factory=lambda: str(uuid.uuid4()))
    opened: list[PostgresSink] = field(default_factory=list)
    master: str = "local[2]"
    """With another one, Spark tasks load splits directly, and not threads."""

    def sink(
        self,
        *,
        key: Sequence[str] = ("id",),
        pipeline: str | None = None,
        name: str = "out",
        lane: str = "main",
        streams: Sequence[Any] = (),
        **node: Any,
    ) -> PostgresSink:
        """A sink on table `target` of the bench's schema."""
        model = Node.model_validate(
            {"from": "x", "schema": self.schema, "table": "target", "primary_key": list(key)} | node
        )
        context = SinkContext(
            SinkKey(pipeline or self.pipeline, "pipe", lane, name),
            model,
            self.settings(),
            SCHEMA,
            self.spark,
            {"key": tuple(key), "streams": tuple(streams)},
        )
        self.opened.append(sink := PostgresSink(context))
        return sink

    def joined(self, schema: pa.Schema = SCHEMA, generation: int = 1, **options: Any) -> PostgresSink:
        """A sink that is prepared and holds a record at epoch 0."""
        sink = self.sink(**options)
        sink.prepare(schema, generation)
        if sink.record() is None:
            sink.register(CommitRecord.for_registration(sink._context.key, generation, 0, {}, "hash", None))
        return sink

    def settings(self) -> Settings:
        """Settings that lead to the server."""
        place = self.parameters
        connection = PostgresConnection(
            host=place["host"],
            port=int(place["port"]),
            user=place["user"],
            password=SecretStr(place["password"]),
            db=place["dbname"],
        )
        return Settings(postgres_sink=connection, spark=SparkSettings(master=self.master))

    def frame(
        self,
        rows: Sequence[tuple[Any, ...]],
        *,
        schema: pa.Schema = SCHEMA,
        key: Sequence[str] = ("id",),
        estimate: int | None = 0,
    ) -> EpochFrame:
        """Rows as (op, *payload), in order.

        `estimate` picks the path: 0 the driver's, a large number the staged one.
        """
        places = [{"source": 0, "part": 0, "off": at, "sub": 0} for at in range(len(rows))]
        place = pa.struct(
            [("source", pa.int32()), ("part", pa.int32()), ("off", pa.int64()), ("sub", pa.int64())]
        )
        columns = [
            pa.array([row[at] for row in rows], kind) for at, kind in enumerate([pa.string(), *schema.types])
        ]
        names = [*schema.names, "_gs_op", "_gs_pos"]
        table = pa.table([*columns[1:], columns[0], pa.array(places, place)], names=names)
        return EpochFrame(self.spark.createDataFrame(table), schema, tuple(key), estimate, self.spark)

    def connect(self) -> psycopg.Connection[Any]:
        """A connection of the superuser, in autocommit."""
        return psycopg.connect(make_conninfo(**self.parameters), autocommit=True)

    def run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """One statement as the superuser; `{t}` is the target."""
        text = sql.SQL(statement).format(t=sql.Identifier(self.schema, "target"))  # type: ignore[arg-type]
        with self.connect() as connection:
            cursor = connection.execute(text, values or None)
            return cursor.fetchall() if cursor.description else []

    def rows(self) -> list[tuple[Any, ...]]:
        """The target's rows, sorted."""
        return sorted(self.run("SELECT * FROM {t}"), key=repr)

    @contextmanager
    def cleaned(self) -> Any:
        """Closes sinks and drops the schema."""
        try:
            yield self
        finally:
            for sink in self.opened:
                sink.close()
            with self.connect() as connection:
                connection.execute(
                    sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(self.schema))
                )


def plan(number: int, *, splits: Sequence[dict[str, Any]] = ()) -> EpochPlan:
    """Epoch `number`, planned at a time of its own."""
    planned = PLANNED.replace(microsecond=number)
    return EpochPlan(
        number, Phase.LIVE, {"src": number - 1}, {"src": number}, "hash", planned, splits=tuple(splits)
    )


STAGED = 1_000_000_000
"""An estimate beyond what the driver takes."""

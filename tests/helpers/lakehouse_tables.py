"""Shared by the tests of Delta and Iceberg sinks: plans, and a table with its sinks."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from headrace.connectors.frame import EpochFrame
from headrace.connectors.sink_base import Sink, SinkContext
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.protocol.epochs import CommitRecord, EpochPlan, Phase, SinkKey
from headrace.pipeline.sql.system_columns import OP, POS, POS_TYPE

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
KEY = SinkKey("uuid-1", "flights", "main", "lake")


def position(number: int) -> dict[str, Any]:
    """Where the one source stands after an epoch."""
    return {"src": {"stream": {"offsets": {"0": number}}}}


def plan(number: int) -> EpochPlan:
    """An epoch's plan."""
    return EpochPlan(number, Phase.LIVE, position(number - 1), position(number), "hash", datetime.now(UTC))


class LakeTable:
    """One table and the sinks that write it; a subclass says which, by `kind` and `node`."""

    kind: type[Sink]
    shared_by: tuple[str, ...] = ()
    """The sinks of the pipeline file that share the table."""

    def __init__(self, spark: SparkSession, key: tuple[str, ...], schema: pa.Schema = SCHEMA) -> None:
        self.spark, self.key, self.schema = spark, key, schema

    def node(self) -> Any:
        """The sink's node in a pipeline file."""
        raise NotImplementedError

    def sink(self, identity: SinkKey = KEY) -> Any:
        """A fresh sink."""
        node = self.node().model_copy(update={"share": bool(self.shared_by)})
        return self.kind(
            SinkContext(
                identity,
                node,
                Settings(),
                self.schema,
                self.spark,
                {"key": self.key, "sinks": self.shared_by},
            )
        )

    def prepared(self, generation: int = 1, identity: SinkKey = KEY) -> Any:
        """The same, which has announced its generation."""
        sink = self.sink(identity)
        sink.prepare(self.schema, generation)
        return sink

    def joined(self, generation: int = 1, epoch: int = 0) -> Any:
        """The same, which belongs to the lane."""
        sink = self.prepared(generation)
        sink.register(CommitRecord.for_registration(KEY, generation, epoch, position(epoch), "hash", None))
        return sink

    def frame(self, *rows: tuple[Any, ...], large: bool = False) -> EpochFrame:
        """Rows are (id, name, operation); the order is that of the arguments."""
        data = [(*row, (0, 0, at, 0)) for at, row in enumerate(rows)]
        result = self.spark.createDataFrame(data, f"id bigint, name string, {OP} string, {POS} {POS_TYPE}")
        return EpochFrame(result, self.schema, self.key, None if large else len(rows), self.spark)

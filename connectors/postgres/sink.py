"""The Postgres sink: exactly once, upserts and deletes by key, appends without one."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.connectors.base import Delivery, DirectSink, EpochFrame, SinkCapabilities, SinkContext, SplitReader, Visibility
from headrace.connectors.content import TargetContent
from headrace.connectors.frame import DRIVER_BYTES
from headrace.pipeline.errors import UserError
from headrace.pipeline.model.nodes import PostgresSinkConfig as Node
from headrace.pipeline.protocol.claims import Claim
from headrace.pipeline.protocol.epochs import CommitRecord, EpochPlan, Json, WriteCounts

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from headrace.connectors.postgres.content import TargetReader
    from headrace.connectors.postgres.handle import PostgresSinkHandle

log = logging.getLogger(__name__)


class PostgresSink(DirectSink):
    """One table. Delivery is exactly once: rows and record of an epoch share one transaction.

    Epochs of up to `max_driver_rows` go out by one connection of the driver; larger ones are staged by tasks and merged by the
    driver. During a backfill tasks may load splits by themselves, each in a transaction with its marker: then readers see
    an epoch split by split.
    """

    capabilities: ClassVar[SinkCapabilities] = SinkCapabilities(
        delivery=Delivery.EXACTLY_ONCE,
        upsert=True,
        delete=True,
        visibility=Visibility.EPOCH,
        creates_target=True,
        fences=True,
        counts_changes=True,
        versions=True,
        can_truncate=True,
        direct=True,
        without_spark=True,
    )

    def __init__(self, context: SinkContext) -> None:
        self._context = context
        self._node: Node = context.node
        self._handle: PostgresSinkHandle | None = None

    def prepare(self, schema: pa.Schema, generation: int) -> None:
        """Connects, proves or makes the table, raises the generation, ends and sweeps what older generations left."""
        self.close()
        self._handle = self._made(generation)
        self._handle.prepare(schema)

    def validate_target(self) -> None:
        """Asks the server about a table that is there; one that is missing would be made."""
        self._open.validate_target(self._context.schema)

    def record(self) -> CommitRecord | None:
        """The record in the target's database."""
        return self._open.record()

    def register(self, record: CommitRecord) -> CommitRecord:
        """Writes the first record, or rewinds; `baseline` is the table's count in the same transaction."""
        return self._open.register(record)

    def truncate(self) -> None:
        """Remove all rows of the table; a transaction that locks the record's row first."""
        self._open.truncate()

    def has_partial_epoch(self, plan: EpochPlan) -> bool:
        """Whether markers of a direct load say that splits of the epoch are there."""
        return self._open.has_partial_epoch(plan)

    def find_conflicting_record(self) -> CommitRecord | None:
        """The newest record of the same pipeline name, lane, sink and table under another UUID."""
        return self._open.find_conflicting_record()

    def claims(self) -> Sequence[Claim]:
        """The records in the target's database that speak of this table."""
        return self._open.claims()

    def release(self, claims: Sequence[Claim]) -> None:
        """Removes the records of these sinks."""
        self._open.release(claims)

    def read_row_count(self) -> tuple[CommitRecord | None, int] | None:
        """Record and rows in one snapshot; None where others write the table too, as far as their records tell."""
        return self._open.read_row_count()

    def content(self, schema: pa.Schema, folder: Path, limit: int | None = None) -> TargetContent | None:
        """The rows in the driver where they are few bytes, else by way of a parquet file. `lookup` finds keys by the index."""
        from headrace.connectors.postgres.content import readable

        columns = tuple(readable(schema))
        reader, keeps = self._open.content(schema), False
        try:
            content = self._read(reader, columns, folder, limit)
            keeps = content is not None and not content.is_whole
            return content
        finally:
            if not keeps:
                reader.close()

    def _read(self, reader: TargetReader, columns: tuple[str, ...], folder: Path, limit: int | None) -> TargetContent | None:
        if reader.record is None:
            return None
        if limit is not None and reader.has_more_than(limit):
            return TargetContent(reader.record, None, columns, lookup=reader.lookup, close=reader.close)
        path = folder / f"{self._context.key.sink}.parquet"
        table = reader.read(path, DRIVER_BYTES)
        spark: Any = self._context.spark
        return TargetContent(reader.record, spark.read.parquet(str(path)) if table is None else None, columns, table)

    def write(self, plan: EpochPlan, frame: EpochFrame) -> WriteCounts:
        """Rows and record in one transaction. An epoch that is held already is not written again: its counts come back."""
        return self._open.write(plan, frame)

    def write_direct(self, plan: EpochPlan, fetch: SplitReader, spark: SparkSession) -> WriteCounts:
        """One transaction per split, marker first; then the record, once every split has its marker."""
        return self._open.write_direct(plan, fetch, spark)

    def describe(self) -> Json:
        """Kind, asset key and table name, without opening anything."""
        connection = self._context.settings.postgres_for(self._context.key.sink)
        return {
            "kind": "postgres",
            "asset_key": ["postgres", self._node.schema_, self._node.table],
            "table_name": f"{connection.db}.{self._node.schema_}.{self._node.table}",
            "location": f"{connection.host}:{connection.port}",
        }

    def close(self) -> None:
        """Closes all connections."""
        if self._handle is not None:
            self._handle.close()
            self._handle = None

    @property
    def _open(self) -> PostgresSinkHandle:
        """The handle; one without a generation, for questions alone, where the sink was not prepared."""
        if self._handle is None:
            self._handle = self._made(None)
        return self._handle

    def _made(self, generation: int | None) -> PostgresSinkHandle:
        try:
            from headrace.connectors.postgres.handle import PostgresSinkHandle
        except ImportError as error:
            msg = f"type `postgres` needs the package `{error.name}`"
            raise UserError(msg, hint="pip install 'headrace[postgres]'", node=self._context.key.sink) from error
        return PostgresSinkHandle(self._context, generation)

"""The Postgres sink: exactly once, upserts and deletes by key, appends without one."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.connectors.content import TargetContent
from headrace.connectors.frame import DRIVER_BYTES, EpochFrame
from headrace.connectors.postgres.config import PostgresSinkConfig as Node
from headrace.connectors.sink_base import DirectSink, SinkContext
from headrace.connectors.source_base import SplitReader
from headrace.pipeline.errors import UserError
from headrace.pipeline.model.capabilities import SinkCapabilities
from headrace.pipeline.model.connectors import sink_entries
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

    capabilities: ClassVar[SinkCapabilities] = sink_entries()["postgres"].capabilities

    def __init__(self, context: SinkContext) -> None:
        self._context = context
        self._node: Node = context.node
        self._handle: PostgresSinkHandle | None = None

    def prepare(self, schema: pa.Schema, generation: int) -> None:
        """Check or create the table, raise the generation, and remove what older generations left."""
        self.close()
        self._handle = self._made(generation)
        self._handle.prepare(schema)

    def validate_target(self) -> None:
        """Check an existing table on the server. A missing table is fine: `prepare` would create it."""
        self._open.validate_target(self._context.schema)

    def record(self) -> CommitRecord | None:
        """Return the record in the target's database."""
        return self._open.record()

    def register(self, record: CommitRecord) -> CommitRecord:
        """Write the first record or set it back; `baseline` is the table's count in the same transaction."""
        return self._open.register(record)

    def truncate(self) -> None:
        """Remove all rows of the table in a transaction that locks the record's row first."""
        self._open.truncate()

    def has_partial_epoch(self, plan: EpochPlan) -> bool:
        """Return whether there are direct-load markers of splits of the epoch."""
        return self._open.has_partial_epoch(plan)

    def find_conflicting_record(self) -> CommitRecord | None:
        """Return the newest record of the same pipeline name, `lane`, sink and table under another UUID."""
        return self._open.find_conflicting_record()

    def claims(self) -> Sequence[Claim]:
        """Return the claims of records in the target's database that name this table."""
        return self._open.claims()

    def release(self, claims: Sequence[Claim]) -> None:
        """Remove the records of these sinks."""
        self._open.release(claims)

    def read_row_count(self) -> tuple[CommitRecord | None, int] | None:
        """Return record and row count of one snapshot; None if records show other writers of the table."""
        return self._open.read_row_count()

    def content(self, schema: pa.Schema, folder: Path, limit: int | None = None) -> TargetContent | None:
        """Return the rows in the driver if they are small, else through a parquet file.

        `lookup` finds keys by the index.
        """
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
        """Write rows and record in one transaction. An epoch that was committed before returns its counts."""
        return self._open.write(plan, frame)

    def write_direct(self, plan: EpochPlan, fetch: SplitReader, spark: SparkSession) -> WriteCounts:
        """Load each split in a transaction that sets its marker first, then write the record.

        The record is written when every split has its marker.
        """
        return self._open.write_direct(plan, fetch, spark)

    def describe(self) -> Json:
        """Return the type, asset key and table name without opening a connection."""
        connection = self._context.settings.postgres_for(self._context.key.sink)
        return {
            "kind": "postgres",
            "asset_key": ["postgres", self._node.schema_, self._node.table],
            "table_name": f"{connection.db}.{self._node.schema_}.{self._node.table}",
            "location": f"{connection.host}:{connection.port}",
        }

    def close(self) -> None:
        """Close all connections."""
        if self._handle is not None:
            self._handle.close()
            self._handle = None

    @property
    def _open(self) -> PostgresSinkHandle:
        """The handle. Without `prepare` it has no generation and can only read."""
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

"""The Postgres sink: exactly once, upserts and deletes by key, appends without one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.connectors.content import TargetContent
from headrace.connectors.fencing import fenced
from headrace.connectors.frame import DRIVER_BYTES
from headrace.connectors.postgres.config import PostgresSinkConfig as Node
from headrace.connectors.sink_base import DirectSink, SinkContext
from headrace.connectors.source_base import SplitReader
from headrace.connectors.transactional_sink import CommitKind, SinkCommit, SinkState, TransactionalSink
from headrace.pipeline.errors import GuaranteeError, HeadraceError, UserError
from headrace.pipeline.model.capabilities import SinkCapabilities
from headrace.pipeline.model.connectors import sink_entries
from headrace.pipeline.protocol.claims import Claim
from headrace.pipeline.protocol.epochs import CommitRecord, EpochPlan, Json, WriteCounts
from headrace.pipeline.protocol.partitions import HistoryPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from headrace.connectors.postgres.content import TargetReader
    from headrace.connectors.postgres.handle import PostgresSinkHandle
    from headrace.connectors.target_query import TargetQuery


class PostgresSink(TransactionalSink, DirectSink):
    """One table. Delivery is exactly once: rows and record of an epoch share one transaction.

    Epochs of up to `max_driver_rows` go out by one connection of the driver; larger ones are staged by tasks
    and merged by the driver. During a backfill tasks may load splits by themselves, each in a transaction
    with its marker: then readers see an epoch split by split.
    """

    capabilities: ClassVar[SinkCapabilities] = sink_entries()["postgres"].capabilities

    def __init__(self, context: SinkContext) -> None:
        """Store the context. The drivers are imported when the sink is first used."""
        super().__init__(context)
        self._node: Node = context.node
        self._handle: PostgresSinkHandle | None = None

    @property
    def target(self) -> str:
        """The table as messages name it."""
        return f"the Postgres table `{self._node.schema_}.{self._node.table}`"

    def prepare(self, schema: pa.Schema, generation: int) -> None:
        """Open connections under the name of the generation, then prepare the table."""
        self.close()
        self._handle = self._create_handle(generation)
        super().prepare(schema, generation)

    def prepare_target(self, schema: pa.Schema) -> None:
        """Create or check the table, and end the connections of older generations."""
        self._open.prepare_target(schema, self._generation)

    def remove_stale_attempts(self) -> None:
        """End connections that older generations opened in the meantime, and drop their staging tables."""
        self._open.end_older_backends(self._generation)
        self._open.drop_stale_staging_tables(self._generation)

    def validate_target(self) -> None:
        """Check an existing table on the server. A missing table is fine: `prepare` would create it."""
        self._open.validate_target(self._context.schema)

    def read_state(self) -> SinkState | None:
        """Return generation and record of this sink's row in the target's database."""
        with self._open.control.transaction() as session:
            return self._open.store.read_state(session)

    def commit(self, expected: SinkState, change: SinkCommit) -> SinkState:
        """Change the record's row, and the table, in one transaction.

        The transaction locks the row and checks generation and epoch again, so `expected` is not needed.
        """
        del expected
        handle, generation = self._open, change.generation
        if change.plan is not None and change.frame is not None:
            return SinkState(generation, change.complete(handle.write(change.plan, change.frame)))
        record = change.record
        with handle.control.transaction() as session:
            if change.kind is CommitKind.FENCE:
                handle.store.announce(session, generation)
            elif change.kind is CommitKind.TRUNCATE:
                handle.store.lock(session, generation)
                handle.delete_rows(session)
            elif record is not None:
                record = handle.store.register(session, record, handle.count_rows(session))
        return SinkState(generation, record)

    def write_direct(self, plan: EpochPlan, fetch: SplitReader, spark: SparkSession) -> WriteCounts:
        """Load each split in a transaction that sets its marker first, then write the record.

        The record is written when every split has its marker.
        """
        return self._open.write_direct(plan, fetch, spark)

    def has_partial_epoch(self, plan: EpochPlan) -> bool:
        """Return whether there are direct-load markers of splits of the epoch."""
        return self._open.has_marker(plan)

    def find_conflicting_record(self) -> CommitRecord | None:
        """Return the newest record of the same pipeline name, `lane`, sink and table under another UUID."""
        with self._open.control.transaction() as session:
            return self._open.store.find_conflicting_record(session)

    def claims(self) -> Sequence[Claim]:
        """Return the claims of records in the target's database that name this table."""
        with self._open.control.transaction() as session:
            return self._open.store.claims(session)

    def release(self, claims: Sequence[Claim]) -> None:
        """Remove the records of these sinks."""
        with self._open.control.transaction() as session:
            self._open.store.release(session, claims)

    def read_row_count(self) -> tuple[CommitRecord | None, int] | None:
        """Return record and row count of one snapshot; None if records show other writers of the table."""
        handle = self._open
        with handle.control.transaction(snapshot=True) as session:
            state = None if handle.store.shared(session) else handle.store.read_state(session)
            return (state.record, handle.count_rows(session)) if state and state.record else None

    def content(self, schema: pa.Schema, folder: Path, limit: int | None = None) -> TargetContent | None:
        """Return the rows in the driver if they are small, else through a parquet file.

        `lookup` finds keys by the index.
        """
        from headrace.connectors.postgres.content import readable

        columns = tuple(readable(schema))
        reader, keeps = self._open.read_content(schema), False
        try:
            content = self._read(reader, columns, folder, limit)
            keeps = content is not None and not content.is_whole
            return content
        finally:
            if not keeps:
                reader.close()

    def _read(
        self, reader: TargetReader, columns: tuple[str, ...], folder: Path, limit: int | None
    ) -> TargetContent | None:
        if reader.record is None:
            return None
        if limit is not None and reader.has_more_than(limit):
            return TargetContent(reader.record, None, columns, lookup=reader.lookup, close=reader.close)
        path = folder / f"{self._context.key.sink}.parquet"
        table = reader.read(path, DRIVER_BYTES)
        spark: Any = self._context.spark
        return TargetContent(
            reader.record, spark.read.parquet(str(path)) if table is None else None, columns, table
        )

    def query_target(self) -> TargetQuery | None:
        """Return queries in one read-only transaction, which closing ends."""
        return self._open.query_target()

    def check_readable_keys(self) -> None:
        """Raise GuaranteeError for a key of a type that is not read back, such as a time of day."""
        from headrace.connectors.postgres.content import readable

        schema, key = self._context.schema, self._context.extra.get("key", self._node.primary_key)
        unreadable = [name for name in key if name not in readable(schema)]
        if unreadable:
            msg = f"key column `{unreadable[0]}` ({schema.field(unreadable[0]).type}) cannot be read back"
            raise GuaranteeError(msg, hint="Start over with: headrace reset FILE.", node=self._name)

    def read_keys(self, partition: HistoryPartition | None, folder: Path) -> DataFrame:
        """Return the keys through the driver if they are small, else through a parquet file."""
        spark: Any = self._context.spark
        reader = self._open.read_content(self._context.schema)
        try:
            path = folder / f"{self._name}.parquet"
            table = reader.read_keys(path, DRIVER_BYTES, partition)
        finally:
            reader.close()
        return spark.read.parquet(str(path)) if table is None else spark.createDataFrame(table)

    def describe(self) -> Json:
        """Return the type, asset key and table name without opening a connection."""
        connection = self._context.settings.postgres_for(self._context.key.sink)
        return {
            "kind": "postgres",
            "asset_key": ["postgres", self._node.schema_, self._node.table],
            "scope": [f"{connection.host}:{connection.port}", connection.db],
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
            self._handle = self._create_handle(None)
        return self._handle

    def _create_handle(self, generation: int | None) -> PostgresSinkHandle:
        try:
            from headrace.connectors.postgres.handle import PostgresSinkHandle
        except ImportError as error:
            msg = f"type `postgres` needs the package `{error.name}`"
            raise UserError(
                msg, hint="pip install 'headrace[postgres]'", node=self._context.key.sink
            ) from error
        return PostgresSinkHandle(self._context, generation)

    def _lost_state_error(self) -> HeadraceError:
        """Return the fencing error: another pipeline that takes the table over deletes the row."""
        return fenced(None, self._generation, target=self.target, sink=self._name)

"""The Postgres sink: exactly once, upserts and deletes by key, appends without one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import pyarrow as pa
from psycopg import sql

from headrace.connectors.content import TargetContent
from headrace.connectors.fencing import fencing_error
from headrace.connectors.frame import EpochFrame, LargeEpochCollector
from headrace.connectors.keys import canonical, canonical_frame
from headrace.connectors.postgres.commit_store import RecordStore
from headrace.connectors.postgres.config import PostgresSinkConfig as Node
from headrace.connectors.postgres.config import describe_table
from headrace.connectors.postgres.content import TargetReader, check_readable_keys
from headrace.connectors.postgres.direct import DirectLoad
from headrace.connectors.postgres.load import LoadContext, NewKeyLoad, write_table
from headrace.connectors.postgres.queries import open_query
from headrace.connectors.postgres.staging import drop_stale_staging_tables, write_staged
from headrace.connectors.postgres_client.session import (
    Address,
    ControlConnection,
    Loader,
    Session,
    application_name,
    terminate_older_backends,
)
from headrace.connectors.postgres_table.convert import RowChecks, flatten_columns, flatten_table
from headrace.connectors.postgres_table.merge import ConflictPolicy
from headrace.connectors.postgres_table.refused import RefusedRows
from headrace.connectors.postgres_table.target import TargetCheck
from headrace.connectors.schema_evolution import find_new_columns
from headrace.connectors.sink_base import DirectSink, SinkContext
from headrace.connectors.source_base import SplitReader
from headrace.connectors.split_tasks import count_task_threads
from headrace.connectors.transactional_sink import CommitKind, SinkCommit, SinkState, TransactionalSink
from headrace.pipeline.errors import HeadraceError, InternalError, TransientError
from headrace.pipeline.model.capabilities import SinkCapabilities
from headrace.pipeline.model.connectors import sink_entries
from headrace.pipeline.protocol.claims import Claim
from headrace.pipeline.protocol.epochs import CommitRecord, EpochPlan, Json, Phase, WriteCounts
from headrace.pipeline.protocol.partitions import HistoryPartition
from headrace.pipeline.types.arrow import is_nested

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.connectors.target_query import TargetQuery


class _Connections(NamedTuple):
    """Connections of the driver. They are opened on first use, and again after they were lost."""

    address: Address
    control: ControlConnection
    loader: Loader


class PostgresSink(TransactionalSink, DirectSink):
    """One table. Delivery is exactly once: rows and record of an epoch share one transaction.

    Epochs of up to `max_driver_rows` go out by one connection of the driver; larger ones are staged by tasks
    and merged by the driver. During a backfill tasks may load splits by themselves, each in a transaction
    with its marker: then readers see an epoch split by split.
    """

    capabilities: ClassVar[SinkCapabilities] = sink_entries()["postgres"].capabilities

    def __init__(self, context: SinkContext) -> None:
        """Store the context without opening a connection."""
        super().__init__(context)
        node: Node = context.node
        self._node = node
        self._key: tuple[str, ...] = tuple(context.extra.get("key", node.primary_key))
        self._table = sql.Identifier(node.schema_, node.table)
        self._store = RecordStore(context.key, self._table.as_string(None), self._name, context.owner)
        self._policy = ConflictPolicy(
            node.on_conflict == "nothing", tuple(node.update_where.items()), node.version_column
        )
        self._opened: _Connections | None = None
        self._load: LoadContext | None = None
        self._direct: DirectLoad | None = None
        self._new_keys = NewKeyLoad()
        self._large = LargeEpochCollector(self._name)

    @property
    def target(self) -> str:
        """The table as messages name it."""
        return f"the Postgres table `{self._node.schema_}.{self._node.table}`"

    def prepare_target(self, schema: pa.Schema) -> None:
        """Create or check the table over new connections, and end those of older generations."""
        self.close()
        self._policy.check(self._name, schema, self._key)
        with self._connections.control.transaction() as session:
            if session.run("SHOW transaction_read_only")[0][0] == "on":
                msg = "the server is read-only: a standby, or failing over"
                raise TransientError(msg, node=self._name)
            self._store.create(session)
        with self._connections.control.transaction() as session:
            target = self._target_check(schema).prepare(session)
        refused = self._refused_rows(schema)
        if refused is not None:
            with self._connections.control.transaction() as session:
                refused.create(session)
        terminate_older_backends(self._connections.control, self._context.key, self._generation)
        checks = RowChecks.of(self._name, schema, self._key, target.lengths, self._node.version_column)
        self._load = LoadContext(self._name, target, schema, self._policy, checks, self._generation, refused)

    def remove_stale_attempts(self) -> None:
        """End connections that older generations opened in the meantime, and drop their staging tables."""
        control, key = self._connections.control, self._context.key
        terminate_older_backends(control, key, self._generation)
        drop_stale_staging_tables(control, key, self._generation)

    def validate_target(self) -> None:
        """Check an existing table. A missing table is fine, because `prepare` would create it.

        The connection does not wait for a server that is down.
        """
        self._policy.check(self._name, self._context.schema, self._key)
        control = ControlConnection(self._connections.address, patient=False)
        try:
            with control.transaction() as session:
                self._target_check(self._context.schema).validate(session)
                if (refused := self._refused_rows(self._context.schema)) is not None:
                    refused.check(session)
        finally:
            control.close()

    def read_state(self) -> SinkState | None:
        """Return generation and record of this sink's row in the target's database."""
        with self._connections.control.transaction() as session:
            return self._store.read_state(session)

    def commit(self, expected: SinkState, change: SinkCommit) -> SinkState:
        """Change the record's row, and the table, in one transaction.

        The transaction locks the row and checks generation and epoch again, so `expected` is not needed.
        """
        del expected
        generation, record = change.generation, change.record
        if change.plan is not None and change.frame is not None:
            return SinkState(generation, change.complete(self._write_epoch(change.plan, change.frame)))
        with self._connections.control.transaction() as session:
            if change.kind is CommitKind.FENCE:
                self._store.announce(session, generation)
            elif change.kind is CommitKind.TRUNCATE:
                self._store.lock(session, generation)
                session.run(sql.SQL("DELETE FROM {}").format(self._table))
                if (refused := self._refused_rows(self._context.schema)) is not None:
                    refused.remove(session)
            elif record is not None:
                record = self._store.register(session, record, self._count_rows(session))
        return SinkState(generation, record)

    def write_direct(
        self, plan: EpochPlan, fetch: SplitReader, spark: SparkSession, *, keys_spread: bool = False
    ) -> WriteCounts:
        """Load each split in a transaction that sets its marker first, then write the record.

        The record is written when every split has its marker. With `keys_spread` splits are loaded one after
        the other.
        """
        if self._direct is None:
            address, control, _ = self._connections
            threads = count_task_threads(self._context.settings.spark.master)
            self._direct = DirectLoad(control, address, self._store, self._loading, threads)
        return self._direct.write(plan, fetch, spark, in_turn=keys_spread)

    def has_partial_epoch(self, plan: EpochPlan) -> bool:
        """Return whether there are direct-load markers of splits of the epoch. Only history has splits."""
        if plan.phase is not Phase.HISTORY:
            return False
        with self._connections.control.transaction() as session:
            return bool(self._store.read_splits(session, plan.number))

    def find_conflicting_record(self) -> CommitRecord | None:
        """Return the newest record of the same pipeline name, `lane`, sink and table under another UUID."""
        with self._connections.control.transaction() as session:
            return self._store.find_conflicting_record(session)

    def claims(self) -> Sequence[Claim]:
        """Return the claims of records in the target's database that name this table."""
        with self._connections.control.transaction() as session:
            return self._store.claims(session)

    def release(self, claims: Sequence[Claim]) -> None:
        """Remove the records of these sinks."""
        with self._connections.control.transaction() as session:
            self._store.release(session, claims)

    def read_row_count(self) -> tuple[CommitRecord | None, int] | None:
        """Return record and row count of one snapshot; None if records show other writers of the table."""
        with self._connections.control.transaction(snapshot=True) as session:
            is_shared = bool(self._context.owner.others(self._store.claims(session)))
            state = None if is_shared else self._store.read_state(session)
            return (state.record, self._count_rows(session)) if state and state.record else None

    def content(self, schema: pa.Schema, folder: Path, limit: int | None = None) -> TargetContent | None:
        """Return the rows in the driver if they are small, else through a parquet file.

        `lookup` finds keys by the index.
        """
        return self._read_target(schema, folder).content(limit)

    def query_target(self) -> TargetQuery | None:
        """Return queries in one read-only transaction, which closing ends."""
        control = self._connections.control
        return open_query(control, self._store, self._table, self._context.owner)

    def check_readable_keys(self) -> None:
        """Raise GuaranteeError for a key of a type that is not read back, such as a time of day."""
        check_readable_keys(self._name, self._context.schema, self._key)

    def read_keys(self, partition: HistoryPartition | None, folder: Path) -> DataFrame:
        """Return the keys through the driver if they are small, else through a parquet file."""
        return self._read_target(self._context.schema, folder).keys(partition)

    def count_refused_rows(self) -> int:
        """Return the rows of the table of errors."""
        refused = self._refused_rows(self._context.schema)
        if refused is None:
            return 0
        with self._connections.control.transaction() as session:
            return refused.count(session)

    def describe(self) -> Json:
        """Return the type, asset key and table name without opening a connection."""
        connection = self._context.settings.postgres_for(self._name)
        return describe_table(connection, self._node.schema_, self._node.table)

    def close(self) -> None:
        """Close all connections. The sink can read again, but not write before the next `prepare`."""
        opened, self._opened, self._load, self._direct = self._opened, None, None, None
        if opened is not None:
            opened.loader.close()
            opened.control.close()

    @property
    def _connections(self) -> _Connections:
        """The connections, under the name of the generation. Without `prepare` there is none."""
        if self._opened is None:
            generation = self._generation if self._generation >= 0 else None
            address = Address(
                self._context.settings.postgres_for(self._name),
                application_name(self._context.key, generation),
                self._name,
            )
            self._opened = _Connections(address, ControlConnection(address), Loader(address))
        return self._opened

    @property
    def _loading(self) -> LoadContext:
        """The prepared target. Raise InternalError before `prepare_target`."""
        if self._load is None:
            msg = "a Postgres sink is written to before prepare, or although it failed"
            raise InternalError(msg, node=self._name)
        return self._load

    def _write_epoch(self, plan: EpochPlan, frame: EpochFrame) -> WriteCounts:
        """Write a small epoch from the driver alone, and a larger one through tasks that stage its rows."""
        load, store, node = self._loading, self._store, self._node
        address, control, _ = self._connections
        if frame.key != self._key:
            msg = f"the frame has key {frame.key}, the sink was prepared with {self._key}"
            raise InternalError(msg, node=self._name)
        nested = any(is_nested(field.type) for field in load.schema)
        if not nested and (local := frame.get_local_rows(node.most_local_rows)) is not None:
            flat = flatten_table(canonical(local, frame.key), load.schema)
            return self._write_table(plan, flat)
        rows = flatten_columns(canonical_frame(frame.rows, load.schema, frame.key), load.schema)
        if self._collects_large(load, frame):
            table = self._large.collect(frame, rows)
        else:
            table = frame.collect_if_small(rows, node.max_driver_rows)
        if table is not None:
            return self._write_table(plan, table)
        return write_staged(control, address, store, load, plan, rows)

    def _collects_large(self, load: LoadContext, frame: EpochFrame) -> bool:
        """Return whether the driver collects an epoch above the default of `max_driver_rows` too.

        It need not if the server has to choose the last row of each key, which takes most of the time.
        """
        is_limited = "max_driver_rows" in self._node.model_fields_set
        return not is_limited and load.refused is None and load.can_find_last and self._large.accepts(frame)

    def _write_table(self, plan: EpochPlan, rows: pa.Table) -> WriteCounts:
        """Write flat rows of the driver. If refused rows have a table, all are staged first."""
        load, (address, control, loader) = self._loading, self._connections
        if load.refused is None or not rows.num_rows:
            return write_table(loader, self._store, load, plan, rows, self._new_keys)
        return write_staged(control, address, self._store, load, plan, rows)

    def _read_target(self, schema: pa.Schema, folder: Path) -> TargetReader:
        spark: Any = self._context.spark
        path = folder / f"{self._name}.parquet"
        return TargetReader(
            self._connections.address, self._store, self._table, schema, self._key, path, spark
        )

    def _count_rows(self, session: Session) -> int:
        ((rows,),) = session.run(sql.SQL("SELECT count(*) FROM {}").format(self._table))
        return rows

    def _target_check(self, schema: pa.Schema) -> TargetCheck:
        node = self._node
        find_new = partial(find_new_columns, node, schema, self._key)
        has_streams = bool(self._context.extra.get("streams"))
        is_updated = bool(self._key) and has_streams and node.on_conflict == "update"
        return TargetCheck(
            self._name, node.schema_, node.table, schema, self._key, node.version_column, find_new, is_updated
        )

    def _refused_rows(self, schema: pa.Schema) -> RefusedRows | None:
        """Return where rows go that the table refuses, or None if they fail the epoch."""
        node, table = self._node, self._node.errors_table_name
        if table is None:
            return None
        nested = tuple(field.name for field in schema if is_nested(field.type))
        key = self._context.key
        return RefusedRows(node.schema_, table, key.pipeline, key.sink, nested, node.max_error_rate)

    def _lost_state_error(self) -> HeadraceError:
        """Return the fencing error: another pipeline that takes the table over deletes the row."""
        return fencing_error(None, self._generation, target=self.target, sink=self._name)

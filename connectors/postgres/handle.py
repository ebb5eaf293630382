"""What a Postgres sink does with its drivers: connections, target table, record store, ways to write."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pyarrow as pa
from psycopg import sql

from headrace.connectors.frame import EpochFrame
from headrace.connectors.keys import canonical, canonical_frame
from headrace.connectors.postgres.commit_store import RecordStore
from headrace.connectors.postgres.config import PostgresSinkConfig as Node
from headrace.connectors.postgres.content import TargetReader
from headrace.connectors.postgres.convert import RowChecks, flatten_columns, flatten_table
from headrace.connectors.postgres.direct import DirectLoad
from headrace.connectors.postgres.load import LoadContext
from headrace.connectors.postgres.markers import markers
from headrace.connectors.postgres.merge import ConflictPolicy
from headrace.connectors.postgres.queries import open_query
from headrace.connectors.postgres.session import (
    Address,
    ControlConnection,
    Loader,
    Session,
    application_name,
    terminate_older_backends,
)
from headrace.connectors.postgres.small_batches import write_table
from headrace.connectors.postgres.staging import drop_staging_tables, find_stale_staging_tables, write_staged
from headrace.connectors.postgres.target import check_target, prepare_target
from headrace.connectors.sink_base import SinkContext
from headrace.connectors.source_base import SplitReader
from headrace.pipeline.errors import InternalError, SchemaError, TransientError
from headrace.pipeline.protocol.epochs import EpochPlan, Phase, WriteCounts
from headrace.pipeline.types.arrow import is_nested

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.connectors.target_query import TargetQuery

log = logging.getLogger(__name__)


class PostgresSinkHandle:
    """The drivers' side of `PostgresSink`.

    Connections are created on first use, and again after they were lost.
    """

    def __init__(self, context: SinkContext, generation: int | None) -> None:
        self._node: Node = context.node
        self._name = context.key.sink
        self._key = context.key
        self._columns: tuple[str, ...] = tuple(context.extra.get("key", self._node.primary_key))
        self._generation = generation
        self._table = sql.Identifier(self._node.schema_, self._node.table)
        self.store = RecordStore(context.key, self._table.as_string(None), self._name, context.owner)
        self.address = Address(
            context.settings.postgres_for(self._name), application_name(context.key, generation), self._name
        )
        self.control = ControlConnection(self.address)
        self.loader = Loader(self.address)
        self._version = self._node.version_column
        self._policy = ConflictPolicy(
            self._node.on_conflict == "nothing", tuple(self._node.update_where.items()), self._version
        )
        self._load: LoadContext | None = None
        self._direct: DirectLoad | None = None

    def prepare_target(self, schema: pa.Schema, generation: int) -> None:
        """Create or check the table, then terminate connections of older generations."""
        self._check_policy(schema)
        with self.control.transaction() as session:
            self._check_writable(session)
            self.store.create(session)
        with self.control.transaction() as session:
            place = (self._node.schema_, self._node.table)
            target = prepare_target(
                session, node=self._name, table=place, schema=schema, key=self._columns, version=self._version
            )
        self.end_older_backends(generation)
        self._load = LoadContext(
            node=self._name,
            target=target,
            schema=schema,
            policy=self._policy,
            checks=RowChecks.of(self._name, schema, self._columns, target.lengths, self._version),
            generation=generation,
        )

    def drop_stale_staging_tables(self, generation: int) -> None:
        """Drop the staging tables of older generations."""
        with self.control.transaction() as session:
            stale = find_stale_staging_tables(session, self._key, generation)
        drop_staging_tables(self.control, stale)

    def validate_target(self, schema: pa.Schema) -> None:
        """Check an existing table over its own connection, which does not wait for a server that is down."""
        self._check_policy(schema)
        control = ControlConnection(self.address, patient=False)
        try:
            with control.transaction() as session:
                place = (self._node.schema_, self._node.table)
                check_target(
                    session,
                    node=self._name,
                    table=place,
                    schema=schema,
                    key=self._columns,
                    version=self._version,
                )
        finally:
            control.close()

    def has_marker(self, plan: EpochPlan) -> bool:
        """Return whether a split of the epoch has a marker. Only history is loaded by splits."""
        if plan.phase is not Phase.HISTORY:
            return False
        with self.control.transaction() as session:
            return bool(markers(session, self._key, plan.number))

    def count_rows(self, session: Session) -> int:
        """Return the number of rows in the table."""
        ((rows,),) = session.run(sql.SQL("SELECT count(*) FROM {}").format(self._table))
        return rows

    def delete_rows(self, session: Session) -> None:
        """Delete all rows of the table."""
        session.run(sql.SQL("DELETE FROM {}").format(self._table))

    def read_content(self, schema: pa.Schema) -> TargetReader:
        """Return the reader of the record and the rows of one snapshot."""
        return TargetReader(self.address, self.store, self._table, schema, self._columns)

    def query_target(self) -> TargetQuery | None:
        """See `PostgresSink.query_target`."""
        return open_query(self.control, self.store, self._table, self._name)

    def write(self, plan: EpochPlan, frame: EpochFrame) -> WriteCounts:
        """Write a small epoch from the driver alone, and a larger one through tasks that stage its rows."""
        load = self.loading()
        if frame.key != self._columns:
            msg = f"the frame has key {frame.key}, the sink was prepared with {self._columns}"
            raise InternalError(msg, node=self._name)
        nested = any(is_nested(field.type) for field in load.schema)
        if not nested and (local := frame.get_local_rows(self._node.max_driver_rows)) is not None:
            flat = flatten_table(canonical(local, frame.key), load.schema)
            return write_table(self.loader, self.store, load, plan, flat)
        rows = flatten_columns(canonical_frame(frame.rows, load.schema, frame.key), load.schema)
        if (table := frame.collect_if_small(rows, self._node.max_driver_rows)) is not None:
            return write_table(self.loader, self.store, load, plan, table)
        return write_staged(self.control, self.address, self.store, load, plan, rows)

    def write_direct(self, plan: EpochPlan, fetch: SplitReader, spark: SparkSession) -> WriteCounts:
        """See `PostgresSink.write_direct`."""
        self._direct = self._direct or DirectLoad(self.control, self.address, self.store, self.loading())
        return self._direct.write(plan, fetch, spark)

    def close(self) -> None:
        """Close both connections."""
        self.loader.close()
        self.control.close()

    def loading(self) -> LoadContext:
        """Return the prepared target. Raise InternalError before `prepare_target`."""
        if self._load is None:
            msg = "a Postgres sink is written to before prepare, or although it failed"
            raise InternalError(msg, node=self._name)
        return self._load

    def end_older_backends(self, generation: int) -> None:
        """Terminate server processes of older generations, so that their locks and COPYs end."""
        with self.control.transaction() as session:
            stubborn = terminate_older_backends(session, self._key, generation)
        if stubborn:
            log.warning("event=backends_still_alive node=%s pids=%s", self._name, stubborn)

    def _check_policy(self, schema: pa.Schema) -> None:
        """Raise SchemaError unless `update_where` names columns of the rows and the sink updates by key."""
        where = self._node.update_where
        problem = ""
        if where and not self._columns:
            problem = "the sink has no primary_key"
        elif where and self._node.on_conflict == "nothing":
            problem = "on_conflict is nothing, so nothing is ever updated"
        elif unknown := [name for name in where if name not in schema.names]:
            problem = f"no column '{unknown[0]}'; the rows have {', '.join(schema.names)}"
        if problem:
            msg = f"update_where validation failed for sink '{self._name}': {problem}"
            raise SchemaError(msg, node=self._name, hint="Correct `update_where` in the pipeline file.")

    def _check_writable(self, session: Session) -> None:
        if session.run("SHOW transaction_read_only")[0][0] == "on":
            msg = "the server is read-only: a standby, or failing over"
            raise TransientError(msg, node=self._name)

"""An opened Postgres sink: its connections, its target, its record."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from psycopg import sql

from headrace.connectors.frame import EpochFrame
from headrace.connectors.keys import canonical_frame
from headrace.connectors.postgres.commit_store import RecordStore
from headrace.connectors.postgres.config import PostgresSinkConfig as Node
from headrace.connectors.postgres.content import TargetReader
from headrace.connectors.postgres.convert import RowChecks, flatten_columns
from headrace.connectors.postgres.direct import DirectLoad
from headrace.connectors.postgres.load import LoadContext
from headrace.connectors.postgres.markers import markers
from headrace.connectors.postgres.merge import ConflictPolicy
from headrace.connectors.postgres.session import Address, ControlConnection, Loader, Session, application_name, terminate_older_backends
from headrace.connectors.postgres.small_batches import write_table
from headrace.connectors.postgres.staging import drop_staging_tables, find_stale_staging_tables, write_staged
from headrace.connectors.postgres.target import check_target, prepare_target
from headrace.connectors.sink_base import SinkContext
from headrace.connectors.source_base import SplitReader
from headrace.pipeline.errors import InternalError, SchemaError, TransientError, UserError
from headrace.pipeline.protocol.claims import Claim
from headrace.pipeline.protocol.epochs import CommitRecord, EpochPlan, Phase, WriteCounts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)


class PostgresSinkHandle:
    """Connections are created on first use, and again after they were lost."""

    def __init__(self, context: SinkContext, generation: int | None) -> None:
        self._node: Node = context.node
        self._name = context.key.sink
        self._key = context.key
        self._columns: tuple[str, ...] = tuple(context.extra.get("key", self._node.primary_key))
        self._generation = generation
        self._table = sql.Identifier(self._node.schema_, self._node.table)
        self._store = RecordStore(context.key, self._table.as_string(None), self._name, context.owner)
        self._address = Address(context.settings.postgres_for(self._name), application_name(context.key, generation), self._name)
        self._control = ControlConnection(self._address)
        self._loader = Loader(self._address)
        self._version = self._node.version_column
        self._policy = ConflictPolicy(self._node.on_conflict == "nothing", tuple(self._node.update_where.items()), self._version)
        self._load: LoadContext | None = None
        self._direct: DirectLoad | None = None

    def prepare(self, schema: pa.Schema) -> None:
        """Check the target first, so that an unfit target leaves a running older generation alone."""
        generation = self._required_generation()
        self._check_policy(schema)
        with self._control.transaction() as session:
            self._check_writable(session)
            self._store.create(session)
        with self._control.transaction() as session:
            place = (self._node.schema_, self._node.table)
            target = prepare_target(session, node=self._name, table=place, schema=schema, key=self._columns, version=self._version)
        self._end_older(generation)
        with self._control.transaction() as session:
            self._store.announce(session, generation)
        self._end_older(generation)
        with self._control.transaction() as session:
            left = find_stale_staging_tables(session, self._key, generation)
        drop_staging_tables(self._control, left)
        self._load = LoadContext(
            node=self._name,
            target=target,
            schema=schema,
            policy=self._policy,
            checks=RowChecks.of(self._name, schema, self._columns, target.lengths, self._version),
            generation=generation,
        )

    def validate_target(self, schema: pa.Schema) -> None:
        """See `PostgresSink.validate_target`."""
        self._check_policy(schema)
        control = ControlConnection(self._address, patient=False)
        try:
            with control.transaction() as session:
                place = (self._node.schema_, self._node.table)
                check_target(session, node=self._name, table=place, schema=schema, key=self._columns, version=self._version)
        finally:
            control.close()

    def record(self) -> CommitRecord | None:
        """See `PostgresSink.record`."""
        with self._control.transaction() as session:
            return self._store.read(session)

    def register(self, record: CommitRecord) -> CommitRecord:
        """See `PostgresSink.register`."""
        if record.generation != self._required_generation():
            msg = f"a record of generation {record.generation} is written under generation {self._generation}"
            raise InternalError(msg, node=self._name)
        with self._control.transaction() as session:
            return self._store.register(session, record, self._rows(session))

    def truncate(self) -> None:
        """See `PostgresSink.truncate`."""
        with self._control.transaction() as session:
            if self._store.shared(session):
                msg = f"other sinks write to {self._table.as_string(None)} too"
                raise UserError(
                    msg, hint="Delete the rows of this sink yourself, then `headrace reset FILE --keep-targets`.", node=self._name
                )
            self._store.lock(session, self._required_generation())
            session.run(sql.SQL("DELETE FROM {}").format(self._table))

    def find_conflicting_record(self) -> CommitRecord | None:
        """See `PostgresSink.find_conflicting_record`."""
        with self._control.transaction() as session:
            return self._store.find_conflicting_record(session)

    def claims(self) -> list[Claim]:
        """See `PostgresSink.claims`."""
        with self._control.transaction() as session:
            return self._store.claims(session)

    def release(self, claims: Sequence[Claim]) -> None:
        """See `PostgresSink.release`."""
        with self._control.transaction() as session:
            self._store.release(session, claims)

    def has_partial_epoch(self, plan: EpochPlan) -> bool:
        """See `PostgresSink.has_partial_epoch`. Only history is loaded by splits."""
        if plan.phase is not Phase.HISTORY:
            return False
        with self._control.transaction() as session:
            return bool(markers(session, self._key, plan.number))

    def read_row_count(self) -> tuple[CommitRecord | None, int] | None:
        """See `PostgresSink.read_row_count`."""
        with self._control.transaction(snapshot=True) as session:
            if self._store.shared(session):
                return None
            record = self._store.read(session)
            return (record, self._rows(session)) if record else None

    def content(self, schema: pa.Schema) -> TargetReader:
        """Return the reader of the record and the rows of one snapshot."""
        return TargetReader(self._address, self._store, self._table, schema, self._columns)

    def write(self, plan: EpochPlan, frame: EpochFrame) -> WriteCounts:
        """Write a small epoch from the driver alone, and a larger one through tasks that stage its rows."""
        load = self._loading()
        if frame.key != self._columns:
            msg = f"the frame has key {frame.key}, the sink was prepared with {self._columns}"
            raise InternalError(msg, node=self._name)
        rows = flatten_columns(canonical_frame(frame.rows, load.schema, frame.key), load.schema)
        if (table := frame.collect_if_small(rows, self._node.max_driver_rows)) is not None:
            return write_table(self._loader, self._store, load, plan, table)
        return write_staged(self._control, self._address, self._store, load, plan, rows)

    def write_direct(self, plan: EpochPlan, fetch: SplitReader, spark: SparkSession) -> WriteCounts:
        """See `PostgresSink.write_direct`."""
        self._direct = self._direct or DirectLoad(self._control, self._address, self._store, self._loading())
        return self._direct.write(plan, fetch, spark)

    def close(self) -> None:
        """Close both connections."""
        self._loader.close()
        self._control.close()

    def _loading(self) -> LoadContext:
        if self._load is None:
            msg = "a Postgres sink is written to before prepare, or although it failed"
            raise InternalError(msg, node=self._name)
        return self._load

    def _required_generation(self) -> int:
        if self._generation is None:
            msg = "a Postgres sink is used for writing without a generation"
            raise InternalError(msg, node=self._name)
        return self._generation

    def _rows(self, session: Session) -> int:
        ((rows,),) = session.run(sql.SQL("SELECT count(*) FROM {}").format(self._table))
        return rows

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

    def _end_older(self, generation: int) -> None:
        """Terminate server processes of older generations, so that their locks and COPYs end."""
        with self._control.transaction() as session:
            stubborn = terminate_older_backends(session, self._key, generation)
        if stubborn:
            log.warning("event=backends_still_alive node=%s pids=%s", self._name, stubborn)

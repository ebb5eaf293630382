"""A Delta table as a sink, exactly once.

Its atomic act is one commit: rows by append, or an upsert where there is a key; the transaction identifier;
and the record in the commit's user metadata. The driver writes small epochs of local tables, Spark all
others. Delta skips a write of Spark whose identifier is not newer, and aborts a commit that raced another
with the same identifier: a compare-and-set, also between generations. What it skips it skips silently, so
every commit is read back.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from headrace.connectors.addresses import split_location
from headrace.connectors.delta.arrow_writer import ArrowWriter
from headrace.connectors.delta.claims import claim, end_claims, read_claims
from headrace.connectors.delta.errors import explain, is_duplicate_transaction
from headrace.connectors.delta.log_replay import local_folder
from headrace.connectors.delta.log_writer import LogWriter
from headrace.connectors.delta.merge import conf_for, merge
from headrace.connectors.delta.session import USER_METADATA, open_session
from headrace.connectors.delta.table import check_columns, check_location, create
from headrace.connectors.delta.transaction_log import (
    NO_TABLE,
    DeltaCommit,
    TableLog,
    TableVersion,
    encode_commit_metadata,
    first_step,
)
from headrace.connectors.fencing import check_generation, fenced
from headrace.connectors.frame import EpochFrame
from headrace.connectors.lakehouse_rows import (
    build_merge_source,
    collect_last_rows,
    collect_small_rows,
    select_append_rows,
)
from headrace.connectors.lakehouse_sink import LakehouseSink
from headrace.connectors.session_options import with_options
from headrace.connectors.sink_base import SinkContext
from headrace.connectors.transactional_sink import CommitKind, SinkCommit, SinkState
from headrace.pipeline.errors import InternalError, SinkStateError
from headrace.pipeline.model.capabilities import SinkCapabilities
from headrace.pipeline.model.connectors import sink_entries
from headrace.pipeline.protocol.claims import Claim
from headrace.pipeline.protocol.epochs import CommitRecord, Json, WriteCounts

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_APP, _TXN = "spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion"


class _OpenTable(NamedTuple):
    """What writes and reads the table."""

    session: SparkSession
    log: TableLog
    log_writer: LogWriter
    arrow_writer: ArrowWriter | None
    """Writes small epochs of a local table; None for another file system."""


class DeltaTableSink(LakehouseSink):
    """One Delta table for one lane."""

    capabilities: ClassVar[SinkCapabilities] = sink_entries()["delta"].capabilities

    def __init__(self, context: SinkContext) -> None:
        """Store the context without opening a session."""
        super().__init__(context)
        self._app = context.key.text
        self._path: str = _absolute(context.node.path)
        self._opened: _OpenTable | None = None
        self._seen: tuple[TableVersion, DeltaCommit | None] = (NO_TABLE, None)
        """The last version that was read, and the newest commit of this sink then."""

    @property
    def target(self) -> str:
        """The table as messages name it."""
        return f"the Delta table `{self._path}`"

    def prepare_target(self, schema: pa.Schema) -> None:
        """Create the table or check its columns.

        Raise SchemaError for columns that do not fit, and TargetError for a path that is not a Delta table.
        """
        table = self._open()
        check_location(self._name, self._path, table.session)
        if not table.log.exists():
            create(self._name, table.session, self._path, schema, self._key)
        check_columns(self._name, table.session, self._path, schema, self._key)

    def validate_target(self) -> None:
        """Check an existing table. A missing table is fine, because `prepare` would create it."""
        table = self._open()
        check_location(self._name, self._path, table.session)
        if table.log.exists():
            check_columns(self._name, table.session, self._path, self._context.schema, self._key)

    def claim_target(self) -> None:
        """Add this sink's claim to the table's properties, which takes a commit."""
        table = self._open()
        claim(table.session, table.log, self._context.owner, self.target)

    def read_state(self) -> SinkState | None:
        """Return generation and record of the newest commit of this pipeline and sink.

        `version` is the version of the table and the step of the commit.
        """
        newest = self._read_newest_commit()
        version = self._seen[0]
        if newest is None:
            return SinkState(version=(version, 0)) if version.exists else None
        return SinkState(newest.generation, newest.record, (version, newest.txn), newest.lost)

    def commit(self, expected: SinkState, change: SinkCommit) -> SinkState | None:
        """Commit under the next step of the transaction identifier, then read the commit back.

        Delta skips a step that another process took. A registration is also void if another version came in
        between, because its baseline would be of an older one.
        """
        version, txn = expected.version
        txn = first_step(change.generation) if change.kind is CommitKind.FENCE else txn + 1
        record = change.record
        if change.kind is CommitKind.REGISTER and record is not None:
            record = replace(record, baseline=self._count_rows(expected))
        try:
            if change.frame is not None:
                committed = self._commit_epoch(version, txn, change, change.frame)
            elif change.kind is CommitKind.TRUNCATE:
                self._append(self._empty_rows(), txn, self._metadata(txn, record), mode="overwrite")
                committed = True
            else:
                lost = expected.lost if record is None else ""
                metadata = encode_commit_metadata(self._app, txn, record, lost=lost)
                committed = self._open().log_writer.commit(version, self._app, txn, metadata)
        except Exception as error:
            raise self._explain(error) from error
        if not committed:
            return None
        done = self._read_back(txn, change)
        if change.kind is CommitKind.REGISTER and done.version != version.number + 1:
            return None
        return SinkState(done.generation, done.record, (self._seen[0], txn))

    def find_conflicting_record(self) -> CommitRecord | None:
        """Return the record of the same pipeline name, `lane` and sink under another UUID."""
        return self._open().log.find_conflicting_record(self._context.key)

    def claims(self) -> Sequence[Claim]:
        """Return the claims in the table's properties."""
        return read_claims(self._open().log)

    def release(self, claims: Sequence[Claim]) -> None:
        """Fence each sink with a step of the generation after its own, then remove its claim."""
        table = self._open()
        snapshot = table.log.snapshot()
        steps = table.log.transactions(snapshot)
        version = table.log.version(snapshot)
        for one in claims:
            app = one.key.text
            if app in steps:
                txn = first_step((steps[app] >> 32) + 1)
                table.log_writer.commit(version, app, txn, encode_commit_metadata(app, txn, None))
        end_claims(table.session, table.log, claims)

    def read_rows(self, state: SinkState) -> DataFrame:
        """Return all rows of the table version of `state`."""
        version: TableVersion = state.version[0]
        reader = self._open().session.read.format("delta")
        return reader.option("versionAsOf", version.number).load(self._path)

    def describe(self) -> Json:
        """Return the type, asset key and location."""
        *folders, name = split_location(self._path)
        return {
            "kind": "delta",
            "asset_key": ["delta", name],
            "scope": folders,
            "table_name": name,
            "location": self._path,
        }

    def close(self) -> None:
        """Release the session. The Spark context belongs to the pipeline run."""
        self._opened = None

    def _open(self) -> _OpenTable:
        if self._opened is None:
            session = open_session(self._spark)
            table = TableLog(session, self._path)
            arrow_writer = ArrowWriter(table.replay) if table.replay is not None else None
            self._opened = _OpenTable(session, table, LogWriter(session, table), arrow_writer)
        return self._opened

    def _count_rows(self, state: SinkState) -> int:
        """Return the rows of the table version of `state`, from the log if it tells."""
        table = self._open()
        snapshot = table.log.snapshot()
        if table.arrow_writer is not None and table.log.version(snapshot) == state.version[0]:
            count = table.arrow_writer.count_rows(snapshot)
            if count is not None:
                return count
        return self.read_rows(state).count()

    def _read_newest_commit(self) -> DeltaCommit | None:
        """Return our newest commit. Only log entries since the last call are read."""
        table = self._open().log
        snapshot = table.snapshot()
        newest = table.version(snapshot)
        seen, before = self._seen
        if newest == seen:
            return before
        known = newest.identity == seen.identity and newest.number > seen.number
        found, is_restored = table.find(self._app, newest.number, seen.number + 1 if known else 0)
        found = found or (before if known and not is_restored else None)
        found = self._at_step(found, table.transactions(snapshot).get(self._app), is_restored=is_restored)
        self._seen = newest, found
        return found

    def _at_step(
        self, found: DeltaCommit | None, txn: int | None, *, is_restored: bool
    ) -> DeltaCommit | None:
        """Return our newest commit with the newest step of this sink, which the snapshot has.

        The snapshot outlives the log, so it distinguishes a lost record from a new sink. It keeps the step if
        the table is restored to an earlier version.
        """
        if txn is None or (found is not None and found.txn == txn):
            return found
        if is_restored:
            return replace(found or DeltaCommit(-1, txn, None), txn=txn)
        lost = (
            f"{self.target} remembers step {txn} of this sink, but its log no longer has the record: it was"
            " cleaned up (delta.logRetentionDuration), or the table is a clone"
        )
        return DeltaCommit(-1, txn, None, lost)

    def _commit_epoch(self, since: TableVersion, txn: int, change: SinkCommit, frame: EpochFrame) -> bool:
        """Write and commit an epoch: a small one from the driver if the table qualifies, else by Spark."""
        table = self._open()
        rows = self._collect_rows(frame)
        if rows is not None and table.arrow_writer is not None:
            snapshot = table.log.snapshot()
            written = table.arrow_writer.write(rows, frame.key, self._context.node.version_column, snapshot)
            if written is not None:
                metadata = self._metadata(txn, change.complete(written.counts))
                read_version = int(snapshot.version()) if frame.key else None
                return table.log_writer.commit(
                    since, self._app, txn, metadata, written.actions, written.counts, read_version
                )
        metadata = self._metadata(txn, change.complete(WriteCounts()), derive=True)
        if frame.key:
            self._merge(frame, rows, txn, metadata)
        else:
            self._append(select_append_rows(self._name, frame), txn, metadata)
        return True

    def _collect_rows(self, frame: EpochFrame) -> pa.Table | None:
        """Return the rows of a small epoch: all of them, or with a key the last row of each.

        Return None if Spark has to write the epoch. Rows to append are not collected in vain, because Spark
        would compute them again.
        """
        if frame.key:
            return collect_last_rows(self._name, frame, self._context.node.version_column)
        table = self._open()
        if table.arrow_writer is None or not table.arrow_writer.can_write(table.log.snapshot()):
            return None
        return collect_small_rows(frame, select_append_rows(self._name, frame))

    def _merge(self, frame: EpochFrame, last: pa.Table | None, txn: int, metadata: str) -> None:
        session, version = self._open().session, self._context.node.version_column
        source = build_merge_source(self._name, frame, session, version, last)
        options = {_APP: self._app, _TXN: str(txn), USER_METADATA: metadata, **conf_for(source)}
        with with_options(session, options):
            merge(session, self._path, source, frame, version)

    def _append(self, rows: DataFrame, txn: int, metadata: str, *, mode: str = "append") -> None:
        options = {
            "txnAppId": self._app,
            "txnVersion": txn,
            "userMetadata": metadata,
            "optimizeWrite": "false",
            "mergeSchema": "false",
        }
        rows.write.format("delta").mode(mode).options(**options).save(self._path)

    def _empty_rows(self) -> DataFrame:
        session = self._open().session
        return session.createDataFrame([], session.read.format("delta").load(self._path).schema)

    def _metadata(self, txn: int, record: CommitRecord | None, *, derive: bool = False) -> str:
        return encode_commit_metadata(self._app, txn, record, derive=derive)

    def _read_back(self, txn: int, change: SinkCommit) -> DeltaCommit:
        """Return the commit of step `txn`. Raise an error if Delta skipped it."""
        newest = self._read_newest_commit()
        if newest is not None and newest.lost and change.kind is not CommitKind.FENCE:
            raise SinkStateError(newest.lost, node=self._name)
        if newest is None or newest.txn != txn:
            check_generation(
                newest.generation if newest else None, change.generation, target=self.target, sink=self._name
            )
            msg = (
                f"Delta did not commit step {txn} to `{self._path}`; the newest one is"
                f" {newest and newest.txn}"
            )
            raise InternalError(msg, node=self._name)
        if change.plan is not None and (newest.record is None or newest.record.epoch != change.plan.number):
            msg = (
                f"the commit of epoch {change.plan.number} holds the record of epoch"
                f" {newest.record and newest.record.epoch}"
            )
            raise InternalError(msg, node=self._name)
        return newest

    def _explain(self, error: Exception) -> Exception:
        """Return the Headrace error of a failed write, or the error itself if there is none."""
        if is_duplicate_transaction(error):
            newest = self._read_newest_commit()
            if newest is not None and newest.generation > self._generation:
                return fenced(newest.generation, self._generation, target=self.target, sink=self._name)
        return explain(error, self._path, self._name)


def _absolute(path: str) -> str:
    """Return a local path as an absolute path without a scheme.

    Delta reads `.a/b` as a dotted name, and does not create a table at `file:///a`.
    """
    folder = local_folder(path)
    return path if folder is None else os.path.abspath(folder)

"""A Delta table as a sink, exactly once.

Its atomic act is one commit: rows by append, or an upsert where there is a key; the transaction identifier;
and the record in the commit's user metadata. The driver writes small epochs of local tables, Spark all
others. Delta skips a write of Spark whose identifier is not newer, and aborts a commit that raced another
with the same identifier: a compare-and-set, also between generations. What it skips it skips silently, so
every commit is read back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from headrace.connectors.content import TargetContent
from headrace.connectors.delta.claims import claim, end_claims, read_claims
from headrace.connectors.delta.commit_metadata import TableVersion, encode_commit_metadata, first_step
from headrace.connectors.delta.config import describe_table
from headrace.connectors.delta.direct import KeysMayExistError
from headrace.connectors.delta.errors import explain, is_duplicate_transaction
from headrace.connectors.delta.local_content import read_local_content
from headrace.connectors.delta.local_log import LocalTableLog
from headrace.connectors.delta.local_snapshot import absolute_path
from headrace.connectors.delta.local_versions import LocalVersions
from headrace.connectors.delta.maintenance import DeltaMaintenance
from headrace.connectors.delta.open_table import OpenTable, open_table
from headrace.connectors.delta.table import check_columns, check_location, create, create_local
from headrace.connectors.fencing import fencing_error
from headrace.connectors.lakehouse_sink import LakehouseSink, missing_table_error
from headrace.connectors.sink_base import DirectSink, SinkContext
from headrace.connectors.source_base import SplitReader
from headrace.connectors.transactional_sink import CommitKind, SinkCommit, SinkState
from headrace.pipeline.model.capabilities import SinkCapabilities
from headrace.pipeline.model.connectors import sink_entries
from headrace.pipeline.protocol.claims import Claim
from headrace.pipeline.protocol.epochs import CommitRecord, EpochPlan, Json, WriteCounts

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


class DeltaTableSink(LakehouseSink, DirectSink):
    """One Delta table for one lane."""

    capabilities: ClassVar[SinkCapabilities] = sink_entries()["delta"].capabilities

    def __init__(self, context: SinkContext) -> None:
        """Store the context without opening a session."""
        super().__init__(context)
        self._app = context.key.text
        self._path: str = absolute_path(context.node.path)
        self._opened: OpenTable | None = None
        self._loads_direct = True
        self._payload = context.schema

    @property
    def target(self) -> str:
        """The table as messages name it."""
        return f"the Delta table `{self._path}`"

    def prepare_target(self, schema: pa.Schema) -> None:
        """Create the table or check its columns.

        Raise SchemaError for columns that do not fit, and TargetError for a path that is not a Delta table.
        """
        table, self._payload = self._open(), schema
        check_location(self._name, self._path, table.session)
        if not table.log.exists() and isinstance(table.log, LocalTableLog):
            create_local(table.log, schema, self._key)
        if not table.log.exists():
            create(self._name, table.session, self._path, schema, self._key)
        self._check_columns(table, schema, add=True)

    def validate_target(self) -> None:
        """Check an existing table. A missing table is fine, because `prepare` would create it."""
        table = self._open()
        check_location(self._name, self._path, table.session)
        if table.log.exists():
            self._check_columns(table, self._context.schema, add=False)

    def _check_columns(self, table: OpenTable, schema: pa.Schema, *, add: bool) -> None:
        find_new = self._find_new(schema)
        check_columns(self._name, table.session, self._path, table.log, schema, self._key, find_new, add=add)

    def claim_target(self) -> None:
        """Add this sink's claim to the table's properties, which takes a commit."""
        claim(self._open().log, self._context.owner, self.target)

    def read_state(self) -> SinkState | None:
        """Return generation and record of the newest commit of this pipeline and sink.

        `version` is the version of the table and the step of the commit.
        """
        version, newest = self._open().history.read_newest()
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
            record = replace(record, baseline=self.count_rows(expected))
        try:
            if change.frame is not None:
                committed = self._open().epoch_writer.write(version, txn, change, change.frame)
            elif change.files is not None:
                committed = self._open().epoch_writer.commit_files(version, txn, change, change.files)
            elif change.kind is CommitKind.TRUNCATE:
                metadata = encode_commit_metadata(self._app, txn, record)
                self._open().spark_writer.truncate(txn, metadata)
                committed = True
            else:
                lost = expected.lost if record is None else ""
                metadata = encode_commit_metadata(self._app, txn, record, lost=lost)
                committed = self._open().log.commit(version, self._app, txn, metadata)
        except KeysMayExistError:
            raise
        except Exception as error:
            raise self._explain(error) from error
        if not committed:
            return None
        newest, done = self._open().history.read_back(txn, change, self._name)
        if change.kind is CommitKind.REGISTER and done.version != version.number + 1:
            return None
        return SinkState(done.generation, done.record, (newest, txn))

    def write_direct(
        self, plan: EpochPlan, fetch: SplitReader, spark: SparkSession, *, keys_spread: bool = False
    ) -> WriteCounts | None:
        """Let tasks write data files, then commit them with the record. See `delta.direct`."""
        writer = self._open().epoch_writer
        fits = not self._context.node.explain_direct_obstacle(self._payload, self._key)
        load = writer.plan_direct(fetch, self._payload, self._key) if fits and self._loads_direct else None
        advance = partial(self._advance_epoch, plan)
        counts = load.write(spark, advance, keys_spread=keys_spread) if load is not None else None
        self._loads_direct = counts is not None  # files of later epochs would be written in vain, too
        return counts

    def find_conflicting_record(self) -> CommitRecord | None:
        """Return the record of the same pipeline name, `lane` and sink under another UUID."""
        return self._open().log.find_conflicting_record(self._context.key)

    def claims(self) -> Sequence[Claim]:
        """Return the claims in the table's properties."""
        return read_claims(self._open().log)

    def release(self, claims: Sequence[Claim]) -> None:
        """Fence each sink with a step of the generation after its own, then remove its claim."""
        log = self._open().log
        snapshot = log.snapshot()
        steps = snapshot.read_transactions()
        for one in claims:
            app = one.key.text
            if app in steps:
                txn = first_step((steps[app] >> 32) + 1)
                log.commit(snapshot.version, app, txn, encode_commit_metadata(app, txn, None))
        end_claims(log, claims)

    def read_rows(self, state: SinkState) -> DataFrame:
        """Return all rows of the table version of `state`."""
        version: TableVersion = state.version[0]
        reader = self._open().session.read.format("delta")
        return reader.option("versionAsOf", version.number).load(self._path)

    def count_rows(self, state: SinkState) -> int:
        """Return the number of rows of a table version, from the log if it tells."""
        count = self._open().epoch_writer.count_rows(state.version[0])
        return super().count_rows(state) if count is None else count

    def read_local_content(
        self, state: SinkState, record: CommitRecord, columns: Sequence[str], *, is_whole: bool
    ) -> TargetContent | None:
        """See `LakehouseSink.read_local_content`. The table is on a local disk."""
        version = LocalVersions(self._path, self._context.settings).find(state.version[0].number)
        if version is None:
            return None
        return read_local_content(self._name, version, record, columns, self._key, is_whole=is_whole)

    def open_maintenance(self) -> DeltaMaintenance:
        """Return the maintenance of the table."""
        table = self._open()
        check_location(self._name, self._path, table.session)
        if not table.log.exists():
            raise missing_table_error(self.target, self._name)
        return DeltaMaintenance(self._name, self.target, self._spark, self._path)

    def describe(self) -> Json:
        """Return the type, asset key and location."""
        return describe_table(self._path)

    def close(self) -> None:
        """Release the session. The Spark context belongs to the pipeline run."""
        self._opened = None

    def _open(self) -> OpenTable:
        if self._opened is None or self._opened.is_outdated:
            self._opened = open_table(self._context, self._spark, self._path, self.target)
        return self._opened

    def _explain(self, error: Exception) -> Exception:
        """Return the Headrace error of a failed write, or the error itself if there is none."""
        if is_duplicate_transaction(error):
            _, newest = self._open().history.read_newest()
            if newest is not None and newest.generation > self._generation:
                return fencing_error(newest.generation, self._generation, target=self.target, sink=self._name)
        return explain(error, self._path, self._name)

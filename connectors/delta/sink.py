"""A Delta table as a sink, exactly once.

Its atomic act is one commit: rows by append, or by MERGE where there is a key; the transaction identifier; and the record in the
commit's user metadata. Delta skips a commit whose identifier is not newer, and aborts one that raced another with the same
identifier: a compare-and-set, also between generations. What it skips it skips silently, so every commit is read back.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.connectors.content import TargetContent
from headrace.connectors.delta.claims import claim, end_claims, read_claims
from headrace.connectors.delta.errors import explain, is_duplicate_transaction
from headrace.connectors.delta.merge import conf_for, merge
from headrace.connectors.delta.table import check_columns, check_location, create
from headrace.connectors.delta.transaction_log import DeltaCommit, TableLog, decode_commit_metadata, encode_commit_metadata, first_step
from headrace.connectors.fencing import check_generation, fenced
from headrace.connectors.frame import EpochFrame
from headrace.connectors.lakehouse import find_committed_record
from headrace.connectors.lakehouse_content import content_of
from headrace.connectors.lakehouse_rows import build_merge_source, select_append_rows
from headrace.connectors.sink_base import Sink, SinkContext
from headrace.pipeline.errors import InternalError, SinkStateError, TransientError, UserError
from headrace.pipeline.model.capabilities import SinkCapabilities
from headrace.pipeline.model.connectors import sink_entries
from headrace.pipeline.protocol.claims import Claim
from headrace.pipeline.protocol.epochs import CommitRecord, EpochPlan, Json, WriteCounts

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

_APP, _TXN = "spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion"
_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_ADAPTIVE = "spark.sql.adaptive.enabled"
_SESSION = {
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.databricks.delta.history.metricsEnabled": "true",
    "spark.databricks.delta.optimizeWrite.enabled": "false",
    "spark.databricks.delta.autoCompact.enabled": "false",  # its commit would have our identifier and metadata
    "spark.sql.session.timeZone": "UTC",
    _ADAPTIVE: "false",  # it runs a job per stage, which costs small queries more than their rows
}
_JOIN_ATTEMPTS = 5


class DeltaTableSink(Sink):
    """One Delta table for one lane."""

    capabilities: ClassVar[SinkCapabilities] = sink_entries()["delta"].capabilities

    def __init__(self, context: SinkContext) -> None:
        self._context = context
        self._app = context.key.text
        self._path: str = _absolute(context.node.path)
        self._generation = -1
        self._opened: tuple[SparkSession, TableLog] | None = None
        self._seen: tuple[str, int, DeltaCommit | None] = ("", -1, None)  # table id, last version read, commit

    def prepare(self, schema: pa.Schema, generation: int) -> None:
        """Create the table or check its columns, then fence older generations with an empty commit.

        Raise SchemaError for columns that do not fit, TargetError for a path that is not a Delta table,
        FencedError if a newer generation has already prepared the table, and SinkStateError if the table
        knows this sink but its record is missing.
        """
        session, table = self._open()
        sink, key = self._context.key.sink, tuple(self._context.extra.get("key", self._context.node.primary_key))
        check_location(sink, self._path, session)
        if not table.exists():
            create(sink, session, self._path, schema, key)
        check_columns(sink, session, self._path, schema, key)
        self._generation = generation
        held = self._read_newest_commit()
        self._check_generation(held)
        if held is None or held.generation < generation:
            record = held.record if held else None
            self._commit_empty(first_step(generation), record)
        if held is not None and held.record is not None:
            claim(session, table, self._context.owner, self._what)

    def validate_target(self) -> None:
        """Check an existing table. A missing table is fine, because `prepare` would create it."""
        session, table = self._open()
        sink, key = self._context.key.sink, tuple(self._context.extra.get("key", self._context.node.primary_key))
        check_location(sink, self._path, session)
        if table.exists():
            check_columns(sink, session, self._path, self._context.schema, key)

    def record(self) -> CommitRecord | None:
        """Return the record from the newest commit of this pipeline and sink."""
        held = self._read_newest_commit()
        return held.record if held else None

    def register(self, record: CommitRecord) -> CommitRecord:
        """Claim the table, then write the record in an empty commit.

        The baseline is counted in the version right before that commit.
        """
        self._mine()
        claim(*self._open(), self._context.owner, self._what)
        for _ in range(_JOIN_ATTEMPTS):
            held = self._mine()
            version = int(self._open()[1].snapshot().version())
            joined = replace(record, baseline=self._rows_at(version))
            found = self._commit_empty(held.txn + 1, joined)
            if found.version == version + 1:
                return joined
        msg = f"others write to the Delta table `{self._path}` continuously: its rows cannot be counted at the same time"
        raise TransientError(msg, node=self._context.key.sink)

    def truncate(self) -> None:
        """Remove all rows in one commit that sets the next transaction identifier and keeps the record."""
        held = self._mine()
        claims = self.claims()
        if any(one.key != self._context.key and one not in self._context.owner.former(claims) for one in claims):
            msg = f"other sinks write to {self._what} too"
            hint = "Delete the rows of this sink yourself, then `headrace reset FILE --keep-targets`."
            raise UserError(msg, hint=hint, node=self._context.key.sink)
        self._commit_empty(held.txn + 1, held.record, mode="overwrite")

    def write(self, plan: EpochPlan, frame: EpochFrame) -> WriteCounts:
        """Commit rows and record from epoch N-1 to N. An epoch that the table has is not rewritten."""
        held = self._mine()
        if found := find_committed_record(held.record, plan, what=f"the Delta table `{self._path}`", sink=self._context.key.sink):
            log.info("sink=%s epoch=%d already=held version=%d", self._context.key.sink, plan.number, held.version)
            return found.counts
        assert held.record is not None  # noqa: S101  `find_committed_record` refuses that
        txn = held.txn + 1
        metadata = encode_commit_metadata(self._app, txn, held.record.after_epoch(plan, self._generation, WriteCounts()), derive=True)
        try:
            self._write_rows(frame, txn, metadata)
        except Exception as error:
            raise self._explain(error) from error
        return self._read_back(txn, plan.number).counts

    def find_conflicting_record(self) -> CommitRecord | None:
        """Return the record of the same pipeline name, `lane` and sink under another UUID."""
        mine = self._context.key
        _, table = self._open()
        snapshot = table.snapshot()
        tail = f"/{mine.lane}/{mine.sink}"
        others = {app for app in table.transactions(snapshot) if app.endswith(tail) and app != self._app}
        for version, info in table.commits(int(snapshot.version())) if others else ():
            found = decode_commit_metadata(version, info, None)
            if found is None or found[0] not in others or found[1].record is None:
                continue
            if found[1].record.key.name == mine.name:
                return found[1].record
        return None

    def claims(self) -> Sequence[Claim]:
        """Return the claims in the table's properties."""
        return read_claims(self._open()[1])

    def release(self, claims: Sequence[Claim]) -> None:
        """Fence each sink with a step of the generation after its own, then remove its claim."""
        session, table = self._open()
        steps = table.transactions(table.snapshot())
        for one in claims:
            app = one.key.text
            if app in steps:
                txn = first_step((steps[app] >> 32) + 1)
                empty = session.createDataFrame([], session.read.format("delta").load(self._path).schema)
                self._append(empty, txn, encode_commit_metadata(app, txn, None), app=app)
        end_claims(session, table, claims)

    def read_row_count(self) -> tuple[CommitRecord | None, int] | None:
        """Return the record and the row count of one table version; None and 0 if there is no table.

        Return None if other sinks share the table.
        """
        if any(claim.key != self._context.key for claim in self.claims()):
            return None
        held, version = self._read_newest_commit(), self._seen[1]
        return (held.record if held else None), self._rows_at(version) if version >= 0 else 0

    def content(self, schema: pa.Schema, folder: Path, limit: int | None = None) -> TargetContent | None:
        """Return the record and the rows of one version."""
        del folder
        held, version = self._read_newest_commit(), self._seen[1]
        if held is None or held.record is None:
            return None
        spark: Any = self._context.spark
        frame = spark.read.format("delta").option("versionAsOf", version).load(self._path)
        return content_of(held.record, frame, tuple(schema.names), 0 if limit is None else self._rows_at(version), limit)

    def describe(self) -> Json:
        """Return the type, asset key and location."""
        name = self._path.rstrip("/").rsplit("/", 1)[-1]
        return {"kind": "delta", "asset_key": ["delta", name], "table_name": name, "location": self._path}

    def close(self) -> None:
        """Release the session. The Spark context belongs to the pipeline run."""
        self._opened = None

    def _open(self) -> tuple[SparkSession, TableLog]:
        if self._opened is None:
            if self._context.spark is None:
                msg = "a Delta sink was opened without a Spark session"
                raise InternalError(msg, node=self._context.key.sink)
            session = self._context.spark.newSession()  # MERGE takes identifier and metadata from the session's conf
            for key, value in _SESSION.items():
                session.conf.set(key, value)
            self._opened = session, TableLog(session, self._path)
        return self._opened

    def _read_newest_commit(self) -> DeltaCommit | None:
        """Return our newest commit. Only log entries since the last call are read."""
        _, table = self._open()
        snapshot = table.snapshot()
        newest, identity = int(snapshot.version()), table.identity(snapshot)
        seen_identity, seen, before = self._seen
        known = identity == seen_identity and newest >= seen
        if known and newest == seen:
            return before
        found = table.find(self._app, newest, seen + 1 if known else 0) or (before if known else None)
        self._compare(found, table.transactions(snapshot).get(self._app))
        self._seen = identity, newest, found
        return found

    def _compare(self, found: DeltaCommit | None, txn: int | None) -> None:
        """Raise SinkStateError if the snapshot has a newer step of this sink than the log.

        The snapshot outlives the log, so it distinguishes a lost record from a new sink.
        """
        if txn is None or (found is not None and found.txn == txn):
            return
        what = f"the newest record that its log holds is of step {found.txn}" if found else "its log no longer holds the record"
        msg = f"the Delta table `{self._path}` remembers step {txn} of this sink, but {what}"
        hint = (
            "The log was cleaned up (delta.logRetentionDuration), or the table is a clone. Use `headrace replay --from` or `accept-target`."
        )
        raise SinkStateError(msg, hint=hint, node=self._context.key.sink)

    def _mine(self) -> DeltaCommit:
        """Return our newest commit if this generation may write."""
        held = self._read_newest_commit()
        if held is None or held.generation < self._generation:
            msg = f"the Delta table `{self._path}` was replaced after it was prepared"
            raise SinkStateError(msg, hint="Use `headrace replay --from` or `accept-target`.", node=self._context.key.sink)
        self._check_generation(held)
        return held

    def _write_rows(self, frame: EpochFrame, txn: int, metadata: str) -> None:
        session, _ = self._open()
        sink = self._context.key.sink
        if not frame.key:
            self._append(select_append_rows(sink, frame), txn, metadata)
            return
        version = self._context.node.version_column
        source = build_merge_source(sink, frame, session, version)
        conf = {_APP: self._app, _TXN: str(txn), _METADATA: metadata, **conf_for(source)}
        for key, value in conf.items():
            session.conf.set(key, value)
        try:
            merge(session, self._path, source, frame, version)
        finally:
            for key in conf:
                session.conf.unset(key)
            session.conf.set(_ADAPTIVE, _SESSION[_ADAPTIVE])

    @property
    def _what(self) -> str:
        return f"the Delta table `{self._path}`"

    def _append(self, rows: DataFrame, txn: int, metadata: str, *, app: str = "", mode: str = "append") -> None:
        options = {
            "txnAppId": app or self._app,
            "txnVersion": txn,
            "userMetadata": metadata,
            "optimizeWrite": "false",
            "mergeSchema": "false",
        }
        rows.write.format("delta").mode(mode).options(**options).save(self._path)

    def _commit_empty(self, txn: int, record: CommitRecord | None, *, mode: str = "append") -> DeltaCommit:
        session, _ = self._open()
        empty = session.createDataFrame([], session.read.format("delta").load(self._path).schema)
        try:
            self._append(empty, txn, encode_commit_metadata(self._app, txn, record), mode=mode)
        except Exception as error:
            raise self._explain(error) from error
        return self._read_back_held(txn)

    def _read_back(self, txn: int, epoch: int) -> CommitRecord:
        record = self._read_back_held(txn).record
        if record is None or record.epoch != epoch:
            msg = f"the commit of epoch {epoch} holds the record of epoch {record and record.epoch}"
            raise InternalError(msg, node=self._context.key.sink)
        return record

    def _read_back_held(self, txn: int) -> DeltaCommit:
        held = self._read_newest_commit()
        if held is not None and held.txn == txn:
            return held
        self._check_generation(held)
        msg = f"Delta did not commit step {txn} to `{self._path}`; the newest one is {held and held.txn}"
        raise InternalError(msg, node=self._context.key.sink)

    def _rows_at(self, version: int) -> int:
        session, _ = self._open()
        return session.read.format("delta").option("versionAsOf", version).load(self._path).count()

    def _check_generation(self, held: DeltaCommit | None) -> None:
        """Raise FencedError if a newer generation has written the table."""
        found = held.generation if held else None
        check_generation(found, self._generation, target=self._what, sink=self._context.key.sink)

    def _explain(self, error: Exception) -> Exception:
        """Return the Headrace error of a failed write, or the error itself if there is none."""
        if is_duplicate_transaction(error):
            held = self._read_newest_commit()
            if held is not None and held.generation > self._generation:
                return fenced(held.generation, self._generation, target=self._what, sink=self._context.key.sink)
        return explain(error, self._path, self._context.key.sink)


def _absolute(path: str) -> str:
    """Return a local path without a scheme as an absolute path: Delta reads `.a/b` as a dotted name."""
    return path if ":" in path.split("/", 1)[0] else os.path.abspath(path)

"""An Iceberg table as a sink, exactly once.

Spark writes rows to a branch of the table that starts at the newest snapshot and has no readers. One commit
of the table's metadata makes them visible: it moves the main branch to the snapshot of the branch, sets the
commit record, and drops the branch. The commit is a compare-and-set against the metadata from which
generation, record and newest snapshot were read. If another writer commits first, it fails, and the sink
checks the epoch again.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.connectors.addresses import split_location
from headrace.connectors.filters import quote_identifier
from headrace.connectors.frame import EpochFrame
from headrace.connectors.iceberg.catalog import WarehouseTable
from headrace.connectors.iceberg.metadata import IcebergMetadata, IcebergSinkState
from headrace.connectors.iceberg.metadata_files import MetadataFiles
from headrace.connectors.iceberg.table import check_columns, check_warehouse, create
from headrace.connectors.iceberg.writer import append, counted, merge
from headrace.connectors.lakehouse_rows import build_merge_source, collect_last_rows, select_append_rows
from headrace.connectors.lakehouse_sink import LakehouseSink
from headrace.connectors.row_errors import explain_failure
from headrace.connectors.sink_base import SinkContext
from headrace.connectors.transactional_sink import CommitKind, SinkCommit, SinkState
from headrace.pipeline.errors import TargetError, TransientError
from headrace.pipeline.model.capabilities import SinkCapabilities
from headrace.pipeline.model.connectors import sink_entries
from headrace.pipeline.protocol.claims import Claim
from headrace.pipeline.protocol.epochs import CommitRecord, Json

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

_ATTEMPTS = 5


class IcebergTableSink(LakehouseSink):
    """One Iceberg table of a hadoop catalog for one lane.

    `SinkState.version` is the metadata that was read.
    """

    capabilities: ClassVar[SinkCapabilities] = sink_entries()["iceberg"].capabilities

    def __init__(self, context: SinkContext) -> None:
        """Store the context without opening the catalog."""
        super().__init__(context)
        self._warehouse: str | None = context.node.warehouse or context.settings.iceberg.warehouse
        self._table = WarehouseTable(self._warehouse, context.node.table_name, self._name)
        self._prune_at = 0

    @property
    def target(self) -> str:
        """The table as messages name it."""
        return f"the Iceberg table `{self._table.name}`"

    def prepare_target(self, schema: pa.Schema) -> None:
        """Create the table or check its columns, and give an empty table its first snapshot.

        Raise SchemaError for columns that do not fit, TargetError for a table of format 1, and GuaranteeError
        for a store without an atomic rename.
        """
        check_warehouse(self._name, str(self._warehouse))
        path = self._table.path(self._spark)
        self._files.repair_hint(suspect=True)
        create(self._name, self._spark, path, schema)
        check_columns(self._name, self._spark, path, schema, self._key)
        metadata = self._read_metadata()
        if metadata.version < 2:
            msg = f"{self.target} has format version 1"
            raise TargetError(
                msg, hint="ALTER TABLE … SET TBLPROPERTIES ('format-version' = '2').", node=self._name
            )
        if metadata.newest is None:
            metadata.start()

    def validate_target(self) -> None:
        """Check an existing table. A missing table is fine, because `prepare` would create it."""
        check_warehouse(self._name, str(self._warehouse))
        path = self._table.path(self._spark)
        if self._table.exists(self._spark):
            check_columns(self._name, self._spark, path, self._context.schema, self._key)

    def remove_stale_attempts(self) -> None:
        """Drop the branches of attempts that were not published, and remove old metadata."""
        for _ in range(_ATTEMPTS):
            metadata = self._read_metadata()
            branches = tuple(metadata.branches(self._branches))
            if not branches or metadata.commit_if_unchanged(drop=branches):
                self._prune(metadata)
                return

    def read_state(self) -> SinkState | None:
        """Return this sink's state in the table's properties.

        The record is None if the table was rolled back to a snapshot before it: then the sink is refused and
        can be replayed.
        """
        if not self._exists():
            return None
        metadata = self._read_metadata()
        stored = metadata.sink_state()
        if stored is None:
            return SinkState(version=metadata)
        if stored.record is not None and not metadata.contains(stored):
            log.warning(
                "sink=%s table=%s rolled back: snapshot=%s is not part of it",
                self._name,
                self._table.name,
                stored.snapshot,
            )
            return SinkState(stored.generation, None, metadata)
        return SinkState(stored.generation, stored.record, metadata)

    def commit(self, expected: SinkState, change: SinkCommit) -> SinkState | None:
        """Commit a new version of the table's metadata.

        Rows are first written to a branch without readers.
        """
        metadata: IcebergMetadata = expected.version
        if change.frame is not None:
            done = self._commit_epoch(expected, change, change.frame)
            if done is not None:
                self._prune(metadata)
            return done
        if change.kind is CommitKind.FENCE:
            stored = metadata.sink_state() or IcebergSinkState(change.generation, None, 0, None)
            fence = replace(stored, generation=change.generation, share=self._context.owner.share)
            done = metadata.commit_if_unchanged(held=fence)
            return SinkState(change.generation, expected.record) if done else None
        return self._commit_registration(metadata, change)

    def find_conflicting_record(self) -> CommitRecord | None:
        """Return the record of the same pipeline name, `lane` and sink under another UUID."""
        mine = self._context.key
        for app, stored in self._read_metadata().properties():
            if (
                app.endswith(f"/{mine.lane}/{mine.sink}")
                and app != mine.text
                and stored.record
                and stored.record.key.name == mine.name
            ):
                return stored.record
        return None

    def claims(self) -> Sequence[Claim]:
        """Return the claims of the records in the table's properties."""
        return _claims(self._read_metadata()) if self._exists() else ()

    def release(self, claims: Sequence[Claim]) -> None:
        """Fence each sink with the generation after its own and remove its record, in one commit."""
        for _ in range(_ATTEMPTS):
            metadata = self._read_metadata()
            stored = dict(metadata.properties())
            ended = {key: stored[key] for key in (claim.key.text for claim in claims) if key in stored}
            fences = {
                app: replace(state, generation=state.generation + 1, record=None)
                for app, state in ended.items()
            }
            if metadata.commit_if_unchanged(others=fences):
                return
        raise self._busy_error()

    def read_rows(self, state: SinkState) -> DataFrame:
        """Return all rows of the snapshot of `state`."""
        newest = state.version.newest_id
        frame = self._table.frame(self._spark, newest)
        return frame if newest is not None else frame.limit(0)

    def describe(self) -> Json:
        """Return the type, asset key, table name and warehouse."""
        name = self._table.name
        return {
            "kind": "iceberg",
            "asset_key": ["iceberg", *name.split(".")],
            "scope": split_location(self._warehouse or ""),
            "table_name": name,
            "location": self._warehouse,
        }

    def close(self) -> None:
        """Release planned scans. The Spark context belongs to the pipeline run."""
        self._table.close()

    @property
    def _branches(self) -> str:
        return f"headrace_{uuid.uuid5(uuid.NAMESPACE_OID, self._context.key.text).hex[:12]}_"

    @cached_property
    def _files(self) -> MetadataFiles:
        return MetadataFiles(self._spark, self._table)

    def _exists(self) -> bool:
        """Return whether the table exists. From then on Iceberg opens its newest version."""
        self._files.repair_hint()
        return self._table.exists(self._spark)

    def _read_metadata(self) -> IcebergMetadata:
        return IcebergMetadata(self._spark, self._table, self._context.key.text, self._files)

    def _prune(self, metadata: IcebergMetadata) -> None:
        """Remove old metadata if that is due and Headrace's to do."""
        if metadata.is_pruned and metadata.number >= self._prune_at:
            self._prune_at = metadata.number + self._files.prune()

    def _commit_registration(self, metadata: IcebergMetadata, change: SinkCommit) -> SinkState | None:
        """Set the first record, and remove the states that it replaces.

        The same step detects a rival's claim.
        """
        assert change.record is not None  # noqa: S101
        owner, claims = self._context.owner, _claims(metadata)
        owner.refuse(claims, self.target)
        record = replace(change.record, baseline=self.read_rows(SinkState(version=metadata)).count())
        former = [claim.key.text for claim in owner.former(claims)]
        done = metadata.commit_if_unchanged(held=self._stored(metadata.newest, change, record), remove=former)
        return SinkState(change.generation, record) if done else None

    def _commit_epoch(self, expected: SinkState, change: SinkCommit, frame: EpochFrame) -> SinkState | None:
        """Write rows to a new branch, then publish it.

        Return None if another writer changed rows or record.
        """
        branch, begun = f"{self._branches}{uuid.uuid4().hex[:8]}", expected.version.newest_id
        if not expected.version.commit_if_unchanged(begin=branch):
            return None
        published = None
        try:
            self._write_rows(frame, branch)
            while published is None:
                state = self._read_own_state()
                metadata: IcebergMetadata = state.version
                staged = metadata.branch(branch)
                if staged is None or metadata.newest_id != begun or state.record != expected.record:
                    return None
                record = change.complete(counted(staged, begun, keyed=bool(frame.key)))
                stored = self._stored(staged, change, record)
                if metadata.commit_if_unchanged(held=stored, main=int(staged.snapshotId()), drop=(branch,)):
                    published = SinkState(change.generation, record)
            self._read_back(published)
        except Exception as error:
            raise self._explain(error) from error
        finally:
            if published is None:
                self._drop(branch)
        return published

    def _write_rows(self, frame: EpochFrame, branch: str) -> None:
        path = self._table.path(frame.spark)
        target = f"{path}.{quote_identifier('branch_' + branch)}"
        if not frame.key:
            append(select_append_rows(self._name, frame), frame.spark.table(path).schema, target)
            return
        version = self._context.node.version_column
        last = collect_last_rows(self._name, frame, version)
        source = build_merge_source(self._name, frame, frame.spark, version, last)
        merge(source, target, frame, version)

    def _read_back(self, published: SinkState) -> None:
        """Raise TransientError if another writer's concurrent commit replaced this one.

        This happens on file systems whose rename replaces an existing file. Raise FencedError if a newer
        generation prepared the target meanwhile.
        """
        assert published.record is not None  # noqa: S101
        epoch, state = published.record.epoch, self._read_checked_state()
        if state.generation != published.generation or state.record is None or state.record.epoch != epoch:
            msg = f"the commit of epoch {epoch} to {self.target} was lost to another one of the same moment"
            raise TransientError(msg, node=self._name)

    def _drop(self, branch: str) -> None:
        """Drop a branch that was not published. If this fails, the next `prepare` drops it."""
        try:
            for _ in range(_ATTEMPTS):
                metadata = self._read_metadata()
                if metadata.branch(branch) is None or metadata.commit_if_unchanged(drop=(branch,)):
                    return
        except Exception as error:  # noqa: BLE001  the error that led here is more useful
            log.debug("sink=%s branch=%s left=%s", self._name, branch, error)

    def _stored(self, snapshot: Any, change: SinkCommit, record: CommitRecord) -> IcebergSinkState:
        share = self._context.owner.share
        return IcebergSinkState(
            change.generation, int(snapshot.snapshotId()), int(snapshot.sequenceNumber()), record, share
        )

    def _explain(self, error: Exception) -> Exception:
        """Return the Headrace error of a failed write, or the error itself if there is none."""
        if found := explain_failure(error):
            return found
        text = str(error)
        if "ValidationException" in text or "CommitFailedException" in text:
            reason = text.split("\n", maxsplit=1)[0]
            return TransientError(
                f"another writer changed {self.target} at the same moment: {reason}", node=self._name
            )
        return error


def _claims(metadata: IcebergMetadata) -> list[Claim]:
    return [
        Claim(stored.record.key, stored.share, stored.record.epoch)
        for _, stored in metadata.properties()
        if stored.record is not None
    ]

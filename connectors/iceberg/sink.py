"""An Iceberg table as a sink, exactly once.

Spark writes rows to a branch of the table that starts at the newest snapshot and has no readers. One commit
of the table's metadata makes them visible: it moves the main branch to the snapshot of the branch, sets the
commit record, and drops the branch. The commit is a compare-and-set against the metadata from which
generation, record and newest snapshot were read. If another writer commits first, it fails, and the sink
checks the epoch again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from headrace.connectors.addresses import split_location
from headrace.connectors.frame import EpochFrame
from headrace.connectors.iceberg.branches import EpochBranches
from headrace.connectors.iceberg.catalog import WarehouseTable
from headrace.connectors.iceberg.errors import explain
from headrace.connectors.iceberg.maintenance import IcebergMaintenance
from headrace.connectors.iceberg.metadata import IcebergMetadata, IcebergSinkState
from headrace.connectors.iceberg.metadata_files import MetadataFiles
from headrace.connectors.iceberg.table import check_columns, check_warehouse, create
from headrace.connectors.iceberg.writer import read_counts, write_epoch
from headrace.connectors.lakehouse_sink import LakehouseSink, missing_table_error
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
        self._branches = EpochBranches(context.key, self._read_metadata)

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
        check_columns(self._name, self._spark, path, schema, self._key, self._find_new(schema), add=True)
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
            schema = self._context.schema
            check_columns(self._name, self._spark, path, schema, self._key, self._find_new(schema), add=False)

    def remove_stale_attempts(self) -> None:
        """Drop the branches of attempts that were not published, and remove old metadata."""
        self._branches.drop_all()
        self._read_metadata().prune()

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
                "event=table_rolled_back node=%s table=%s snapshot=%s",
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
                metadata.prune()
            return done
        if change.kind is CommitKind.FENCE:
            stored = metadata.sink_state() or IcebergSinkState(change.generation, None, 0, None)
            fence = replace(stored, generation=change.generation, share=self._context.owner.share)
            done = metadata.commit_if_unchanged(state=fence)
            return SinkState(change.generation, expected.record) if done else None
        return self._commit_registration(metadata, change)

    def find_conflicting_record(self) -> CommitRecord | None:
        """Return the record of the same pipeline name, `lane` and sink under another UUID."""
        return self._read_metadata().find_conflicting_record(self._context.key)

    def claims(self) -> Sequence[Claim]:
        """Return the claims of the records in the table's properties."""
        return self._read_metadata().claims() if self._exists() else ()

    def release(self, claims: Sequence[Claim]) -> None:
        """Fence each sink with the generation after its own and remove its record, in one commit."""
        for _ in range(_ATTEMPTS):
            if self._read_metadata().fence([claim.key.text for claim in claims]):
                return
        raise self._busy_error()

    def read_rows(self, state: SinkState) -> DataFrame:
        """Return all rows of the snapshot of `state`."""
        newest = state.version.newest_id
        frame = self._table.frame(self._spark, newest)
        return frame if newest is not None else frame.limit(0)

    def open_maintenance(self) -> IcebergMaintenance:
        """Return the maintenance of the table."""
        check_warehouse(self._name, str(self._warehouse))
        self._table.path(self._spark)  # registers the catalog, and requires a warehouse
        if not self._exists():
            raise missing_table_error(self.target, self._name)
        return IcebergMaintenance(self._name, self.target, self._spark, self._table, self._read_metadata)

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

    @cached_property
    def _files(self) -> MetadataFiles:
        return MetadataFiles(self._spark, self._table)

    def _exists(self) -> bool:
        """Return whether the table exists. From then on Iceberg opens its newest version."""
        self._files.repair_hint()
        return self._table.exists(self._spark)

    def _read_metadata(self) -> IcebergMetadata:
        return IcebergMetadata(self._spark, self._table, self._context.key.text, self._files)

    def _commit_registration(self, metadata: IcebergMetadata, change: SinkCommit) -> SinkState | None:
        """Set the first record and remove the states that it replaces. The step detects a rival's claim."""
        assert change.record is not None  # noqa: S101
        owner, claims = self._context.owner, metadata.claims()
        owner.refuse(claims, self.target)
        record = replace(change.record, baseline=self.read_rows(SinkState(version=metadata)).count())
        former = [claim.key.text for claim in owner.former(claims)]
        state = IcebergSinkState.at(metadata.newest, change.generation, record, share=owner.share)
        done = metadata.commit_if_unchanged(state=state, remove=former)
        return SinkState(change.generation, record) if done else None

    def _commit_epoch(self, expected: SinkState, change: SinkCommit, frame: EpochFrame) -> SinkState | None:
        """Write rows to a new branch, then publish it.

        Return None if another writer changed rows or record.
        """
        begun = expected.version.newest_id
        branch = self._branches.begin(expected.version)
        if branch is None:
            return None
        published = None
        try:
            path = self._table.path(self._spark)
            write_epoch(self._name, frame, path, branch, self._context.node.version_column)
            while published is None:
                state = self._read_own_state()
                metadata: IcebergMetadata = state.version
                staged = metadata.branch(branch)
                if staged is None or metadata.newest_id != begun or state.record != expected.record:
                    return None
                record = change.complete(read_counts(staged, begun, keyed=bool(frame.key)))
                share = self._context.owner.share
                stored = IcebergSinkState.at(staged, change.generation, record, share=share)
                if metadata.commit_if_unchanged(state=stored, main=int(staged.snapshotId()), drop=(branch,)):
                    published = SinkState(change.generation, record)
            self._read_back(published)
        except Exception as error:
            raise explain(error, self.target, self._name) from error
        finally:
            if published is None:
                self._branches.drop(branch)
        return published

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

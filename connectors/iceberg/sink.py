"""An Iceberg table as a sink, exactly once.

Spark writes rows to a branch of the table that starts at the newest snapshot and has no readers. One commit of the table's
metadata makes them visible: it moves the main branch to the snapshot of the branch, sets the commit record, and drops the branch.
The commit is a compare-and-set against the metadata from which generation, record and newest snapshot were read. If another
writer commits first, it fails, and the sink checks the epoch again.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.connectors.content import TargetContent
from headrace.connectors.fencing import check_generation
from headrace.connectors.filters import quote_identifier
from headrace.connectors.frame import EpochFrame
from headrace.connectors.iceberg.catalog import WarehouseTable
from headrace.connectors.iceberg.metadata import IcebergMetadata, IcebergSinkState
from headrace.connectors.iceberg.table import check_columns, check_warehouse, create
from headrace.connectors.iceberg.writer import append, counted, merge
from headrace.connectors.lakehouse import find_committed_record
from headrace.connectors.lakehouse_content import content_of
from headrace.connectors.lakehouse_rows import build_merge_source, select_append_rows
from headrace.connectors.row_errors import explain_failure
from headrace.connectors.sink_base import Sink, SinkContext
from headrace.pipeline.errors import InternalError, SinkStateError, TargetError, TransientError
from headrace.pipeline.model.capabilities import SinkCapabilities
from headrace.pipeline.model.connectors import sink_entries
from headrace.pipeline.protocol.claims import Claim
from headrace.pipeline.protocol.epochs import CommitRecord, EpochPlan, Json, WriteCounts

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_ATTEMPTS = 5


class IcebergTableSink(Sink):
    """One Iceberg table of a hadoop catalog for one lane."""

    capabilities: ClassVar[SinkCapabilities] = sink_entries()["iceberg"].capabilities

    def __init__(self, context: SinkContext) -> None:
        self._context = context
        self._name: str = context.key.sink
        self._warehouse: str | None = context.node.warehouse or context.settings.iceberg.warehouse
        self._table = WarehouseTable(self._warehouse, context.node.table_name, self._name)
        self._generation = -1

    # --- the contract

    def prepare(self, schema: pa.Schema, generation: int) -> None:
        """Create the table or check its columns, fence older generations and drop their branches.

        Raise SchemaError for columns that do not fit, TargetError for a table of format 1, GuaranteeError for
        a store without an atomic rename, and FencedError if a newer generation has already prepared the
        table.
        """
        spark = self._spark
        check_warehouse(self._name, str(self._warehouse))
        path = self._table.path(spark)
        create(self._name, spark, path, schema)
        check_columns(self._name, spark, path, schema, tuple(self._context.extra.get("key", self._context.node.primary_key)))
        self._generation = generation
        for _ in range(_ATTEMPTS):
            state = self._state()
            if state.version < 2:
                msg = f"the Iceberg table `{self._table.name}` has format version 1"
                raise TargetError(msg, hint="ALTER TABLE … SET TBLPROPERTIES ('format-version' = '2').", node=self._name)
            if state.newest is None:
                state.start()
                continue
            held = state.sink_state()
            self._check_generation(held)
            fence = replace(held or IcebergSinkState(generation, None, 0, None), generation=generation, share=self._context.owner.share)
            if state.commit_if_unchanged(held=fence, drop=tuple(state.branches(self._branches))):
                return
        raise self._busy()

    def validate_target(self) -> None:
        """Check an existing table. A missing table is fine, because `prepare` would create it."""
        spark, key = self._spark, tuple(self._context.extra.get("key", self._context.node.primary_key))
        check_warehouse(self._name, str(self._warehouse))
        path = self._table.path(spark)
        if self._table.exists(spark):
            check_columns(self._name, spark, path, self._context.schema, key)

    def record(self) -> CommitRecord | None:
        """Return the table's current record, or None if there is no table."""
        return self._record(self._state()) if self._table.exists(self._spark) else None

    def register(self, record: CommitRecord) -> CommitRecord:
        """Write the record with the table's current row count as baseline.

        The same step detects a rival's concurrent claim.
        """
        owner = self._context.owner
        for _ in range(_ATTEMPTS):
            state = self._state()
            self._mine(state)
            claims = _claims(state)
            owner.refuse(claims, f"the Iceberg table `{self._table.name}`")
            joined = replace(record, baseline=self._rows_at(state))
            former = [claim.key.text for claim in owner.former(claims)]
            if state.commit_if_unchanged(held=self._holding(state.newest, joined), remove=former):
                return joined
        raise self._busy()

    def write(self, plan: EpochPlan, frame: EpochFrame) -> WriteCounts:
        """Commit rows and record from epoch N-1 to N. An epoch that the table has is not rewritten."""
        for _ in range(_ATTEMPTS):
            state = self._state()
            self._mine(state)
            if found := self._already(state, plan):
                return found.counts
            branch = f"{self._branches}{uuid.uuid4().hex[:8]}"
            if not state.commit_if_unchanged(begin=branch):
                continue
            if counts := self._publish(plan, frame, branch, state.newest_id):
                return counts
        raise self._busy()

    def find_conflicting_record(self) -> CommitRecord | None:
        """Return the record of the same pipeline name, `lane` and sink under another UUID."""
        mine = self._context.key
        for app, held in self._state().properties():
            if app.endswith(f"/{mine.lane}/{mine.sink}") and app != mine.text and held.record and held.record.key.name == mine.name:
                return held.record
        return None

    def claims(self) -> Sequence[Claim]:
        """Return the claims of the records in the table's properties."""
        return _claims(self._state()) if self._table.exists(self._spark) else ()

    def release(self, claims: Sequence[Claim]) -> None:
        """Fence each sink with the generation after its own and remove its record, in one commit."""
        for _ in range(_ATTEMPTS):
            state = self._state()
            there = dict(state.properties())
            ended = {key: there[key] for key in (claim.key.text for claim in claims) if key in there}
            fenced = {app: replace(held, generation=held.generation + 1, record=None) for app, held in ended.items()}
            if state.commit_if_unchanged(others=fenced):
                return
        raise self._busy()

    def read_row_count(self) -> tuple[CommitRecord | None, int] | None:
        """Return the record and the row count of one table state; None and 0 if there is no table.

        Return None if other sinks share the table.
        """
        if not self._table.exists(self._spark):
            return None, 0
        state = self._state()
        if any(claim.key != self._context.key for claim in _claims(state)):
            return None
        return self._record(state), self._rows_at(state)

    def content(self, schema: pa.Schema, folder: Path, limit: int | None = None) -> TargetContent | None:
        """Return the record and the rows of one snapshot."""
        del folder
        if not self._table.exists(self._spark):
            return None
        state = self._state()
        if (record := self._record(state)) is None:
            return None
        frame = self._table.frame(self._spark, state.newest_id)
        return content_of(record, frame, tuple(schema.names), 0 if limit is None else self._rows_at(state), limit)

    def describe(self) -> Json:
        """Return the type, asset key, table name and warehouse."""
        name = self._table.name
        return {"kind": "iceberg", "asset_key": ["iceberg", *name.split(".")], "table_name": name, "location": self._warehouse}

    def close(self) -> None:
        """Release planned scans. The Spark context belongs to the pipeline run."""
        self._table.close()

    # --- reading

    @property
    def _spark(self) -> SparkSession:
        if self._context.spark is None:
            msg = "an Iceberg sink was opened without a Spark session"
            raise InternalError(msg, node=self._name)
        return self._context.spark

    @property
    def _branches(self) -> str:
        return f"headrace_{uuid.uuid5(uuid.NAMESPACE_OID, self._context.key.text).hex[:12]}_"

    def _state(self) -> IcebergMetadata:
        return IcebergMetadata(self._spark, self._table, self._context.key.text)

    def _record(self, state: IcebergMetadata) -> CommitRecord | None:
        """Return the record, or None if the table was rolled back to before it.

        Without a record the sink is refused and can be replayed.
        """
        held = state.sink_state()
        if held is None or held.record is None:
            return None
        if not state.contains(held):
            log.warning("sink=%s table=%s rolled back: snapshot=%s is not part of it", self._name, self._table.name, held.snapshot)
            return None
        return held.record

    def _mine(self, state: IcebergMetadata) -> IcebergSinkState:
        """Return this sink's state if this generation may write."""
        held = state.sink_state()
        self._check_generation(held)
        if held is None or held.generation < self._generation:
            msg = f"the Iceberg table `{self._table.name}` was replaced after it was prepared"
            raise SinkStateError(msg, hint="Use `headrace replay --from` or `accept-target`.", node=self._name)
        return held

    def _already(self, state: IcebergMetadata, plan: EpochPlan) -> CommitRecord | None:
        """Return the record if it is of this epoch. Raise SinkStateError if the epoch cannot follow it."""
        return find_committed_record(self._record(state), plan, what=f"the Iceberg table `{self._table.name}`", sink=self._name)

    def _rows_at(self, state: IcebergMetadata) -> int:
        return self._table.frame(self._spark, state.newest_id).count() if state.newest_id is not None else 0

    # --- writing

    def _publish(self, plan: EpochPlan, frame: EpochFrame, branch: str, begun: int | None) -> WriteCounts | None:
        """Write rows to the branch, then commit. Return None if another writer changed the table's rows."""
        left = True
        try:
            self._write_rows(frame, branch)
            while True:
                state = self._state()
                held, staged = self._mine(state), state.branch(branch)
                if found := self._already(state, plan):
                    return found.counts
                if staged is None or state.newest_id != begun:
                    return None
                counts = counted(staged, begun, keyed=bool(frame.key))
                assert held.record is not None  # noqa: S101  `_already` refuses that
                record = held.record.after_epoch(plan, self._generation, counts)
                if state.commit_if_unchanged(held=self._holding(staged, record), main=int(staged.snapshotId()), drop=(branch,)):
                    left = False
                    self._read_back(record)
                    return counts
        except Exception as error:
            raise self._explain(error) from error
        finally:
            if left:
                self._drop(branch)

    def _write_rows(self, frame: EpochFrame, branch: str) -> None:
        path = self._table.path(frame.spark)
        target = f"{path}.{quote_identifier('branch_' + branch)}"
        if not frame.key:
            append(select_append_rows(self._name, frame), frame.spark.table(path).schema, target)
            return
        version = self._context.node.version_column
        merge(build_merge_source(self._name, frame, frame.spark, version), target, frame, version)

    def _read_back(self, record: CommitRecord) -> None:
        """Raise TransientError if another writer's concurrent commit replaced this one.

        This happens on file systems whose rename replaces an existing file.
        """
        held = self._state().sink_state()
        if held is None or held.generation > self._generation or held.record is None or held.record.epoch != record.epoch:
            msg = f"the commit of epoch {record.epoch} to the Iceberg table `{self._table.name}` was lost to another one of the same moment"
            raise TransientError(msg, node=self._name)

    def _drop(self, branch: str) -> None:
        """Drop a branch that was not published. If this fails, the next `prepare` drops it."""
        try:
            for _ in range(_ATTEMPTS):
                state = self._state()
                if state.branch(branch) is None or state.commit_if_unchanged(drop=(branch,)):
                    return
        except Exception as error:  # noqa: BLE001  the error that led here is more useful
            log.debug("sink=%s branch=%s left=%s", self._name, branch, error)

    def _holding(self, snapshot: Any, record: CommitRecord) -> IcebergSinkState:
        share = self._context.owner.share
        return IcebergSinkState(self._generation, int(snapshot.snapshotId()), int(snapshot.sequenceNumber()), record, share)

    # --- errors

    def _check_generation(self, held: IcebergSinkState | None) -> None:
        """Raise FencedError if a newer generation has the table."""
        found = held.generation if held else None
        check_generation(found, self._generation, target=f"the Iceberg table `{self._table.name}`", sink=self._name)

    def _busy(self) -> TransientError:
        return TransientError(f"others write to the Iceberg table `{self._table.name}` without pause", node=self._name)

    def _explain(self, error: Exception) -> Exception:
        """Return the Headrace error of a failed write, or the error itself if there is none."""
        if found := explain_failure(error):
            return found
        text = str(error)
        if "ValidationException" in text or "CommitFailedException" in text:
            said = text.split("\n", maxsplit=1)[0]
            return TransientError(
                f"another writer changed the Iceberg table `{self._table.name}` at the same moment: {said}", node=self._name
            )
        return error


def _claims(state: IcebergMetadata) -> list[Claim]:
    return [Claim(held.record.key, held.share, held.record.epoch) for _, held in state.properties() if held.record is not None]

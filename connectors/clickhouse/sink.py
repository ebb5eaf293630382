"""A ClickHouse table as a sink, exactly once, on one server without Keeper.

An epoch is staged, announced, attached and recorded:

1. Rows are inserted into the staging table. They carry `insert_time`, epoch and attempt.
2. The state gets the epoch as pending, with its attempt and number of rows.
3. `ATTACH PARTITION ALL FROM` the staging table adds the rows to the target.
4. The state gets the record of the epoch.

After an interruption the next run, or the next attempt, first opens a staging table of its own, which shuts
out every earlier writer (`stage`). Then it counts the rows of the pending attempt in the target. All: the
epoch is committed. None: it is not. Some, without a key: they are removed. Some, with a key: the epoch is
written again, and its rows replace them.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import urlsplit

import pyarrow as pa

from headrace.connectors.clickhouse.client import SINK, connect
from headrace.connectors.clickhouse.commit_table import CommitTable, PendingEpoch, TableSinkState
from headrace.connectors.clickhouse.config import ClickHouseSinkConfig
from headrace.connectors.clickhouse.direct import DirectSplits
from headrace.connectors.clickhouse.loader import StageLoad, now_micros
from headrace.connectors.clickhouse.sink_content import TableReader
from headrace.connectors.clickhouse.sink_table import SinkTable, TargetTable
from headrace.connectors.clickhouse.snapshot import ClickHouseTableInfo
from headrace.connectors.clickhouse.stage import GenerationStage
from headrace.connectors.content import TargetContent
from headrace.connectors.fencing import fencing_error
from headrace.connectors.lakehouse_rows import (
    build_merge_source,
    collect_append_rows,
    collect_last_rows,
    select_append_rows,
)
from headrace.connectors.row_errors import explain_failure
from headrace.connectors.sink_base import DirectSink, SinkContext
from headrace.connectors.source_base import SplitReader
from headrace.connectors.split_tasks import count_task_threads
from headrace.connectors.transactional_sink import CommitKind, SinkCommit, SinkState, TransactionalSink
from headrace.pipeline.errors import TargetError
from headrace.pipeline.model.capabilities import SinkCapabilities
from headrace.pipeline.model.connectors import sink_entries
from headrace.pipeline.protocol.claims import Claim
from headrace.pipeline.protocol.epochs import CommitRecord, EpochPlan, Json, WriteCounts

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client
    from pyspark.sql import SparkSession

    from headrace.connectors.target_query import TargetQuery


class ClickHouseSink(TransactionalSink, DirectSink):
    """One table. Delivery is exactly once: see this module.

    With a key the table is a ReplacingMergeTree: its readers use FINAL.
    """

    capabilities: ClassVar[SinkCapabilities] = sink_entries()["clickhouse"].capabilities

    def __init__(self, context: SinkContext) -> None:
        """Store the context without opening a connection."""
        super().__init__(context)
        self._node: ClickHouseSinkConfig = context.node
        settings = context.settings.clickhouse_sink
        chosen = {"compression": self._node.compression, "compression_level": self._node.compression_level}
        self._connection = settings.model_copy(
            update={key: value for key, value in chosen.items() if value is not None}
        )
        self._opened: Client | None = None
        self._checked: SinkTable | None = None
        self._stage: GenerationStage | None = None
        self._commits: CommitTable | None = None
        self._state: TableSinkState | None = None
        """The own entry, valid while there is a staging table."""

    @property
    def target(self) -> str:
        """The table as messages name it."""
        return self._table.display_name

    def prepare(self, schema: pa.Schema, generation: int) -> None:
        """Forget the staging table of an earlier `prepare`, then prepare the table."""
        self._stage = None
        super().prepare(schema, generation)

    def prepare_target(self, schema: pa.Schema) -> None:
        """Create the table and the table of commit records, or add columns and check them."""
        self._table.check_rows(schema)
        self._table.create(schema)
        if new := self._table.find_new_columns(schema):
            self._table.add_columns(new)
        self._log.create()
        self._checked = self._table.check(self._find(), schema)

    def validate_target(self) -> None:
        """Check the options and an existing table. `prepare` would create a missing table or column."""
        self._table.check_rows(self._context.schema)
        if (info := self._table.find()) is not None:
            new = self._table.find_new_columns(self._context.schema)
            rest = [field for field in self._context.schema if field not in new]
            self._table.check(info, pa.schema(rest))

    def read_state(self) -> SinkState | None:
        """Return generation and record of this sink's entry; the record is None for a table made again.

        After `prepare` this opens the staging table and decides about a pending epoch, unless a newer
        generation has an entry.
        """
        info = self._table.find()
        if info is None:
            return None
        if self._generation < 0:
            return _state_in(info, self._settle(info, self._read_own()))
        if self._stage is None:
            result = self._read_own()
            if result is not None and result.generation > self._generation:
                return _state_in(info, result)
            stage = GenerationStage(self._client, self._name, info, self._context.key.text)
            stage.open(self._generation)
            self._state = self._settle(info, self._read_own(), repair=True)
            self._stage = stage
        return _state_in(info, self._state)

    def commit(self, expected: SinkState, change: SinkCommit) -> SinkState:
        """Make the change and write the state.

        Raise FencedError if a newer run dropped the staging table. After any other error the next call
        of `read_state` decides about the epoch.
        """
        info: ClickHouseTableInfo = expected.version
        stage, record = self._stage, change.record
        assert stage is not None  # noqa: S101
        state = self._state or TableSinkState(change.generation, info.uuid, None)
        try:
            attempt = None
            if change.kind is CommitKind.EPOCH:
                state, record, attempt = self._write_epoch(stage, state, change)
            elif change.kind is CommitKind.TRUNCATE:
                stage.empty_target()
            else:
                stage.count()  # The table is missing if a newer run dropped it.
            pending = state.pending if change.kind is CommitKind.FENCE else None
            state = replace(
                state, generation=change.generation, table_id=info.uuid, record=record, pending=pending
            )
            self._write_own(state)
            if attempt is not None:
                stage.clear()
                if self._key and not self._node.append_only_mode:
                    self._table.remove_deleted(attempt)
        except Exception as error:
            raise self._explain(error) from error
        self._state = state
        return _state_in(info, state)

    def write_direct(
        self, plan: EpochPlan, fetch: SplitReader, spark: SparkSession, *, keys_spread: bool = False
    ) -> WriteCounts | None:
        """Let tasks stage the splits."""
        assert not keys_spread  # noqa: S101  the sink has not `SinkCapabilities.orders_splits`
        payload, master = self._context.schema, self._context.settings.spark.master
        if self._node.explain_direct_obstacle(payload, self._key):
            return None
        splits = DirectSplits(fetch, payload, self._key, spark, count_task_threads(master))
        return self._advance_epoch(plan, lambda change: replace(change, files=splits))

    def claim_target(self) -> None:
        """Add this sink's claim, then read all claims, and withdraw if there is a rival.

        Of two sinks that claim the table at the same time at most one stays. The writers of claims that this
        one replaces are fenced first.
        """
        owner, info = self._context.owner, self._find()
        claims = self._log.read_claims(info.uuid)
        owner.refuse(claims, self.target)
        mine = [claim for claim in claims if claim.key == owner.key and claim.share == owner.share]
        if not mine:
            self._log.write_claim(owner.key, info.uuid, share=owner.share)
            if owner.rivals(claims := self._log.read_claims(info.uuid)):
                self._log.end_claim(owner.key)
                owner.refuse(claims, self.target)
        self.release(owner.former(claims))

    def claims(self) -> Sequence[Claim]:
        """Return the claims in the table of commit records. A table made again has none."""
        info = self._table.find()
        return [] if info is None else self._log.read_claims(info.uuid)

    def release(self, claims: Sequence[Claim]) -> None:
        """Fence each sink with the generation after its own, remove its record, then its claim."""
        for claim in claims:
            info, state = self._find(), self._log.read_state(claim.key.text)
            stage = GenerationStage(self._client, self._name, info, claim.key.text)
            newest = max(state.generation if state else 0, stage.find_generation() or 0)
            stage.open(newest + 1)
            ended = TableSinkState(newest + 1, info.uuid, None, state.clock if state else 0)
            self._log.write_state(claim.key.text, ended)
            self._log.end_claim(claim.key)

    def has_partial_epoch(self, plan: EpochPlan) -> bool:
        """Return whether an interrupted attempt at the epoch may have left rows. Only with a key."""
        del plan
        return self._state is not None and self._state.pending is not None

    def find_conflicting_record(self) -> CommitRecord | None:
        """Return the record of the same pipeline name, `lane` and sink under another UUID."""
        key = self.find_conflicting_key()
        state = self._log.read_state(key.text) if key is not None else None
        return state.record if state is not None else None

    def read_row_count(self) -> tuple[CommitRecord | None, int] | None:
        """Return the record and the number of rows, without those that FINAL leaves out.

        Return None if other sinks share the table.
        """
        info = self._table.find()
        if info is None:
            return None, 0
        if any(claim.key != self._context.key for claim in self._log.read_claims(info.uuid)):
            return None
        reader = TableReader(self._client, self._name, info)
        return reader.read_stable(self.record, reader.count)

    def content(self, schema: pa.Schema, folder: Path, limit: int | None = None) -> TargetContent | None:
        """Return the record and the rows. The record is read before and after them, and must be the same."""
        del folder
        info = self._table.find()
        if info is None:
            return None
        reader = TableReader(self._client, self._name, info)
        columns = reader.comparable(schema)
        record, rows = reader.read_stable(self.record, lambda: reader.read(schema, columns, limit))
        return None if record is None else TargetContent(record, None, columns, table=rows)

    def query_target(self) -> TargetQuery | None:
        """Return queries of the table as it is at each statement."""
        info = self._table.find()
        if info is None:
            return None
        reader = TableReader(self._client, self._name, info)
        is_shared = any(claim.key != self._context.key for claim in self._log.read_claims(info.uuid))
        return reader.open_query(self.record(), is_shared=is_shared)

    def describe(self) -> Json:
        """Return the type, asset key and table name from the file and the settings, without a query."""
        first, dot, rest = self._node.table.partition(".")
        address = (first, rest) if dot else (self._connection.database or "default", first)
        return {
            "kind": "clickhouse",
            "asset_key": ["clickhouse", *address],
            "scope": [urlsplit(self._connection.url).netloc.rpartition("@")[2]],
            "table_name": ".".join(address),
        }

    def close(self) -> None:
        """Close the connection. The staging table stays: its name keeps the generation."""
        self._stage = self._commits = None
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    @property
    def _client(self) -> Client:
        if self._opened is None:
            self._opened = connect(self._connection, self._name, SINK)
        return self._opened

    @property
    def _key(self) -> tuple[str, ...]:
        return tuple(self._context.extra.get("key", self._node.primary_key))

    @property
    def _table(self) -> TargetTable:
        return TargetTable(self._client, self._name, self._node, self._key)

    @property
    def _log(self) -> CommitTable:
        if self._commits is None:
            self._commits = CommitTable(self._client, self._name, self._table.database, self._table.table)
        return self._commits

    def _find(self) -> ClickHouseTableInfo:
        if (info := self._table.find()) is None:
            msg = f"{self.target} does not exist"
            raise TargetError(msg, node=self._name)
        return info

    def _read_own(self) -> TableSinkState | None:
        return self._log.read_state(self._context.key.text)

    def _write_own(self, state: TableSinkState) -> None:
        self._log.write_state(self._context.key.text, state)

    def _settle(
        self, info: ClickHouseTableInfo, state: TableSinkState | None, *, repair: bool = False
    ) -> TableSinkState | None:
        """Return the state without its pending epoch: with its record if the target has all its rows.

        It stays pending if there is a key and the target may have some of the rows. With `repair`, write
        the record, or remove the rows.
        """
        if state is None or state.pending is None or state.table_id != info.uuid:
            return state
        pending, table = state.pending, self._table
        rows = table.count_attempt(pending.attempt)
        if rows is None:
            return state
        if rows == pending.rows or (self._key and rows > pending.rows):
            state = replace(state, record=pending.record, pending=None)
            if repair:
                state = replace(state, generation=self._generation)
                self._write_own(state)
        elif rows == 0 or not self._key:
            if rows and repair:
                table.remove_attempt(pending.attempt)
            state = replace(state, pending=None)
        return state

    def _write_epoch(
        self, stage: GenerationStage, state: TableSinkState, change: SinkCommit
    ) -> tuple[TableSinkState, CommitRecord, int | None]:
        """Stage and attach the rows of an epoch. Return the state, the record to write, and the attempt.

        The attempt is None for an epoch without rows.
        """
        assert change.plan is not None  # noqa: S101
        load = self._load(stage, change.plan.number, max(now_micros(), state.clock + 1))
        rows = self._stage_rows(load, change)
        stage.check_rows(rows, self.target)
        record = change.complete(WriteCounts(rows, None, None, None))
        state = replace(state, generation=change.generation, clock=load.clock)
        if rows:
            self._write_own(replace(state, pending=PendingEpoch(record, load.attempt, rows)))
            stage.attach()
            stage.check_rows(rows, self.target)
        return state, record, load.attempt if rows else None

    def _load(self, stage: GenerationStage, epoch: int, clock: int) -> StageLoad:
        if self._checked is None:
            self._checked = self._table.check(self._find(), self._context.schema)
        return StageLoad(
            self._name,
            self._connection,
            stage.name,
            self._checked.columns,
            self._checked.rules,
            epoch,
            secrets.randbits(63),
            clock,
            self._node.version_column,
        )

    def _stage_rows(self, load: StageLoad, change: SinkCommit) -> int:
        """Stage the rows of an epoch: with a key the last row of each. Return their number."""
        frame, splits = change.frame, change.files
        if isinstance(splits, DirectSplits):
            return splits.stage(load)
        assert frame is not None  # noqa: S101
        if frame.key:
            version = self._node.version_column
            few = collect_last_rows(self._name, frame, version)
            if few is None:
                rows = build_merge_source(self._name, frame, frame.spark, version, None).rows
                return load.run(rows)
        else:
            few = collect_append_rows(self._name, frame)
            if few is None:
                return load.run(select_append_rows(self._name, frame))
        return load.load(few.to_batches())

    def _explain(self, error: Exception) -> Exception:
        """Forget the staging table, and return the error to raise: FencedError if a newer run dropped it."""
        stage, self._stage, self._state = self._stage, None, None
        result = explain_failure(error) or error
        if isinstance(result, TargetError) and stage is not None:
            newest = stage.find_generation()
            if newest is not None and newest > self._generation:
                return fencing_error(newest, self._generation, target=self.target, sink=self._name)
        return result


def _state_in(info: ClickHouseTableInfo, table_sink_state: TableSinkState | None) -> SinkState:
    """Return the state that holds for a table: without the record if its rows were in a former table."""
    if table_sink_state is None:
        return SinkState(version=info)
    record = table_sink_state.record if table_sink_state.table_id == info.uuid else None
    return SinkState(table_sink_state.generation, record, info)

"""What all paths into the target share, and the path of small epochs: the driver's connection alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute
from psycopg import sql

from headrace.connectors.lakehouse_rows import last_of_sorted, sort_rows
from headrace.connectors.postgres.commit_store import RecordStore
from headrace.connectors.postgres_client.errors import UniqueError
from headrace.connectors.postgres_client.session import Loader, LoadSession, Session
from headrace.connectors.postgres_table.convert import RowChecks, wire_schema
from headrace.connectors.postgres_table.marks import MARKS, Rows, mark_rows
from headrace.connectors.postgres_table.merge import (
    POSITION,
    ConflictPolicy,
    StagedMerge,
    StagingTable,
    create_stage,
)
from headrace.connectors.postgres_table.refused import RefusedRows
from headrace.connectors.postgres_table.refusing_merge import RefusingMerge
from headrace.connectors.postgres_table.target import PostgresTarget
from headrace.pipeline.protocol.epochs import EpochPlan, WriteCounts
from headrace.pipeline.sql.system_columns import OP
from headrace.pipeline.types.arrow import is_nested

pc: Any = pyarrow.compute
"""Its functions are made at import, so type checkers do not see them."""
TEMPORARY = "_headrace_rows"
_NEW_KEYS = 5_000
"""Rows from which a COPY that fails, which costs a connection, is worth its chance."""
_LONGEST_PAUSE = 64


@dataclass(frozen=True, slots=True)
class LoadContext:
    """A prepared sink, as the paths into it need it. `schema` is the payload's. Picklable."""

    node: str
    target: PostgresTarget
    schema: pa.Schema
    policy: ConflictPolicy
    checks: RowChecks
    generation: int
    refused: RefusedRows | None = None
    """Where rows go that the table refuses; None: they fail the epoch."""

    @property
    def marks(self) -> Mapping[str, str]:
        """The columns of staging tables for rows that the checks refuse, with their types."""
        return {} if self.refused is None else MARKS

    def screen(self, rows: Rows) -> tuple[Rows, int]:
        """Return the rows to stage and the number of deletes.

        Raise DataError for a row that cannot be loaded; with `refused`, mark it instead.
        """
        return (rows, self.checks.check(rows)) if self.refused is None else mark_rows(self.checks, rows)

    def create_temporary(self, session: LoadSession, *, one_per_key: bool = False) -> StagingTable:
        """Create the table `TEMPORARY`, which lives until the transaction ends."""
        table, tail = sql.Identifier("pg_temp", TEMPORARY), "ON COMMIT DROP"
        session.run(create_stage(self.target, table, kind="TEMPORARY", tail=tail, one_per_key=one_per_key))
        return StagingTable(table, one_per_key=one_per_key)

    @property
    def can_find_last(self) -> bool:
        """Whether the driver can choose the rows of an epoch that a merge would choose.

        With a key it cannot if the server must choose: by a policy, or because it alone knows which keys are
        equal.
        """
        return not self.target.key or (self.policy.plain and self.target.has_plain_keys)

    def find_last_rows(self, rows: pa.Table) -> pa.Table:
        """Return the last row of each key, or all rows without a key, without positions."""
        if self.target.key:
            ordered = sort_rows(rows, [rows[name] for name in POSITION])
            rows = last_of_sorted(ordered, self.target.key)
        return rows.drop_columns(list(POSITION))

    def merge(self, session: Session, stage: StagingTable, epoch: int, *, deletes: bool) -> WriteCounts:
        """Merge staged rows into the target. `deletes` is whether any of them is a delete.

        With `refused`, the session must be a control session: ADBC cannot go on after an error.
        """
        if self.refused is not None:
            merge = RefusingMerge(self.refused, session, self.target, self.policy, epoch, deletes=deletes)
            return merge.run(stage)
        return StagedMerge(self.target, stage, self.policy).run(session, deletes=deletes)


@dataclass(slots=True)
class NewKeyLoad:
    """Chooses epochs whose rows COPY writes into the target itself: no key of them may be there already.

    That takes half the time of a merge, which stages the rows and looks for each key. A key that is there
    fails the COPY. Its epoch is merged, and so are the next ones: twice as many after each failure. Deletes
    of other keys are staged.
    """

    _pause: int = 0
    """Epochs that were merged after the last failure."""
    _left: int = 0
    """Epochs to merge before the next attempt."""

    def accepts(self, load: LoadContext, rows: pa.Table) -> bool:
        """Return whether COPY should try to write the upserts of an epoch."""
        target = load.target
        if not (target.is_bare and target.supports_direct_copy) or load.refused is not None:
            return False
        if rows.num_rows < (_NEW_KEYS if target.key else 1) or not _are_wired(rows, load.schema):
            return False
        if self._left:
            self._left -= 1
            return False
        return True

    def note_failure(self) -> None:
        """Merge the next epochs, because a key was in the target."""
        self._left = self._pause = min(_LONGEST_PAUSE, 2 * self._pause or 1)

    def note_success(self) -> None:
        """Try the next epoch too."""
        self._pause = 0


def _are_wired(rows: pa.Table, schema: pa.Schema) -> bool:
    """Return whether rows have the types that COPY takes for a payload."""
    if any(is_nested(field.type) for field in schema):
        return False
    return rows.select(schema.names).schema.types == wire_schema(schema).types


def write_table(
    loader: Loader,
    store: RecordStore,
    load: LoadContext,
    plan: EpochPlan,
    rows: pa.Table,
    new_keys: NewKeyLoad,
) -> WriteCounts:
    """Write rows and record in one transaction.

    A crash before its commit leaves nothing. After the commit, the record shows that the epoch is written.
    """
    deletes = bool(load.checks.check(rows))
    if chosen := load.can_find_last:
        rows = load.find_last_rows(rows)
        upserts = rows.filter(pc.not_equal(rows[OP], "d")) if deletes else rows
        if new_keys.accepts(load, upserts):
            deleted = rows.filter(pc.equal(rows[OP], "d")) if deletes else None
            try:
                counts = _write_epoch(
                    loader, store, load, plan, rows, lambda session: _copy(session, load, upserts, deleted)
                )
            except UniqueError:
                new_keys.note_failure()
            else:
                new_keys.note_success()
                return counts

    def merge(session: LoadSession) -> WriteCounts:
        stage = load.create_temporary(session, one_per_key=chosen)
        session.load(TEMPORARY, rows, schema=None)
        return load.merge(session, stage, plan.number, deletes=deletes)

    return _write_epoch(loader, store, load, plan, rows, merge)


def _copy(
    session: LoadSession, load: LoadContext, upserts: pa.Table, deleted: pa.Table | None
) -> WriteCounts:
    """Apply the deletes, and COPY new rows into the target. Raise UniqueError for a key that is there."""
    counts = WriteCounts(upserts.num_rows, upserts.num_rows, 0, 0)
    if deleted is not None:
        stage = load.create_temporary(session, one_per_key=True)
        session.load(TEMPORARY, deleted, schema=None)
        counts += StagedMerge(load.target, stage, load.policy).delete(session)
    session.load(load.target.table, upserts.select(load.schema.names), schema=load.target.schema)
    return counts


def _write_epoch(
    loader: Loader,
    store: RecordStore,
    load: LoadContext,
    plan: EpochPlan,
    rows: pa.Table,
    write: Callable[[LoadSession], WriteCounts],
) -> WriteCounts:
    """Write rows by `write`, then the record. Return the counts, or those of an epoch that is there."""
    with loader.transaction() as session:
        row = store.lock_for_epoch(session, plan, load.generation)
        if isinstance(row, WriteCounts):
            return row
        counts = write(session) if rows.num_rows else WriteCounts()
        store.advance(session, row, plan, load.generation, counts)
    return counts

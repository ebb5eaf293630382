"""What all paths into the target share, and the path of small epochs: the driver's connection alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
from psycopg import sql

from headrace.connectors.postgres.commit_store import RecordStore
from headrace.connectors.postgres.convert import RowChecks
from headrace.connectors.postgres.marks import MARKS, Rows, mark_rows
from headrace.connectors.postgres.merge import ConflictPolicy, StagedMerge, StagingTable, create_stage
from headrace.connectors.postgres.refused import RefusedRows
from headrace.connectors.postgres.refusing_merge import RefusingMerge
from headrace.connectors.postgres.session import Loader, LoadSession, Session
from headrace.connectors.postgres.target import PostgresTarget
from headrace.pipeline.protocol.epochs import EpochPlan, WriteCounts

TEMPORARY = "_headrace_rows"


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

    def create_temporary(self, session: LoadSession) -> StagingTable:
        """Create the table `TEMPORARY`, which lives until the transaction ends."""
        table = sql.Identifier("pg_temp", TEMPORARY)
        session.run(create_stage(self.target, table, kind="TEMPORARY", tail="ON COMMIT DROP"))
        return StagingTable(table)

    def merge(self, session: Session, stage: StagingTable, epoch: int, *, deletes: bool) -> WriteCounts:
        """Merge staged rows into the target. `deletes` is whether any of them is a delete.

        With `refused`, the session must be a control session: ADBC cannot go on after an error.
        """
        if self.refused is not None:
            merge = RefusingMerge(self.refused, session, self.target, self.policy, epoch, deletes=deletes)
            return merge.run(stage)
        return StagedMerge(self.target, stage, self.policy).run(session, deletes=deletes)


def write_table(
    loader: Loader, store: RecordStore, load: LoadContext, plan: EpochPlan, rows: pa.Table
) -> WriteCounts:
    """Write rows and record in one transaction.

    A crash before its commit leaves nothing. After the commit, the record shows that the epoch is written.
    """
    deletes = load.checks.check(rows)
    with loader.transaction() as session:
        row = store.lock_for_epoch(session, plan, load.generation)
        if isinstance(row, WriteCounts):
            return row
        counts = WriteCounts()
        if rows.num_rows:
            stage = load.create_temporary(session)
            session.load(TEMPORARY, rows, schema=None)
            counts = load.merge(session, stage, plan.number, deletes=bool(deletes))
        store.advance(session, row, plan, load.generation, counts)
    return counts

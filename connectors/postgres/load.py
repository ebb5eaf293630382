"""What all paths into the target share, and the path of small epochs: the driver's connection alone."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from psycopg import sql

from headrace.connectors.postgres.commit_store import RecordStore
from headrace.connectors.postgres.convert import RowChecks
from headrace.connectors.postgres.merge import ConflictPolicy, StagedMerge, StagingTable, create_stage
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

    def create_temporary(self, session: LoadSession) -> StagingTable:
        """Create the table `TEMPORARY`, which lives until the transaction ends."""
        table = sql.Identifier("pg_temp", TEMPORARY)
        session.run(create_stage(self.target, table, kind="TEMPORARY", tail="ON COMMIT DROP"))
        return StagingTable(table)

    def merge(self, session: Session, stage: StagingTable, *, deletes: bool) -> WriteCounts:
        """Merge staged rows into the target. `deletes` is whether any of them is a delete."""
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
            counts = load.merge(session, stage, deletes=bool(deletes))
        store.advance(session, row, plan, load.generation, counts)
    return counts

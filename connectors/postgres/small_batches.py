"""Small epochs: the driver alone, one connection, one transaction for rows and record."""

from __future__ import annotations

import pyarrow as pa
from psycopg import sql

from headrace.connectors.postgres.commit_store import RecordStore
from headrace.connectors.postgres.load import LoadContext
from headrace.connectors.postgres.merge import StagingTable, create_stage, merge
from headrace.connectors.postgres.session import Loader
from headrace.pipeline.protocol.epochs import EpochPlan, WriteCounts

TEMPORARY = "_headrace_rows"


def write_table(
    loader: Loader, store: RecordStore, load: LoadContext, plan: EpochPlan, rows: pa.Table
) -> WriteCounts:
    """Write rows and record in one transaction.

    A crash before its commit leaves nothing. After the commit, the record shows that the epoch is written.
    """
    deletes = load.checks.check(rows)
    with loader.transaction() as session:
        held = store.lock_for_epoch(session, plan, load.generation)
        if isinstance(held, WriteCounts):
            return held
        load.refuse_marked(plan, marked=held.marked)
        counts = WriteCounts()
        if rows.num_rows:
            table = sql.Identifier("pg_temp", TEMPORARY)
            session.run(create_stage(load.target, table, kind="TEMPORARY", tail="ON COMMIT DROP"))
            session.load(TEMPORARY, rows, schema=None)
            counts = merge(session, load.target, StagingTable(table), load.policy, deletes=bool(deletes))
        store.advance(session, held, plan, load.generation, counts)
    return counts

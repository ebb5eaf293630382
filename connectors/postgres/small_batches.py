"""Small epochs: the driver alone, one connection, one transaction for rows and record."""

from __future__ import annotations

import pyarrow as pa
from psycopg import sql

from headrace.connectors.postgres.commit_store import RecordStore
from headrace.connectors.postgres.load import Load
from headrace.connectors.postgres.merge import Stage, create_stage, merge
from headrace.connectors.postgres.session import Loader
from headrace.pipeline.protocol.epochs import Counts, EpochPlan

TEMPORARY = "_headrace_rows"


def write_table(loader: Loader, store: RecordStore, load: Load, plan: EpochPlan, rows: pa.Table) -> Counts:
    """Rows and record in one transaction. Dying anywhere before its commit leaves nothing; after it, the record tells."""
    deletes = load.checks.check(rows)
    with loader.transaction() as session:
        held = store.expect(session, plan, load.generation)
        if isinstance(held, Counts):
            return held
        load.refuse_marked(plan, marked=held.marked)
        counts = Counts()
        if rows.num_rows:
            table = sql.Identifier("pg_temp", TEMPORARY)
            session.run(create_stage(load.target, table, kind="TEMPORARY", tail="ON COMMIT DROP"))
            session.load(TEMPORARY, rows, schema=None)
            counts = merge(session, load.target, Stage(table), load.policy, deletes=bool(deletes))
        store.advance(session, held, plan, load.generation, counts)
    return counts

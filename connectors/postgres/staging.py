"""Large epochs: tasks COPY into an unlogged staging table, then the driver merges and writes the record.

What may go wrong, and what holds it: a task that is run twice leaves rows of a losing attempt (only returned
attempts are merged); a server crash empties unlogged tables (staged rows are counted against what tasks
returned, in the merging transaction); a driver that was overtaken cannot set the record. Tables are named
after sink and generation, one per try, so that nothing of another try can lie in them.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from psycopg import sql

from headrace.connectors.postgres.commit_store import SCHEMA, RecordStore
from headrace.connectors.postgres.load import LoadContext
from headrace.connectors.postgres_client.session import Address, ControlConnection, Loader, digest
from headrace.connectors.postgres_table.merge import ATTEMPT, StagingTable, create_stage
from headrace.connectors.task_failures import TaskFailure, raise_task_failure
from headrace.pipeline.errors import HeadraceError, TargetError, TransientError
from headrace.pipeline.protocol.epochs import EpochPlan, SinkKey, WriteCounts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

TRIES = 3
RESULT = "attempt bigint, rows bigint, deletes bigint, failure string"
_SORT_MEMORY = (
    "SELECT set_config('work_mem', '64MB', true) WHERE"
    " pg_size_bytes(current_setting('work_mem')) < pg_size_bytes('64MB')"
)
"""Memory for the sort of the merge, in its transaction only. The default spills from about 10,000 rows."""
_RESULT = pa.schema(
    [("attempt", pa.int64()), ("rows", pa.int64()), ("deletes", pa.int64()), ("failure", pa.string())]
)


@dataclass(frozen=True, slots=True)
class StagedAttempt:
    """What one task attempt says that it staged."""

    attempt: int
    rows: int
    deletes: int


@dataclass(frozen=True, slots=True)
class StagingCopyTask:
    """What a Spark task runs: one COPY of its rows, committed at the end. Picklable."""

    address: Address
    table: str
    load: LoadContext

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return one row for the running attempt. The row contains an error with its class and hint."""
        from pyspark import TaskContext

        context = TaskContext.get()
        attempt = context.taskAttemptId() if context else -1
        rows = deletes = 0
        failure = None
        try:
            rows, deletes = self._load(batches, attempt)
        except HeadraceError as error:
            failure = TaskFailure.of(error).to_json()
        yield pa.RecordBatch.from_pylist(
            [{"attempt": attempt, "rows": rows, "deletes": deletes, "failure": failure}], schema=_RESULT
        )

    def copy_table(self, rows: pa.Table) -> list[StagedAttempt]:
        """COPY rows of the driver, without Spark."""
        return [StagedAttempt(0, *self._load(iter(rows.to_batches()), 0))]

    def _load(self, batches: Iterator[pa.RecordBatch], attempt: int) -> tuple[int, int]:
        result = next((batch for batch in batches if batch.num_rows), None)
        if result is None:
            return 0, 0
        first, deletes = self.load.screen(result)
        rows = first.num_rows

        def screen_batches() -> Iterator[pa.RecordBatch]:
            nonlocal rows, deletes
            yield first
            for batch in batches:
                checked, some = self.load.screen(batch)
                rows, deletes = rows + checked.num_rows, deletes + some
                yield checked

        def mark_batches() -> Iterator[pa.RecordBatch]:
            for batch in screen_batches():
                yield batch.append_column(ATTEMPT, pa.repeat(pa.scalar(attempt, pa.int64()), batch.num_rows))

        schema = first.schema.append(pa.field(ATTEMPT, pa.int64()))
        loader = Loader(self.address)
        try:
            with loader.transaction() as session:
                session.stream(self.table, schema, mark_batches(), schema=SCHEMA)
        finally:
            loader.close()
        return rows, deletes


def write_staged(
    control: ControlConnection,
    address: Address,
    store: RecordStore,
    load: LoadContext,
    plan: EpochPlan,
    rows: DataFrame | pa.Table,
) -> WriteCounts:
    """Stage rows and merge them in the driver. Stage again if the server lost staged rows.

    `rows` are flat. Tasks stage those of a frame.
    """
    for _ in range(TRIES):
        table = f"{_prefix(store.key)}{load.generation}_e{plan.number}_{secrets.token_hex(3)}"
        identifier = sql.Identifier(SCHEMA, table)
        with control.transaction() as session:
            row = store.lock_for_epoch(session, plan, load.generation)
            if isinstance(row, WriteCounts):
                return row
            session.run(
                create_stage(load.target, identifier, kind="UNLOGGED", more={ATTEMPT: "BIGINT", **load.marks})
            )
        try:
            task = StagingCopyTask(address, table, load)
            staged = task.copy_table(rows) if isinstance(rows, pa.Table) else copy_to_staging(rows, task)
            if (counts := _merge(control, store, load, plan, identifier, staged)) is not None:
                return counts
        finally:
            drop_staging_tables(control, [table])
    msg = f"staged rows of epoch {plan.number} were lost {TRIES} times in a row"
    raise TransientError(msg, node=load.node, hint="The server seems to crash again and again: see its log.")


def copy_to_staging(rows: DataFrame, task: StagingCopyTask) -> list[StagedAttempt]:
    """Run the tasks and return what each winning attempt staged.

    This is a plain collect: no exchange follows the write, so no task runs for less than its full result.
    """
    names = rows.columns

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return task(batch.rename_columns(names) for batch in batches)

    # mapInArrow does not quote names, so columns are passed by index.
    results = rows.toDF(*(f"c{at}" for at in range(len(names)))).mapInArrow(run, RESULT).collect()
    raise_task_failure(result.failure for result in results)
    return [StagedAttempt(result.attempt, result.rows, result.deletes) for result in results]


def _merge(
    control: ControlConnection,
    store: RecordStore,
    load: LoadContext,
    plan: EpochPlan,
    table: sql.Identifier,
    staged: Sequence[StagedAttempt],
) -> WriteCounts | None:
    """Count, merge and record in one transaction. Return None, with nothing changed, if rows are missing."""
    with control.transaction() as session:
        row = store.lock_for_epoch(session, plan, load.generation)
        if isinstance(row, WriteCounts):
            return row
        rows_by_attempt = {one.attempt: one.rows for one in staged if one.rows}
        query = sql.SQL("SELECT {0}, count(*) FROM {1} GROUP BY 1").format(sql.Identifier(ATTEMPT), table)
        there = dict(session.run(query))
        short = [attempt for attempt, rows in rows_by_attempt.items() if there.get(attempt, 0) != rows]
        if short:
            log.warning("event=staged_rows_lost node=%s epoch=%d attempts=%s", load.node, plan.number, short)
            return None
        counts = WriteCounts()
        if rows_by_attempt:
            session.run(_SORT_MEMORY)
            winners = None if rows_by_attempt.keys() == there.keys() else list(rows_by_attempt)
            deletes = any(one.deletes for one in staged)
            counts = load.merge(session, StagingTable(table, winners), plan.number, deletes=deletes)
        store.advance(session, row, plan, load.generation, counts)
    return counts


def _prefix(key: SinkKey) -> str:
    return f"stage_{digest(key)}_g"


def drop_stale_staging_tables(control: ControlConnection, key: SinkKey, generation: int) -> None:
    """Drop the staging tables that older generations of this sink left."""
    with control.transaction() as session:
        rows = session.run(
            "SELECT tablename FROM pg_tables"
            " WHERE schemaname = $1 AND starts_with(tablename::text, $2::text)",
            SCHEMA,
            _prefix(key),
        )
    names = [name for (name,) in rows]
    stale = [name for name in names if int(name.removeprefix(_prefix(key)).split("_")[0]) < generation]
    drop_staging_tables(control, stale)


def drop_staging_tables(control: ControlConnection, tables: Sequence[str]) -> None:
    """Drop staging tables. A table that a dying task still locks is left to the next generation."""
    for table in tables:
        try:
            with control.transaction() as session:
                session.run("SET LOCAL lock_timeout = '2s'")
                session.run(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(SCHEMA, table)))
        except (TransientError, TargetError) as error:
            log.warning("event=staging_table_not_dropped table=%s error=%s", table, error.message)

"""The merge of an epoch whose rows the table may refuse, in the transaction of the epoch.

All rows of the epoch are staged once. If their merge fails, it is rolled back to a savepoint, and the first
refused row is found by a binary search: a prefix that the table takes stays merged, so a row costs about
log2(n) merges. Merges of consecutive prefixes have the effect of one merge: see `merge`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from psycopg import sql

from headrace.connectors.postgres_client.errors import translate_errors
from headrace.connectors.postgres_client.session import Session, trusted_sql
from headrace.connectors.postgres_table.merge import (
    NUMBER,
    POSITION,
    ConflictPolicy,
    StagedMerge,
    StagingTable,
    create_stage,
)
from headrace.connectors.postgres_table.refused import RefusedRows
from headrace.pipeline.errors import DataError
from headrace.pipeline.model.error_outputs import LIMITED_ROWS
from headrace.pipeline.protocol.epochs import WriteCounts
from headrace.pipeline.sql.system_columns import OP

if TYPE_CHECKING:
    from headrace.connectors.postgres_table.target import PostgresTarget

log = logging.getLogger(__name__)
_MOST = 1_000
"""Rows of one epoch that are found by merges, at most. Each costs merges of the rows around it."""
_SHOWN = 300
"""Letters of a reason that an error shows."""


class RefusingMerge:
    """The merge of one epoch, row by row where that is needed."""

    def __init__(
        self,
        refused: RefusedRows,
        session: Session,
        target: PostgresTarget,
        policy: ConflictPolicy,
        epoch: int,
        *,
        deletes: bool,
    ) -> None:
        self._refused = refused
        self._session = session
        self._target = target
        self._policy = policy
        self._epoch = epoch
        self._deletes = deletes
        self._rows = self._found = self._stored = self._attempts = 0
        self._reason = ""

    def run(self, stage: StagingTable) -> WriteCounts:
        """Merge the rows of a staging table, and store those that the target refuses.

        Raise DataError if they are more than `max_error_rate` allows.
        """
        session = self._session
        self._refused.remove(session, self._epoch)
        # A deferred constraint would fail the commit, which does not name a row.
        session.run("SET CONSTRAINTS ALL IMMEDIATE")
        ((self._rows,),) = session.run(
            sql.SQL("SELECT count(*) FROM {} r {}").format(stage.table, stage.condition), *stage.values()
        )
        self._move_marked(stage)
        counts = self._try(stage)
        if isinstance(counts, DataError):
            counts = self._merge_in_parts(*self._number(stage))
        if self._found:
            log.warning(
                "event=rows_refused node=%s epoch=%d rows=%d of=%d merges=%d error=%s",
                self._refused.node,
                self._epoch,
                self._found,
                self._rows,
                self._attempts,
                self._reason,
            )
        return counts

    def _merge_in_parts(self, numbered: sql.Identifier, last: int) -> WriteCounts:
        """Merge all rows from 1 to `last` but those that the target refuses. It refuses one at least."""
        counts, first = WriteCounts(), 1
        while first <= last:
            low, high, error = first, last, None
            while low < high:
                middle = (low + high - 1) // 2
                result = self._try(StagingTable(numbered, span=(low, middle)))
                if isinstance(result, DataError):
                    high, error = middle, result if low == middle else None
                else:
                    counts, low = counts + result, middle + 1
            # By itself, because the error of several rows may be that of another one.
            result = error or self._try(StagingTable(numbered, span=(low, low)))
            if isinstance(result, DataError):
                self._store(numbered, low, result.message)
            else:
                counts += result
            first = low + 1
            if first <= last:
                result = self._try(StagingTable(numbered, span=(first, last)))
                if not isinstance(result, DataError):
                    return counts + result
        return counts

    def _try(self, stage: StagingTable) -> WriteCounts | DataError:
        """Return the counts of a merge, or why the target refuses a row of it. Nothing has changed then."""
        session = self._session
        self._attempts += 1
        session.run("SAVEPOINT headrace_rows")
        try:
            with translate_errors(self._refused.node):
                counts = StagedMerge(self._target, stage, self._policy).run(session, deletes=self._deletes)
        except DataError as error:
            session.run("ROLLBACK TO SAVEPOINT headrace_rows")
            return error
        session.run("RELEASE SAVEPOINT headrace_rows")
        return counts

    def _number(self, stage: StagingTable) -> tuple[sql.Identifier, int]:
        """Copy the staged rows to a temporary table, numbered by position. Return it and the last number."""
        table = sql.Identifier("pg_temp", "_headrace_numbered")
        names = [column.name for column in self._target.columns]
        columns = sql.SQL(", ").join(map(sql.Identifier, [*names, OP, *POSITION]))
        order = sql.SQL(", ").join(map(sql.Identifier, POSITION))
        session, more = self._session, {NUMBER: "BIGINT"}
        session.run(create_stage(self._target, table, kind="TEMPORARY", tail="ON COMMIT DROP", more=more))
        query = trusted_sql(
            "INSERT INTO {} SELECT {}, row_number() OVER (ORDER BY {}, r.ctid) FROM {} r {} RETURNING 1"
        ).format(table, columns, order, stage.table, stage.condition)
        counted = sql.SQL("WITH put AS ({}) SELECT count(*) FROM put").format(query)
        ((last,),) = session.run(counted, *stage.values())
        session.run(trusted_sql("CREATE INDEX ON {} (_gs_number)").format(table))
        return table, last

    def _store(self, numbered: sql.Identifier, number: int, reason: str) -> None:
        """Store a row that the target refuses."""
        payload = sql.SQL(", ").join(
            sql.SQL("r.{0}::json AS {0}" if column.name in self._refused.nested else "r.{0}").format(
                sql.Identifier(column.name)
            )
            for column in self._target.columns
        )
        row = sql.SQL("(SELECT row_to_json(c)::text FROM (SELECT {}) c)").format(payload)
        stage = StagingTable(numbered, span=(number, number))
        self._insert(stage, sql.SQL("$3::text"), row, reason)
        self._stored += 1
        self._check_rate(reason)

    def _move_marked(self, stage: StagingTable) -> None:
        """Store the rows that the checks refuse, and remove them from the staging table."""
        marked = _Marked(stage.table, stage.attempts)
        reasons = self._session.run(
            sql.SQL("SELECT r._gs_reason FROM {} r {} LIMIT 1").format(stage.table, marked.condition),
            *marked.values(),
        )
        if not reasons:
            return
        self._insert(marked, sql.SQL("r._gs_reason"), sql.SQL("r._gs_row"))
        removal = sql.SQL("DELETE FROM {} r {}").format(stage.table, marked.condition)
        self._session.run(removal, *marked.values())
        self._check_rate(reasons[0][0])

    def _insert(
        self, stage: StagingTable, reason: sql.Composable, row: sql.Composable, *values: object
    ) -> None:
        after = self._found
        self._found += self._refused.insert(self._session, self._epoch, after, stage, reason, row, *values)

    def _check_rate(self, reason: str) -> None:
        """Raise DataError if the epoch has more refused rows than `max_error_rate` allows."""
        self._reason = self._reason or reason[:_SHOWN]
        rate = self._refused.max_error_rate
        is_within = self._rows < LIMITED_ROWS or self._found <= self._rows * rate
        if is_within and self._stored <= _MOST:
            return
        limit = f"one epoch may have {_MOST:,}" if is_within else f"`max_error_rate` {rate:g} allows fewer"
        msg = (
            f"the table refuses {self._found:,} or more of {self._rows:,} rows, and {limit}; the first one:"
            f" {self._reason}"
        )
        hint = "Nothing of the epoch is written. Correct the rows or the table, or raise `max_error_rate`."
        raise DataError(msg, hint=hint, node=self._refused.node)


class _Marked(StagingTable):
    """The rows of a staging table that the checks refuse."""

    @property
    def condition(self) -> sql.Composable:
        """See `StagingTable.condition`."""
        marked = "r._gs_reason IS NOT NULL"
        if self.attempts is None:
            return trusted_sql(f"WHERE {marked}")
        return trusted_sql(f"WHERE r._gs_attempt = ANY($1::bigint[]) AND {marked}")

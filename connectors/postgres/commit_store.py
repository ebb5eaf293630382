"""The schema `headrace` of the target's database: a row per sink key, and markers of direct loads.

Every change of a row is a compare-and-set under the generation that `announce` wrote. A marker is written
first in the transaction that loads its split. So a split is loaded once, whichever task, try or process gets
to it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from psycopg import sql

from headrace.connectors.fencing import fencing_error
from headrace.connectors.postgres_client.session import Session, trusted_sql
from headrace.connectors.transactional_sink import SinkState, find_committed_record
from headrace.pipeline.errors import SinkStateError
from headrace.pipeline.protocol.claims import Claim, TargetClaimant
from headrace.pipeline.protocol.epochs import CommitRecord, EpochPlan, SinkKey, WriteCounts

log = logging.getLogger(__name__)

SCHEMA = "headrace"

_TABLES = (
    "CREATE SCHEMA IF NOT EXISTS headrace",
    """CREATE TABLE IF NOT EXISTS headrace.records (
        pipeline text NOT NULL, lane text NOT NULL, sink text NOT NULL,
        name text NOT NULL, target text NOT NULL, target_oid bigint, shared boolean,
        generation bigint NOT NULL, epoch bigint, body jsonb, changed_at timestamptz NOT NULL DEFAULT now(),
        PRIMARY KEY (pipeline, lane, sink))""",
    """CREATE TABLE IF NOT EXISTS headrace.splits (
        pipeline text NOT NULL, lane text NOT NULL, sink text NOT NULL, epoch bigint NOT NULL,
        split text NOT NULL,
        generation bigint NOT NULL, rows bigint, inserted bigint, updated bigint,
        PRIMARY KEY (pipeline, lane, sink, epoch, split))""",
)
_UPGRADES = ("ALTER TABLE headrace.records ADD COLUMN IF NOT EXISTS shared boolean",)
_CURRENT = (
    "SELECT EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('headrace.records') AND"
    " attname = 'shared')"
)
_EXISTS = "SELECT to_regclass('headrace.records') IS NOT NULL AND to_regclass('headrace.splits') IS NOT NULL"


def _sql(text: str) -> sql.Composed:
    """Return a statement with `{mine}` and `{oid}` filled in.

    `{mine}` is the predicate of one sink key ($1 to $3). `{oid}` is the current OID of the row's target
    table.
    """
    mine = sql.SQL("pipeline = $1::text AND lane = $2::text AND sink = $3::text")
    return trusted_sql(text).format(mine=mine, oid=sql.SQL("to_regclass(target)::oid::bigint"))


@dataclass(frozen=True, slots=True)
class LockedRow:
    """The row as it is inside a transaction that has locked it."""

    record: CommitRecord
    marked: bool
    """Whether it has markers of a direct load for the epoch after the one of the record."""


class RecordStore:
    """The rows of one sink key. `target` is the quoted name of the table that its records speak of."""

    def __init__(self, key: SinkKey, target: str, node: str, owner: TargetClaimant | None = None) -> None:
        self.key = key
        self.owner = owner or TargetClaimant(key, share=False)
        self.target = target
        self.node = node

    @property
    def _id(self) -> tuple[str, str, str]:
        return self.key.pipeline, self.key.lane, self.key.sink

    def create(self, session: Session) -> None:
        """Create the schema and missing tables. An advisory lock makes concurrent processes wait."""
        if self._exists(session) and session.run(_CURRENT)[0][0]:
            return
        session.run("SELECT pg_advisory_xact_lock(hashtext('headrace create'))")
        for statement in (*_TABLES, *_UPGRADES):
            session.run(statement)

    def _exists(self, session: Session) -> bool:
        return session.run(_EXISTS)[0][0]

    def announce(self, session: Session, generation: int) -> None:
        """Raise the row's generation. Raise FencedError if the row has a newer generation."""
        raised = session.run(
            "INSERT INTO headrace.records AS r (pipeline, lane, sink, name, target, generation, shared)"
            " VALUES ($1::text, $2::text, $3::text, $4::text, $5::text, $6::bigint, $7::boolean)"
            " ON CONFLICT (pipeline, lane, sink) DO UPDATE SET generation = EXCLUDED.generation, name ="
            " EXCLUDED.name,"
            " shared = EXCLUDED.shared, changed_at = now()"
            " WHERE r.generation <= EXCLUDED.generation RETURNING generation",
            *self._id,
            self.key.name,
            self.target,
            generation,
            self.owner.share,
        )
        if not raised:
            self._raise_fenced(session, generation)

    def read_state(self, session: Session) -> SinkState | None:
        """Return generation and record, or None without a row.

        The record is None if its table was dropped or recreated.
        """
        if not self._exists(session):
            return None
        rows = session.run(
            _sql(
                "SELECT generation, body::text, target, target_oid, {oid} FROM headrace.records WHERE {mine}"
            ),
            *self._id,
        )
        if not rows:
            return None
        generation, body, target, recorded, current = rows[0]
        if body is None:
            return SinkState(generation)
        if target != self.target or recorded != current:
            log.warning(
                "event=record_without_table node=%s recorded=%s table=%s", self.node, target, self.target
            )
            return SinkState(generation)
        return SinkState(generation, CommitRecord.from_json(json.loads(body)))

    def find_conflicting_record(self, session: Session) -> CommitRecord | None:
        """Return the newest record of the same pipeline name, `lane`, sink and target under another UUID."""
        if not self._exists(session):
            return None
        query = (
            "SELECT body::text FROM headrace.records WHERE pipeline <> $1::text AND lane = $2::text AND"
            " sink = $3::text"
            " AND name = $4::text AND target = $5::text AND target_oid = {oid} AND body IS NOT NULL ORDER"
            " BY changed_at DESC LIMIT 1"
        )
        rows = session.run(_sql(query), *self._id, self.key.name, self.target)
        return CommitRecord.from_json(json.loads(rows[0][0])) if rows else None

    def claims(self, session: Session) -> list[Claim]:
        """Return the claims of all records for the table that now has the target's name, under any name."""
        if not self._exists(session):
            return []
        query = (
            "SELECT pipeline, name, lane, sink, coalesce((to_jsonb(r) ->> 'shared')::boolean, false), epoch"
            " FROM headrace.records r"
            " WHERE target_oid = to_regclass($1::text)::oid::bigint AND body IS NOT NULL ORDER BY"
            " changed_at DESC"
        )
        return [Claim(SinkKey(*key), share, epoch) for *key, share, epoch in session.run(query, self.target)]

    def release(self, session: Session, claims: Sequence[Claim]) -> None:
        """Delete the rows of other sinks, which fences their writers."""
        for claim in claims:
            query = (
                "DELETE FROM headrace.records WHERE {mine} AND target_oid ="
                " to_regclass($4::text)::oid::bigint"
            )
            session.run(_sql(query), claim.key.pipeline, claim.key.lane, claim.key.sink, self.target)

    def lock(self, session: Session, generation: int, *, share: bool = False) -> LockedRow | None:
        """Return the row, locked until the transaction ends; None before the sink is registered.

        Raise FencedError for another generation.
        """
        query = (
            "SELECT generation, body::text, EXISTS (SELECT FROM headrace.splits s WHERE s.pipeline ="
            " r.pipeline AND s.lane = r.lane"
            " AND s.sink = r.sink AND s.epoch = r.epoch + 1) FROM headrace.records r WHERE {mine} FOR "
        )
        rows = session.run(_sql(query + ("SHARE OF r" if share else "UPDATE OF r")), *self._id)
        if not rows or rows[0][0] != generation:
            self._raise_fenced(session, generation)
        _, body, marked = rows[0]
        return LockedRow(CommitRecord.from_json(json.loads(body)), marked) if body else None

    def lock_for_epoch(
        self,
        session: Session,
        plan: EpochPlan,
        generation: int,
        *,
        share: bool = False,
        by_splits: bool = False,
    ) -> LockedRow | WriteCounts:
        """Return the locked row if it is at the epoch before `plan`, or the counts if it has `plan` already.

        The latter happens if the connection died at the commit, so the client did not see the result. Raise
        FencedError for another generation, and SinkStateError if the row is at any other epoch, or if tasks
        began to load the epoch split by split: without `by_splits` its splits would be written again.
        """
        row = self.lock(session, generation, share=share)
        committed = find_committed_record(
            row.record if row else None, plan, target=self.target, sink=self.node
        )
        if committed is not None:
            log.info("event=epoch_already_committed node=%s epoch=%d", self.node, plan.number)
            return committed.counts
        assert row is not None  # noqa: S101  `find_committed_record` refuses a missing record
        if row.marked and not by_splits:
            msg = f"epoch {plan.number} was begun by direct load and cannot be finished by another path"
            hint = "Run it with the plan that it was begun with, or `headrace replay --from` this epoch."
            raise SinkStateError(msg, node=self.node, hint=hint)
        return row

    def advance(
        self, session: Session, row: LockedRow, plan: EpochPlan, generation: int, counts: WriteCounts
    ) -> None:
        """Set the row from N-1 to N, and delete the markers of older epochs."""
        self._set(session, row.record.after_epoch(plan, generation, counts), after=row.record.epoch)
        query = "DELETE FROM headrace.splits WHERE {mine} AND epoch < $4::bigint"
        session.run(_sql(query), *self._id, plan.number)

    def mark_split(self, session: Session, epoch: int, split: str, generation: int) -> bool:
        """Mark a split as loaded by this transaction; return False if another transaction did.

        An open transaction with the same marker is waited for.
        """
        query = (
            "INSERT INTO headrace.splits (pipeline, lane, sink, epoch, split, generation)"
            " VALUES ($1::text, $2::text, $3::text, $4::bigint, $5::text, $6::bigint) ON CONFLICT DO NOTHING"
            " RETURNING 1"
        )
        return bool(session.run(query, *self._id, epoch, split, generation))

    def store_split_counts(self, session: Session, epoch: int, split: str, counts: WriteCounts) -> None:
        """Store the split's row counts in the transaction that marked it."""
        query = (
            "UPDATE headrace.splits SET rows = $6::bigint, inserted = $7::bigint, updated = $8::bigint"
            " WHERE {mine} AND epoch = $4::bigint AND split = $5::text"
        )
        values = (counts.rows, counts.inserted, counts.updated)
        session.run(_sql(query), *self._id, epoch, split, *values)

    def read_splits(self, session: Session, epoch: int) -> dict[str, WriteCounts]:
        """Return the loaded and committed splits of an epoch with their row counts."""
        query = (
            "SELECT split, rows, inserted, updated FROM headrace.splits WHERE {mine} AND epoch = $4::bigint"
        )
        rows = session.run(_sql(query), *self._id, epoch)
        return {split: WriteCounts(count, inserted, updated, 0) for split, count, inserted, updated in rows}

    def register(self, session: Session, record: CommitRecord, baseline: int) -> CommitRecord:
        """Write the first record, or overwrite the row to set the sink back.

        Markers are deleted, because their epochs are written again. An advisory lock serializes claims of
        concurrent processes: raise SinkStateError for a rival's claim. Rows of the same pipeline under
        another UUID and of a renamed sink are also deleted, which fences their writers.
        """
        session.run(
            "SELECT pg_advisory_xact_lock(hashtext('headrace claim'),"
            " to_regclass($1::text)::oid::bigint::bit(32)::int)",
            self.target,
        )
        claims = self.claims(session)
        self.owner.refuse(claims, self.target)
        row = self.lock(session, record.generation)
        written = replace(record, baseline=baseline)
        self._set(session, written, after=row.record.epoch if row else None)
        session.run(_sql("DELETE FROM headrace.splits WHERE {mine}"), *self._id)
        self.release(session, self.owner.former(claims))
        others = (
            "DELETE FROM headrace.records WHERE pipeline <> $1::text AND lane = $2::text AND sink = $3::text"
        )
        session.run(
            others + " AND name = $4::text AND target = $5::text", *self._id, self.key.name, self.target
        )
        return written

    def _set(self, session: Session, record: CommitRecord, *, after: int | None) -> None:
        """Compare and set the row."""
        body = json.dumps(record.to_json())
        update = (
            "UPDATE headrace.records SET epoch = $4::bigint, body = $5::text::jsonb, changed_at = now(),"
            " target = $6::text,"
            " target_oid = to_regclass($6::text)::oid::bigint"
            " WHERE {mine} AND generation = $7::bigint AND coalesce(epoch, -1) = $8::bigint RETURNING epoch"
        )
        values = (record.epoch, body, self.target, record.generation, -1 if after is None else after)
        if not session.run(_sql(update), *self._id, *values):
            self._raise_fenced(session, record.generation)

    def _raise_fenced(self, session: Session, generation: int) -> NoReturn:
        rows = session.run(_sql("SELECT generation FROM headrace.records WHERE {mine}"), *self._id)
        raise fencing_error(rows[0][0] if rows else None, generation, target=self.target, sink=self.node)

"""The SQL that writes staged rows to a target: builders only, values stay bound.

Per key the last row by position wins. With `on_conflict: nothing` the first one wins, with `update_where`
over an order (>, >=, <, <=) the best one, both counted from the last delete on: so the result does not depend
on where epochs are cut. With a version the highest one wins, and of equal ones the last: deletes compete by
their version, and one without a version ends what came before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import sql

from headrace.connectors.postgres.session import Session, trusted
from headrace.connectors.postgres.target import PostgresTarget
from headrace.pipeline.protocol.epochs import WriteCounts

OP = "_gs_op"
POSITION = ("_gs_source", "_gs_part", "_gs_off", "_gs_sub")
"""The four fields of `_gs_pos`, flat."""
ATTEMPT = "_gs_attempt"
STAGE_TYPES = {
    OP: "TEXT",
    "_gs_source": "INTEGER",
    "_gs_part": "INTEGER",
    "_gs_off": "BIGINT",
    "_gs_sub": "BIGINT",
}


@dataclass(frozen=True, slots=True)
class ConflictPolicy:
    """The action of a conflict: `nothing`, or an update if `EXCLUDED.column op t.column` holds for all."""

    nothing: bool
    where: tuple[tuple[str, str], ...] = ()
    version: str | None = None

    @property
    def plain(self) -> bool:
        """Whether the last row always wins."""
        return not self.nothing and not self.where and self.version is None

    def preference(self) -> sql.Composable:
        """Return the ORDER BY that puts the preferred row of a key first."""
        if self.nothing:
            return _order("ASC")
        if self.version is not None:
            return sql.SQL("s.{} DESC NULLS LAST, {}").format(sql.Identifier(self.version), _order("DESC"))
        if len(self.where) == 1 and self.where[0][1] in {">", ">=", "<", "<="}:
            column, op = self.where[0]
            best = sql.SQL("s.{} {} NULLS LAST, ").format(
                sql.Identifier(column), sql.SQL("DESC" if op[0] == ">" else "ASC")
            )
            return sql.SQL("").join([best, _order("DESC" if op.endswith("=") else "ASC")])
        return _order("DESC")


@dataclass(frozen=True, slots=True)
class StagingTable:
    """Where the rows lie. `attempts`: only rows of these task attempts count; None: all."""

    table: sql.Identifier
    attempts: Sequence[int] | None = None

    def values(self) -> tuple[object, ...]:
        """Return the values that are bound as `$1`."""
        return () if self.attempts is None else (list(self.attempts),)


def create_stage(
    target: PostgresTarget, name: sql.Identifier, *, kind: str, tail: str = "", attempts: bool = False
) -> sql.Composed:
    """Return CREATE TABLE for staged rows; `kind` is TEMPORARY or UNLOGGED."""
    types = (
        {column.name: column.staged for column in target.columns}
        | STAGE_TYPES
        | ({ATTEMPT: "BIGINT"} if attempts else {})
    )
    columns = [
        sql.SQL("{} {}").format(sql.Identifier(column), trusted(type_)) for column, type_ in types.items()
    ]
    return sql.SQL("CREATE {} TABLE {} ({}) {}").format(
        trusted(kind), name, sql.SQL(", ").join(columns), trusted(tail)
    )


def merge(
    session: Session, target: PostgresTarget, stage: StagingTable, policy: ConflictPolicy, *, deletes: bool
) -> WriteCounts:
    """Merge the staged rows into the target and return the counts of changes.

    `deletes` is whether any staged row is a delete.
    """
    if not target.key:
        ((rows,),) = session.run(append(target, stage), *stage.values())
        return WriteCounts(rows, rows, 0, 0)
    only, gone = session.run(delete(target, stage, policy), *stage.values())[0] if deletes else (0, 0)
    ((rows, inserted, updated),) = session.run(
        upsert(target, stage, policy, deletes=deletes), *stage.values()
    )
    return WriteCounts(rows + only, inserted, updated, gone)


def append(target: PostgresTarget, stage: StagingTable) -> sql.Composed:
    """Return an INSERT of all rows that returns (rows)."""
    query = sql.SQL(
        "WITH put AS (INSERT INTO {target} ({columns}) SELECT {columns} FROM {rows} s RETURNING 1) SELECT"
        " count(*) FROM put"
    )
    return query.format(target=target.identifier, columns=_names(_all(target)), rows=_rows(target, stage))


def upsert(
    target: PostgresTarget, stage: StagingTable, policy: ConflictPolicy, *, deletes: bool
) -> sql.Composed:
    """Return INSERT … ON CONFLICT of the preferred row per key, which returns (rows, inserted, updated)."""
    query = sql.SQL(
        "WITH src AS ({winners}), put AS (INSERT INTO {target} AS t ({columns}) SELECT {columns} FROM src"
        " WHERE {op} <> 'd'"
        " ON CONFLICT ({key}) {action} RETURNING {returned})"
        " SELECT {rows}, count(*) FILTER (WHERE {fresh}), count(*) FILTER (WHERE NOT {fresh}) FROM put"
    )
    returned, fresh = _freshness(target)
    return query.format(
        winners=_winners(target, stage, policy, deletes=deletes),
        target=target.identifier,
        columns=_names(_all(target)),
        op=sql.Identifier(OP),
        key=_names(target.key),
        action=_action(target, policy),
        returned=returned,
        fresh=fresh,
        rows=sql.SQL(
            "count(*)"
            if policy.plain and _others(target)
            else "(SELECT count(*) FROM src WHERE _gs_op <> 'd')"
        ),
    )


def _freshness(target: PostgresTarget) -> tuple[sql.Composable, sql.Composable]:
    """Return what an upsert returns per row, and the expression that detects an insert in it.

    A row that was updated on conflict has the transaction's lock in xmax. Partitioned tables do not expose
    xmax. For them the expression queries the statement's own snapshot, which does not see the statement's
    writes.
    """
    if not target.partitioned:
        return sql.SQL("(xmax = 0) AS fresh"), sql.SQL("fresh")
    same = [sql.SQL("b.{0} = put.{0}").format(sql.Identifier(name)) for name in target.key]
    fresh = sql.SQL("NOT EXISTS (SELECT FROM {} b WHERE {})").format(
        target.identifier, sql.SQL(" AND ").join(same)
    )
    return _names(target.key, "t"), fresh


def delete(target: PostgresTarget, stage: StagingTable, policy: ConflictPolicy) -> sql.Composed:
    """Return a DELETE of keys that returns (keys whose last row is a delete, rows deleted).

    If a conflict may keep the old row, a delete before an insert in one epoch must remove that row first.
    Otherwise the insert alone has the same effect, and does not violate foreign keys.
    """
    if policy.version is not None:
        return _versioned_delete(target, stage, policy, policy.version)
    query = sql.SQL(
        "WITH ends AS (SELECT DISTINCT ON ({key}) {key}, {op} = 'd' AS last, bool_or({op} = 'd') OVER"
        " (PARTITION BY {key}) AS any"
        " FROM {rows} s ORDER BY {key}, {order}),"
        " gone AS (DELETE FROM {target} t USING ends e WHERE {same} AND e.{which} RETURNING 1)"
        " SELECT (SELECT count(*) FROM ends WHERE last), (SELECT count(*) FROM gone)"
    )
    return query.format(
        key=_names(target.key, "s"),
        op=sql.Identifier(OP),
        rows=_rows(target, stage),
        order=_order("DESC"),
        target=target.identifier,
        same=_same_key(target),
        which=sql.Identifier("last" if policy.plain else "any"),
    )


def _same_key(target: PostgresTarget) -> sql.Composed:
    """Return the condition that a target row `t` and an ended key `e` are equal in all key columns."""
    return sql.SQL(" AND ").join(sql.SQL("t.{0} = e.{0}").format(sql.Identifier(name)) for name in target.key)


def _versioned_delete(
    target: PostgresTarget, stage: StagingTable, policy: ConflictPolicy, version: str
) -> sql.Composed:
    """Return a DELETE of keys that an unversioned delete ends, or whose winning row is a delete.

    The winning delete must not be older than the row in the target.
    """
    query = sql.SQL(
        "WITH ends AS (SELECT DISTINCT ON ({key}) {key}, s._gs_op = 'd' AS last, s._gs_end IS NOT NULL AS"
        " ended, s.{version} AS version"
        " FROM {rows} s WHERE {alive} ORDER BY {key}, {order}),"
        " gone AS (DELETE FROM {target} t USING ends e"
        " WHERE {same} AND (e.ended OR (e.last AND (t.{version} IS NULL OR t.{version} <= e.version)))"
        " RETURNING 1)"
        " SELECT (SELECT count(*) FROM ends WHERE last), (SELECT count(*) FROM gone)"
    )
    return query.format(
        key=_names(target.key, "s"),
        version=sql.Identifier(version),
        rows=_ended(target, stage, policy),
        alive=_ALIVE,
        order=policy.preference(),
        target=target.identifier,
        same=_same_key(target),
    )


_ALIVE = sql.SQL("(s._gs_end IS NULL OR s._gs_place >= s._gs_end)")


def _ended(target: PostgresTarget, stage: StagingTable, policy: ConflictPolicy) -> sql.Composed:
    """Return the staged rows with their position and the position of the last ending delete of their key.

    An ending delete removes what came before it.
    """
    ends = sql.SQL("s._gs_op = 'd'")
    if policy.version is not None:
        ends = sql.SQL("s._gs_op = 'd' AND s.{} IS NULL").format(sql.Identifier(policy.version))
    place = sql.SQL("ARRAY[{}]::bigint[]").format(_names(POSITION, "s"))
    query = (
        "(SELECT s.*, {place} AS _gs_place, max({place}) FILTER (WHERE {ends}) OVER (PARTITION BY"
        " {key}) AS _gs_end FROM {rows} s)"
    )
    return sql.SQL(query).format(
        place=place, ends=ends, key=_names(target.key, "s"), rows=_rows(target, stage)
    )


def _winners(
    target: PostgresTarget, stage: StagingTable, policy: ConflictPolicy, *, deletes: bool
) -> sql.Composed:
    rows, alive = _rows(target, stage), sql.SQL("")
    if deletes and not policy.plain:
        rows = _ended(target, stage, policy)
        alive = (
            sql.SQL("WHERE {}").format(_ALIVE)
            if policy.version
            else sql.SQL("WHERE s._gs_op <> 'd' AND {}").format(_ALIVE)
        )
    query = sql.SQL("SELECT DISTINCT ON ({key}) {columns} FROM {rows} s {alive} ORDER BY {key}, {order}")
    return query.format(
        key=_names(target.key, "s"),
        columns=_names((*_all(target), OP), "s"),
        rows=rows,
        alive=alive,
        order=policy.preference(),
    )


def _rows(target: PostgresTarget, stage: StagingTable) -> sql.Composed:
    """Return the staged rows of the attempts that count, in the target's types."""
    parts = [
        sql.SQL("r.{0}::{1} AS {0}").format(sql.Identifier(column.name), trusted(column.cast))
        if column.cast
        else sql.SQL("r.{}").format(sql.Identifier(column.name))
        for column in target.columns
    ]
    columns = sql.SQL(", ").join([*parts, _names((OP, *POSITION), "r")])
    counted = sql.SQL("" if stage.attempts is None else "WHERE r._gs_attempt = ANY($1::bigint[])")
    return sql.SQL("(SELECT {} FROM {} r {})").format(columns, stage.table, counted)


def _action(target: PostgresTarget, policy: ConflictPolicy) -> sql.Composable:
    others = _others(target)
    if policy.nothing or not others:
        return sql.SQL("DO NOTHING")
    sets = sql.SQL(", ").join(sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in others)
    tests: list[sql.Composable] = [
        sql.SQL("EXCLUDED.{0} {1} t.{0}").format(sql.Identifier(name), trusted(op))
        for name, op in policy.where
    ]
    if policy.version is not None:
        tests.append(
            sql.SQL("(t.{0} IS NULL OR EXCLUDED.{0} >= t.{0})").format(sql.Identifier(policy.version))
        )
    where = sql.SQL(" WHERE {}").format(sql.SQL(" AND ").join(tests)) if tests else sql.SQL("")
    return sql.SQL("DO UPDATE SET {}{}").format(sets, where)


def _others(target: PostgresTarget) -> list[str]:
    return [name for name in _all(target) if name not in target.key]


def _all(target: PostgresTarget) -> list[str]:
    return [column.name for column in target.columns]


def _names(names: Sequence[str], alias: str = "") -> sql.Composed:
    return sql.SQL(", ").join(
        sql.Identifier(alias, name) if alias else sql.Identifier(name) for name in names
    )


def _order(direction: str) -> sql.Composed:
    return sql.SQL(", ").join(
        sql.SQL("s.{} {}").format(sql.Identifier(name), trusted(direction)) for name in POSITION
    )

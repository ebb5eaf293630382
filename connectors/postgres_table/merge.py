"""The SQL that writes staged rows to a target: builders only, values stay bound.

Per key the last row by position wins. With `on_conflict: nothing` the first one wins, with `update_where`
over an order (>, >=, <, <=) the best one, both counted from the last delete on: so the result does not depend
on where epochs are cut. With a version the highest one wins, and of equal ones the last: deletes compete by
their version, and one without a version ends what came before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from psycopg import sql

from headrace.connectors.postgres_client.session import Session, trusted_sql
from headrace.connectors.postgres_table.target import PostgresTarget
from headrace.pipeline.errors import SchemaError
from headrace.pipeline.protocol.epochs import WriteCounts
from headrace.pipeline.sql.system_columns import OP

POSITION = ("_gs_source", "_gs_part", "_gs_off", "_gs_sub")
"""The four fields of `_gs_pos`, flat."""
ATTEMPT, NUMBER = "_gs_attempt", "_gs_number"
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

    def check(self, sink: str, schema: pa.Schema, key: Sequence[str]) -> None:
        """Raise SchemaError unless `where` names columns of the rows and the sink updates by key."""
        problem = ""
        if self.where and not key:
            problem = "the sink has no primary_key"
        elif self.where and self.nothing:
            problem = "on_conflict is nothing, so nothing is ever updated"
        elif unknown := [name for name, _ in self.where if name not in schema.names]:
            problem = f"no column '{unknown[0]}'; the rows have {', '.join(schema.names)}"
        if problem:
            msg = f"update_where validation failed for sink '{sink}': {problem}"
            raise SchemaError(msg, node=sink, hint="Correct `update_where` in the pipeline file.")

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
    """Where the rows lie. `attempts`: only rows of these task attempts count; None: all.

    `span`: only rows with these numbers count, from the first to the last; None: all.
    `one_per_key`: the table has the winning row of each key only, and no columns `POSITION`.
    """

    table: sql.Identifier
    attempts: Sequence[int] | None = None
    span: tuple[int, int] | None = None
    one_per_key: bool = False

    @property
    def condition(self) -> sql.Composable:
        """The WHERE of the rows `r` that count."""
        if self.span is not None:
            return sql.SQL("WHERE r._gs_number BETWEEN $1::bigint AND $2::bigint")
        return sql.SQL("" if self.attempts is None else "WHERE r._gs_attempt = ANY($1::bigint[])")

    def values(self) -> tuple[object, ...]:
        """Return the values that `condition` binds, from `$1` on."""
        if self.span is not None:
            return self.span
        return () if self.attempts is None else (list(self.attempts),)


def create_stage(
    target: PostgresTarget,
    name: sql.Identifier,
    *,
    kind: str,
    tail: str = "",
    more: Mapping[str, str] | None = None,
    one_per_key: bool = False,
) -> sql.Composed:
    """Return CREATE TABLE for staged rows; `kind` is TEMPORARY or UNLOGGED, `more` are further columns.

    With `one_per_key`, the table has no columns `POSITION`.
    """
    system = _system_types(one_per_key=one_per_key)
    types = {column.name: column.staged for column in target.columns} | system | dict(more or {})
    columns = [
        sql.SQL("{} {}").format(sql.Identifier(column), trusted_sql(type_)) for column, type_ in types.items()
    ]
    return sql.SQL("CREATE {} TABLE {} ({}) {}").format(
        trusted_sql(kind), name, sql.SQL(", ").join(columns), trusted_sql(tail)
    )


def _system_types(*, one_per_key: bool) -> dict[str, str]:
    return {OP: STAGE_TYPES[OP]} if one_per_key else STAGE_TYPES


@dataclass(frozen=True, slots=True)
class StagedMerge:
    """The merge of staged rows into a target. In its SQL `s` is a staged row and `t` a row of the target."""

    target: PostgresTarget
    stage: StagingTable
    policy: ConflictPolicy

    def run(self, session: Session, *, deletes: bool) -> WriteCounts:
        """Merge, and return the counts of changes. `deletes` is whether any staged row is a delete."""
        values = self.stage.values()
        if not self.target.key:
            ((rows,),) = session.run(self._append(), *values)
            return WriteCounts(rows, rows, 0, 0)
        deleted = self.delete(session) if deletes else WriteCounts()
        ((rows, inserted, updated),) = session.run(self._upsert(deletes=deletes), *values)
        return deleted + WriteCounts(rows, inserted, updated, 0)

    def delete(self, session: Session) -> WriteCounts:
        """Apply the staged deletes alone."""
        ((rows, deleted),) = session.run(self._delete(), *self.stage.values())
        return WriteCounts(rows, 0, 0, deleted)

    def _format(self, text: str, **parts: sql.Composable) -> sql.Composed:
        """Return a statement with the parts that most statements share, and with `parts`."""
        same = [sql.SQL("t.{0} = e.{0}").format(sql.Identifier(name)) for name in self.target.key]
        shared = {
            "target": self.target.identifier,
            "columns": _names(self._columns),
            "rows": self._rows(),
            "key": _names(self.target.key, "s"),
            "same": sql.SQL(" AND ").join(same),
            "order": self.policy.preference(),
            "version": sql.Identifier(self.policy.version or ""),
        }
        return trusted_sql(text).format(**(shared | parts))

    def _append(self) -> sql.Composed:
        """Return an INSERT of all rows that returns (rows)."""
        return self._format(
            "WITH put AS (INSERT INTO {target} ({columns}) SELECT {columns} FROM {rows} s RETURNING 1) SELECT"
            " count(*) FROM put"
        )

    def _upsert(self, *, deletes: bool) -> sql.Composed:
        """Return an upsert of the preferred row per key that returns (rows, inserted, updated)."""
        returned, fresh = self._freshness()
        every = self.policy.plain and self._others
        return self._format(
            "WITH src AS ({winners}), put AS (INSERT INTO {target} AS t ({columns}) SELECT {columns} FROM src"
            " WHERE _gs_op <> 'd' ON CONFLICT ({conflict}) {action} RETURNING {returned})"
            " SELECT {count}, count(*) FILTER (WHERE {fresh}), count(*) FILTER (WHERE NOT {fresh}) FROM put",
            winners=self._winners(deletes=deletes),
            conflict=_names(self.target.key),
            action=self._action(),
            returned=returned,
            fresh=fresh,
            count=sql.SQL("count(*)" if every else "(SELECT count(*) FROM src WHERE _gs_op <> 'd')"),
        )

    def _freshness(self) -> tuple[sql.Composable, sql.Composable]:
        """Return what an upsert returns per row, and the expression that detects an insert in it.

        A row that was updated on conflict has the transaction's lock in xmax. Partitioned tables do not
        expose xmax. For them the expression queries the statement's own snapshot, which does not see the
        statement's writes.
        """
        if not self.target.partitioned:
            return sql.SQL("(xmax = 0) AS fresh"), sql.SQL("fresh")
        same = [sql.SQL("b.{0} = put.{0}").format(sql.Identifier(name)) for name in self.target.key]
        fresh = sql.SQL("NOT EXISTS (SELECT FROM {} b WHERE {})").format(
            self.target.identifier, sql.SQL(" AND ").join(same)
        )
        return _names(self.target.key, "t"), fresh

    def _delete(self) -> sql.Composed:
        """Return a DELETE of keys that returns (keys whose last row is a delete, rows deleted).

        If a conflict may keep the old row, a delete before an insert in one epoch must remove that row first.
        Otherwise the insert alone has the same effect, and does not violate foreign keys. With a version, it
        deletes keys that an unversioned delete ends, or whose winning row is a delete that is not older than
        the row in the target.
        """
        if self.policy.version is not None:
            return self._format(
                "WITH ends AS (SELECT DISTINCT ON ({key}) {key}, s._gs_op = 'd' AS last,"
                " s._gs_end IS NOT NULL AS ended, s.{version} AS version"
                " FROM {ended} s WHERE {alive} ORDER BY {key}, {order}),"
                " deleted AS (DELETE FROM {target} t USING ends e WHERE {same}"
                " AND (e.ended OR (e.last AND (t.{version} IS NULL OR t.{version} <= e.version)))"
                " RETURNING 1)"
                " SELECT (SELECT count(*) FROM ends WHERE last), (SELECT count(*) FROM deleted)",
                ended=self._select_ended(),
                alive=_ALIVE,
            )
        return self._format(
            "WITH ends AS ({ends}),"
            " deleted AS (DELETE FROM {target} t USING ends e WHERE {same} AND e.{which} RETURNING 1)"
            " SELECT (SELECT count(*) FROM ends WHERE last), (SELECT count(*) FROM deleted)",
            ends=self._ends(),
            which=sql.Identifier("last" if self.policy.plain else "any"),
        )

    def _ends(self) -> sql.Composed:
        """Return a query of the keys with `last`, whether the last row is a delete.

        Where there can be several rows per key, it also has `any`, whether one of them is a delete.
        """
        if self.stage.one_per_key:
            return self._format("SELECT {key}, _gs_op = 'd' AS last FROM {rows} s")
        return self._format(
            "SELECT DISTINCT ON ({key}) {key}, _gs_op = 'd' AS last, bool_or(_gs_op = 'd') OVER"
            " (PARTITION BY {key}) AS any FROM {rows} s ORDER BY {key}, {order}",
            order=_order("DESC"),
        )

    def _select_ended(self) -> sql.Composed:
        """Return the staged rows with their position and the position of the last ending delete of their key.

        An ending delete removes what came before it.
        """
        return self._format(
            "(SELECT s.*, {place} AS _gs_place, max({place}) FILTER (WHERE {ends}) OVER (PARTITION BY"
            " {key}) AS _gs_end FROM {rows} s)",
            place=sql.SQL("ARRAY[{}]::bigint[]").format(_names(POSITION, "s")),
            ends=self._format("s._gs_op = 'd'" + (" AND s.{version} IS NULL" if self.policy.version else "")),
        )

    def _winners(self, *, deletes: bool) -> sql.Composed:
        if self.stage.one_per_key:
            return self._format("SELECT {columns} FROM {rows} s", columns=_names((*self._columns, OP), "s"))
        rows, alive = self._rows(), sql.SQL("")
        if deletes and not self.policy.plain:
            rows = self._select_ended()
            alive = sql.SQL("WHERE {}" if self.policy.version else "WHERE s._gs_op <> 'd' AND {}").format(
                _ALIVE
            )
        return self._format(
            "SELECT DISTINCT ON ({key}) {columns} FROM {rows} s {alive} ORDER BY {key}, {order}",
            columns=_names((*self._columns, OP), "s"),
            rows=rows,
            alive=alive,
        )

    def _rows(self) -> sql.Composed:
        """Return the staged rows of the attempts that count, in the target's types."""
        parts = [
            sql.SQL("r.{0}::{1} AS {0}").format(sql.Identifier(column.name), trusted_sql(column.cast))
            if column.cast
            else sql.SQL("r.{}").format(sql.Identifier(column.name))
            for column in self.target.columns
        ]
        system = tuple(_system_types(one_per_key=self.stage.one_per_key))
        columns = sql.SQL(", ").join([*parts, _names(system, "r")])
        return sql.SQL("(SELECT {} FROM {} r {})").format(columns, self.stage.table, self.stage.condition)

    def _action(self) -> sql.Composable:
        if self.policy.nothing or not self._others:
            return sql.SQL("DO NOTHING")
        sets = [sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in self._others]
        tests: list[sql.Composable] = [
            sql.SQL("EXCLUDED.{0} {1} t.{0}").format(sql.Identifier(name), trusted_sql(op))
            for name, op in self.policy.where
        ]
        if self.policy.version is not None:
            version = sql.Identifier(self.policy.version)
            tests.append(sql.SQL("(t.{0} IS NULL OR EXCLUDED.{0} >= t.{0})").format(version))
        where = sql.SQL(" WHERE {}").format(sql.SQL(" AND ").join(tests)) if tests else sql.SQL("")
        return sql.SQL("DO UPDATE SET {}{}").format(sql.SQL(", ").join(sets), where)

    @property
    def _columns(self) -> list[str]:
        return [column.name for column in self.target.columns]

    @property
    def _others(self) -> list[str]:
        return [name for name in self._columns if name not in self.target.key]


_ALIVE = sql.SQL("(s._gs_end IS NULL OR s._gs_place >= s._gs_end)")


def _names(names: Sequence[str], alias: str = "") -> sql.Composed:
    return sql.SQL(", ").join(
        sql.Identifier(alias, name) if alias else sql.Identifier(name) for name in names
    )


def _order(direction: str) -> sql.Composed:
    return sql.SQL(", ").join(
        sql.SQL("s.{} {}").format(sql.Identifier(name), trusted_sql(direction)) for name in POSITION
    )

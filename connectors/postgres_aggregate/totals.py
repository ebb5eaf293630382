"""The table of totals, and the triggers of the landing table that keep it.

The triggers run in the transaction of the rows. They add what a statement adds to each group and subtract
what it takes away. A minimum or maximum that is taken away is read again from the landing table.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from psycopg import sql
from psycopg.sql import SQL, Composable, Identifier, Literal

from headrace.connectors.postgres_aggregate.config import AggregateColumn, PostgresAggregateSinkConfig
from headrace.connectors.postgres_client.session import NAME_BYTES, Session, trusted_sql
from headrace.pipeline.errors import TargetError

_ROWS = "_headrace_rows"
"""The number of rows of a group."""
_SENTINEL = ("key", "value")
_OLDEST_SERVER = 150_000
_MARK = "headrace totals of "
_OLD, _NEW = "old_rows", "new_rows"
_EVENTS = {
    "insert": f"REFERENCING NEW TABLE AS {_NEW}",
    "update": f"REFERENCING OLD TABLE AS {_OLD} NEW TABLE AS {_NEW}",
    "delete": f"REFERENCING OLD TABLE AS {_OLD}",
    "truncate": "",
}


@dataclass(frozen=True, slots=True)
class _Total:
    """A stored column of the totals: its type, its value of a set of rows, and how two values are one."""

    kind: Composable
    value: Callable[[Composable], Composable]
    """Returns the aggregate of the rows for which a condition holds."""
    joins: str
    """`+`, `LEAST` or `GREATEST`."""
    column: Composable | None = None
    """The column whose extreme it is."""


class TotalsTable:
    """The totals of one landing table, as the node defines them. `types` has the landing table's types."""

    def __init__(self, node: PostgresAggregateSinkConfig, name: str, types: Mapping[str, str]) -> None:
        self._node = node
        self._name = name
        self._types = types
        self._landing = Identifier(node.schema_, node.landing_table)
        self._table = Identifier(node.schema_, node.agg_table)
        self._function = Identifier(node.schema_, _short(f"{node.landing_table}_to_{node.agg_table}_fn"))
        self._groups = {
            column: Identifier(group.from_ or column) for column, group in node.group_by.items()
        } or {_SENTINEL[0]: Literal(_SENTINEL[1])}
        self._totals: dict[str, _Total] = {_ROWS: _counter(SQL("count(*)"))}
        for column, total in node.aggregate.items():
            self._totals |= self._stored_totals(column, total)

    def check(self, session: Session) -> str:
        """Return the mark of the table that is there, "" if none is.

        Raise TargetError if it is not the table of this landing table's totals, or for an old server.
        """
        if int(session.run("SHOW server_version_num")[0][0]) < _OLDEST_SERVER:
            msg = "type `postgres_aggregate` needs Postgres 15 or newer"
            raise TargetError(msg, hint="Use a `postgres` sink and a view.", node=self._name)
        result = session.run(
            "SELECT coalesce(obj_description(c.oid, 'pg_class'), '') FROM pg_class c JOIN pg_namespace n ON"
            " n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2",
            self._node.schema_,
            self._node.agg_table,
        )
        if not result:
            return ""
        if not result[0][0].startswith(self._owner):
            where = f"{self._node.schema_}.{self._node.agg_table}"
            owner = result[0][0].removeprefix(_MARK).split(",")[0]
            whose = (
                f"has the totals of {owner}" if result[0][0].startswith(_MARK) else "was not made by Headrace"
            )
            msg = f"the table {where} {whose}, not of {self._node.landing_table}"
            raise TargetError(msg, hint="Choose another `agg_table`.", node=self._name, keys=("agg_table",))
        return result[0][0]

    def create(self, session: Session) -> None:
        """Create table and triggers, or nothing if they are there as the node defines them.

        Compute the totals of the rows that are there. Writers of the landing table wait.
        """
        session.run(SQL("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE").format(self._landing))
        statements = self._statements()
        content = hashlib.sha256(SQL(";").join(statements).as_string(None).encode()).hexdigest()[:16]
        mark = f"{self._owner}, definition {content}"
        if self.check(session) == mark:
            return
        for statement in statements:
            session.run(statement)
        session.run(SQL("COMMENT ON TABLE {} IS {}").format(self._table, Literal(mark)))

    @property
    def _owner(self) -> str:
        return f"{_MARK}{self._node.landing_table}"

    def _stored_totals(self, column: str, total: AggregateColumn) -> dict[str, _Total]:
        source = None if total.from_ is None and total.fn == "count" else Identifier(total.from_ or column)
        declared_type = trusted_sql(total.type) if total.type else None
        if source is None:
            return {column: _counter(SQL("count(*)"), declared_type)}
        if total.fn == "count":
            return {column: _counter(SQL("count({})").format(source), declared_type)}
        if total.fn in ("sum", "avg"):
            kind = declared_type or SQL("numeric")
            amount = SQL("sum({}::{})").format(source, kind)
            name = column if total.fn == "sum" else f"{column}_sum"
            result = {name: _Total(kind, lambda rows: _add_filter(amount, rows, empty="0"), "+")}
            if total.fn == "avg":
                result[f"{column}_count"] = _counter(SQL("count({})").format(source))
            return result
        kind = declared_type or trusted_sql(self._types[total.from_ or column])
        extreme = SQL(f"{total.fn}({{}}::{{}})").format(source, kind)
        joins = "LEAST" if total.fn == "min" else "GREATEST"
        return {column: _Total(kind, lambda rows: _add_filter(extreme, rows), joins, source)}

    def _statements(self) -> list[Composable]:
        """Return what makes table, function and triggers, and computes the totals."""
        columns = [SQL("{} {}").format(Identifier(name), self._group_type(name)) for name in self._groups] + [
            SQL("{} {}").format(Identifier(name), total.kind) for name, total in self._totals.items()
        ]
        columns += [
            SQL("{} numeric GENERATED ALWAYS AS ({}::numeric / NULLIF({}, 0)) STORED").format(
                *map(Identifier, (name, f"{name}_sum", f"{name}_count"))
            )
            for name, total in self._node.aggregate.items()
            if total.fn == "avg"
        ]
        statements = [
            SQL("DROP TABLE IF EXISTS {}").format(self._table),
            SQL("CREATE TABLE {} ({}, UNIQUE NULLS NOT DISTINCT ({}))").format(
                self._table, SQL(", ").join(columns), self._names(self._groups)
            ),
            SQL("CREATE INDEX ON {} ({}) WHERE {} = 0").format(
                self._table, Identifier(_ROWS), Identifier(_ROWS)
            ),
            self._add(SQL("SELECT 1 AS _headrace_sign, * FROM {}").format(self._landing), on_conflict=False),
            self._create_function(),
        ]
        if self._extremes and self._node.group_by:
            index = Identifier(_short(f"idx_{self._node.landing_table}_{self._node.agg_table}"))
            groups = SQL(", ").join(self._groups.values())
            statements += [
                SQL("DROP INDEX IF EXISTS {}.{}").format(Identifier(self._node.schema_), index),
                SQL("CREATE INDEX {} ON {} ({})").format(index, self._landing, groups),
            ]
        for event, rows in _EVENTS.items():
            trigger = Identifier(_short(f"{self._node.landing_table}_to_{self._node.agg_table}_{event}"))
            statements += [
                SQL("DROP TRIGGER IF EXISTS {} ON {}").format(trigger, self._landing),
                SQL("CREATE TRIGGER {} AFTER {} ON {} {} FOR EACH STATEMENT EXECUTE FUNCTION {}()").format(
                    trigger, trusted_sql(event), self._landing, trusted_sql(rows), self._function
                ),
            ]
        return statements

    def _create_function(self) -> Composable:
        """Return the function of all triggers. plpgsql plans only the statements of the event."""
        old, new = (
            SQL("SELECT {} AS _headrace_sign, * FROM {}").format(sign, Identifier(name))
            for sign, name in ((-1, _OLD), (1, _NEW))
        )
        body = SQL(
            "BEGIN"
            " IF TG_OP = 'TRUNCATE' THEN DELETE FROM {table};"
            " ELSIF TG_OP = 'INSERT' THEN {insert};"
            " ELSIF TG_OP = 'UPDATE' THEN {update}; {extremes}; {remove};"
            " ELSE {delete}; {extremes}; {remove};"
            " END IF; RETURN NULL; END"
        ).format(
            table=self._table,
            insert=self._add(new),
            update=self._add(SQL("{} UNION ALL {}").format(old, new)),
            delete=self._add(old),
            extremes=self._read_extremes() if self._extremes else SQL("NULL"),
            remove=SQL("DELETE FROM {} WHERE {} = 0").format(self._table, Identifier(_ROWS)),
        )
        return SQL("CREATE OR REPLACE FUNCTION {}() RETURNS trigger LANGUAGE plpgsql AS {}").format(
            self._function, Literal(body.as_string(None))
        )

    def _add(self, changes: Composable, *, on_conflict: bool = True) -> Composable:
        """Return the statement that adds the totals of `changes`, which are rows with a `_headrace_sign`."""
        added, taken = SQL("_headrace_sign > 0"), SQL("_headrace_sign < 0")
        values = [
            SQL("{} - {}").format(total.value(added), total.value(taken))
            if total.joins == "+"
            else total.value(added)
            for total in self._totals.values()
        ]
        grouped = SQL(", ").join(
            SQL("{} AS {}").format(value, Identifier(f"_headrace_g{at}"))
            for at, value in enumerate(self._group_values)
        )
        names = SQL(", ").join(Identifier(f"_headrace_g{at}") for at in range(len(self._groups)))
        statement = SQL(
            "INSERT INTO {} AS t ({}) SELECT {}, {} FROM (SELECT c.*, {} FROM ({}) c) c GROUP BY {}"
        ).format(
            self._table,
            self._names([*self._groups, *self._totals]),
            names,
            SQL(", ").join(values),
            grouped,
            changes,
            names,
        )
        if not on_conflict:
            return statement
        return SQL("{} ON CONFLICT ({}) DO UPDATE SET {}").format(
            statement,
            self._names(self._groups),
            SQL(", ").join(self._join_total(*one) for one in self._totals.items()),
        )

    def _join_total(self, name: str, total: _Total) -> Composable:
        column = Identifier(name)
        if total.joins == "+":
            return SQL("{0} = t.{0} + EXCLUDED.{0}").format(column)
        return SQL("{0} = {1}(t.{0}, EXCLUDED.{0})").format(column, trusted_sql(total.joins))

    def _read_extremes(self) -> Composable:
        """Return the statement that reads minima and maxima again whose value a statement took away."""
        removed_extremes = [
            SQL("o.{} {} t.{}").format(
                total.column, SQL("<=" if total.joins == "LEAST" else ">="), Identifier(name)
            )
            for name, total in self._extremes.items()
        ]
        values = [
            SQL("{} AS {}").format(total.value(SQL("TRUE")), Identifier(name))
            for name, total in self._extremes.items()
        ]
        return SQL(
            "UPDATE {table} t SET {sets} FROM (SELECT DISTINCT {groups} FROM {table} t JOIN {old} o"
            " ON {match_old} WHERE {removed_extremes}) d CROSS JOIN LATERAL (SELECT {values} FROM {landing} l"
            " WHERE {match_landing}) s WHERE {match}"
        ).format(
            old=Identifier(_OLD),
            table=self._table,
            sets=SQL(", ").join(SQL("{0} = s.{0}").format(Identifier(name)) for name in self._extremes),
            groups=SQL(", ").join(SQL("t.{}").format(Identifier(name)) for name in self._groups),
            match_old=self._matches("t", "o"),
            removed_extremes=SQL(" OR ").join(removed_extremes),
            values=SQL(", ").join(values),
            landing=self._landing,
            match_landing=self._matches("d", "l"),
            match=SQL(" AND ").join(
                _equal(SQL("t.{}").format(Identifier(name)), SQL("d.{}").format(Identifier(name)))
                for name in self._groups
            ),
        )

    def _matches(self, totals: str, rows: str) -> Composable:
        """Return whether a row belongs to a group. No index serves IS NOT DISTINCT FROM."""
        if not self._node.group_by:
            return SQL("TRUE")
        pairs = [
            _equal(
                SQL("{}.{}").format(Identifier(totals), Identifier(name)),
                SQL("{}.{}").format(Identifier(rows), source),
            )
            for name, source in self._groups.items()
        ]
        return SQL(" AND ").join(pairs)

    @property
    def _extremes(self) -> dict[str, _Total]:
        return {name: total for name, total in self._totals.items() if total.column is not None}

    @property
    def _group_values(self) -> list[Composable]:
        return [SQL("{}::{}").format(value, self._group_type(name)) for name, value in self._groups.items()]

    def _group_type(self, name: str) -> Composable:
        group = self._node.group_by.get(name)
        if group is None:
            return SQL("text")
        return trusted_sql(group.type or self._types[group.from_ or name])

    def _names(self, names: Mapping[str, object] | list[str]) -> Composable:
        return SQL(", ").join(map(Identifier, names))


def _counter(count: Composable, kind: Composable | None = None) -> _Total:
    return _Total(kind or SQL("bigint"), lambda rows: _add_filter(count, rows), "+")


def _add_filter(aggregate: Composable, rows: Composable, empty: str = "") -> Composable:
    result = SQL("{} FILTER (WHERE {})").format(aggregate, rows)
    return SQL("coalesce({}, {})").format(result, sql.SQL("0")) if empty else result


def _equal(one: Composable, other: Composable) -> Composable:
    return SQL("({0} = {1} OR ({0} IS NULL AND {1} IS NULL))").format(one, other)


def _short(name: str) -> str:
    """Return an identifier that Postgres keeps whole."""
    if len(name.encode()) <= NAME_BYTES:
        return name
    kept = name.encode()[: NAME_BYTES - 9].decode(errors="ignore")
    return f"{kept}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"

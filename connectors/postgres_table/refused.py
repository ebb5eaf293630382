"""The table of rows that a target refuses. They get there in the transaction of their epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from psycopg import sql

from headrace.connectors.postgres_client.session import Session, trusted_sql
from headrace.connectors.postgres_table.merge import POSITION, StagingTable
from headrace.pipeline.errors import SchemaError

_COLUMNS: Mapping[str, str] = {
    "pipeline": "text NOT NULL",
    "node": "text NOT NULL",
    "epoch": "bigint NOT NULL",
    "number": "bigint NOT NULL",
    "reason": "text NOT NULL",
    "operation": "text NOT NULL",
    "position": "json NOT NULL",
    "row": "text NOT NULL",
}


@dataclass(frozen=True, slots=True)
class RefusedRows:
    """The rows of one sink that its table refuses, in a table of errors. Picklable."""

    schema: str
    table: str
    pipeline: str
    node: str
    nested: tuple[str, ...]
    """The nested columns of the payload, which are staged as JSON text."""
    max_error_rate: float

    @property
    def identifier(self) -> sql.Identifier:
        """The table, quoted."""
        return sql.Identifier(self.schema, self.table)

    def create(self, session: Session) -> None:
        """Create the table if it is missing. Raise SchemaError for an existing one with other columns."""
        session.run("SELECT pg_advisory_xact_lock(hashtext('headrace create'))")
        columns = [
            sql.SQL("{} {}").format(sql.Identifier(name), trusted_sql(kind))
            for name, kind in _COLUMNS.items()
        ]
        query = "CREATE TABLE IF NOT EXISTS {} ({}, PRIMARY KEY (pipeline, node, epoch, number))"
        session.run(trusted_sql(query).format(self.identifier, sql.SQL(", ").join(columns)))
        self.check(session)

    def check(self, session: Session) -> None:
        """Raise SchemaError if the table exists and has other columns."""
        query = (
            "SELECT attname::text FROM pg_attribute WHERE attrelid = to_regclass($1::text)"
            " AND attnum > 0 AND NOT attisdropped"
        )
        result = {name for (name,) in session.run(query, self.identifier.as_string(None))}
        if result and (missing := [name for name in _COLUMNS if name not in result]):
            msg = f"{self.schema}.{self.table} is no table of refused rows: it has no column `{missing[0]}`"
            hint = "Set `errors_table` to a table that does not exist."
            raise SchemaError(msg, hint=hint, node=self.node, keys=("errors_table",))

    def count(self, session: Session) -> int:
        """Return the number of refused rows of this sink; 0 without the table."""
        ((is_there,),) = session.run(
            "SELECT to_regclass($1::text) IS NOT NULL", self.identifier.as_string(None)
        )
        if not is_there:
            return 0
        query = trusted_sql("SELECT count(*) FROM {} WHERE pipeline = $1::text AND node = $2::text")
        ((rows,),) = session.run(query.format(self.identifier), self.pipeline, self.node)
        return rows

    def remove(self, session: Session, epoch: int | None = None) -> None:
        """Remove the refused rows of this sink, of one epoch or of all."""
        query = trusted_sql(
            "DELETE FROM {} WHERE pipeline = $1::text AND node = $2::text"
            " AND epoch = coalesce($3::bigint, epoch)"
        )
        session.run(query.format(self.identifier), self.pipeline, self.node, epoch)

    def insert(
        self,
        session: Session,
        epoch: int,
        after: int,
        stage: StagingTable,
        reason: sql.Composable,
        row: sql.Composable,
        *values: object,
    ) -> int:
        """Insert the rows of `stage`, with numbers after `after`. Return how many they are.

        `reason` and `row` are expressions over its rows `r`; `values` are bound after those of `stage`.
        """
        query = trusted_sql(
            "WITH put AS (INSERT INTO {errors} ({columns}) SELECT {pipeline}, {node}, {epoch},"
            " {after} + row_number() OVER (ORDER BY {order}), {reason}, r._gs_op,"
            " json_build_object('source', _gs_source, 'part', _gs_part, 'off', _gs_off, 'sub', _gs_sub),"
            " {row} FROM {table} r {condition} RETURNING 1) SELECT count(*) FROM put"
        ).format(
            errors=self.identifier,
            columns=sql.SQL(", ").join(map(sql.Identifier, _COLUMNS)),
            pipeline=sql.Literal(self.pipeline),
            node=sql.Literal(self.node),
            epoch=sql.Literal(epoch),
            after=sql.Literal(after),
            order=sql.SQL(", ").join(map(sql.Identifier, POSITION)),
            reason=reason,
            row=row,
            table=stage.table,
            condition=stage.condition,
        )
        ((rows,),) = session.run(query, *stage.values(), *values)
        return rows

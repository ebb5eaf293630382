"""A Postgres table as a bounded source: read once by COPY, stored, and read from there by epochs."""

from __future__ import annotations

import difflib
from collections.abc import Generator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
from psycopg import sql

from headrace.connectors.postgres.config import describe_table
from headrace.connectors.postgres_client.session import (
    Address,
    ControlConnection,
    ControlSession,
    Loader,
    trusted_sql,
)
from headrace.connectors.postgres_source.columns import PostgresColumn, find_unique_keys, read_column
from headrace.connectors.staged.source import StagedSource, cast_column
from headrace.pipeline.errors import DataError, SchemaError, TargetError, TransientError
from headrace.pipeline.model.capabilities import SourceCapabilities
from headrace.pipeline.model.connectors import source_entries
from headrace.pipeline.protocol.epochs import Json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.connectors.postgres_source.config import PostgresSourceConfig
    from headrace.pipeline.config.settings import Settings


class PostgresTableSource(StagedSource):
    """The rows that a table or view has when the pipeline starts for the first time.

    One statement reads all of them, so they are those of one moment. Headrace stores them, so no transaction
    stays open, and later changes of the table do not matter.
    """

    capabilities: ClassVar[SourceCapabilities] = source_entries()["postgres"].capabilities
    node: PostgresSourceConfig

    def __init__(
        self, node: PostgresSourceConfig, settings: Settings, ordinal: int = 0, name: str = ""
    ) -> None:
        """Create the source without connecting. `name` is the node's name in errors."""
        super().__init__(node, settings, ordinal, name or node.table)
        self._connection = settings.postgres_source
        self._control = ControlConnection(self._address())

    @property
    def row_filter(self) -> str | None:
        """None: the server has applied the filter to the rows that are stored."""
        return None

    @property
    def declared_schema(self) -> pa.Schema:
        """The columns that the node reads, as the server has them now."""
        return pa.schema([pa.field(column.name, column.type) for column in self._columns])

    @cached_property
    def _columns(self) -> list[PostgresColumn]:
        query = sql.SQL("SELECT * FROM {} LIMIT 0").format(self._table)
        with self._control.transaction() as session:
            self._check_table(session)
            session.run(query)
            result = {column.name: read_column(column) for column in session.result_columns}
        wanted = self.node.columns or tuple(result)
        if absent := [name for name in wanted if name not in result]:
            msg = f"`{self.node.schema_}.{self.node.table}` has no column {', '.join(absent)}"
            raise SchemaError(msg, hint=f"It has: {', '.join(result)}.", node=self.name)
        return [result[name] for name in wanted]

    @property
    def unique_keys(self) -> tuple[tuple[str, ...], ...]:
        """The columns of the table's unique indexes."""
        return self._unique_keys

    @cached_property
    def _unique_keys(self) -> tuple[tuple[str, ...], ...]:
        with self._control.transaction() as session:
            return find_unique_keys(session, self.node.schema_, self.node.table)

    def explain_key_spread(self, key: Sequence[str]) -> str:
        """See `BoundedSource.explain_key_spread`. A unique index keeps the rows of a key apart."""
        if not super().explain_key_spread(key):
            return ""
        listed = ", ".join(f"`{name}`" for name in key) or "no column"
        return f"`{self.node.schema_}.{self.node.table}` has no unique index on columns of the key ({listed})"

    def _check_table(self, session: ControlSession) -> None:
        """Raise TargetError, with the closest names, for a table that does not exist."""
        name, schema = self.node.table, self.node.schema_
        query = (
            "SELECT c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE n.nspname = $1::text AND c.relkind IN ('r', 'p', 'v', 'm', 'f')"
        )
        tables = [result for (result,) in session.run(query, schema)]
        if name in tables:
            return
        near = difflib.get_close_matches(name, tables, n=2)
        hint = f"Did you mean {' or '.join(near)}?" if near else "Set `schema` and `table`."
        msg = f"`{schema}.{name}` does not exist in the database `{self._connection.db}`"
        raise TargetError(msg, hint=hint, node=self.name)

    @property
    def _table(self) -> sql.Identifier:
        return sql.Identifier(self.node.schema_, self.node.table)

    def check(self, spark: SparkSession, columns: Sequence[str]) -> None:
        """Check columns and filter on the server, which reads no rows."""
        super().check(spark, columns)
        with self._control.transaction() as session:
            # Without the parentheses as well: a filter must not close them.
            for condition in (f"(\n{self.node.filter}\n)", self.node.filter) if self.node.filter else ():
                session.run(sql.Composed([sql.SQL("EXPLAIN "), self._select(trusted_sql(condition))]))

    def read_batches(self) -> Generator[pa.RecordBatch | pa.Table]:
        """Return the rows of one statement, as they arrive.

        Raise DataError for a value that its type in Arrow cannot hold.
        """
        columns = self._columns
        condition = trusted_sql(f"(\n{self.node.filter}\n)") if self.node.filter else None
        loader = Loader(self._address())
        try:
            with loader.transaction() as session:
                session.run("SET LOCAL client_encoding TO 'UTF8'")
                # Locks the table, so that no index is dropped before the rows are read.
                session.run(sql.SQL("SELECT FROM {} LIMIT 0").format(self._table))
                if find_unique_keys(session, self.node.schema_, self.node.table) != self.unique_keys:
                    msg = f"the indexes of `{self.node.schema_}.{self.node.table}` changed at the start"
                    raise TransientError(msg, node=self.name)
                for batch in session.select(self._select(condition), self.name):
                    yield pa.table(
                        [self._convert(batch.column(at), column) for at, column in enumerate(columns)],
                        names=[column.name for column in columns],
                    )
        except DataError as error:
            hint = "Convert or leave out the value in a view, or with `columns` or `filter`."
            raise DataError(error.message, hint=hint, node=self.name) from error
        finally:
            loader.close()

    def _select(self, condition: sql.Composable | None) -> sql.Composed:
        items = [
            sql.Composed([column.expression, sql.SQL(" AS "), sql.Identifier(column.name)])
            for column in self._columns
        ]
        parts: list[Any] = [sql.SQL("SELECT "), sql.SQL(", ").join(items), sql.SQL(" FROM "), self._table]
        return sql.Composed([*parts, *([sql.SQL(" WHERE "), condition] if condition else [])])

    def _convert(self, values: pa.Array, column: PostgresColumn) -> pa.ChunkedArray:
        field = pa.field(column.name, column.type)
        result = cast_column(self.name, values, field, f"`{self.node.schema_}.{self.node.table}`")
        if pa.types.is_string(column.type):
            try:
                result.validate(full=True)
            except pa.ArrowInvalid:
                msg = f"column `{column.name}` has a text that is not UTF-8"
                raise DataError(msg, node=self.name) from None
        return result

    def describe(self) -> Json:
        """Return the type, asset key and table name, which are those of a sink into the same table."""
        return describe_table(self._connection, self.node.schema_, self.node.table)

    def close(self) -> None:
        """Close the connection."""
        super().close()
        self._control.close()

    def _address(self) -> Address:
        return Address(self._connection, f"headrace {self.name}"[:63], self.name)

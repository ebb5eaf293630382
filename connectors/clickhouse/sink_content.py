# ruff: noqa: S608  SQL is built from driver-quoted names; values are bound
"""What the table of a sink has now, as Arrow, for audits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from headrace.connectors.clickhouse.client import SINK, translate_errors
from headrace.connectors.clickhouse.sink_types import column_type
from headrace.connectors.clickhouse.snapshot import ClickHouseTableInfo
from headrace.connectors.clickhouse.types import quote
from headrace.connectors.target_query import QueryResult, TargetQuery, to_query_column
from headrace.pipeline.errors import TransientError
from headrace.pipeline.protocol.epochs import CommitRecord
from headrace.pipeline.types.arrow import is_nested
from headrace.pipeline.types.int256 import is_wide

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

_TRIES = 3
_Result = TypeVar("_Result")


class TableReader:
    """Reads one table with FINAL if its engine replaces rows."""

    def __init__(self, client: Client, node: str, table: ClickHouseTableInfo) -> None:
        self._client, self._node, self._table = client, node, table
        self._from = f"{table.sql}{' FINAL' if table.merges_rows else ''}"

    def read_stable(
        self, record: Callable[[], CommitRecord | None], read: Callable[[], _Result]
    ) -> tuple[CommitRecord | None, _Result]:
        """Return the record and what `read` returns for it. Raise TransientError if the record changes."""
        before = record()
        for _ in range(_TRIES):
            result = read()
            if (after := record()) == before:
                return before, result
            before = after
        msg = f"`{self._table.database}.{self._table.name}` was written while it was read"
        raise TransientError(msg, node=self._node)

    def count(self) -> int:
        """Return the number of rows."""
        with self._errors():
            return int(self._client.query(f"SELECT count() FROM {self._from}").result_rows[0][0])

    def comparable(self, schema: pa.Schema) -> tuple[str, ...]:
        """Return the columns that can be read back and compared."""
        return tuple(field.name for field in schema if not is_nested(field.type) and not is_wide(field.type))

    def read(self, schema: pa.Schema, columns: Sequence[str], limit: int | None) -> pa.Table | None:
        """Return all rows, None if they are more than `limit`."""
        if limit is not None and self.count() > limit:
            return None
        return self._select(schema, columns)

    def open_query(self, record: CommitRecord | None, *, is_shared: bool) -> TargetQuery:
        """Return read-only SQL over the rows that readers of the table see."""
        with self._errors():
            columns = self._client.query(
                "SELECT name, type FROM system.columns WHERE database = {database:String}"
                " AND table = {table:String} ORDER BY position",
                parameters={"database": self._table.database, "table": self._table.name},
            ).result_rows
        kinds = {name: to_query_column("clickhouse", kind) for name, kind in columns}
        return TargetQuery("clickhouse", self._from, kinds, self._fetch, record, is_shared)

    def _fetch(self, text: str) -> QueryResult:
        with self._errors():
            result = self._client.query(text)
        return QueryResult(result.column_names, result.result_rows)

    def _select(self, schema: pa.Schema, columns: Sequence[str]) -> pa.Table:
        fields = [schema.field(name) for name in columns]
        casts = [
            f"CAST({quote(field.name)}, {_literal(column_type(field.type))}) AS {quote(field.name)}"
            for field in fields
        ]
        with self._errors():
            # Strings come as bytes: those of a binary column need not be text.
            result = self._client.query_arrow(
                f"SELECT {', '.join(casts)} FROM {self._from}",
                settings={"output_format_arrow_string_as_string": "0"},
            )
        return pa.table(
            [
                column.cast(pa.string()) if pa.types.is_string(field.type) else column
                for column, field in zip(result.columns, fields, strict=True)
            ],
            names=list(columns),
        )

    def _errors(self) -> AbstractContextManager[None]:
        return translate_errors(self._node, f"{self._table.database}.{self._table.name}", "read it", SINK)


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"

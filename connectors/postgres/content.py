"""What a Postgres table holds now, as Arrow: record and rows of one snapshot, for the content audit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute
from psycopg import sql
from psycopg.conninfo import make_conninfo

from headrace.connectors.content import TargetContent
from headrace.connectors.frame import DRIVER_BYTES
from headrace.connectors.local_relation import frame_of_table
from headrace.connectors.postgres.commit_store import RecordStore
from headrace.connectors.postgres_client.session import Address, LoadSession, translate_errors, trusted_sql
from headrace.pipeline.errors import GuaranteeError
from headrace.pipeline.protocol.partitions import HistoryPartition
from headrace.pipeline.types.arrow import postgres_type
from headrace.pipeline.types.int256 import is_wide

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pc: Any = pyarrow.compute
"""Its functions are made at import, so type checkers do not see them."""

_READ_AS: Mapping[str, str] = {
    "SMALLINT": "bigint",
    "INTEGER": "bigint",
    "BIGINT": "bigint",
    "NUMERIC": "text",
    "REAL": "double precision",
    "DOUBLE PRECISION": "double precision",
    "BOOLEAN": "boolean",
    "TEXT": "text",
    "BYTEA": "bytea",
    "DATE": "date",
    "TIMESTAMP WITH TIME ZONE": "timestamptz",
    "TIMESTAMP WITHOUT TIME ZONE": "timestamp",
}
"""How a column is read back, by the type that its rows have in Postgres.

Others (nested values, times of day) are not compared.
"""
_PLAIN: tuple[Callable[[pa.DataType], bool], ...] = (
    pa.types.is_integer,
    pa.types.is_decimal,
    pa.types.is_date,
    pa.types.is_timestamp,
    pa.types.is_boolean,
    pa.types.is_floating,
)
"""Types whose text in Arrow is one that Postgres reads."""


def readable(schema: pa.Schema) -> list[str]:
    """Return the columns that can be read back and compared."""
    return [field.name for field in schema if _kind(field) in _READ_AS and not is_wide(field.type)]


def _kind(field: pa.Field) -> str:
    return postgres_type(field.type).split("(")[0].strip().upper()


def check_readable_keys(sink: str, schema: pa.Schema, key: Sequence[str]) -> None:
    """Raise GuaranteeError for a key of a type that is not read back, such as a time of day."""
    unreadable = [name for name in key if name not in readable(schema)]
    if unreadable:
        msg = f"key column `{unreadable[0]}` ({schema.field(unreadable[0]).type}) cannot be read back"
        raise GuaranteeError(msg, hint="Start over with: headrace reset FILE.", node=sink)


class TargetReader:
    """Record and rows of one snapshot, over one read-only transaction.

    Each reader answers one question and closes its transaction then. Rows that are too large for the driver
    go through the parquet file `path`.
    """

    def __init__(
        self,
        address: Address,
        store: RecordStore,
        table: sql.Identifier,
        schema: pa.Schema,
        key: Sequence[str],
        path: Path,
        spark: Any,
    ) -> None:
        from adbc_driver_postgresql import dbapi

        self._node, self._table, self._schema, self._key = address.node, table, schema, tuple(key)
        self._path, self._spark = path, spark
        self._closing = ExitStack()
        with self._closing, translate_errors(address.node):
            connection = self._closing.enter_context(dbapi.connect(make_conninfo(**address.parameters())))
            self._cursor = self._closing.enter_context(connection.cursor())
            self._session = LoadSession(connection)
            self._session.run("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            self._session.run("SET LOCAL TimeZone = 'UTC'")
            state = store.read_state(self._session)
            self._record = state.record if state else None
            self._closing = self._closing.pop_all()

    def content(self, limit: int | None) -> TargetContent | None:
        """Return the record and all rows; None without a record.

        Of a table with more than `limit` rows, rows are only looked up by their keys. The transaction is then
        open until the content is closed.
        """
        columns = tuple(readable(self._schema))
        with self._closing, translate_errors(self._node):
            if self._record is None:
                return None
            if limit is not None and self._has_more_than(limit):
                close = self._closing.pop_all().close
                return TargetContent(self._record, None, columns, lookup=self._lookup, close=close)
            table = self._read(columns, sql.SQL(""))
        frame = self._spark.read.parquet(str(self._path)) if table is None else None
        return TargetContent(self._record, frame, columns, table)

    def keys(self, partition: HistoryPartition | None) -> DataFrame:
        """Return the keys of the rows in a partition, or of all rows."""
        with self._closing, translate_errors(self._node):
            table = self._read(self._key, self._is_within(partition) if partition else sql.SQL(""))
        if table is None:
            return self._spark.read.parquet(str(self._path))
        return frame_of_table(self._spark, table)

    def _has_more_than(self, limit: int) -> bool:
        """Return whether the table has more than `limit` rows. Counting stops after `limit` + 1 rows."""
        query = sql.SQL("SELECT count(*) FROM (SELECT 1 FROM {} LIMIT {}) t").format(
            self._table, sql.Literal(limit + 1)
        )
        return int(self._session.run(query)[0][0]) > limit

    def _read(self, columns: Sequence[str], condition: sql.Composable) -> pa.Table | None:
        """Return rows. If they exceed `DRIVER_BYTES`, write them to the parquet file and return None."""
        import pyarrow.parquet as pq

        reader = self._select(columns, condition)
        few: list[pa.RecordBatch] = []
        size = 0
        for batch in reader:
            few.append(batch)
            size += batch.nbytes
            if size > DRIVER_BYTES:
                break
        else:
            return pa.Table.from_batches(few, reader.schema)
        with pq.ParquetWriter(self._path, reader.schema) as writer:
            for batch in chain(few, reader):
                writer.write_batch(batch)
        return None

    def _lookup(self, keys: pa.Table) -> pa.Table | None:
        """Return the rows of these keys; None if a key's type cannot be sent to the server."""
        listed = [array_text(keys[name]) for name in self._key]
        if None in listed or not self._key:
            return None
        lists, conditions, names = [], [], []
        for place, (name, text) in enumerate(zip(self._key, listed, strict=True)):
            kind = trusted_sql(postgres_type(self._schema.field(name).type))
            lists.append(sql.SQL("{}::text::{}[]").format(sql.Literal(text), kind))
            alias = sql.Identifier(f"k{place}")
            names.append(alias)
            conditions.append(sql.SQL("t.{} = k.{}").format(sql.Identifier(name), alias))
        joined = sql.SQL(" JOIN unnest({}) AS k ({}) ON {}").format(
            sql.SQL(", ").join(lists), sql.SQL(", ").join(names), sql.SQL(" AND ").join(conditions)
        )
        with translate_errors(self._node):
            return self._select(readable(self._schema), joined).read_all()

    def _is_within(self, partition: HistoryPartition) -> sql.Composable:
        (name,) = [name for name in self._schema.names if name.lower() == partition.column.lower()]
        column = sql.Identifier("t", name)
        if partition.start == partition.end:
            return sql.SQL(" WHERE {} = {}").format(column, sql.Literal(partition.start))
        return sql.SQL(" WHERE {0} >= {1} AND {0} < {2}").format(
            column, sql.Literal(partition.start), sql.Literal(partition.end)
        )

    def _select(self, names: Sequence[str], joined: sql.Composable) -> pa.RecordBatchReader:
        columns = [
            sql.SQL("t.{0}::{1} AS {0}").format(
                sql.Identifier(name), trusted_sql(_READ_AS[_kind(self._schema.field(name))])
            )
            for name in names
        ]
        query = sql.SQL("SELECT {} FROM {} AS t{}").format(sql.SQL(", ").join(columns), self._table, joined)
        self._cursor.execute(query.as_string(None))
        return self._cursor.fetch_record_batch()


def array_text(values: pa.ChunkedArray) -> str | None:
    """Return values as a Postgres array literal; None for types that have no string form in Arrow."""
    kind = values.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        escaped = pc.replace_substring(pc.replace_substring(values, "\\", "\\\\"), '"', '\\"')
    elif any(plain(kind) for plain in _PLAIN):
        escaped = pc.cast(values, pa.string())
    else:
        return None
    mark, nothing = (pa.scalar(text, pa.large_string()) for text in ('"', ""))
    quoted = pc.binary_join_element_wise(mark, pc.cast(escaped, pa.large_string()), mark, nothing)
    items = (
        pa.chunked_array([quoted]).combine_chunks()
        if isinstance(quoted, pa.Array)
        else quoted.combine_chunks()
    )
    listed = pa.LargeListArray.from_arrays(pa.array([0, len(items)], pa.int64()), items)
    return "{" + pc.binary_join(listed, pa.scalar(",", pa.large_string()))[0].as_py() + "}"

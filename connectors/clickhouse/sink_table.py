# ruff: noqa: S608  SQL is built from driver-quoted names; values are bound
"""The table of a sink: its DDL, and whether an existing table can take the rows of the sink."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyarrow import types as kinds

from headrace.connectors.clickhouse.client import SINK, translate_errors
from headrace.connectors.clickhouse.config import ClickHouseSinkConfig
from headrace.connectors.clickhouse.sink_types import ColumnRule, column_type, rule_for
from headrace.connectors.clickhouse.snapshot import ClickHouseTableInfo, find_table
from headrace.connectors.clickhouse.types import UnsupportedTypeError, parse, quote
from headrace.connectors.schema_evolution import (
    ADD_COLUMNS_HINT,
    find_new_columns,
    log_added_columns,
)
from headrace.pipeline.errors import SchemaError, TargetError, UserError
from headrace.pipeline.types.arrow import is_nested
from headrace.pipeline.types.int256 import is_wide

if TYPE_CHECKING:
    import pyarrow as pa
    from clickhouse_connect.driver.client import Client

INSERT_TIME, IS_DELETED = "insert_time", "is_deleted"
EPOCH, ATTEMPT = "_headrace_epoch", "_headrace_attempt"
_OWN = {
    INSERT_TIME: "DateTime64(6, 'UTC')",
    IS_DELETED: "UInt8",
    EPOCH: "UInt64",
    ATTEMPT: "UInt64",
}
"""Columns that Headrace adds to the rows, and their types in a table that it creates."""
_CODEC = re.compile(r"\s+CODEC\s*\(.*\)\s*$", re.IGNORECASE | re.DOTALL)
_VERSIONS = re.compile(r"^DateTime(64\(\d.*\))?(\(.*\))?$")


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of an existing table."""

    name: str
    type: str
    default_kind: str
    is_key: bool


@dataclass(frozen=True, slots=True)
class SinkTable:
    """An existing table that takes the rows of a sink."""

    info: ClickHouseTableInfo
    columns: tuple[str, ...]
    """The columns of inserts: those of the rows, then Headrace's own that the table has."""
    rules: tuple[ColumnRule, ...]


class TargetTable:
    """The table of one sink, by its name."""

    def __init__(self, client: Client, name: str, node: ClickHouseSinkConfig, key: Sequence[str]) -> None:
        self._client, self._name, self._node, self._key = client, name, node, tuple(key)
        first, dot, rest = node.table.partition(".")
        self.database, self.table = (first, rest) if dot else (client.database or "default", first)

    @property
    def display_name(self) -> str:
        """The table as messages name it."""
        return f"the ClickHouse table `{self.database}.{self.table}`"

    def find(self) -> ClickHouseTableInfo | None:
        """Return the table, None if there is none."""
        return find_table(self._client, self.database, self.table, self._name)

    def create(self, schema: pa.Schema) -> None:
        """Create the table if it is missing."""
        keyed = bool(self._key)
        columns = [f"{quote(field.name)} {self._declare(field)}" for field in schema]
        columns += [f"{quote(name)} {kind}" for name, kind in _OWN.items() if keyed or name != IS_DELETED]
        engine = f"ReplacingMergeTree({quote(self._version)}, {IS_DELETED})" if keyed else "MergeTree"
        order = f"({', '.join(map(quote, self._key))})" if keyed else "tuple()"
        with translate_errors(self._name, f"{self.database}.{self.table}", "create it", SINK):
            self._client.command(
                f"CREATE TABLE IF NOT EXISTS {quote(self.database)}.{quote(self.table)}"
                f" ({', '.join(columns)}) ENGINE = {engine} ORDER BY {order}"
            )

    def find_new_columns(self, schema: pa.Schema) -> list[pa.Field]:
        """Return the columns of the rows that the existing table lacks and the sink may add."""
        return find_new_columns(self._node, schema, self._key, self._read_columns())

    def add_columns(self, columns: Sequence[pa.Field]) -> None:
        """Add columns, which rewrites no row. A concurrent process may do the same."""
        added = [f"ADD COLUMN IF NOT EXISTS {quote(field.name)} {self._declare(field)}" for field in columns]
        with translate_errors(self._name, f"{self.database}.{self.table}", "add columns", SINK):
            self._client.command(f"ALTER TABLE {self._sql} {', '.join(added)}")
        log_added_columns(self._name, f"{self.database}.{self.table}", columns)

    def check_rows(self, schema: pa.Schema) -> None:
        """Raise an error for rows that no table can take, and for wrong options."""
        override = self._node.schema_override
        if unknown := [name for name in override if name not in schema.names]:
            msg = f"`schema_override` names `{unknown[0]}`, which is no column of the rows"
            hint = f"The rows have: {', '.join(schema.names)}."
            raise UserError(msg, hint=hint, node=self._name, keys=("schema_override", unknown[0]))
        for name, text in override.items():
            try:
                parse(_CODEC.sub("", text).strip())
            except UnsupportedTypeError as error:
                msg = f"`schema_override` of `{name}`: `{text}` is no type of ClickHouse"
                hint = "Write a type and perhaps a codec, such as `UInt64 CODEC(Delta, ZSTD)`."
                raise UserError(msg, hint=hint, node=self._name, keys=("schema_override", name)) from error
        self._check_version(schema)
        for field in schema:
            if field.name in _OWN:
                msg = f"column `{field.name}` is a name that the sink adds itself"
                raise SchemaError(msg, hint="Rename it in a transform.", node=self._name)
            if field.name in self._key and is_nested(field.type):
                msg = f"key column `{field.name}` is a list, map or struct"
                raise SchemaError(msg, hint="Choose another primary_key.", node=self._name)
            self._declare(field)

    def check(self, info: ClickHouseTableInfo, schema: pa.Schema) -> SinkTable:
        """Return the table with the rules for its rows. Raise TargetError or SchemaError if it is unfit."""
        self._check_engine(info)
        columns = self._read_columns()
        problems, rules = [], []
        for field in schema:
            column = columns.get(field.name)
            if column is None or column.default_kind in {"MATERIALIZED", "ALIAS"}:
                kind = self._declare(field)
                problems.append(f"column `{field.name}` ({kind}) is missing or computed by the table")
                continue
            try:
                rule = rule_for(field, column.type)
            except SchemaError as error:
                problems.append(error.message)
                continue
            rules += [rule] if rule is not None else []
        if problems:
            hint = (
                f"ALTER the table, {ADD_COLUMNS_HINT}, convert the columns in a transform, or name another"
                " table."
            )
            msg = f"{self.display_name}: {'; '.join(problems)}"
            raise SchemaError(msg, hint=hint, node=self._name)
        self._check_own(info, columns)
        own = [name for name in _OWN if name in columns and (self._key or name != IS_DELETED)]
        return SinkTable(info, (*schema.names, *own), tuple(rules))

    def count_attempt(self, attempt: int) -> int | None:
        """Return how many rows of an attempt the table has, None if rows do not tell."""
        if ATTEMPT not in self._read_columns():
            return None
        bound = {"attempt": attempt}
        where = f"{quote(ATTEMPT)} = {{attempt:UInt64}}"
        with translate_errors(self._name, f"{self.database}.{self.table}", "read it", SINK):
            rows = self._client.query(f"SELECT count() FROM {self._sql} WHERE {where}", parameters=bound)
        return int(rows.result_rows[0][0])

    def remove_attempt(self, attempt: int) -> None:
        """Remove the rows of an attempt, and return when no reader sees them."""
        with translate_errors(self._name, f"{self.database}.{self.table}", "delete rows", SINK):
            self._client.command(
                f"ALTER TABLE {self._sql} DELETE WHERE {quote(ATTEMPT)} = {int(attempt)}",
                settings={"mutations_sync": "1"},
            )

    def remove_deleted(self, attempt: int) -> None:
        """Remove the deletes of an attempt and the rows that they end. Readers with FINAL see no change.

        First the older rows, then the deletes: a crash in between leaves no row without its delete.
        """
        mine, time = f"{quote(ATTEMPT)} = {int(attempt)}", f"toDateTime64({INSERT_TIME}, 6)"
        deletes = f"FROM {self._sql} WHERE {IS_DELETED} = 1 AND {mine}"
        key = ", ".join(map(quote, self._key))
        settings = {"mutations_sync": "1"}
        with translate_errors(self._name, f"{self.database}.{self.table}", "delete rows", SINK):
            result = self._client.query(f"SELECT count(), toUnixTimestamp64Micro(max({time})) {deletes}")
            count, clock = result.result_rows[0]
            if not count:
                return
            older = f"{time} <= fromUnixTimestamp64Micro({int(clock)}, 'UTC') AND NOT ({mine})"
            for rows in (f"{older} AND ({key}) IN (SELECT {key} {deletes})", f"{IS_DELETED} = 1 AND {mine}"):
                self._client.command(f"ALTER TABLE {self._sql} DELETE WHERE {rows}", settings=settings)

    @property
    def _sql(self) -> str:
        return f"{quote(self.database)}.{quote(self.table)}"

    def _declare(self, field: pa.Field) -> str:
        """Return the type of a column in a table that is created."""
        if (text := self._node.schema_override.get(field.name)) is not None:
            return text
        try:
            return column_type(field.type, required=field.name in (*self._key, self._node.version_column))
        except SchemaError as error:
            msg = f"column `{field.name}`: {error.message}"
            raise SchemaError(msg, hint=error.hint, node=self._name) from error

    def _check_engine(self, info: ClickHouseTableInfo) -> None:
        wanted = "ReplacingMergeTree" if self._key else "MergeTree"
        if info.engine != wanted:
            why = "with a primary_key" if self._key else "without a primary_key"
            msg = (
                f"{self.display_name} has the engine {info.engine}; a sink {why} writes to {wanted} on one"
                " server"
            )
            raise TargetError(
                msg, hint="Name another table: Headrace creates a missing one.", node=self._name
            )
        if set(info.uuid) <= {"0", "-"}:
            msg = f"{self.display_name} is in a database whose engine is not Atomic"
            hint = "Create one with `CREATE DATABASE name`, and set `table` to `name.table`."
            raise TargetError(msg, hint=hint, node=self._name)

    def _check_own(self, info: ClickHouseTableInfo, columns: Mapping[str, TableColumn]) -> None:
        """Raise TargetError unless the table has the columns that make repeats harmless."""
        if not self._key:
            missing = [name for name in (EPOCH, ATTEMPT) if name not in columns]
            if missing:
                raise self._missing_error(info, missing, "rows of an interrupted epoch")
            return
        if not self._node.append_only_mode and ATTEMPT not in columns:
            raise self._missing_error(info, [ATTEMPT], "rows of a deleted key")
        in_key = {column.name for column in columns.values() if column.is_key}
        is_plain = len(info.sorting_key.split(", ")) == len(self._key)
        if in_key != set(self._key) or not is_plain:
            msg = (
                f"{self.display_name} is sorted by ({info.sorting_key}), the primary_key of the sink is"
                f" ({', '.join(self._key)})"
            )
            hint = "ClickHouse replaces rows by the sorting key. Use its columns, or name another table."
            raise TargetError(msg, hint=hint, node=self._name)
        engine, partitioned = self._read_engine()
        time = columns.get(INSERT_TIME)
        is_timed = time is not None and _VERSIONS.match(time.type)
        if f"({self._version}, {IS_DELETED})" not in engine or not is_timed:
            msg = f"{self.display_name} does not replace rows by `{self._version}` and `{IS_DELETED}`"
            hint = (
                f"It needs ENGINE = ReplacingMergeTree({self._version}, {IS_DELETED}) with columns"
                f" {INSERT_TIME} {_OWN[INSERT_TIME]} and {IS_DELETED} UInt8. Or name another table."
            )
            raise TargetError(msg, hint=hint, node=self._name)
        if partitioned and columns[INSERT_TIME].type != _OWN[INSERT_TIME]:
            msg = f"{self.display_name} has partitions, and `{INSERT_TIME}` is {columns[INSERT_TIME].type}"
            hint = f"Rows of a key in two partitions are ordered by it: make it {_OWN[INSERT_TIME]}."
            raise TargetError(msg, hint=hint, node=self._name)

    def _missing_error(self, info: ClickHouseTableInfo, names: Sequence[str], rows: str) -> TargetError:
        msg = f"{self.display_name} has no column {' and no column '.join(names)}: {rows} cannot be removed"
        added = ", ".join(f"ADD COLUMN {quote(name)} UInt64" for name in names)
        return TargetError(msg, hint=f"ALTER TABLE {info.sql} {added}", node=self._name)

    def _check_version(self, schema: pa.Schema) -> None:
        """Raise an error for a version column that ClickHouse cannot compare."""
        if (name := self._node.version_column) is None or name not in schema.names:
            return
        if not self._node.append_only_mode:
            msg = "`version_column` needs `append_only_mode`: a delete must stay to compete with later rows"
            hint = "Remove `version_column` or `append_only_mode: false`."
            raise UserError(msg, hint=hint, node=self._name, keys=("version_column",))
        if kinds.is_decimal(kind := schema.field(name).type) or is_wide(kind):
            msg = f"`version_column` `{name}` is {kind}, which ClickHouse does not take as a version"
            hint = "Cast it to an integer or a timestamp in a transform."
            raise SchemaError(msg, hint=hint, node=self._name, keys=("version_column",))

    @property
    def _version(self) -> str:
        """The column that decides which row of a key stays."""
        return self._node.version_column or INSERT_TIME

    def _read_engine(self) -> tuple[str, str]:
        """Return the engine with its arguments, and the partition key."""
        rows = self._query("SELECT engine_full, partition_key FROM system.tables WHERE name = {table:String}")
        return rows[0][0].replace("`", ""), rows[0][1]

    def _read_columns(self) -> Mapping[str, TableColumn]:
        rows = self._query(
            "SELECT name, type, default_kind, is_in_sorting_key FROM system.columns WHERE table ="
            " {table:String}"
        )
        return {row[0]: TableColumn(row[0], row[1], row[2], bool(row[3])) for row in rows}

    def _query(self, sql: str) -> Sequence[Sequence[str]]:
        bound = {"table": self.table, "database": self.database}
        with translate_errors(self._name, f"{self.database}.{self.table}", "see its columns", SINK):
            return self._client.query(
                f"{sql} AND database = {{database:String}}", parameters=bound
            ).result_rows

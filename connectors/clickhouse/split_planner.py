# ruff: noqa: S608  SQL is built from driver-quoted names and the server's own strings; values are bound
"""Finds the splits of a table: one ordered pass over its key gives every border and every count."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.connectors.clickhouse.client import translate_errors
from headrace.connectors.clickhouse.config import ClickHouseSourceConfig
from headrace.connectors.clickhouse.key_ranges import (
    INSERTED,
    SortingKeyColumn,
    SqlParameters,
    expressions,
    in_range,
    in_scope,
    usable,
)
from headrace.connectors.clickhouse.snapshot import ClickHouseTableInfo
from headrace.connectors.clickhouse.types import quote
from headrace.connectors.splitting import SPLIT_BYTES
from headrace.pipeline.errors import SchemaError, TargetError
from headrace.pipeline.protocol.epochs import Json
from headrace.pipeline.protocol.partitions import HistoryPartition, PartitionGap, UnpartitionedRows
from headrace.pipeline.protocol.table_offsets import HandoffFilter

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

log = logging.getLogger(__name__)


class SplitPlanner:
    """Plans the splits of one table, which should hold still."""

    def __init__(
        self, client: Client, table: ClickHouseTableInfo, node: ClickHouseSourceConfig, name: str
    ) -> None:
        self._client = client
        self._table = table
        self._node = node
        self._name = name
        self._rows = node.split_rows

    def splits(
        self, window: HistoryPartition | None, cut: HandoffFilter | None, *, parted: bool
    ) -> list[Json]:
        """Return all non-empty splits with exact counts, in the order of the key.

        Rows whose key is NULL or NaN come last. As many key columns are used as it takes to keep splits below
        twice `split_rows`, or twice `SPLIT_BYTES` for wide rows. Rows of one key stay together.
        With `parted`, parts are stable, so a table without a sorting key is split by insert and by a row's
        index in its part.
        """
        each = self._width()
        self._rows = (
            min(self._node.split_rows, max(1, int(SPLIT_BYTES / each))) if each else self._node.split_rows
        )
        sorting = self._sorting()
        common = self._scope(window, cut, sorting)
        keys = self._keys(sorting, parted=parted)
        result: list[Json] = []
        for width in range(min(len(keys), 1), len(keys) + 1):
            result = self._plan_ranges(keys[:width], common) if width else []
            if all(part["rows"] <= 2 * self._rows for part in result):
                break
        result += self._plan_unplaced(keys, common)
        prefix = "" if window is None else f"{window.key}/"
        sizes = [{"bytes": round(part["rows"] * each)} if each else {} for part in result]
        return [
            {"id": f"{prefix}{place:05d}", "ordinal": place, **part, **size, "scope": common}
            for place, (part, size) in enumerate(zip(result, sizes, strict=True))
        ]

    def count_unpartitioned_rows(self, gap: PartitionGap, cut: HandoffFilter | None) -> UnpartitionedRows:
        """Count the filtered rows with NULL in the partition column, and the rows in the gap."""
        bound, column, kind = SqlParameters(), quote(gap.column), self._kind(gap.column)
        if gap.values:
            listed = ", ".join(bound.literal(value, kind) for value in gap.values)
            here = f"ifNull({column} NOT IN ({listed}), 0)"
        else:
            here = f"ifNull({column} >= {bound.literal(gap.start, kind)}, 0)"
            here += f" AND ifNull({column} < {bound.literal(gap.end, kind)}, 0)" if gap.end else ""
            here += f" OR ifNull({column} < {bound.literal(gap.before, kind)}, 0)" if gap.before else ""
        where = self._where(_part((), None, None, 0), self._scope(None, cut, self._sorting()), bound)
        query = (
            f"SELECT countIf(isNull({column})), countIf({here}), toString(maxIf({column}, {here})) FROM"
            f" {self._from()} WHERE {where}"
        )
        with translate_errors(
            self._name, f"{self._table.database}.{self._table.name}", "look for rows outside of its windows"
        ):
            ((nulls, outside, last),) = self._client.query(query, parameters=bound.parameters).result_rows
        return UnpartitionedRows(int(nulls), int(outside), last or "")

    def _width(self) -> float:
        """Return the mean bytes of a row with all columns from the server's statistics, or 0 if unknown."""
        if not self._table.merge_tree:
            return 0.0
        try:
            with translate_errors(self._name, f"{self._table.database}.{self._table.name}", "see its parts"):
                rows = self._client.query(
                    "SELECT sum(data_uncompressed_bytes) / sum(rows) FROM system.parts"
                    " WHERE active AND database = {database:String} AND table = {name:String}",
                    parameters={"database": self._table.database, "name": self._table.name},
                ).result_rows
        except TargetError as error:
            log.info("event=row_width_unknown node=%s error=%s", self._name, error.message)
            return 0.0
        width = float(rows[0][0] or 0.0) if rows else 0.0
        return width if math.isfinite(width) else 0.0

    def _sorting(self) -> list[tuple[str, str]]:
        """Return the sorting key's expressions with their types."""
        result = expressions(self._table.sorting_key)
        if not result:
            return []
        with translate_errors(
            self._name, f"{self._table.database}.{self._table.name}", "see its sorting key"
        ):
            rows = self._client.query(
                f"DESCRIBE (SELECT {', '.join(result)} FROM {self._table.sql})"
            ).result_rows
        return [(expression, row[1]) for expression, row in zip(result, rows, strict=True)]

    def _keys(self, sorting: Sequence[tuple[str, str]], *, parted: bool) -> tuple[SortingKeyColumn, ...]:
        if keys := usable(sorting):
            return keys
        if parted and not self._table.merges_rows:
            return (SortingKeyColumn(INSERTED, "UInt64"), SortingKeyColumn("_part_offset", "UInt64"))
        return ()

    def _scope(
        self, window: HistoryPartition | None, cut: HandoffFilter | None, sorting: Sequence[tuple[str, str]]
    ) -> Json:
        """Return the conditions that all splits share."""
        return {
            "window": None
            if window is None
            else {
                "column": window.column,
                "kind": self._kind(window.column),
                "start": window.start,
                "end": window.end,
            },
            "start": self._start(sorting) if self._node.start_at is not None else None,
            "cut": None if cut is None else cut.to_json(),
        }

    def _start(self, sorting: Sequence[tuple[str, str]]) -> Json:
        if not sorting:
            msg = f"`start_at` needs a sorting key, and `{self._table.database}.{self._table.name}` has none"
            raise SchemaError(msg, hint="Remove `start_at`, or say it as a `filter`.", node=self._name)
        expression, kind = sorting[0]
        return {"expression": expression, "kind": kind, "at": self._node.start_at}

    def _kind(self, column: str) -> str:
        with translate_errors(self._name, f"{self._table.database}.{self._table.name}", "see its columns"):
            rows = self._client.query(
                "SELECT name, type FROM system.columns WHERE database = {database:String} AND table ="
                " {name:String} ORDER BY position",
                parameters={"database": self._table.database, "name": self._table.name},
            ).result_rows
        result = {row[0]: row[1] for row in rows}
        if column not in result:
            msg = (
                f"`{self._table.database}.{self._table.name}` has no column {column}, which the window is"
                " measured by"
            )
            raise SchemaError(msg, hint=f"It has: {', '.join(result)}.", node=self._name)
        return result[column]

    def _where(self, part: Json, common: Json, bound: SqlParameters) -> str:
        text = f"({in_range(part, bound)}) AND ({in_scope(common, bound)})"
        return f"{text} AND (\n{self._node.filter}\n)" if self._node.filter else text

    def _from(self) -> str:
        return f"{self._table.sql}{' FINAL' if self._table.merges_rows else ''}"

    def _plan_ranges(self, keys: Sequence[SortingKeyColumn], common: Json) -> list[Json]:
        """Return ranges of about `split_rows` rows.

        Each row's rank is the index where the run of its key begins. A run belongs to the split that contains
        its beginning. So the first key of a split is its border, and the split has exactly the counted rows.
        """
        bound = SqlParameters()
        every = _part(keys, None, None, 0)
        names = [key.expression for key in keys]
        listed = ", ".join(f"{sql} AS _headrace_{place}" for place, sql in enumerate(names))
        low = ", ".join(
            SortingKeyColumn(f"tupleElement(low, {place})", key.kind).text()
            for place, key in enumerate(keys, 1)
        )
        query = (
            f"SELECT [{low}], found FROM (SELECT"
            f" argMin(tuple({', '.join(f'_headrace_{place}' for place in range(len(keys)))}), place) AS low,"
            f" count() AS found, min(place) AS begin FROM (SELECT {listed}, rank() OVER (ORDER BY"
            f" {', '.join(names)}) - 1 AS place"
            f" FROM {self._from()} WHERE {self._where(every, common, bound)})"
            f" GROUP BY intDiv(place, {bound.bind(self._rows, 'UInt64')})) ORDER BY begin"
        )
        with translate_errors(self._name, f"{self._table.database}.{self._table.name}", "read its key"):
            rows = self._client.query(query, parameters=bound.parameters).result_rows
        borders: list[list[str] | None] = [None, *(list(row[0]) for row in rows[1:]), None]
        return [_part(keys, borders[place], borders[place + 1], row[1]) for place, row in enumerate(rows)]

    def _plan_unplaced(self, keys: Sequence[SortingKeyColumn], common: Json) -> list[Json]:
        """Return the split of rows whose key is NULL or NaN, or of all rows of a table without any keys."""
        if keys and not keys[0].loose:
            return []
        bound = SqlParameters()
        part = _part(keys[:1], None, None, 0) | {"unplaced": bool(keys)}
        with translate_errors(self._name, f"{self._table.database}.{self._table.name}", "count it"):
            query = f"SELECT count() FROM {self._from()} WHERE {self._where(part, common, bound)}"
            rows = self._client.query(query, parameters=bound.parameters).result_rows[0][0]
        return [part | {"rows": rows}] if rows else []


def _part(keys: Sequence[SortingKeyColumn], low: list[str] | None, high: list[str] | None, rows: int) -> Json:
    """Return a split without its name: at or above `low`, below `high`; None means no bound."""
    return {
        "keys": [key.to_json() for key in keys],
        "low": low,
        "high": high,
        "unplaced": False,
        "rows": rows,
    }

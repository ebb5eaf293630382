# ruff: noqa: S608  SQL is built from driver-quoted names and the server's own strings; values are bound
"""A ClickHouse table as a bounded source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import urlsplit

from headrace.connectors.clickhouse import offsets, reader
from headrace.connectors.clickhouse import snapshot as pin
from headrace.connectors.clickhouse.client import connect, translate_errors
from headrace.connectors.clickhouse.colocation import exact_key_columns, leading
from headrace.connectors.clickhouse.config import ClickHouseSourceConfig
from headrace.connectors.clickhouse.key_ranges import INSERTED, expressions
from headrace.connectors.clickhouse.split_planner import SplitPlanner
from headrace.connectors.clickhouse.types import ClickHouseColumn, arrow_schema, columns_of, quote
from headrace.connectors.lakehouse_rows import DRIVER_ROWS
from headrace.connectors.source_base import UNREAD, BoundedSource, Snapshot, preview_splits
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import SchemaError
from headrace.pipeline.model.capabilities import SourceCapabilities
from headrace.pipeline.model.connectors import source_entries
from headrace.pipeline.model.sources import OffsetTable
from headrace.pipeline.protocol.epochs import Json
from headrace.pipeline.protocol.partitions import HistoryPartition, PartitionGap, UnpartitionedRows
from headrace.pipeline.protocol.table_offsets import HandoffFilter, TableOffsets
from headrace.pipeline.sql.system_columns import OP, POS

if TYPE_CHECKING:
    import pyarrow as pa
    from clickhouse_connect.driver.client import Client
    from pyspark.sql import DataFrame, SparkSession

_READABLE = frozenset({"", "DEFAULT", "MATERIALIZED"})


class ClickHouseTable(BoundedSource):
    """Reads a table once, pinned by hard links, split by its sorting key; or the stored result of a query.

    Engines that merge rows of one key (ReplacingMergeTree and similar) are read with FINAL: the newest
    version of a key counts, and a key whose newest version is marked as deleted is not in the history at all.
    In a plain MergeTree a column `is_deleted` is a column like any other. Every row of history is an insert
    (`_gs_op` = i). `_gs_pos` is the row's topic partition and offset where the history is cut by them, else
    the split and the row's place in it by sorting key, then by insertion: of rows with one key the one that
    was inserted later is the last.
    """

    capabilities: ClassVar[SourceCapabilities] = source_entries()["clickhouse"].capabilities

    def __init__(
        self, node: ClickHouseSourceConfig, settings: Settings, ordinal: int = 0, name: str = ""
    ) -> None:
        """Create the source without connecting.

        `name` is the node's name in errors. It defaults to the table's name.
        """
        self.node = node
        self.ordinal = ordinal
        self.name = name or node.table_name or "query"
        self._connection = settings.clickhouse_source
        self._opened: Client | None = None

    @property
    def _client(self) -> Client:
        if self._opened is None:
            self._opened = connect(self._connection, self.name)
        return self._opened

    def _address(self, table_name: str) -> tuple[str, str]:
        database, dot, table = table_name.partition(".")
        return (database, table) if dot else (self._client.database or "default", table_name)

    def _source(self) -> pin.ClickHouseTableInfo:
        if self.node.query:
            return pin.query_info(self._address("")[0], self.node.query, self.node.split_column or "")
        return pin.get_table(self._client, *self._address(self.node.table_name or ""), self.name)

    def schema(self, spark: SparkSession) -> pa.Schema:
        """Return the payload's schema by `clickhouse.types`. Raise SchemaError for unsupported types."""
        del spark
        return arrow_schema(self._columns(self._source()))

    def _columns(
        self, table: pin.ClickHouseTableInfo, only: Sequence[str] | None = None
    ) -> tuple[ClickHouseColumn, ...]:
        known = {
            name: spelled
            for name, spelled, kind in self._describe(table)
            if kind in _READABLE or name in self.node.columns
        }
        wanted = (
            only
            if only is not None
            else self.node.columns
            or [name for name, _, kind in self._describe(table) if kind in {"", "DEFAULT"}]
        )
        if absent := [name for name in wanted if name not in known]:
            where = "the result of `query`" if table.query else f"`{table.database}.{table.name}`"
            msg = f"{where} has no column {', '.join(absent)}"
            raise SchemaError(msg, hint=f"It has: {', '.join(known)}.", node=self.name)
        return columns_of([(name, known[name]) for name in wanted], self.name)

    def _describe(self, table: pin.ClickHouseTableInfo) -> list[tuple[str, str, str]]:
        if table.query:
            with translate_errors(self.name, "query", "see its columns"):
                rows = self._client.query(f"DESCRIBE TABLE {table.sql}").result_rows
            return [(row[0], row[1], "") for row in rows]
        with translate_errors(self.name, f"{table.database}.{table.name}", "see its columns"):
            rows = self._client.query(
                "SELECT name, type, default_kind FROM system.columns WHERE database = {database:String} AND"
                " table = {name:String}"
                " ORDER BY position",
                parameters={"database": table.database, "name": table.name},
            ).result_rows
        return [(row[0], row[1], row[2]) for row in rows]

    def create_snapshot(self, spark: SparkSession, token: str) -> Snapshot:
        """Create a stable copy by hard links (`snapshot: clone`), or use the table (`snapshot: none`)."""
        del spark
        source = self._source()
        self._check_options(source)
        pinned = self.node.snapshot == "clone"
        table = pin.clone(self._client, source, token, self.name) if pinned else source
        with translate_errors(self.name, f"{table.database}.{table.name}", "count it"):
            rows = self._client.query(
                f"SELECT count() FROM {table.sql}{' FINAL' if table.merges_rows else ''}"
            ).result_rows[0][0]
        return Snapshot(_handle(source, table, pinned=pinned) | {"rows": rows}, pinned)

    def describe_snapshot(self, spark: SparkSession) -> Snapshot:
        """Return the table itself, which is split in the same way as its copy. A query does not run."""
        del spark
        source = self._source()
        self._check_options(source)
        if source.query:
            return UNREAD
        return Snapshot(_handle(source, source, pinned=False), is_stable=self.node.snapshot == "clone")

    def check(self, spark: SparkSession, columns: Sequence[str]) -> None:
        """Check filter and columns on the server."""
        del spark
        source = self._source()
        self._check_options(source)
        self._columns(source, columns)

    def _check_options(self, source: pin.ClickHouseTableInfo) -> None:
        """Raise TargetError for a filter that is invalid, either in parentheses or without them.

        Raise SchemaError for a `split_column` that the result of the query lacks.
        """
        if source.query:
            self._columns(source, [self.node.split_column or ""])
        if not self.node.filter:
            return
        place = "query" if source.query else f"{source.database}.{source.name}"
        with translate_errors(self.name, f"{place}` with the filter `{self.node.filter}", "filter it"):
            for tried in (f"(\n{self.node.filter}\n)", self.node.filter):
                self._client.query(f"EXPLAIN PLAN SELECT 1 FROM {source.sql} WHERE {tried}")

    def release_snapshot(self, snapshot: Snapshot) -> None:
        """Drop the copy; a second call does nothing."""
        if snapshot.handle["pinned"]:
            pin.drop_copy(self._client, snapshot.handle["database"], snapshot.handle["table"], self.name)

    def drop_stale_snapshots(self, owner: str, generation: int, keep: Sequence[Json]) -> None:
        """Drop copies of a process that died before its position was stored."""
        if self.node.snapshot == "clone":
            database = self._address(self.node.table_name or "")[0]
            kept = {
                handle["table"]
                for handle in keep
                if handle.get("pinned") and handle.get("database") == database
            }
            pin.drop_orphaned_copies(self._client, database, owner, generation, kept, self.name)

    def splits(
        self,
        spark: SparkSession,
        snapshot: Snapshot,
        window: HistoryPartition | None,
        cut: HandoffFilter | None,
    ) -> Sequence[Json]:
        """Return ranges of the sorting key with exact counts in `rows`, in the order of the key.

        Rows whose key is NULL or NaN come last.
        """
        del spark
        if snapshot == UNREAD:
            return preview_splits(window, self.node.split_rows)
        table = pin.open_snapshot(self._client, snapshot.handle, self.name)
        plan = SplitPlanner(self._client, table, self.node, self.name)
        if cut is not None:
            self._columns(
                table,
                [cut.partition_column, cut.offset_column, *([cut.topic_column] if cut.topic_column else [])],
            )
        return plan.splits(window, cut, parted=snapshot.is_stable)

    def read(
        self,
        spark: SparkSession,
        snapshot: Snapshot,
        splits: Sequence[Json],
        columns: Sequence[str] | None = None,
    ) -> DataFrame:
        """Return the rows of these splits; `columns` selects and orders the columns that are fetched."""
        from pyspark.sql import functions as F  # noqa: N812

        frame = reader.read(spark, self._fetch(snapshot, splits, None, columns))
        place = F.struct(
            F.lit(self.ordinal).alias("source"),
            F.col(reader.PART).alias("part"),
            F.col(reader.OFF).alias("off"),
            F.lit(0).cast("bigint").alias("sub"),
        )
        return frame.select("*", F.lit("i").alias(OP), place.alias(POS)).drop(reader.PART, reader.OFF)

    def read_table(
        self, snapshot: Snapshot, splits: Sequence[Json], columns: Sequence[str]
    ) -> pa.Table | None:
        """Return the rows of these splits if they are few."""
        if sum(split["rows"] for split in splits) > DRIVER_ROWS:
            return None
        return reader.read_table(self._fetch(snapshot, splits, None, columns), self.ordinal)

    def create_split_reader(
        self, snapshot: Snapshot, splits: Sequence[Json], query: str | None, key: Sequence[str] = ()
    ) -> reader.ClickHouseSplitReader:
        """Return a reader of these splits for tasks.

        `query` is ClickHouse SQL over the name `_headrace_split`.
        """
        return self._fetch(snapshot, splits, query, None, key)

    def explain_key_spread(self, key: Sequence[str]) -> str:
        """Compare the key with the server's sorting key, whose first expression it must determine."""
        source = self._source()
        sorting, usable = expressions(source.sorting_key), self._exact(source, key)
        if not sorting:
            return (
                f"`{source.database}.{source.name}` has no sorting key, so rows of one key lie in"
                " several splits"
            )
        if leading(sorting, usable):
            return ""
        listed = ", ".join(key) or "no column of the source"
        return (
            f"`{source.database}.{source.name}` is sorted by {sorting[0]} first and the key is {listed}:"
            " one key lies in several splits"
        )

    def keeps_together(self, splits: Sequence[Json], key: Sequence[str], *, ever: bool = False) -> bool:
        """Return whether there is one split, or the key's columns determine the expressions of all splits."""
        if len(splits) <= 1 and not ever:
            return True
        usable = self._exact(self._source(), key)
        return all(leading([one["expression"]], usable) for split in splits for one in split["keys"]) and all(
            split["keys"] for split in splits
        )

    def _exact(self, table: pin.ClickHouseTableInfo, key: Sequence[str]) -> frozenset[str]:
        return exact_key_columns(key, {name: spelled for name, spelled, _ in self._describe(table)})

    def _fetch(
        self,
        snapshot: Snapshot,
        splits: Sequence[Json],
        query: str | None,
        only: Sequence[str] | None,
        key: Sequence[str] = (),
    ) -> reader.ClickHouseSplitReader:
        table = pin.open_snapshot(self._client, snapshot.handle, self.name)
        inserted = [INSERTED, "_part", "_part_offset"] if table.merge_tree and not table.merges_rows else []
        sorting = expressions(table.sorting_key)
        order = [*sorting, *inserted]
        cut = splits[0]["scope"]["cut"] if splits else None
        placed = self._columns(table, [cut["partition_column"], cut["offset_column"]]) if cut else ()
        scan = reader.ClickHouseScan(
            name=self.name,
            table=table.sql,
            final=table.merges_rows,
            columns=self._columns(table, only),
            filter=self.node.filter or "",
            order=tuple(order),
            shared=leading(sorting, self._exact(table, key)) if cut and key else None,
            checked=snapshot.is_stable,
            gaps=any("Nullable(" in column.source for column in placed)
            or bool(cut and "topic_column" in cut),
        )
        return reader.ClickHouseSplitReader(self._connection, scan, tuple(splits), query)

    def read_end_offsets(self, table: OffsetTable, topic: str) -> Mapping[str, int]:
        """Return the largest offset plus one per topic partition.

        Call it before `create_snapshot`: a later copy has all these rows, whereas an earlier copy may lack
        rows below the handoff position.
        """
        name = table.table_name or self.node.table_name or ""
        result = pin.get_table(self._client, *self._address(name), self.name)
        self._columns(
            result,
            [
                table.partition_column,
                table.offset_column,
                *([table.topic_column] if table.topic_column else []),
            ],
        )
        partition, offset = quote(table.partition_column), quote(table.offset_column)
        only = f" AND {quote(table.topic_column)} = {{topic:String}}" if table.topic_column else ""
        with translate_errors(self.name, f"{result.database}.{result.name}", "read its offsets"):
            rows = self._client.query(
                f"SELECT toString({partition}), max(toInt64({offset})) + 1 FROM {result.sql}"
                f" WHERE isNotNull({partition}) AND isNotNull({offset}){only} GROUP BY {partition}",
                parameters={"topic": table.topic_name or topic},
            ).result_rows
        return {str(name): int(behind) for name, behind in rows}

    def measure_offsets(
        self,
        spark: SparkSession,
        snapshot: Snapshot,
        table: OffsetTable,
        topic: str,
        since: Mapping[str, int],
    ) -> TableOffsets:
        """See `BoundedSource.measure_offsets`."""
        del spark
        result = pin.open_snapshot(self._client, snapshot.handle, self.name)
        self._columns(
            result,
            [
                table.partition_column,
                table.offset_column,
                *([table.topic_column] if table.topic_column else []),
            ],
        )
        return offsets.measure(self._client, result, table, topic, since, self.name)

    def has_nulls(self, spark: SparkSession, snapshot: Snapshot, column: str) -> bool:
        """See `BoundedSource.has_nulls`."""
        del spark
        return offsets.has_nulls(
            self._client, pin.open_snapshot(self._client, snapshot.handle, self.name), column, self.name
        )

    def count_unpartitioned_rows(
        self, spark: SparkSession, snapshot: Snapshot, gap: PartitionGap, cut: HandoffFilter | None
    ) -> UnpartitionedRows:
        """See `BoundedSource.count_unpartitioned_rows`."""
        del spark
        table = pin.open_snapshot(self._client, snapshot.handle, self.name)
        return SplitPlanner(self._client, table, self.node, self.name).count_unpartitioned_rows(gap, cut)

    def newest_change_ms(self) -> int | None:
        """See `BoundedSource.newest_change_ms`: the newest insert or merge. None for tables without parts."""
        if self.node.table_name is None:
            return None
        database, name = self._address(self.node.table_name)
        with translate_errors(self.name, self.node.table_name):
            rows = self._client.query(
                "SELECT toUnixTimestamp(max(modification_time)) FROM system.parts WHERE active AND database ="
                " {database:String} AND table = {name:String}",
                parameters={"database": database, "name": name},
            ).result_rows
        return rows[0][0] * 1000 or None

    def describe(self) -> Json:
        """Return the type, asset key and table name from the file and the settings, without a query."""
        database, dot, table = (self.node.table_name or self.name).partition(".")
        address = (database, table) if dot else (self._connection.database or "default", database)
        named = {"table_name": ".".join(address)} if self.node.table_name else {"location": "query"}
        return named | {
            "kind": "clickhouse",
            "asset_key": ["clickhouse", *address],
            "scope": [urlsplit(self._connection.url).netloc.rpartition("@")[2]],
            "snapshot": self.node.snapshot,
        }

    def close(self) -> None:
        """Close the connection."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None


def _handle(source: pin.ClickHouseTableInfo, table: pin.ClickHouseTableInfo, *, pinned: bool) -> Json:
    return {
        "pinned": pinned,
        "database": table.database,
        "table": table.name,
        "uuid": table.uuid,
        "source": f"{source.database}.{source.name}",
    }

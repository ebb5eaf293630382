# ruff: noqa: S608  SQL is built from driver-quoted names and the server's own strings; values are bound
"""Read which topic offsets a table has: an aggregate over two columns, a bit per offset on the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.connectors.clickhouse.client import translate_errors
from headrace.connectors.clickhouse.snapshot import ClickHouseTableInfo
from headrace.connectors.clickhouse.types import quote
from headrace.pipeline.model.sources import OffsetTable
from headrace.pipeline.protocol.table_offsets import BLOCK, Block, Range, TableOffsets, table_offsets

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client


def measure(
    client: Client,
    table_info: ClickHouseTableInfo,
    table: OffsetTable,
    topic: str,
    since: Mapping[str, int],
    node: str,
) -> TableOffsets:
    """Return the offsets of `topic` in a table, with the gaps at or above `since`.

    A table whose engine merges rows is read as it is on disk: versions that were merged away are gaps. Its
    duplicates are not counted, because history reads only the newest version of a key.
    """
    partition, offset = f"toInt64({quote(table.partition_column)})", f"toInt64({quote(table.offset_column)})"
    mine = (
        f"ifNull(toString({quote(table.topic_column)}) = {{topic:String}}, 0)" if table.topic_column else "1"
    )
    placed = f"(isNotNull({partition}) AND ifNull({offset} >= 0, 0))"
    rows = (
        f"(SELECT toString(assumeNotNull({partition})) AS part, assumeNotNull({offset}) AS off FROM"
        f" {table_info.sql} WHERE {placed} AND {mine})"
    )
    bound = {"topic": table.topic_name or topic}
    where = f"{table_info.database}.{table_info.name}"
    with translate_errors(node, where, "read its offsets"):
        blocks = client.query(
            f"SELECT part, min(off), max(off) + 1, count(), groupBitmap(toUInt64(off)) FROM {rows}"
            f" GROUP BY part, intDiv(off, {BLOCK}) ORDER BY part, min(off)",
            parameters=bound,
        ).result_rows

    def search(block: Block, since: int, most: int) -> Sequence[Range]:
        window = "OVER (ORDER BY off ROWS BETWEEN CURRENT ROW AND 1 FOLLOWING)"
        query = (
            f"SELECT off + 1, after FROM (SELECT off, leadInFrame(off) {window} AS after FROM"
            f" (SELECT DISTINCT off FROM {rows} WHERE part = {{part:String}} AND off >= {{first:Int64}} AND"
            f" off < {{end:Int64}}))"
            f" WHERE after > off + 1 AND after > {{since:Int64}} ORDER BY off LIMIT {most}"
        )
        values = bound | {"part": block.partition, "first": block.first, "end": block.end, "since": since}
        with translate_errors(node, where, "read its offsets"):
            return [(int(row[0]), int(row[1])) for row in client.query(query, parameters=values).result_rows]

    counted = [
        Block(part, int(first), int(end), int(count), int(alone)) for part, first, end, count, alone in blocks
    ]
    if table_info.merges_rows:
        counted = [Block(one.partition, one.first, one.end, one.distinct, one.distinct) for one in counted]
    return table_offsets(counted, since, search)


def has_nulls(client: Client, table_info: ClickHouseTableInfo, column: str, node: str) -> bool:
    """Return whether a column has NULL in some row."""
    with translate_errors(node, f"{table_info.database}.{table_info.name}", "look for NULL in it"):
        return bool(
            client.query(f"SELECT 1 FROM {table_info.sql} WHERE isNull({quote(column)}) LIMIT 1").result_rows
        )

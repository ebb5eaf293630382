"""The outside systems of the replication model.

A topic, a history table, targets, and SQL over small lists of rows.

They replace only what Headrace reaches over the network and Spark's execution. Which offsets an epoch reads,
how history is split and filtered at the handoff, and what the SQL of the file compiles to is the product's
own code.
"""

from __future__ import annotations

import functools
import itertools
import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sqlglot
from sqlglot import exp

from headrace.connectors.kafka.admin import Topic
from headrace.connectors.kafka.peek import MessageInfo
from headrace.connectors.source_base import BoundedSource, Snapshot
from headrace.pipeline.errors import InternalError
from headrace.pipeline.model.capabilities import SourceCapabilities
from headrace.pipeline.protocol.epochs import Json
from headrace.pipeline.protocol.partitions import HistoryPartition, PartitionGap, UnpartitionedRows
from headrace.pipeline.protocol.table_offsets import (
    BLOCK,
    Block,
    HandoffFilter,
    Range,
    TableOffsets,
    table_offsets,
)

Row = dict[str, Any]
"""A row with its payload, and with `_gs_op` and `_gs_pos` once a source has read it."""
FAR_FUTURE = "9999"


# --- SQL


def to_sqlite(text: str) -> str:
    """Return Spark SQL as SQLite's. `_gs_pos` is a JSON object there, timestamps are ISO strings."""
    query = sqlglot.parse_one(text, read="spark")
    for select in query.find_all(exp.Select):
        _inline_views(select)

    return query.transform(_change_column).transform(_change_struct).sql(dialect="sqlite")


def _change_column(node: exp.Expr) -> exp.Expr:
    if isinstance(node, exp.Column):
        names = [part.name for part in node.parts]
        for struct in ("_gs_pos", "_gs_at"):
            if struct in names[:-1]:
                table = names[0] if names.index(struct) else None
                return _json_field(exp.column(struct, table=table, quoted=True), node.name)
    if isinstance(node, exp.Cast) and node.to.this in (
        exp.DType.TIMESTAMP,
        exp.DType.TIMESTAMPTZ,
        exp.DType.DATE,
    ):
        return node.this
    return node


def _change_struct(node: exp.Expr) -> exp.Expr:
    if isinstance(node, exp.Struct):
        pairs = [
            (one.alias, one.this) if isinstance(one, exp.Alias) else (one.name, one.expression)
            for one in node.expressions
        ]
        return exp.Anonymous(
            this="json_object",
            expressions=[part for name, value in pairs for part in (exp.Literal.string(name), value)],
        )
    if isinstance(node, exp.Dot) and isinstance(node.expression, exp.Identifier):
        return _json_field(node.this, node.expression.name)
    return node


def _json_field(value: exp.Expr, name: str) -> exp.Expr:
    return exp.Anonymous(this="json_extract", expressions=[value, exp.Literal.string(f"$.{name}")])


def _inline_views(select: exp.Select) -> None:
    """Replace the columns of `LATERAL VIEW inline(array(named_struct(name, value)))` by their values."""
    for view in select.args.pop("laterals", None) or []:
        (item,) = view.this.this.expressions
        values = {one.name: one.expression for one in item.expressions}
        for column in list(select.find_all(exp.Column)):
            parts = [part.name for part in column.parts]
            if parts[0] == view.args["alias"].name and parts[1] in values:
                result: exp.Expr = values[parts[1]].copy()
                for name in parts[2:]:
                    result = exp.Dot(this=result, expression=exp.to_identifier(name))
                column.replace(result)


_compiled = functools.lru_cache(maxsize=4096)(to_sqlite)


class SqlEngine:
    """Runs compiled SQL over frames."""

    def __init__(self) -> None:
        self._database = sqlite3.connect(":memory:", isolation_level=None)

    def query(self, text: str, views: Mapping[str, Frame]) -> Frame:
        """Return the rows of one SELECT. `views` are its relations by name."""
        for name, frame in views.items():
            columns = list(frame.columns)
            self._database.execute(f'drop table if exists "{name}"')
            self._database.execute(
                f'create table "{name}" ({", ".join(f"{chr(34)}{column}{chr(34)}" for column in columns)})'
            )
            rows = [[_to_cell(row[column]) for column in columns] for row in frame.rows]
            self._database.executemany(f'insert into "{name}" values ({", ".join("?" * len(columns))})', rows)
        cursor = self._database.execute(_compiled(text))
        names = [column[0] for column in cursor.description]
        rows = [
            {name: _from_cell(name, cell) for name, cell in zip(names, row, strict=True)} for row in cursor
        ]
        return Frame(self, tuple(names), rows)


def _to_cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict) else value


def _from_cell(name: str, value: Any) -> Any:
    return json.loads(value) if name == "_gs_pos" else value


@dataclass
class Frame:
    """Stands for a Spark frame: what sources return and what compiled SQL is run over."""

    engine: SqlEngine
    columns: tuple[str, ...]
    rows: list[Row]

    def where(self, predicate: str) -> Frame:
        """Return the rows for which a predicate in Spark SQL holds."""
        return self.engine.query(f"SELECT * FROM frame WHERE {predicate}", {"frame": self})


# --- the topic


@dataclass(frozen=True)
class Message:
    """One message.

    `sequence` is its place among everything that producers sent; `row` None: a transaction's marker.
    """

    sequence: int
    op: str
    row: Row | None
    sent_ms: int


@dataclass
class TopicServer:
    """A topic, as the Kafka source asks for it (`TopicCluster`) and as producers see it."""

    partitions: dict[int, list[Message]]
    topic: str = "orders"
    earliest_offsets: dict[int, int] = field(default_factory=dict)
    open_transactions: dict[int, int] = field(default_factory=dict)
    """By partition the first offset of a transaction that is neither committed nor aborted."""
    timestamps: str = "LogAppendTime"

    def describe(self, timeout: float = 0.0) -> Topic:
        del timeout
        return Topic("topic-1", "cluster-1", tuple(sorted(self.partitions)))

    def earliest(self, partitions: Sequence[int]) -> dict[int, int]:
        return {part: self.earliest_offsets.get(part, 0) for part in partitions}

    def high_watermark(self, partitions: Sequence[int]) -> dict[int, int]:
        return {part: len(self.partitions[part]) for part in partitions}

    def stable_end(self, partitions: Sequence[int]) -> dict[int, int]:
        return {part: self.open_transactions.get(part, len(self.partitions[part])) for part in partitions}

    def at_time(self, partitions: Sequence[int], moment_ms: int) -> dict[int, int]:
        result = {}
        for part in partitions:
            # Like the broker for a reader of committed rows: nothing from the last stable offset on.
            readable = self.partitions[part][: self.stable_end([part])[part]]
            offsets = [at for at, message in enumerate(readable) if message.sent_ms >= moment_ms]
            result[part] = max(offsets[0], self.earliest_offsets.get(part, 0)) if offsets else -1
        return result

    def at_times(self, moments: Mapping[int, int]) -> dict[int, int]:
        return {part: self.at_time([part], moment)[part] for part, moment in moments.items()}

    def newest_ms(self, partitions: Sequence[int]) -> dict[int, int]:
        return {
            part: max(message.sent_ms for message in self.partitions[part])
            for part in partitions
            if self.partitions[part]
        }

    def retention_ms(self) -> int | None:
        return None

    def has_broker_time(self) -> bool:
        return self.timestamps == "LogAppendTime"

    def longest_transaction_s(self) -> float:
        return 1e9

    def commit(self, group: str, offsets: Mapping[int, int]) -> None:
        pass

    def knock(self, timeout: float) -> None:
        pass

    def close(self) -> None:
        pass


class ModelPeeker:
    """Looks at single messages of a `TopicServer`."""

    def __init__(self, server: TopicServer) -> None:
        self._server = server

    def look(self, at: Mapping[int, int]) -> dict[int, list[MessageInfo]]:
        result: dict[int, list[MessageInfo]] = {}
        for part, first in at.items():
            for offset, message in enumerate(self._server.partitions[part]):
                if (
                    offset >= max(first, self._server.earliest_offsets.get(part, 0))
                    and message.row is not None
                ):
                    result[part] = [
                        MessageInfo(offset, 100, message.sent_ms, by_broker=self._server.has_broker_time())
                    ]
                    break
        return result

    def first(self, at: Mapping[int, int]) -> dict[int, MessageInfo]:
        return {part: messages[0] for part, messages in self.look(at).items()}

    def close(self) -> None:
        pass


# --- the history table


@dataclass
class TableServer:
    """A table that is fed from the topic, and its snapshots by name."""

    rows: list[Row] = field(default_factory=list)
    snapshots: dict[str, list[Row]] = field(default_factory=dict)


class ModelTable(BoundedSource):
    """A bounded source with the contract of the real ones.

    A split is a list of row numbers of the snapshot.
    """

    capabilities = SourceCapabilities(bounded=True, stable_snapshot=True, without_spark=True)

    def __init__(
        self,
        server: TableServer,
        engine: SqlEngine,
        ordinal: int,
        split_rows: int,
        sorted_by: str,
        predicate: str | None,
    ) -> None:
        self._server = server
        self._engine = engine
        self._ordinal = ordinal
        self._split_rows = split_rows
        self._sorted_by = sorted_by
        self._predicate = predicate

    def schema(self, spark: Any) -> Any:
        raise NotImplementedError

    def create_snapshot(self, spark: Any, token: str) -> Snapshot:
        del spark
        rows = sorted(self._server.rows, key=lambda row: (row[self._sorted_by] is None, row[self._sorted_by]))
        self._server.snapshots.setdefault(token, [dict(row) for row in rows])
        return Snapshot({"pinned": True, "snapshot": token}, is_stable=True)

    def splits(
        self, spark: Any, snapshot: Snapshot, window: HistoryPartition | None, cut: HandoffFilter | None
    ) -> list[Json]:
        del spark
        rows = self._rows(snapshot)
        numbers = [
            number
            for number, row in enumerate(rows)
            if _in_window(row, window) and (cut is None or cut.keeps(row))
        ]
        parts: list[list[int]] = []
        for number in numbers:
            # Like a range of the sorting key, a split never separates rows of equal sorting keys.
            same = bool(parts) and rows[parts[-1][-1]][self._sorted_by] == rows[number][self._sorted_by]
            if parts and (same or len(parts[-1]) < self._split_rows):
                parts[-1].append(number)
            else:
                parts.append([number])
        return [{"rows": len(part), "numbers": part} for part in parts]

    def read(
        self, spark: Any, snapshot: Snapshot, splits: Sequence[Json], columns: Sequence[str] | None = None
    ) -> Any:
        del spark
        rows = self._rows(snapshot)
        names = tuple(columns or ())
        result = [
            self._read_row(rows[number], number, names) for split in splits for number in split["numbers"]
        ]
        frame = Frame(self._engine, (*names, "_gs_op", "_gs_pos"), result)
        return frame.where(self._predicate) if self._predicate else frame

    def count_unpartitioned_rows(
        self, spark: Any, snapshot: Snapshot, gap: PartitionGap, cut: HandoffFilter | None
    ) -> UnpartitionedRows:
        del spark
        values = [row[gap.column] for row in self._rows(snapshot) if cut is None or cut.keeps(row)]
        outside = [
            value
            for value in values
            if value is not None and value >= gap.start and (not gap.end or value < gap.end)
        ]
        return UnpartitionedRows(values.count(None), len(outside), max(outside, default=""))

    def measure_offsets(
        self, spark: Any, snapshot: Snapshot, table: Any, topic: str, since: Mapping[str, int]
    ) -> TableOffsets:
        del spark, table, topic
        by_part: dict[str, list[int]] = {}
        for row in self._rows(snapshot):
            if row["_kafka_partition"] is not None:
                by_part.setdefault(str(row["_kafka_partition"]), []).append(row["_kafka_offset"])
        blocks = [
            Block(part, min(result), max(result) + 1, len(result), len(set(result)))
            for part, result in by_part.items()
        ]
        assert all(block.end <= BLOCK for block in blocks)

        def search(block: Block, above: int, most: int) -> list[Range]:
            present = sorted(set(by_part[block.partition]))
            gaps = [(low + 1, high) for low, high in itertools.pairwise(present) if high > low + 1]
            return [gap for gap in gaps if gap[1] > above][:most]

        return table_offsets(blocks, since, search)

    def release_snapshot(self, snapshot: Snapshot) -> None:
        self._server.snapshots.pop(snapshot.handle["snapshot"], None)

    def _rows(self, snapshot: Snapshot) -> list[Row]:
        name = snapshot.handle["snapshot"]
        if name not in self._server.snapshots:
            msg = f"snapshot {name} was dropped while a plan still needed it"
            raise InternalError(msg)
        return self._server.snapshots[name]

    def _read_row(self, row: Row, number: int, columns: Sequence[str]) -> Row:
        part, off = row["_kafka_partition"], row["_kafka_offset"]
        part, off = (-1, number) if part is None or off is None else (part, off)
        position = {"source": self._ordinal, "part": part, "off": off, "sub": 0}
        return {name: row[name] for name in columns} | {"_gs_op": "i", "_gs_pos": position}


def _in_window(row: Row, window: HistoryPartition | None) -> bool:
    return window is None or (
        row[window.column] is not None and window.start <= row[window.column] < window.end
    )


# --- targets


@dataclass
class ModelTarget:
    """A target table: rows by key, or a list of rows where it appends."""

    keyed: bool
    rows: list[Row] = field(default_factory=list)

    def put(self, rows: Sequence[Row]) -> None:
        """Apply one epoch in the order of positions."""
        ordered = sorted(
            rows, key=lambda row: tuple(row["_gs_pos"][name] for name in ("source", "part", "off", "sub"))
        )
        if not self.keyed:
            self.rows = self.rows + [_payload(row) for row in ordered]
            return
        by_key = {row["id"]: row for row in self.rows}
        for row in ordered:
            by_key.pop(row["id"], None)
            if row["_gs_op"] != "d":
                by_key[row["id"]] = _payload(row)
        self.rows = list(by_key.values())

    def copy(self) -> ModelTarget:
        return replace(self, rows=list(self.rows))


def _payload(row: Row) -> Row:
    return {name: value for name, value in row.items() if not name.startswith("_gs_")}

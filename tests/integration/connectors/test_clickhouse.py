"""ClickHouse as a bounded source, on the real engine.

Splits lose and double nothing, and pinned rows hold still.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise
from math import inf, isnan, nan
from typing import Any

import pyarrow as pa
import pytest
from helpers.depth import FULL, with_slow
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.connectors.clickhouse import client, reader
from headrace.connectors.clickhouse import snapshot as pin
from headrace.connectors.clickhouse.config import ClickHouseSourceConfig
from headrace.connectors.clickhouse.key_ranges import expressions
from headrace.connectors.clickhouse.source import ClickHouseTable
from headrace.connectors.source_base import Snapshot
from headrace.pipeline.config.sections import ClickHouseConnection
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import PipelineStateError, SchemaError, TargetError, TransientError
from headrace.pipeline.model.sources import OffsetTable
from headrace.pipeline.protocol.partitions import HistoryPartition
from headrace.pipeline.protocol.table_offsets import HandoffFilter, PartitionOffsets, TableOffsets

NO_SPARK: Any = None
"""Planning and pinning need no session."""


class Server:
    """One database of its own on the shared server."""

    def __init__(self, services: Any) -> None:
        import clickhouse_connect

        self.connection = ClickHouseConnection(
            url=services.clickhouse.url,
            user=services.clickhouse.username,
            password=services.clickhouse.password,
        )
        self.settings = Settings(clickhouse_source=self.connection)
        self.database = f"t_{uuid.uuid4().hex[:10]}"
        self.client = clickhouse_connect.get_client(
            **services.clickhouse.client_arguments(autogenerate_session_id=False)
        )
        self.do(f"CREATE DATABASE {self.database}")

    def do(self, sql: str) -> None:
        self.client.command(sql)

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.client.query(sql).result_rows]

    def table(self, columns: str, tail: str = "ENGINE = MergeTree ORDER BY id", name: str = "") -> str:
        name = f"{self.database}.{name or 't' + uuid.uuid4().hex[:10]}"
        self.do(f"CREATE TABLE {name} ({columns}) {tail}")
        return name

    def source(self, table: str, **node: Any) -> ClickHouseTable:
        return ClickHouseTable(ClickHouseSourceConfig(table_name=table, **node), self.settings, ordinal=7)

    def query(self, query: str, split_column: str = "id", **node: Any) -> ClickHouseTable:
        config = ClickHouseSourceConfig(query=query, split_column=split_column, **node)
        connection = self.connection.model_copy(update={"database": self.database})
        return ClickHouseTable(config, Settings(clickhouse_source=connection), ordinal=7, name="src")

    def copies(self) -> list[str]:
        return [
            row[0]
            for row in self.ask(
                f"SELECT name FROM system.tables WHERE database = '{self.database}' AND name LIKE"
                " '\\_headrace%'"
            )
        ]


@pytest.fixture(scope="module")
def server(services: Any) -> Iterator[Server]:
    result = Server(services)
    yield result
    result.do(f"DROP DATABASE {result.database} SYNC")
    result.client.close()


def pinned(source: ClickHouseTable, token: str = "") -> Snapshot:
    return source.create_snapshot(NO_SPARK, token or uuid.uuid4().hex)


def plan(
    source: ClickHouseTable,
    snapshot: Snapshot,
    window: HistoryPartition | None = None,
    cut: HandoffFilter | None = None,
) -> list[dict[str, Any]]:
    return list(source.splits(NO_SPARK, snapshot, window, cut))


def fetched(
    source: ClickHouseTable, snapshot: Snapshot, splits: list[dict[str, Any]], query: str | None = None
) -> list[list[dict[str, Any]]]:
    """The rows of each split, as a worker reads them."""
    fetch = pickle.loads(pickle.dumps(source.create_split_reader(snapshot, splits, query)))
    return [[row for batch in fetch.fetch(split) for row in batch.to_pylist()] for split in splits]


def ids(rows: list[list[dict[str, Any]]]) -> list[int]:
    return sorted(row["id"] for part in rows for row in part)


UNIQUE = st.integers(0, 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=6)
MOMENT = st.integers(10**7, 4 * 10**9).map(lambda second: datetime.fromtimestamp(second, UTC))
LAYOUTS: dict[str, tuple[list[tuple[str, st.SearchStrategy[Any]]], str]] = {
    "int": ([("Int64", st.integers(-(2**63), 2**63 - 1))], "k0"),
    "unsigned": ([("UInt64", st.integers(0, 2**64 - 1))], "k0"),
    "few": ([("UInt8", st.integers(0, 3))], "k0"),
    "int256": ([("Int256", st.integers(-(2**200), 2**200))], "k0"),
    "nullable": ([("Nullable(Int32)", st.none() | st.integers(-5, 5))], "k0"),
    "float": ([("Float64", st.floats() | st.sampled_from([nan, inf, -inf, -0.0]))], "k0"),
    "nullable float": ([("Nullable(Float32)", st.none() | st.floats(width=32))], "k0"),
    "decimal": ([("Decimal(18, 4)", st.decimals(-(10**12), 10**12, places=4))], "k0"),
    "date": ([("Date", st.dates(date(1970, 1, 1), date(2149, 1, 1)))], "k0"),
    "date32": ([("Date32", st.dates(date(1900, 1, 1), date(2299, 1, 1)))], "k0"),
    # Around the end of summer time one local text means two instants.
    "zoned": (
        [
            (
                "DateTime('Europe/Berlin')",
                st.integers(1603580400, 1603598400).map(lambda s: datetime.fromtimestamp(s, UTC)),
            )
        ],
        "k0",
    ),
    "millis": ([("DateTime64(3, 'America/New_York')", MOMENT)], "k0"),
    "text": (
        [("String", TEXT | st.sampled_from(["", "'", "\\", "\0", "{p0:String}", "é", "😀", "\n"]))],
        "k0",
    ),
    "nullable text": ([("Nullable(String)", st.none() | TEXT)], "k0"),
    "low cardinality": ([("LowCardinality(String)", TEXT)], "k0"),
    "fixed": ([("FixedString(3)", st.binary(min_size=3, max_size=3))], "k0"),
    "uuid": ([("UUID", st.uuids())], "k0"),
    "enum": ([("Enum8('it''s' = -1, 'b}' = 5)", st.sampled_from(["it's", "b}"]))], "k0"),
    "bool": ([("Bool", st.booleans())], "k0"),
    "hot then id": ([("Int8", st.sampled_from([1, 1, 1, 1, 2])), ("Int64", st.integers(-9, 9))], "k0, k1"),
    "text then date": (
        [
            ("LowCardinality(String)", st.sampled_from(["a", "b"])),
            ("Date", st.dates(date(2000, 1, 1), date(2000, 1, 9))),
        ],
        "k0, k1",
    ),
    "three": (
        [("UInt8", st.integers(0, 1)), ("String", st.sampled_from(["", "x"])), ("Int64", UNIQUE)],
        "k0, k1, k2",
    ),
    "then nullable": (
        [("UInt8", st.integers(0, 2)), ("Nullable(Int8)", st.none() | st.integers(0, 2))],
        "k0, k1",
    ),
    "expression": ([("DateTime('UTC')", MOMENT), ("Int64", UNIQUE)], "toStartOfMonth(k0), k1"),
    "descending": ([("Int32", st.integers(-99, 99))], "k0 DESC"),
    "array": ([("Array(Int8)", st.lists(st.integers(0, 3), max_size=2))], "k0"),
    "none": ([("Int64", UNIQUE)], "tuple()"),
}


RELATED = {
    *("unsigned", "few", "nullable float", "decimal", "date32", "millis", "nullable text", "low cardinality"),
    *("fixed", "uuid", "enum", "bool", "text then date", "then nullable"),
}
"""Layouts with a daily one of a similar type or order."""


@pytest.mark.parametrize("layout", with_slow(RELATED, LAYOUTS))
@pytest.mark.sampled
@settings(
    max_examples=20 if FULL else 3,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_splits_hold_every_row_once(server: Server, layout: str, data: st.DataObject) -> None:
    """Disjoint, complete, counted exactly, and about as large as asked.

    For every type of key, with parts that overlap.
    """
    kinds, order = LAYOUTS[layout]
    parts = data.draw(
        st.lists(st.lists(st.tuples(*(values for _, values in kinds)), min_size=1, max_size=25), max_size=3)
    )
    size = data.draw(st.integers(1, 20))
    columns = ", ".join(f"k{place} {kind}" for place, (kind, _) in enumerate(kinds))
    table = server.table(
        f"id Int64, {columns}",
        f"ENGINE = MergeTree ORDER BY ({order}) SETTINGS allow_nullable_key = 1,"
        " allow_experimental_reverse_key = 1",
    )
    number = 0
    for rows in parts:
        server.client.insert(
            table,
            [[number + place, *row] for place, row in enumerate(rows)],
            column_names=["id", *(f"k{i}" for i in range(len(kinds)))],
        )
        number += len(rows)
    source = server.source(table, split_rows=size, columns="id")
    snapshot = pinned(source)
    splits = plan(source, snapshot)
    result = fetched(source, snapshot, splits)
    assert ids(result) == list(range(number))
    assert [len(rows) for rows in result] == [split["rows"] for split in splits]
    assert all(split["rows"] for split in splits)
    assert plan(source, snapshot) == splits
    assert len({split["id"] for split in splits}) == len(splits)
    heaviest = (
        0
        if order == "tuple()"
        else server.ask(
            f"SELECT max(c) FROM (SELECT count() AS c FROM {table} GROUP BY {order.removesuffix(' DESC')})"
        )[0][0]
    )
    if layout not in {"array", "nullable", "nullable text", "nullable float", "float", "then nullable"}:
        assert all(split["rows"] <= 2 * size + heaviest for split in splits)
    source.release_snapshot(snapshot)
    source.close()
    server.do(f"DROP TABLE {table} SYNC")


def test_one_hot_key_is_one_split(server: Server) -> None:
    """Rows of one key stay together, however many; the rest is split as asked."""
    table = server.table("id Int64, k Int32", "ENGINE = MergeTree ORDER BY k")
    server.do(f"INSERT INTO {table} SELECT number, if(number < 5000, 7, number) FROM numbers(6000)")
    source = server.source(table, split_rows=100)
    snapshot = pinned(source)
    splits = plan(source, snapshot)
    assert max(split["rows"] for split in splits) == 5000
    assert sum(split["rows"] for split in splits) == 6000
    assert len(splits) == 11
    assert ids(fetched(source, snapshot, splits)) == list(range(6000))


def test_a_hot_first_column_is_split_by_the_next(server: Server) -> None:
    table = server.table("id Int64, tenant String", "ENGINE = MergeTree ORDER BY (tenant, id)")
    server.do(f"INSERT INTO {table} SELECT number, if(number % 10 = 0, 'small', 'large') FROM numbers(10000)")
    source = server.source(table, split_rows=500)
    snapshot = pinned(source)
    splits = plan(source, snapshot)
    assert len(splits) == 20
    assert {split["rows"] for split in splits} == {500}
    assert ids(fetched(source, snapshot, splits)) == list(range(10000))


def test_an_empty_table_has_no_splits(server: Server) -> None:
    for tail in ("ENGINE = MergeTree ORDER BY id", "ENGINE = MergeTree ORDER BY tuple()"):
        source = server.source(server.table("id Int64", tail))
        snapshot = pinned(source)
        assert snapshot.handle["rows"] == 0
        assert plan(source, snapshot) == []


def test_pinned_rows_hold_still(server: Server) -> None:
    """Inserts, deletes, updates, merges and even a dropped source change nothing of what splits read."""
    table = server.table("id Int64, v String", "ENGINE = MergeTree PARTITION BY id % 3 ORDER BY id")
    for start in range(4):
        server.do(f"INSERT INTO {table} SELECT number * 4 + {start}, 'old' FROM numbers(250)")
    server.do(f"DELETE FROM {table} WHERE id % 100 = 5")
    source = server.source(table, split_rows=250)
    snapshot = pinned(source, "still")
    splits = plan(source, snapshot)
    before = fetched(source, snapshot, splits)
    for change in (
        f"INSERT INTO {table} SELECT number + 500, 'new' FROM numbers(2000)",
        f"ALTER TABLE {table} UPDATE v = 'changed' WHERE id < 300 SETTINGS mutations_sync = 2",
        f"DELETE FROM {table} WHERE id % 2 = 0",
        f"OPTIMIZE TABLE {table} FINAL",
        f"ALTER TABLE {table} DROP COLUMN v",
        f"DROP TABLE {table} SYNC",
    ):
        server.do(change)
        assert plan(source, snapshot) == splits
        assert fetched(source, snapshot, splits) == before
    assert ids(before) == [number for number in range(1000) if number % 100 != 5]
    assert {row["v"] for rows in before for row in rows} == {"old"}
    assert "_headrace_still" in server.copies()
    source.release_snapshot(snapshot)
    source.release_snapshot(snapshot)
    assert "_headrace_still" not in server.copies()


def test_a_copy_outlives_the_ttl_of_its_table(server: Server) -> None:
    """Rows and values that a TTL drops from the table stay in the copy."""
    table = server.table(
        "id Int64, at DateTime, v String TTL at + INTERVAL 2 SECOND",
        "ENGINE = MergeTree ORDER BY id TTL at + INTERVAL 2 SECOND SETTINGS merge_with_ttl_timeout = 0,"
        " merge_selecting_sleep_ms = 100",
    )
    for _ in range(8):
        server.do(f"INSERT INTO {table} SELECT number, now(), 'kept' FROM numbers(10)")
    source = server.source(table)
    snapshot = pinned(source)
    splits = plan(source, snapshot)
    deadline = time.monotonic() + 60
    while server.ask(f"SELECT count() FROM {table}")[0][0]:
        server.do(f"OPTIMIZE TABLE {table} FINAL")
        assert time.monotonic() < deadline, "the TTL never came"
        time.sleep(0.2)
    rows = [row for part in fetched(source, snapshot, splits) for row in part]
    assert len(rows) == 80
    assert {row["v"] for row in rows} == {"kept"}


def test_the_same_token_gives_the_same_copy(server: Server) -> None:
    table = server.table("id Int64")
    server.do(f"INSERT INTO {table} SELECT number FROM numbers(10)")
    first = server.source(table).create_snapshot(NO_SPARK, "again-1")
    server.do(f"INSERT INTO {table} SELECT number FROM numbers(10)")
    assert server.source(table).create_snapshot(NO_SPARK, "again-1") == first
    assert server.source(table).create_snapshot(NO_SPARK, "again-2").handle["rows"] == 20
    other = server.table("id Int64")
    with pytest.raises(PipelineStateError, match="is not a copy of"):
        server.source(other).create_snapshot(NO_SPARK, "again-1")


def test_the_result_of_a_query_is_stored_once(server: Server) -> None:
    table = server.table("id Int64, v String, cents Nullable(Decimal(12, 2))")
    server.do(f"INSERT INTO {table} SELECT number, toString(number), number / 4 FROM numbers(100)")
    query = f"SELECT half AS id, max(cents) AS most, rand() AS dice FROM {table} GROUP BY id % 50 AS half -- halves"
    source = server.query(f"{query};", split_rows=10, filter="id < 40")
    assert source.schema(NO_SPARK).field("most").type == pa.decimal128(12, 2)
    source.check(NO_SPARK, ["most"])
    preview = source.describe_snapshot(NO_SPARK)
    assert len(plan(source, preview)) == 1
    before = server.copies()
    snapshot = source.create_snapshot(NO_SPARK, "query-1")
    assert snapshot.is_stable
    assert snapshot.handle["rows"] == 50
    assert len(server.copies()) == len(before) + 1
    splits = plan(source, snapshot)
    assert [split["rows"] for split in splits] == [10, 10, 10, 10]
    rows = fetched(source, snapshot, splits)
    assert ids(rows) == list(range(40))
    server.do(f"TRUNCATE TABLE {table}")
    again = server.query(query, split_rows=10, filter="id < 40")
    assert again.create_snapshot(NO_SPARK, "query-1") == snapshot
    assert fetched(again, snapshot, plan(again, snapshot)) == rows
    assert again.keeps_together(splits, ["id"])
    assert not again.explain_key_spread(["id"])
    assert "most: one key lies in several splits" in again.explain_key_spread(["most"])
    assert again.newest_change_ms() is None
    assert again.describe()["location"] == "query"
    other = server.query(query.replace("50", "49"))
    with pytest.raises(PipelineStateError, match="is not a copy of"):
        other.create_snapshot(NO_SPARK, "query-1")
    again.release_snapshot(snapshot)
    assert server.copies() == before


def test_rows_of_a_query_without_a_split_value_are_read(server: Server) -> None:
    source = server.query(
        "SELECT if(number % 5 = 0, NULL, number) AS part, number AS id FROM numbers(20)", "part"
    )
    snapshot = pinned(source)
    assert ids(fetched(source, snapshot, plan(source, snapshot))) == list(range(20))


@pytest.mark.parametrize(
    ("query", "split_column", "message"),
    [
        ("SELECT nothing FROM system.one", "id", "nothing"),
        ("SELECT 1 AS id FROM absent_table", "id", "absent_table"),
        ("SELECT 1 AS id", "other", "other"),
        ("DROP TABLE x", "id", "Syntax error"),
    ],
)
def test_a_wrong_query_is_refused_before_anything_is_stored(
    server: Server, query: str, split_column: str, message: str
) -> None:
    source = server.query(query, split_column)
    with pytest.raises((TargetError, SchemaError), match=message) as caught:
        source.check(NO_SPARK, [])
    assert caught.value.node == "src"
    with pytest.raises((TargetError, SchemaError), match=message):
        pinned(source)
    assert not server.copies() or all("tmp" not in name for name in server.copies())


@pytest.mark.parametrize("step", with_slow({"_build"}, ("_build", "_rename")))
def test_killed_while_pinning(server: Server, step: str) -> None:
    """kill -9 with the copy half made, or made and not yet named.

    The next attempt makes a whole one and leaves no stray.
    """
    table = server.table("id Int64, v Int64", "ENGINE = MergeTree PARTITION BY id % 4 ORDER BY id")
    server.do(f"INSERT INTO {table} SELECT number, 1 FROM numbers(100)")
    kill = "os.kill(os.getpid(), 9)"
    half = (
        "def _build(client, source, staged, node):\n"
        "    client.command(f'CREATE TABLE {staged.sql} AS {source.sql}')\n"
        "    client.command(f'ALTER TABLE {staged.sql} ATTACH PARTITION 1 FROM {source.sql}')\n"
        f"    {kill}\n"
    )
    body = half if step == "_build" else f"def _rename(*given):\n    {kill}\n"
    token = f"killed{step}"
    script = (
        "import os\nfrom headrace.connectors.clickhouse.source import ClickHouseTable; from"
        " headrace.connectors.clickhouse import snapshot as pin\n"
        "from headrace.connectors.clickhouse.config import ClickHouseSourceConfig\nfrom"
        " headrace.pipeline.config.settings import Settings\n"
        f"{body}pin.{step} = {step}\n"
        f"ClickHouseTable(ClickHouseSourceConfig(table_name='{table}'), Settings()).create_snapshot(None,"
        f" '{token}')\n"
    )
    environment = os.environ | {
        "HEADRACE__CLICKHOUSE_SOURCE__URL": server.connection.url,
        "HEADRACE__CLICKHOUSE_SOURCE__USER": server.connection.user,
        "HEADRACE__CLICKHOUSE_SOURCE__PASSWORD": server.connection.password.get_secret_value(),
    }
    ended = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert [name for name in server.copies() if name.startswith(f"_headrace_{token}_tmp_")]
    server.do(f"INSERT INTO {table} SELECT number + 100, 1 FROM numbers(7)")
    source = server.source(table)
    snapshot = source.create_snapshot(NO_SPARK, token)
    assert snapshot.handle["rows"] == 107
    assert [name for name in server.copies() if token in name] == [f"_headrace_{token}"]


def test_two_processes_pin_at_once(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who comes second takes the copy of who came first."""
    table = server.table("id Int64")
    server.do(f"INSERT INTO {table} SELECT number FROM numbers(10)")
    build, winner = pin._build, []

    def slow(*args: Any) -> None:
        build(*args)
        monkeypatch.setattr(pin, "_build", build)
        monkeypatch.setattr(pin, "_sweep", lambda *_: None)
        winner.append(server.source(table).create_snapshot(NO_SPARK, "at_once"))
        server.do(f"INSERT INTO {table} SELECT number FROM numbers(10)")

    monkeypatch.setattr(pin, "_build", slow)
    assert server.source(table).create_snapshot(NO_SPARK, "at_once") == winner[0]
    assert [name for name in server.copies() if name.startswith("_headrace_at_once")] == ["_headrace_at_once"]


def test_a_copy_that_is_gone_or_changed_is_noticed(server: Server) -> None:
    table = server.table("id Int64")
    server.do(f"INSERT INTO {table} SELECT number FROM numbers(10)")
    source = server.source(table)
    snapshot = source.create_snapshot(NO_SPARK, "gone")
    splits = plan(source, snapshot)
    server.do(f"DELETE FROM {server.database}._headrace_gone WHERE id = 3")
    with pytest.raises(PipelineStateError, match="has 9 rows, planned were 10"):
        fetched(source, snapshot, splits)
    server.do(f"DROP TABLE {server.database}._headrace_gone SYNC")
    with pytest.raises(PipelineStateError, match="is missing"):
        plan(source, snapshot)
    source.create_snapshot(NO_SPARK, "gone")
    with pytest.raises(PipelineStateError, match="was recreated"):
        source.create_split_reader(snapshot, splits, None)


def test_only_copies_are_dropped(server: Server) -> None:
    table = server.table("id Int64", name="precious")
    handle = {
        "pinned": True,
        "database": server.database,
        "table": "precious",
        "uuid": "",
        "source": table,
        "rows": 0,
    }
    with pytest.raises(PipelineStateError, match="not a pinned copy"):
        server.source(table).release_snapshot(Snapshot(handle, is_stable=True))
    assert server.ask(f"SELECT count() FROM {table}") == [(0,)]


@pytest.mark.parametrize(
    "kind",
    with_slow(
        {"Date", "DateTime('America/New_York')"},
        (
            "Date",
            "Nullable(Date32)",
            "DateTime('America/New_York')",
            "DateTime64(3, 'Asia/Tokyo')",
            "Nullable(DateTime)",
        ),
    ),
)
def test_windows_are_disjoint_and_in_utc(server: Server, kind: str) -> None:
    table = server.table(f"id Int64, at {kind}")
    moment = "toDateTime64('2013-01-01 00:00:00', 3, 'UTC') + toIntervalHour(number)"
    server.do(
        f"INSERT INTO {table} SELECT number, {moment if 'Time' in kind else f'toDate({moment})'} FROM"
        " numbers(2000)"
    )
    source = server.source(table, split_rows=100)
    snapshot = pinned(source)
    months = ["2013-01-01", "2013-02-01", "2013-03-01", "2013-04-01"]
    result = []
    for start, end in pairwise(months):
        splits = plan(source, snapshot, HistoryPartition(start, "at", start, end))
        assert all(split["id"].startswith(f"{start}/") for split in splits)
        result.append(ids(fetched(source, snapshot, splits)))
    hours = [31 * 24, 28 * 24]
    assert result == [list(range(hours[0])), list(range(hours[0], sum(hours))), list(range(sum(hours), 2000))]


def test_the_cut_is_exact(server: Server) -> None:
    """Below the fence or without an offset.

    A partition that the fence does not name belongs to the stream.
    """
    table = server.table("id Int64, p Nullable(Int32), o Nullable(UInt64), topic String")
    server.do(f"INSERT INTO {table} SELECT number, number % 3, intDiv(number, 3), 'a' FROM numbers(300)")
    server.do(
        f"INSERT INTO {table} VALUES (1000, NULL, NULL, 'a'), (1001, 1, NULL, 'a'), (1002, NULL, 5, 'b'),"
        " (1003, 9, 77, 'b')"
    )
    source = server.source(table, split_rows=40)
    offsets = OffsetTable(partition_column="p", offset_column="o", topic_column="topic")
    assert source.read_end_offsets(offsets, "a") == {"0": 100, "1": 100, "2": 100}
    assert source.read_end_offsets(offsets.model_copy(update={"topic_name": "b"}), "a") == {"9": 78}
    assert source.read_end_offsets(
        OffsetTable(table_name=table, partition_column="p", offset_column="o"), "x"
    ) == {
        "0": 100,
        "1": 100,
        "2": 100,
        "9": 78,
    }
    snapshot = pinned(source)
    cut = HandoffFilter("p", "o", {"0": 10, "1": 0, "12": 3})
    splits = plan(source, snapshot, None, cut)
    assert ids(fetched(source, snapshot, splits)) == [*range(0, 30, 3), 1000, 1001, 1002]
    with pytest.raises(SchemaError, match="has no column nope"):
        plan(source, snapshot, None, HandoffFilter("nope", "o", {}))


def test_gaps_and_duplicates_of_offsets(server: Server) -> None:
    table = server.table("id Int64, p Nullable(Int32), o Nullable(UInt64), topic LowCardinality(String)")
    server.do(f"INSERT INTO {table} SELECT number, 0, number + 5 * (number > 9), 'a' FROM numbers(15)")
    server.do(
        f"INSERT INTO {table} VALUES (1, 0, 19, 'a'), (2, 0, 3000000, 'a'), (3, 0, 11, 'b'), (4, NULL, 7,"
        " 'a')"
    )
    source = server.source(table)
    offsets = OffsetTable(partition_column="p", offset_column="o", topic_column="topic")
    for since, gaps in (
        (0, ((10, 15), (20, 3_000_000))),
        (12, ((12, 15), (20, 3_000_000))),
        (18, ((20, 3_000_000),)),
    ):
        measured = source.measure_offsets(
            NO_SPARK, source.describe_snapshot(NO_SPARK), offsets, "a", {"0": since}
        )
        assert measured == TableOffsets({"0": PartitionOffsets(0, 3_000_001, gaps, duplicates=1)})
    assert source.has_nulls(NO_SPARK, source.describe_snapshot(NO_SPARK), "p")
    assert not source.has_nulls(NO_SPARK, source.describe_snapshot(NO_SPARK), "id")


def test_rows_of_a_replacing_table_are_its_newest(server: Server) -> None:
    """One row per key, the newest.

    Deleted keys are not there; the copy neither merges nor follows its table.
    """
    table = server.table(
        "id Int64, v String, version UInt32, gone UInt8",
        "ENGINE = ReplacingMergeTree(version, gone) PARTITION BY id % 2 ORDER BY id",
    )
    for version in (3, 1, 2):
        server.do(
            f"INSERT INTO {table} SELECT number, 'v{version}', {version}, {version} = 3 AND number % 5 = 0"
            " FROM numbers(100)"
        )
    source = server.source(table, split_rows=9)
    snapshot = pinned(source)
    splits = plan(source, snapshot)
    parts = server.ask(
        f"SELECT count() FROM system.parts WHERE active AND database = '{server.database}' AND table ="
        f" '{snapshot.handle['table']}'"
    )
    server.do(f"INSERT INTO {table} SELECT number, 'v4', 4, 0 FROM numbers(100)")
    result = fetched(source, snapshot, splits)
    assert snapshot.handle["rows"] == 80
    assert ids(result) == [number for number in range(100) if number % 5]
    assert {row["v"] for rows in result for row in rows} == {"v3"}
    assert [len(rows) for rows in result] == [split["rows"] for split in splits]
    assert parts[0][0] >= 2


def test_filter_and_start(server: Server) -> None:
    table = server.table("id Int64, name String")
    server.do(f"INSERT INTO {table} SELECT number, toString(number) FROM numbers(1000)")
    source = server.source(table, filter="name LIKE '%7' -- only sevens", start_at="100", split_rows=10)
    snapshot = pinned(source)
    splits = plan(source, snapshot)
    assert len(splits) == 9
    assert ids(fetched(source, snapshot, splits)) == list(range(107, 1000, 10))


@pytest.mark.parametrize("wrong", ["nope = 1", "1) OR (1", "1 LIMIT 5", "id <"])
def test_a_wrong_filter_is_told(server: Server, wrong: str) -> None:
    source = server.source(server.table("id Int64"), filter=wrong)
    with pytest.raises(TargetError, match="with the filter") as caught:
        pinned(source)
    assert wrong in str(caught.value)
    assert source.name in str(caught.value)


def test_a_query_runs_in_the_server(server: Server) -> None:
    """The direct path: the transform sees the types that Spark sees."""
    table = server.table("id UInt64, at DateTime('Europe/Berlin'), e Enum8('a' = 1)")
    server.do(
        f"INSERT INTO {table} SELECT number, toDateTime('2020-01-01 00:00:00', 'UTC') + number, 'a' FROM"
        " numbers(100)"
    )
    source = server.source(table, split_rows=30)
    snapshot = pinned(source)
    splits = plan(source, snapshot)
    fetch = source.create_split_reader(
        snapshot, splits, f"SELECT id, at, e FROM {reader.SPLIT} WHERE e = 'a' AND id < 50"
    )
    batches = [batch for split in splits for batch in fetch.fetch(split)]
    assert [row["id"] for batch in batches for row in batch.to_pylist()] == list(range(50))
    assert [field.type for field in batches[0].schema] == [
        pa.decimal128(20, 0),
        pa.timestamp("us", "UTC"),
        pa.string(),
    ]


TYPES: list[tuple[str, str, pa.DataType, Any]] = [
    ("Int8", "-128", pa.int8(), -128),
    ("Int64", "-9223372036854775808", pa.int64(), -(2**63)),
    ("UInt8", "255", pa.int16(), 255),
    ("UInt16", "65535", pa.int32(), 65535),
    ("UInt32", "4294967295", pa.int64(), 4294967295),
    ("UInt64", "18446744073709551615", pa.decimal128(20, 0), Decimal(2**64 - 1)),
    ("Float32", "0.5", pa.float32(), 0.5),
    ("Float64", "nan", pa.float64(), nan),
    ("Float64", "-inf", pa.float64(), -inf),
    ("Bool", "true", pa.bool_(), True),
    ("Decimal(9, 2)", "'-1234567.89'", pa.decimal128(9, 2), Decimal("-1234567.89")),
    (
        "Decimal(38, 10)",
        "'1234567890123456789012345678.0123456789'",
        pa.decimal128(38, 10),
        Decimal("1234567890123456789012345678.0123456789"),
    ),
    ("String", "'é😀\\0''\\\\'", pa.string(), "é😀\0'\\"),
    ("LowCardinality(String)", "'x'", pa.string(), "x"),
    ("LowCardinality(Nullable(String))", "NULL", pa.string(), None),
    ("FixedString(4)", "'ab'", pa.binary(), b"ab\0\0"),
    ("Enum16('it''s' = -5)", "'it''s'", pa.string(), "it's"),
    ("UUID", "'61f0c404-5cb3-11e7-907b-a6006ad3dba0'", pa.string(), "61f0c404-5cb3-11e7-907b-a6006ad3dba0"),
    ("IPv4", "'1.2.3.4'", pa.string(), "1.2.3.4"),
    ("IPv6", "'::1'", pa.string(), "::1"),
    ("Date", "'2149-06-06'", pa.date32(), date(2149, 6, 6)),
    ("Date32", "'1900-01-01'", pa.date32(), date(1900, 1, 1)),
    ("DateTime", "1603584000", pa.timestamp("us", "UTC"), datetime(2020, 10, 25, 0, 0, tzinfo=UTC)),
    (
        "DateTime('Europe/Berlin')",
        "1603587600",
        pa.timestamp("us", "UTC"),
        datetime(2020, 10, 25, 1, 0, tzinfo=UTC),
    ),
    ("DateTime64(3, 'Asia/Tokyo')", "'1900-01-02 00:00:00.123'", pa.timestamp("us", "UTC"), None),
    (
        "DateTime64(9, 'UTC')",
        "'2020-01-01 00:00:00.123456789'",
        pa.timestamp("us", "UTC"),
        datetime(2020, 1, 1, 0, 0, 0, 123456, tzinfo=UTC),
    ),
    ("Nullable(Decimal(10, 1))", "NULL", pa.decimal128(10, 1), None),
    ("SimpleAggregateFunction(max, UInt32)", "7", pa.int64(), 7),
    ("Array(Nullable(UInt64))", "[1, NULL]", pa.list_(pa.decimal128(20, 0)), [Decimal(1), None]),
    ("Array(Array(LowCardinality(String)))", "[['a'], []]", pa.list_(pa.list_(pa.string())), [["a"], []]),
    ("Array(FixedString(2))", "['a']", pa.list_(pa.binary()), [b"a\0"]),
    (
        "Tuple(a UInt8, `b c` Nullable(String))",
        "(1, NULL)",
        pa.struct([("a", pa.int16()), ("b c", pa.string())]),
        {"a": 1, "b c": None},
    ),
    (
        "Tuple(Int8, DateTime('Asia/Tokyo'))",
        "(1, 0)",
        pa.struct([("1", pa.int8()), ("2", pa.timestamp("us", "UTC"))]),
        {"1": 1, "2": datetime(1970, 1, 1, tzinfo=UTC)},
    ),
    ("Map(LowCardinality(String), UInt8)", "{'a': 1}", pa.map_(pa.string(), pa.int16()), [("a", 1)]),
    (
        "Map(String, Array(Tuple(x Int8)))",
        "{'k': [(1)]}",
        pa.map_(pa.string(), pa.list_(pa.struct([("x", pa.int8())]))),
        None,
    ),
]


def typed(server: Server) -> ClickHouseTable:
    columns = ", ".join(f"c{place} {kind}" for place, (kind, *_) in enumerate(TYPES))
    table = server.table(f"id Int64, {columns}")
    server.do(f"INSERT INTO {table} VALUES (1, {', '.join(value for _, value, *_ in TYPES)})")
    return server.source(table)


def same(result: Any, wanted: Any) -> bool:
    return result == wanted or (
        isinstance(result, float) and isinstance(wanted, float) and isnan(result) and isnan(wanted)
    )


def test_types_as_arrow(server: Server) -> None:
    source = typed(server)
    schema = source.schema(NO_SPARK)
    assert schema.types[1:] == [kind for _, _, kind, _ in TYPES]
    snapshot = pinned(source)
    splits = plan(source, snapshot)
    [batch] = list(source.create_split_reader(snapshot, splits, None).fetch(splits[0]))
    assert batch.schema == schema
    [row] = batch.to_pylist()
    wrong = {
        kind: row[f"c{place}"]
        for place, (kind, _, _, wanted) in enumerate(TYPES)
        if wanted is not None and not same(row[f"c{place}"], wanted)
    }
    assert wrong == {}


def test_types_in_spark(server: Server, spark: Any) -> None:
    """Spark sees the same values, as a computation there shows them."""
    source = typed(server)
    snapshot = pinned(source)
    frame = source.read(spark, snapshot, plan(source, snapshot))
    actual = frame.selectExpr(
        "c5 + 1 as u64", "isnan(c7) as nan", "c8 as inf", "hex(c12) as text", "hex(c15) as fixed",
        "unix_micros(c23) as berlin", "unix_micros(c24) as tokyo", "unix_micros(c25) as nanos",
        "c28[0] as first", "c31.`b c` is null as hole", "c33['a'] as a", "c34['k'][0].x as x", "c11 as wide",
        "date_format(c20, 'y-M-d') as day", "_gs_op as op", "_gs_pos as pos",
    ).collect()[0].asDict()  # fmt: skip
    assert actual == {
        "u64": Decimal(2**64), "nan": True, "inf": -inf, "text": "é😀\0'\\".encode().hex().upper(),
        "fixed": "61620000", "berlin": 1603587600 * 10**6,
        "tokyo": int(datetime(1900, 1, 1, 15, 0, 0, 123000, tzinfo=UTC).timestamp() * 1000) * 1000,
        "nanos": 1577836800123456, "first": Decimal(1), "hole": True, "a": 1, "x": 1,
        "wide": Decimal("1234567890123456789012345678.0123456789"), "day": "2149-6-6", "op": "i",
        "pos": (7, 0, 0, 0),
    }  # fmt: skip


@pytest.mark.parametrize(
    "kind",
    [
        "Array(UInt256)",
        "Map(String, Int128)",
        "Tuple(Decimal(50, 2))",
        "JSON",
        "Variant(Int8, String)",
        "AggregateFunction(sum, Int8)",
    ],
)
def test_types_that_are_not_available_yet(server: Server, kind: str) -> None:
    table = server.table(f"id Int64, odd {kind}")
    with pytest.raises(SchemaError, match=r"`odd` has type .* not available yet"):
        server.source(table).schema(NO_SPARK)
    assert server.source(table, columns="id").schema(NO_SPARK).names == ["id"]


def test_names_that_spark_cannot_tell_apart(server: Server) -> None:
    with pytest.raises(SchemaError, match="one name to Spark"):
        server.source(server.table("id Int64, ID Int64")).schema(NO_SPARK)
    with pytest.raises(SchemaError, match="keeps for itself"):
        server.source(server.table("id Int64, _gs_op String")).schema(NO_SPARK)
    with pytest.raises(SchemaError, match="has no column nope"):
        server.source(server.table("id Int64"), columns="id, nope").schema(NO_SPARK)


def test_read_in_spark(server: Server, spark: Any) -> None:
    """One task per split; `_gs_pos` orders rows by key, and is the same at every reading."""
    table = server.table("id Int64, k Int32, `odd ``name` String", "ENGINE = MergeTree ORDER BY k")
    for start in range(3):
        server.do(f"INSERT INTO {table} SELECT number * 3 + {start}, number % 10, 'é' FROM numbers(100)")
    source = server.source(table, split_rows=60)
    snapshot = pinned(source)
    splits = plan(source, snapshot)
    assert len(splits) == 5
    frame = source.read(spark, snapshot, splits)
    assert frame.rdd.getNumPartitions() == 5
    rows = frame.collect()
    assert sorted(row.id for row in rows) == list(range(300))
    assert {row["odd `name"] for row in rows} == {"é"}
    places = {row._gs_pos: row for row in rows}
    assert len(places) == 300
    assert [places[place].k for place in sorted(places)] == sorted(row.k for row in rows)
    again = {row.id: row._gs_pos for row in source.read(spark, snapshot, splits[::-1]).collect()}
    assert again == {row.id: row._gs_pos for row in rows}
    assert source.read(spark, snapshot, splits[:1], columns=["k"]).columns == ["k", "_gs_op", "_gs_pos"]
    assert source.read(spark, snapshot, []).count() == 0


@pytest.mark.parametrize("order", with_slow({"id"}, ("id", "tuple()")))
def test_rows_of_one_key_are_in_the_order_of_their_inserts(server: Server, spark: Any, order: str) -> None:
    """Twelve parts: names of parts are texts, in which the tenth comes before the second."""
    table = server.table(
        "id Int64, v Int64",
        f"ENGINE = MergeTree ORDER BY {order} SETTINGS max_bytes_to_merge_at_max_space_in_pool = 1,"
        " max_bytes_to_merge_at_min_space_in_pool = 1",
    )
    for number in range(12):
        server.do(f"INSERT INTO {table} SELECT number, {number} FROM numbers(4)")
    source = server.source(table, split_rows=6)
    snapshot = pinned(source)
    splits = plan(source, snapshot)
    rows = source.read(spark, snapshot, splits).collect()
    assert len(splits) > 1
    assert sum(split["rows"] for split in splits) == len(rows) == 48
    for key in range(4):
        assert [row.v for row in sorted(rows, key=lambda row: row._gs_pos) if row.id == key] == list(
            range(12)
        )


def test_positions_of_a_cut_are_topic_offsets(server: Server, spark: Any) -> None:
    table = server.table("id Int64, p UInt8, o UInt64")
    server.do(f"INSERT INTO {table} SELECT number, number % 2, number FROM numbers(20)")
    source = server.source(table)
    snapshot = pinned(source)
    rows = source.read(
        spark,
        snapshot,
        plan(source, snapshot, None, HandoffFilter("p", "o", {"0": 10, "1": 99})),
        columns=["id"],
    ).collect()
    assert sorted((row.id, *row._gs_pos) for row in rows) == [
        (n, 7, n % 2, n, 0) for n in range(20) if n % 2 or n < 10
    ]


def test_rows_of_a_cut_without_an_offset_have_places_of_their_own(server: Server, spark: Any) -> None:
    table = server.table("id Int64, p Nullable(Int32), o Nullable(Int64)")
    server.do(
        f"INSERT INTO {table} SELECT number, if(number < 14, NULL, 0), if(number < 15, NULL, number) FROM"
        " numbers(20)"
    )
    source = server.source(table, split_rows=10)
    snapshot = pinned(source)
    splits = plan(source, snapshot, None, HandoffFilter("p", "o", {"0": 18}))
    rows = source.read(spark, snapshot, splits, columns=["id"]).collect()
    expected = [(n, 7, n // 10 - 2**31, n % 10, 0) for n in range(15)] + [
        (n, 7, 0, n, 0) for n in range(15, 18)
    ]
    assert len(splits) == 2
    assert sorted((row.id, *row._gs_pos) for row in rows) == expected


def test_a_direct_load_has_rows_of_a_key_in_the_order_of_their_offsets(server: Server) -> None:
    """The sorting key has them the other way round.

    Rows that the cut does not place come first, in the order of the sorting key.
    """
    table = server.table(
        "id Int64, seq Int64, p Nullable(Int32), o Nullable(Int64)", "ENGINE = MergeTree ORDER BY (id, seq)"
    )
    server.do(
        f"INSERT INTO {table} SELECT number % 3, number, if(number < 6, NULL, 0), if(number < 6, NULL, 40 -"
        " number) FROM numbers(30)"
    )
    source = server.source(table, split_rows=10)
    snapshot = pinned(source)
    splits = plan(source, snapshot, None, HandoffFilter("p", "o", {"0": 99}))
    assert source.explain_key_spread(["id"]) == ""
    assert source.keeps_together(splits, ["id"])
    assert not source.keeps_together(splits, ["seq"])
    assert source.explain_key_spread(["seq"]).endswith(
        "is sorted by id first and the key is seq: one key lies in several splits"
    )
    fetch = source.create_split_reader(snapshot, splits, f"SELECT id, seq FROM {reader.SPLIT}", ["id"])
    rows = [row for split in splits for batch in fetch.fetch(split) for row in batch.to_pylist()]
    assert len(splits) == 3
    for key in range(3):
        numbers = range(key, 30, 3)
        expected = [number for number in numbers if number < 6] + sorted(
            (number for number in numbers if number >= 6), reverse=True
        )
        assert [row["seq"] for row in rows if row["id"] == key] == expected


def test_without_a_snapshot(server: Server) -> None:
    """`snapshot: none` needs no rights and no MergeTree.

    A view is one split, a table is split but does not hold still.
    """
    table = server.table("id Int64")
    server.do(f"INSERT INTO {table} SELECT number FROM numbers(100)")
    view = f"{table}_view"
    server.do(f"CREATE VIEW {view} AS SELECT id FROM {table}")
    with pytest.raises(TargetError, match="only the MergeTree family") as caught:
        server.source(view).create_snapshot(NO_SPARK, "view")
    assert "snapshot: none" in str(caught.value)
    for name, count in ((view, 1), (table, 11)):
        source = server.source(name, snapshot="none", split_rows=10)
        snapshot = pinned(source)
        assert not snapshot.is_stable
        assert snapshot.handle["pinned"] is False
        splits = plan(source, snapshot)
        assert len(splits) == count
        server.do(f"INSERT INTO {table} VALUES ({-count})")
        assert len(ids(fetched(source, snapshot, splits))) == server.ask(f"SELECT count() FROM {table}")[0][0]
        source.release_snapshot(snapshot)
    assert server.ask(f"SELECT count() FROM {table}") == [(102,)]


def test_a_missing_table_names_the_closest(server: Server) -> None:
    server.table("id Int64", name="flights_history")
    for ask in (lambda source: source.schema(NO_SPARK), pinned):
        with pytest.raises(TargetError, match="does not exist") as caught:
            ask(server.source(f"{server.database}.flight_history"))
        assert f"Did you mean {server.database}.flights_history" in str(caught.value)


def test_nobody_there_and_nobody_let_in(server: Server) -> None:
    """A dead server is transient, a wrong password is not; neither message holds the password."""
    secret = "hunter2-very-secret"
    for url, kind in (("http://127.0.0.1:9", TransientError), (server.connection.url, TargetError)):
        connection = {"url": url, "user": "default", "password": secret}
        with pytest.raises(kind) as caught:
            ClickHouseTable(
                ClickHouseSourceConfig(table_name="a.b"),
                Settings(clickhouse_source=ClickHouseConnection.model_validate(connection)),
            ).schema(NO_SPARK)
        shown = f"{caught.value!s}{caught.value!r}{caught.value.__cause__!r}"
        assert secret not in shown
        assert ("127.0.0.1:9: Connection refused\n" in str(caught.value)) == (kind is TransientError)


@pytest.mark.parametrize(
    ("code", "kind"),
    [(497, TargetError), (241, TransientError), (159, TransientError), (47, TargetError), (516, TargetError)],
)
def test_codes_of_the_server(code: int, kind: type[Exception]) -> None:
    from clickhouse_connect.driver.exceptions import DatabaseError

    with pytest.raises(kind, match="node 'n'"), client.translate_errors("n", "d.t", "pin it"):
        raise DatabaseError(
            "HTTPDriver returned: Code: 1. DB::Exception: Not like this. (NAME) (version 26.9.1.1)", code=code
        )


def cut_short(whole: bytes, keep: Callable[[bytes], bytes]) -> Any:
    import io

    class Stub:
        def raw_stream(self, *_: Any, **__: Any) -> io.BytesIO:
            return io.BytesIO(keep(whole))

    return Stub()


@pytest.mark.parametrize(
    "keep",
    [
        lambda data: data[:-8],
        lambda data: data[: len(data) // 2],
        lambda _: b"",
        lambda data: data[:-8] + b"Code: 241.",
    ],
)
def test_an_answer_that_breaks_off_is_not_a_short_one(
    server: Server, monkeypatch: pytest.MonkeyPatch, keep: Callable[[bytes], bytes]
) -> None:
    table = server.table("id Int64")
    server.do(f"INSERT INTO {table} SELECT number FROM numbers(1000)")
    source = server.source(table, snapshot="none")
    snapshot = pinned(source)
    splits = plan(source, snapshot)
    fetch = source.create_split_reader(snapshot, splits, None)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("id", pa.int64())])) as writer:
        writer.write_table(pa.table({"id": list(range(1000))}))
    whole = sink.getvalue().to_pybytes()
    monkeypatch.setattr(reader, "connect_shared", lambda *_: cut_short(whole, lambda data: data))
    assert sum(batch.num_rows for batch in fetch.fetch(splits[0])) == 1000
    monkeypatch.setattr(reader, "connect_shared", lambda *_: cut_short(whole, keep))
    with pytest.raises(TransientError):
        list(fetch.fetch(splits[0]))


def test_describe_asks_nobody() -> None:
    source = ClickHouseTable(
        ClickHouseSourceConfig(table_name="flights.history"),
        Settings(clickhouse_source=ClickHouseConnection(url="http://127.0.0.1:9")),
    )
    assert source.describe() == {
        "kind": "clickhouse",
        "asset_key": ["clickhouse", "flights", "history"],
        "scope": ["127.0.0.1:9"],
        "table_name": "flights.history",
        "snapshot": "clone",
    }


def test_expressions_of_a_sorting_key() -> None:
    assert expressions("toDate(a, 'x,y'), `c,d` DESC, (e, f), g[1,2]") == (
        "toDate(a, 'x,y')",
        "`c,d`",
        "(e, f)",
        "g[1,2]",
    )
    assert expressions("") == ()

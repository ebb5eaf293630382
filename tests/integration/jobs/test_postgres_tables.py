"""Dynamic tables in a real Postgres.

How they are made and checked, who may write them, what a cache sees and when.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

import psycopg
import pyarrow as pa
import pytest
from psycopg.conninfo import conninfo_to_dict

from headrace.connectors.postgres_client.session import Address
from headrace.jobs.dynamic_tables.lookup_table import LookupTableColumns, ValueTable
from headrace.jobs.dynamic_tables.postgres import CachedPostgresTableBackend, PostgresTableBackend
from headrace.pipeline.config.sections import TableConnection
from headrace.pipeline.errors import DataError, SchemaError, TargetError, TransientError, UserError
from headrace.pipeline.model.transforms import DynamicTableConfig
from headrace.pipeline.protocol.epochs import EpochPlan, Phase

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


PLAN = EpochPlan(1, Phase.LIVE, {}, {}, "hash", datetime(2025, 1, 1, tzinfo=UTC))
Make = Callable[..., ValueTable]


class Server:
    """A database, and tables in it as pipelines see them."""

    def __init__(self, conninfo: str) -> None:
        result = conninfo_to_dict(conninfo)
        values = {name: result[name] for name in ("host", "port", "user", "password")} | {
            "db": result["dbname"]
        }
        self.connection = TableConnection.model_validate(values)
        self.outside = psycopg.connect(conninfo, autocommit=True)
        self.made: list[ValueTable] = []

    def table(
        self, entity: str = "known", connection: TableConnection | None = None, **keys: Any
    ) -> ValueTable:
        node = DynamicTableConfig(backend_type="Postgres", backend_entity_name=entity, **keys)
        server = connection or self.connection
        self.made.append(
            ValueTable("t", LookupTableColumns.of(node, server), Address(server, "headrace test", "t"))
        )
        return self.made[-1]

    def values(self, table: str = "public.known", column: str = "value") -> list[str]:
        return [
            value for (value,) in self.outside.execute(f"SELECT {column} FROM {table} ORDER BY 1".encode())
        ]


@pytest.fixture
def server(pg: str) -> Iterator[Server]:
    made = Server(pg)
    yield made
    for table in made.made:
        table.close()
    made.outside.close()


def outside(server: Server, **keys: Any) -> PostgresTableBackend:
    made = PostgresTableBackend(server.table(**keys), at_most=3, committed=0)
    made.prepare()
    return made


def contains_values(table: PostgresTableBackend | CachedPostgresTableBackend, *values: str) -> list[bool]:
    return table.lookup(PLAN).contains(list(values))


def test_a_table_is_made_and_filled_once_however_often(server: Server) -> None:
    table = outside(server, entity='lists.Odd "name"', column='val"ue', time_column="at")
    for _ in range(2):
        table.fill(PLAN, pa.array(["a", "it's", "100%", "$1"]))
    assert server.outside.execute('SELECT count(*), count(at) FROM lists."Odd ""name"""').fetchone() == (4, 4)
    assert contains_values(table, "it's", "b", "100%", "$1", "A", "a\0b") == [
        True,
        False,
        True,
        True,
        False,
        False,
    ]
    with pytest.raises(DataError, match="NUL"):
        table.fill(PLAN, pa.array(["a\0b"]))
    outside(server, entity='lists.Odd "name"', column='val"ue', time_column="at")


def test_where_a_table_lies(server: Server) -> None:
    elsewhere = server.connection.model_copy(update={"dt_schema_name": "theirs"})
    assert server.table("t").where.name == "public.t"
    assert server.table("s.t").where.name == "s.t"
    assert server.table("s.t", schema="own").where.name == "own.t"
    assert server.table("t", elsewhere).where.name == "theirs.t"
    assert not server.table("t", cache=True).where.cache
    assert server.table("t", cache=True, time_column="at").where.cache
    eager = server.connection.model_copy(update={"cache_enabled": True})
    assert server.table("t", eager, time_column="at").where.cache
    assert not server.table("t", eager, time_column="at", cache=False).where.cache


def test_a_table_of_others_without_a_key_is_filled_once_too(server: Server) -> None:
    server.outside.execute("CREATE TABLE known (value varchar(20), note text)")
    table = outside(server)
    table.fill(PLAN, pa.array(["a", "b"]))
    table.fill(PLAN, pa.array(["b", "c"]))
    assert server.values() == ["a", "b", "c"]
    assert contains_values(table, "a", "d", "c") == [True, False, True]


def test_many_values_are_asked_in_chunks_side_by_side(server: Server) -> None:
    table = PostgresTableBackend(server.table(), at_most=100, committed=0)
    table.prepare()
    table.fill(PLAN, pa.array([f"v{number}" for number in range(0, 3000, 2)]))
    values = [f"v{number}" for number in range(3000)]
    assert contains_values(table, *values) == [number % 2 == 0 for number in range(3000)]


def test_pipelines_that_write_the_same_at_once_do_no_harm(server: Server) -> None:
    failures: list[BaseException] = []

    def write(shift: int) -> None:
        try:
            table = PostgresTableBackend(server.table(time_column="at"), at_most=100, committed=0)
            table.prepare()
            for _ in range(5):
                table.fill(PLAN, pa.array([f"v{number}" for number in range(shift, shift + 300)]))
        except BaseException as error:  # noqa: BLE001  told below
            failures.append(error)

    writers = [threading.Thread(target=write, args=(shift,)) for shift in (0, 100, 200)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert not failures
    assert len(server.values()) == 500


@pytest.mark.parametrize(
    ("table", "keys", "message"),
    [
        ("id int", {}, "table public.known has no column 'value'; it has id"),
        ("value int", {}, "column 'value' of table public.known is integer, and values are texts"),
        (
            "value text",
            {"time_column": "at", "cache": True},
            "has no time column 'at', and the cache reads what is new by it",
        ),
        (
            "value text, at json",
            {"time_column": "at", "cache": True},
            "time column 'at' of table public.known is json, which has no order",
        ),
        ("value text", {"time_column": "at"}, "has no time column 'at', and it says when a value came"),
    ],
)
def test_columns_that_do_not_fit_are_told_at_once(
    server: Server, table: str, keys: dict[str, Any], message: str
) -> None:
    server.outside.execute(f"CREATE TABLE known ({table})".encode())
    for look in (server.table(**keys).prepare, server.table(**keys).check):
        with pytest.raises(SchemaError) as caught:
            look()
        assert message in caught.value.message
        assert caught.value.node == "t"
        assert ("cache" in caught.value.hint) == ("cache" in keys)


def test_a_check_makes_nothing(server: Server) -> None:
    server.table("lists.known").check()
    assert server.outside.execute("SELECT count(*) FROM pg_namespace WHERE nspname = 'lists'").fetchone() == (
        0,
    )


class Clock:
    """Seconds that pass when a test says so."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def cached(server: Server, clock: Clock, **keys: Any) -> CachedPostgresTableBackend:
    table = server.table(time_column="at", cache=True, **keys)
    made = CachedPostgresTableBackend(
        table, cast("SparkSession", None), committed=0, debounce=1.0, clock=clock
    )
    made.prepare()
    return made


def test_a_cache_reads_on_at_most_every_debounce(server: Server) -> None:
    clock = Clock()
    table = cached(server, clock)
    server.outside.execute("INSERT INTO known VALUES ('old')")
    assert contains_values(table, "old", "new", "own") == [True, False, False]
    server.outside.execute("INSERT INTO known VALUES ('new')")
    clock.now += 0.9
    assert contains_values(table, "old", "new", "own") == [True, False, False], "read within the debounce"
    table.fill(PLAN, pa.array(["own"]))
    assert contains_values(table, "old", "new", "own") == [True, False, True], (
        "own values wait for the debounce"
    )
    clock.now += 0.2
    assert contains_values(table, "old", "new", "own") == [True, True, True]
    assert server.values() == ["new", "old", "own"]


def test_a_cache_finds_what_was_stamped_before_it_was_committed(server: Server, pg: str) -> None:
    clock = Clock()
    table = cached(server, clock)
    with psycopg.connect(pg) as slow:
        slow.execute("INSERT INTO known VALUES ('late', clock_timestamp())")
        server.outside.execute("INSERT INTO known VALUES ('early', clock_timestamp())")
        assert contains_values(table, "late", "early") == [False, True]
        slow.commit()
    clock.now += 1
    assert contains_values(table, "late", "early") == [True, True]


def test_a_stamp_of_tomorrow_hides_nothing_of_today(server: Server) -> None:
    clock = Clock()
    table = cached(server, clock)
    server.outside.execute(
        "INSERT INTO known VALUES ('old', clock_timestamp() - interval '1 day'), ('ahead', now() + interval"
        " '1 day')"
    )
    assert contains_values(table, "old", "ahead", "new") == [True, True, False]
    server.outside.execute("INSERT INTO known VALUES ('new', clock_timestamp())")
    clock.now += 1
    assert contains_values(table, "old", "ahead", "new") == [True, True, True]


@pytest.mark.parametrize("kind", ["bigint", "date", "timestamp", "text"])
def test_a_cache_reads_on_by_any_column_with_an_order(server: Server, kind: str) -> None:
    server.outside.execute(f"CREATE TABLE known (value text PRIMARY KEY, at {kind})".encode())
    first, then = {
        "bigint": ("5", "7"),
        "date": ("'2025-01-01'", "'2025-02-01'"),
        "text": ("'a'", "'b'"),
    }.get(kind, ("'2025-01-01 10:00'", "'2025-01-01 10:00:00.000001'"))
    clock = Clock()
    table = cached(server, clock)
    server.outside.execute(f"INSERT INTO known VALUES ('one', {first})".encode())
    assert contains_values(table, "one", "two", "same") == [True, False, False]
    server.outside.execute(f"INSERT INTO known VALUES ('two', {then}), ('same', {then})".encode())
    clock.now += 1
    assert contains_values(table, "one", "two", "same") == [True, True, True]


def test_a_server_that_is_away_is_worth_another_try(server: Server) -> None:
    away = server.connection.model_copy(update={"port": 1})
    lookup = server.table("known", away).lookup(10)
    with pytest.raises(TransientError) as caught:
        server.table("known", away).check()
    assert caught.value.node == "t"
    assert lookup.contains([]) == []


def test_a_table_that_was_dropped_and_a_wrong_password_are_the_users(server: Server) -> None:
    table = outside(server)
    server.outside.execute("DROP TABLE known")
    with pytest.raises(TargetError, match=r"table public.known, column value") as caught:
        contains_values(table, "a")
    assert caught.value.node == "t"
    wrong = server.connection.model_copy(update={"db": "nowhere-at-all"})
    with pytest.raises(UserError) as raised:
        server.table("known", wrong).check()
    assert server.connection.password.get_secret_value() not in str(raised.value)


def test_a_connection_that_was_ended_is_made_anew(server: Server) -> None:
    table = outside(server)
    table.fill(PLAN, pa.array(["a"]))
    assert contains_values(table, "a") == [True]
    server.outside.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'headrace test'"
    )
    assert contains_values(table, "a") == [True]

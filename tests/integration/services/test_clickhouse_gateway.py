"""The ClickHouse gateway, through the protocol that users use.

By clickhouse-connect, and by plain HTTP where that hides what goes over the wire.
"""

from __future__ import annotations

import datetime as dt
import io
import json
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from decimal import Decimal
from urllib.parse import urlencode

import clickhouse_connect
import pyarrow as pa
import pytest
import urllib3
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import DatabaseError, StreamFailureError

from headrace.services import Services

# Fails when the reader already has megabytes.
HALFWAY = "SELECT throwIf(number = 3000000) AS a, rand64() AS b FROM numbers(4000000)"
# clickhouse-connect gives moments in UTC without their zone.
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC).replace(tzinfo=None)
LEAP = dt.datetime(2024, 2, 29, 23, 59, 59, 123456, tzinfo=dt.UTC).replace(tzinfo=None)
TYPES = {
    "u8": ("UInt8", [0, 255]),
    "i64": ("Int64", [-(2**63), 2**63 - 1]),
    "u256": ("UInt256", [0, 2**256 - 1]),
    "f": ("Float64", [-0.5, 1e300]),
    "d": ("Decimal(38, 10)", [Decimal("-1.5000000000"), Decimal("12345678901234567890.0123456789")]),
    "s": ("String", ["", "ü'\\\n\t"]),
    "n": ("Nullable(String)", [None, ""]),
    "l": ("LowCardinality(String)", ["a", "b"]),
    "day": ("Date32", [dt.date(1970, 1, 1), dt.date(2100, 12, 31)]),
    "t": ("DateTime('UTC')", [EPOCH, LEAP.replace(microsecond=0)]),
    "t6": ("DateTime64(6, 'UTC')", [EPOCH, LEAP]),
    "id": ("UUID", [uuid.UUID(int=0), uuid.UUID(int=2**128 - 1)]),
    "arr": ("Array(Nullable(Int32))", [[], [1, None, -1]]),
    "m": ("Map(String, Int64)", [{}, {"k": 1, "ü": -2}]),
    "tu": ("Tuple(Int8, String)", [(1, "a"), (-1, "")]),
    "ok": ("Bool", [True, False]),
    "e": ("Enum8('x' = 1, 'y' = 2)", ["x", "y"]),
}


@pytest.fixture
def client(services: Services, ch_db: str) -> Iterator[Client]:
    with clickhouse_connect.get_client(**services.clickhouse.client_arguments(database=ch_db)) as made:
        yield made


def post(services: Services, body: bytes | str = b"", **params: str) -> urllib3.BaseHTTPResponse:
    headers = {"X-ClickHouse-User": "default", "X-ClickHouse-Key": services.clickhouse.password}
    url = f"{services.clickhouse.url}/?{urlencode(params)}" if params else services.clickhouse.url
    return urllib3.request("POST", url, body=body, headers=headers, retries=False, timeout=60)


@pytest.mark.parametrize("compress", ["lz4", "zstd", "gzip", False])
def test_every_type_comes_back_as_it_went_in(
    client: Client, services: Services, ch_db: str, compress: str | bool
):
    client.command(
        f"CREATE TABLE t ({', '.join(f'{name} {kind}' for name, (kind, _) in TYPES.items())}) ENGINE ="
        " MergeTree ORDER BY u8"
    )
    rows = [tuple(values[i] for _, values in TYPES.values()) for i in range(2)]
    with clickhouse_connect.get_client(
        **services.clickhouse.client_arguments(database=ch_db, compress=compress)
    ) as other:
        assert other.insert("t", rows, column_names=list(TYPES)).written_rows == 2
        assert other.query("SELECT * FROM t ORDER BY u8").result_rows == rows


def test_arrow_comes_back_as_it_went_in(client: Client):
    client.command(
        "CREATE TABLE t (a UInt64, s Nullable(String), t DateTime64(6, 'UTC'), d Decimal(18, 4)) ENGINE ="
        " MergeTree ORDER BY a"
    )
    moment = dt.datetime(2024, 2, 29, 12, 0, 0, 123456, tzinfo=dt.UTC)
    columns = [
        pa.array(range(5), pa.uint64()),
        pa.array(["x", None, "", "ü", "y"]),
        pa.array([moment] * 5, pa.timestamp("us", "UTC")),
    ]
    sent = pa.table(
        [*columns, pa.array([Decimal("1.5000")] * 5, pa.decimal128(18, 4))], names=["a", "s", "t", "d"]
    )
    assert client.insert_arrow("t", sent).written_rows == 5
    assert client.query_arrow("SELECT * FROM t ORDER BY a").to_pydict() == sent.to_pydict()


def test_a_large_result_streams_while_another_query_runs(client: Client, services: Services):
    rows = 5_000_000
    with client.query_arrow_stream(
        f"SELECT number AS a, toString(number) AS s FROM numbers({rows})"
    ) as stream:
        batches = iter(stream)
        seen = next(
            batches
        ).num_rows  # the rest waits in the engine: far more than any buffer between us holds
        with clickhouse_connect.get_client(**services.clickhouse.client_arguments()) as other:
            assert other.command("SELECT sum(number) FROM numbers(1000)") == 499500
            running = other.query(
                "SELECT count() FROM system.processes WHERE query LIKE '%numbers(5000000)%' AND query NOT"
                " LIKE '%processes%'"
            )
        assert running.result_rows == [(1,)]
        assert seen < rows
        assert seen + sum(batch.num_rows for batch in batches) == rows


def test_many_clients_at_once(services: Services, ch_db: str):
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            with clickhouse_connect.get_client(**services.clickhouse.client_arguments(database=ch_db)) as one:
                one.command(f"CREATE TABLE t{number} (a UInt64) ENGINE = MergeTree ORDER BY a")
                one.command(f"SET max_threads = {number}")
                one.insert(f"t{number}", [[value] for value in range(1000 + number)], column_names=["a"])
                assert one.command(f"SELECT count() FROM t{number}") == 1000 + number
                assert one.command("SELECT getSetting('max_threads')") == number
        except BaseException as error:  # noqa: BLE001 - shown below, in the thread that pytest watches
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def test_an_error_halfway_is_never_taken_for_the_end(client: Client):
    with (
        pytest.raises((pa.ArrowInvalid, OSError, urllib3.exceptions.HTTPError)),
        client.query_arrow_stream(HALFWAY) as arrow,
    ):
        list(arrow)
    with pytest.raises(StreamFailureError, match="throwIf"), client.query_rows_stream(HALFWAY) as native:
        list(native)
    for whole in (
        client.query,
        client.query_arrow,
    ):  # these ask the server to wait for the end: a status of its own
        with pytest.raises(DatabaseError, match="throwIf"):
            whole(HALFWAY)


@pytest.mark.parametrize("fmt", ["ArrowStream", "Arrow", "Parquet", "JSON"])
def test_no_format_gets_its_regular_end_when_the_statement_fails(services: Services, fmt: str):
    """chdb ends a format even so.

    With rows that fit into what is held back the error must take the place of all of them.
    """
    answer = post(
        services,
        f"SELECT throwIf(number = 5000) FROM numbers(10000) SETTINGS max_block_size = 1000 FORMAT {fmt}",
    )
    assert answer.status == 500
    assert answer.headers["X-ClickHouse-Exception-Code"] == "395"
    assert answer.data.startswith(b"Code: 395. DB::Exception: ")


@pytest.mark.parametrize(
    ("sql", "code", "status"),
    [
        ("SELECT * FROM nope", 60, 404),
        ("SELEC 1", 62, 400),
        ("SELECT nope", 47, 404),
        ("SELECT {x:UInt8}", 456, 500),
        ("USE nope", 81, 404),
        ("CREATE TEMPORARY TABLE t (a Int8)", 48, 501),
        ("INSERT INTO nope FORMAT Native\n", 60, 404),
    ],
)
def test_errors_have_the_codes_of_the_server(services: Services, sql: str, code: int, status: int):
    answer = post(services, sql)
    assert (answer.status, answer.headers["X-ClickHouse-Exception-Code"]) == (status, str(code))
    assert answer.data.decode().startswith(f"Code: {code}. DB::Exception: ")
    assert "(version 26." in answer.data.decode()


def test_wrong_settings_databases_and_passwords_are_refused(services: Services):
    assert post(services, "SELECT 1", no_such_setting="1").headers["X-ClickHouse-Exception-Code"] == "115"
    assert post(services, "SELECT 1", **{"a'; DROP": "1"}).headers["X-ClickHouse-Exception-Code"] == "115"
    assert post(services, "SELECT 1", database="no`such").headers["X-ClickHouse-Exception-Code"] == "81"
    for headers in (
        {},
        {"X-ClickHouse-Key": "wrong"},
        {"Authorization": "Basic ZGVmYXVsdDp3cm9uZw=="},
        {"Authorization": "Basic !"},
    ):
        answer = urllib3.request(
            "POST", services.clickhouse.url, body="SELECT 1", headers=headers, retries=False
        )
        assert (answer.status, answer.headers["X-ClickHouse-Exception-Code"]) == (403, "516")
    assert urllib3.request("GET", f"{services.clickhouse.url}/ping").data == b"Ok.\n"


def test_a_get_request_changes_nothing(services: Services, ch_db: str):
    headers = {"X-ClickHouse-Key": services.clickhouse.password}
    url = f"{services.clickhouse.url}/?database={ch_db}&query="
    assert urllib3.request("GET", f"{url}SELECT+1", headers=headers).data == b"1\n"
    answer = urllib3.request("GET", f"{url}CREATE+TABLE+t+(a+Int8)+ENGINE+Memory", headers=headers)
    assert answer.headers["X-ClickHouse-Exception-Code"] == "164"


def test_queries_come_in_the_url_in_the_body_or_half_and_half(services: Services, ch_db: str):
    post(services, "CREATE TABLE t (a Int32, s String) ENGINE = MergeTree ORDER BY a", database=ch_db)
    answers = [
        post(services, "1\tx\n2\ty\n", database=ch_db, query="INSERT INTO t FORMAT TabSeparated"),
        post(
            services,
            "INSERT INTO t FORMAT JSONEachRow\n" + json.dumps({"a": 3, "s": "FORMAT Native"}),
            database=ch_db,
        ),
        post(services, "(4, 'it''s'), (5, 'VALUES')", database=ch_db, query="INSERT INTO t VALUES"),
        post(services, "INSERT INTO t SELECT number + 6, 'FORMAT CSV' FROM numbers(3)", database=ch_db),
        post(
            services, "INSERT INTO {name:Identifier} (s, a) FORMAT CSV q,9\n", database=ch_db, param_name="t"
        ),
    ]
    assert [json.loads(answer.headers["X-ClickHouse-Summary"])["written_rows"] for answer in answers] == [
        "2",
        "1",
        "2",
        "3",
        "1",
    ]
    rows = post(
        services,
        "FROM t WHERE s != 'FORMAT CSV' ORDER BY a",
        database=ch_db,
        query="SELECT s",
        default_format="TSV",
    )
    assert rows.data.decode().split("\n") == ["x", "y", "FORMAT Native", "it\\'s", "VALUES", "q", ""]
    assert rows.headers["X-ClickHouse-Format"] == "TSV"


def test_settings_last_for_a_request_and_sets_for_a_session(client: Client, services: Services):
    assert client.query("SELECT getSetting('max_threads')", settings={"max_threads": 3}).result_rows == [(3,)]
    assert client.command("SELECT getSetting('max_threads')") != 3
    client.command("SET max_threads = 5")
    assert client.command("SELECT getSetting('max_threads')") == 5
    assert post(services, "SELECT getSetting('max_threads')").data != b"5\n"


def test_bound_values_reach_the_engine_however_long(client: Client):
    long = "ü'" * 100_000
    query = "SELECT length({s:String}), {n:Int32}, {l:Array(String)}"
    assert client.query(query, parameters={"s": long, "n": -1, "l": ["a'", "b"]}).result_rows == [
        (300_000, -1, ["a'", "b"])
    ]


def test_an_insert_is_one_part_and_an_insert_cut_off_is_none(client: Client, services: Services, ch_db: str):
    client.command("CREATE TABLE t (a UInt64) ENGINE = MergeTree ORDER BY a")
    client.insert_arrow("t", pa.table({"a": pa.array(range(500_000), pa.uint64())}))
    assert client.query(
        f"SELECT count() FROM system.parts WHERE database = '{ch_db}' AND active"
    ).result_rows == [(1,)]
    url = f"/?database={ch_db}&query=INSERT+INTO+t+FORMAT+TabSeparated"
    head = (
        f"POST {url} HTTP/1.1\r\nHost: x\r\nX-ClickHouse-Key:"
        f" {services.clickhouse.password}\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    with socket.create_connection((services.clickhouse.host, services.clickhouse.port)) as line:
        line.sendall(head.encode() + b"8\r\n1\n2\n3\n4\n\r\n")  # four whole rows, but not the end of the body
        line.shutdown(socket.SHUT_WR)
        line.settimeout(60)
        while line.recv(1 << 16):
            pass
    assert client.command("SELECT count() FROM t") == 500_000


def test_a_copy_by_clone_and_the_tables_that_pinning_reads(client: Client, ch_db: str):
    client.command("CREATE TABLE s (a UInt64, b String) ENGINE = MergeTree ORDER BY (a, b)")
    client.insert("s", [[1, "x"]], column_names=["a", "b"])
    client.command("CREATE TABLE t CLONE AS s")
    client.insert("s", [[2, "y"]], column_names=["a", "b"])
    assert client.query("SELECT a FROM t").result_rows == [(1,)]
    keys = client.query(
        f"SELECT sorting_key FROM system.tables WHERE database = '{ch_db}' ORDER BY name"
    ).result_rows
    assert keys == [("a, b",), ("a, b",)]
    parts = client.query(
        f"SELECT table, sum(rows) FROM system.parts WHERE database = '{ch_db}' AND active GROUP BY table"
        " ORDER BY table"
    )
    assert parts.result_rows == [("s", 2), ("t", 1)]


def test_a_reader_that_leaves_stops_its_query(client: Client, services: Services):
    # Without the cancellation the statement runs for an hour, so that its end within the limit is not its
    # own.
    with client.query_arrow_stream("SELECT number AS gone, rand64() FROM numbers(200000000000)") as stream:
        next(iter(stream))
        response = stream.source
        assert isinstance(response, io.IOBase)
        response.close()
    deadline = time.monotonic() + 60
    with clickhouse_connect.get_client(**services.clickhouse.client_arguments()) as other:
        query = (
            "SELECT count() FROM system.processes WHERE query LIKE '%AS gone%' AND query NOT LIKE"
            " '%processes%'"
        )
        while other.command(query) != 0:
            assert time.monotonic() < deadline, "the query still runs"
            time.sleep(0.1)

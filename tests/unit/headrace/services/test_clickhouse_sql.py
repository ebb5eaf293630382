"""The kind of a statement, found without an engine."""

from __future__ import annotations

import pytest

from headrace.services.clickhouse_sql import (
    CommandStatement,
    InsertStatement,
    QueryStatement,
    parse_statement,
)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT 1", QueryStatement("SELECT 1", None, "")),
        ("select 1 format Native;", QueryStatement("select 1", "Native", "")),
        (
            "SELECT 1\n FORMAT JSON SETTINGS max_threads = 1",
            QueryStatement("SELECT 1", "JSON", "SETTINGS max_threads = 1"),
        ),
        ("SELECT 'x FORMAT Native'", QueryStatement("SELECT 'x FORMAT Native'", None, "")),
        (
            "SELECT `FORMAT` FROM t -- FORMAT CSV",
            QueryStatement("SELECT `FORMAT` FROM t -- FORMAT CSV", None, ""),
        ),
        (
            "/* INSERT */ WITH 1 AS a SELECT a FORMAT CSV",
            QueryStatement("/* INSERT */ WITH 1 AS a SELECT a", "CSV", ""),
        ),
        (
            "(SELECT 1) UNION ALL (SELECT 2) FORMAT TSV",
            QueryStatement("(SELECT 1) UNION ALL (SELECT 2)", "TSV", ""),
        ),
        ("SELECT format x FROM t", QueryStatement("SELECT format x FROM t", None, "")),
        ("SHOW TABLES", QueryStatement("SHOW TABLES", None, "")),
    ],
)
def test_statements_that_answer(sql: str, expected: QueryStatement):
    assert parse_statement(sql) == expected


@pytest.mark.parametrize(
    ("sql", "head", "fmt", "data"),
    [
        ("INSERT INTO t FORMAT Native\nDATA", "INSERT INTO t", "Native", "DATA"),
        ("INSERT INTO t (a, `FORMAT x`) FORMAT  CSV  \r\n1,2", "INSERT INTO t (a, `FORMAT x`)", "CSV", "1,2"),
        (
            "INSERT INTO t SETTINGS async_insert = 0 FORMAT TSV 1\t2",
            "INSERT INTO t SETTINGS async_insert = 0",
            "TSV",
            "1\t2",
        ),
        ("-- hello\nINSERT INTO t FORMAT Native\n\n\n", "-- hello\nINSERT INTO t", "Native", "\n\n"),
        ("INSERT INTO t (format) FORMAT JSONEachRow {}", "INSERT INTO t (format)", "JSONEachRow", "{}"),
    ],
)
def test_inserts_with_data(sql: str, head: str, fmt: str, data: str):
    statement = parse_statement(sql)
    assert isinstance(statement, InsertStatement)
    assert (statement.head, statement.format, sql[statement.data :]) == (head, fmt, data)


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO t VALUES (1, 'FORMAT x')",
        "INSERT INTO t SELECT 1 FORMAT Null",
        "INSERT INTO t FROM INFILE 'x' FORMAT CSV",
        "CREATE TABLE t (a Int8) ENGINE = Memory",
        "",
        "nonsense '",
    ],
)
def test_everything_else_is_run_as_it_stands(sql: str):
    assert parse_statement(sql) == CommandStatement(sql, changes_session=False, temporary=False)


def test_what_a_session_remembers():
    assert [parse_statement(sql) for sql in ("SET a = 1", "use x")] == [
        CommandStatement(sql, changes_session=True, temporary=False) for sql in ("SET a = 1", "use x")
    ]
    assert parse_statement("CREATE TEMPORARY TABLE t (a Int8)") == CommandStatement(
        "CREATE TEMPORARY TABLE t (a Int8)", changes_session=False, temporary=True
    )

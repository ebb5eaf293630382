"""Statements with functions, as text.

Counts of arguments, paths, patterns, clauses, ids, and what a plugin adds.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest
import sqlglot
from sqlglot import exp

from headrace.pipeline import functions
from headrace.pipeline.errors import UserError
from headrace.pipeline.functions import (
    DialectScope,
    Function,
    Group,
    distinct,
    expand,
    number_generated_rows,
    parsed_names,
    register,
)
from headrace.pipeline.functions.registry import _found
from headrace.pipeline.sql import statements
from headrace.pipeline.sql.dialects.translation import DIALECTS
from headrace.pipeline.sql.int256.types import type_of_wide
from headrace.pipeline.sql.types import apply_types
from headrace.pipeline.types.int256 import UINT256

NOW = datetime(2025, 3, 4, 5, 6, 7, 890000, UTC)


def expanded(select: str) -> str:
    return statements.compile_statement(f"SELECT {select} FROM t", (), now=NOW, node="n")


@pytest.mark.parametrize(
    ("call", "message", "hint"),
    [
        (
            "u256_add(a)",
            "`u256_add` takes 2 arguments, found 1",
            "It is called as u256_add(uint256, uint256).",
        ),
        ("is_json(a, b, c)", "`is_json` takes 1 to 2 arguments, found 3", "is_json(text"),
        ("uuid7(1)", "`uuid7` takes 0 arguments, found 1", "uuid7()"),
        ("coalesce_meta()", "`coalesce_meta` takes 1 or more arguments, found 0", "coalesce_meta(a, b, ...)"),
        ("json_value(a, '$[*]')", "the path `$[*]` is not possible", "$.items[0]['a b']"),
        ("json_value(a, '$.a..b')", "is not possible", "A path is"),
        ("json_value(a, 'a')", "is not possible", "A path is"),
        ("json_query(a, b)", "the path must be written out", "before any row is read"),
    ],
)
def test_mistakes_are_told_with_the_signature(call: str, message: str, hint: str) -> None:
    with pytest.raises(UserError) as caught:
        expanded(call)
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.node == "n"


@pytest.mark.parametrize(
    "call",
    [
        "split(a, ',')",
        "hex(a)",
        "regexp_extract(a, 'b', 1)",
        "elt(1, a)",
        "parse_json(a)",
        "instr(a, b)",
        "url_decode(a)",
    ],
)
def test_names_of_spark_stay_sparks(call: str) -> None:
    assert (
        expanded(call).lower()
        == sqlglot.parse_one(f"SELECT {call} FROM t", dialect=statements.DIALECT)
        .sql(dialect=statements.DIALECT)
        .lower()
    )
    assert call.split("(", maxsplit=1)[0].upper() in parsed_names("datafusion")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_names_that_spark_lacks_mean_the_same_in_every_dialect(dialect: str) -> None:
    """Literals of bytes and maps are written otherwise in some."""
    shown = [
        (one, call) for one in distinct() if one.where is DialectScope.EVERYWHERE for call, _ in one.examples
    ]
    for function, call in [(one, call) for one, call in shown if "X'" not in call and "map(" not in call]:
        text = statements.compile_statement(
            statements.parse(f"SELECT {call} AS x FROM t", dialect=dialect), (), now=NOW, node="n"
        )
        assert not re.search(rf"\b{function.name}\(", text, re.IGNORECASE), call


def test_names_mean_the_same_in_small_and_capital_letters() -> None:
    assert expanded("U256_Add(a, b)") == expanded("u256_add(a, b)")


@pytest.mark.parametrize(
    ("call", "expression"),
    [("to_u256('007')", "'7'"), ("to_u256(5)", "'5'"), ("to_i256(-5)", "'-5'"), ("to_i256('-0')", "'0'")],
)
def test_numbers_that_are_written_out_are_no_calls(call: str, expression: str) -> None:
    assert expanded(call) == f"SELECT {expression} FROM t"
    assert "HR_FN_TO_U256" in expanded(f"to_u256('{2**256}')")
    assert "HR_FN_TO_U256" in expanded("to_u256(-1)")


def test_nested_arithmetic_is_checked_once() -> None:
    assert expanded("u256_add(u256_mul(a, b), u256_sub(c, d))").count("RAISE_ERROR") == 1


@pytest.mark.parametrize(
    "call",
    [
        "json_value(a, '$.b')",
        "json_value(a, '$.b' RETURNING INT DEFAULT 0 ON EMPTY ERROR ON ERROR)",
        "json_query(a, '$.b')",
        "json_query(a, '$.b' WITH WRAPPER)",
        "json_exists(a, '$.b')",
        "is_json(a)",
    ],
)
def test_a_document_is_parsed_once_unless_it_is_odd(call: str) -> None:
    """Where Spark shares nothing between two places, as in WHERE and in the branches of CASE."""
    result = sqlglot.parse_one(expanded(f"CASE WHEN c THEN {call} END"), dialect=statements.DIALECT)
    for part in list(
        result.find_all(exp.Coalesce, exp.And, exp.Or)
    ):  # what stands behind the first is asked only if that says nothing
        part.replace(part.this)
    assert (
        len(re.findall("GET_JSON_OBJECT|PARSE_JSON|FROM_JSON", result.sql(dialect=statements.DIALECT))) == 1
    )


def test_a_column_leaves_it_to_spark_to_share() -> None:
    for column in (
        "json_value(a, '$.b')",
        "CAST(json_value(a, '$.b') AS INT) AS b",
        "(json_query(a, '$.b'))",
    ):
        assert "REGEXP" not in expanded(column)
    for other in (
        "1 FROM t WHERE json_value(a, '$.b') = '1' UNION ALL SELECT 1",
        "upper(json_value(a, '$.b'))",
    ):
        assert "REGEXP" in expanded(other)


def test_a_search_that_is_written_out_goes_through_no_list() -> None:
    assert "AGGREGATE" in expanded("instr(a, 'b', c, d)")
    for call in ("instr(a, 'b', -1, 2)", "instr(a, 'b', 3, 8)"):
        assert "AGGREGATE" not in expanded(call)


def test_a_column_called_as_a_clock_is_reached_by_quoting() -> None:
    assert (
        expanded("`current_time`, t.current_time, current_time")
        == "SELECT `current_time`, t.current_time, '05:06:07.890000' FROM t"
    )


def test_output_columns_that_are_wide() -> None:
    query = statements.parse(
        "SELECT u256_add(a, b) AS s, CASE WHEN x THEN i256_neg(a) ELSE to_i256('1') END AS c, (to_u256(a))"
        " AS p, coalesce(w, to_u256(a)) AS k,"
        " coalesce_meta(NULL, w) AS meta, u256_to_string(a) AS text FROM t"
    )
    result = apply_types(query, {"t": {"w": type_of_wide(UINT256)}})
    wanted = {"s": "uint256", "c": "int256", "p": "uint256", "k": "uint256", "meta": "uint256"}
    assert {name: str(kind) for name, kind in result.numbers.items()} == wanted


def test_ids_are_those_of_the_call_and_the_node() -> None:
    one, two = (re.findall(r"'(\w+/\d+)'", expanded(call)) for call in ("uuid7()", "uuid7() || uuid7()"))
    assert set(one) == {"n/0"}
    assert set(two) == {"n/0", "n/1"}


def test_ids_of_rows_made_of_one_row_follow_from_its_number() -> None:
    query = statements.parse("SELECT uuid7() AS id FROM t")
    expand(query, node="n", now=NOW)
    assert "hr_number" not in query.sql()
    select = query.find(exp.Select)
    assert select is not None
    number_generated_rows(select, [exp.column("hr_number")])
    assert "CONCAT_WS(':', CAST(hr_number AS STRING))" in query.sql(dialect=statements.DIALECT)


def test_a_function_that_is_registered_is_known() -> None:
    made = Function(
        name="Twice",
        signature="twice(int)",
        group=Group.PLUGIN,
        meaning="",
        result="int",
        examples=(),
        sql="_1 * 2",
    )
    register(made)
    try:
        assert expanded("twice(a + 1) AS b") == "SELECT ((a + 1) * 2) AS b FROM t"
        assert functions.function_of(sqlglot.parse_one("TWICE(1)")) is made
    finally:
        del _found["twice"]


def test_a_function_is_an_expression_or_arrow() -> None:
    with pytest.raises(ValueError, match="either an expression or an Arrow function"):
        Function(name="x", signature="x()", group=Group.PLUGIN, meaning="", result="int", examples=())

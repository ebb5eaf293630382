"""What types decide in a statement: operators beside 256-bit integers, and division of whole numbers."""

from __future__ import annotations

import pyarrow as pa
import pytest
from sqlglot import exp

from headrace.pipeline import sql
from headrace.pipeline.errors import UserError
from headrace.pipeline.typed_sql import needs_types, spark_type, typed
from headrace.pipeline.wide import INT256, UINT256
from headrace.pipeline.wide_kinds import type_of_wide

COLUMNS = {
    "u": type_of_wide(UINT256),
    "i": type_of_wide(INT256),
    "n": spark_type("bigint"),
    "k": spark_type("int"),
    "d": spark_type("double"),
    "s": spark_type("string"),
    "b": spark_type("boolean"),
    "xs": spark_type("array<int>"),
    "st": spark_type("struct<a:int,b:string>"),
    "w": type_of_wide(pa.decimal256(39, 0)),
    "c": type_of_wide(pa.decimal256(60, 4)),
    "c2": type_of_wide(pa.decimal256(70, 10)),
}
ALL = {"u": "uint256", "i": "int256", "w": "decimal256(39, 0)", "c": "decimal256(60, 4)", "c2": "decimal256(70, 10)"}
MOST = "115792089237316195423570985008687907853269984665640564039457584007913129639935"


def said(expression: str, dialect: str = "spark") -> tuple[str, str]:
    """The expression in Spark's SQL, and its type if that is a 256-bit integer."""
    query = sql.parse(f"SELECT {expression} AS c FROM t", dialect=dialect)
    found = typed(query, {"t": COLUMNS}, node="x")
    return query.selects[0].unalias().sql(dialect=sql.DIALECT), str(found.wide.get("c", ""))


@pytest.mark.parametrize(
    ("written", "meant", "kind"),
    [
        ("u + 1", "U256_ADD(u, TO_U256('1'))", "uint256"),
        ("1 + u", "U256_ADD(TO_U256('1'), u)", "uint256"),
        ("u - 1 * u", "U256_SUB(u, U256_MUL(TO_U256('1'), u))", "uint256"),
        ("u / 2", "U256_DIV(u, TO_U256('2'))", "uint256"),
        ("u DIV n", "U256_DIV(u, TO_U256(n))", "uint256"),
        ("u % 3", "U256_MOD(u, TO_U256('3'))", "uint256"),
        ("i + k", "I256_ADD(i, TO_I256(k))", "int256"),
        ("u + i", "I256_ADD(TO_I256(u), i)", "int256"),
        ("u - -1", "I256_SUB(TO_I256(u), TO_I256('-1'))", "int256"),
        ("-i", "I256_NEG(i)", "int256"),
        ("-u", "I256_NEG(TO_I256(u))", "int256"),
        ("abs(i)", "I256_ABS(i)", "int256"),
        ("abs(u)", "u", "uint256"),
        (f"{MOST} - u", f"U256_SUB(TO_U256('{MOST}'), u)", "uint256"),
        ("u + '7'", "U256_ADD(u, TO_U256('7'))", "uint256"),
        ("(t.u + 1) * 2", "U256_MUL((U256_ADD(t.u, TO_U256('1'))), TO_U256('2'))", "uint256"),
        ("u256_add(u, u) + 1", "U256_ADD(U256_ADD(u, u), TO_U256('1'))", "uint256"),
        ("u < 5", "U256_COMPARE(u, '5') < 0", ""),
        ("5 < u", "U256_COMPARE('5', u) < 0", ""),
        ("u = -1", "I256_COMPARE(u, '-1') = 0", ""),
        ("u >= n", "I256_COMPARE(u, n) >= 0", ""),
        ("u <> u", "U256_COMPARE(u, u) <> 0", ""),
        ("u + 1 > 2", "U256_COMPARE(U256_ADD(u, TO_U256('1')), '2') > 0", ""),
        ("u <=> i", "(COALESCE(I256_COMPARE(u, i) = 0, FALSE) OR (u IS NULL AND i IS NULL))", ""),
        ("u BETWEEN 1 AND 2", "(U256_COMPARE(u, '1') >= 0 AND U256_COMPARE(u, '2') <= 0)", ""),
        ("zeroifnull(u)", "COALESCE(u, TO_U256('0'))", "uint256"),
        ("nullifzero(u)", "CASE WHEN U256_COMPARE(u, '0') = 0 THEN NULL ELSE u END", "uint256"),
        ("array_contains(array(9, NULL), u)", "ARRAY_CONTAINS(ARRAY(TO_U256('9'), NULL), u)", ""),
        ("try_cast(n AS uint256)", "CASE WHEN n IS NULL THEN NULL ELSE TO_U256(n) END", "uint256"),
        ("u NOT IN (1, 2)", "NOT (U256_COMPARE(u, '1') = 0 OR U256_COMPARE(u, '2') = 0)", ""),
        ("u IN ('x', 5)", "(u = 'x' OR U256_COMPARE(u, '5') = 0)", ""),
        ("CASE WHEN u > 5 THEN u ELSE 0 END", "CASE WHEN U256_COMPARE(u, '5') > 0 THEN u ELSE TO_U256('0') END", "uint256"),
        ("CASE u WHEN 5 THEN 'a' END", "CASE WHEN U256_COMPARE(u, '5') = 0 THEN 'a' END", ""),
        ("coalesce(u, 0)", "COALESCE(u, TO_U256('0'))", "uint256"),
        ("coalesce(u, n)", "COALESCE(u, CASE WHEN n IS NULL THEN NULL ELSE TO_U256(n) END)", "uint256"),
        ("if(b, u, NULL)", "IF(b, u, NULL)", "uint256"),
        ("nullif(u, 0)", "CASE WHEN U256_COMPARE(u, '0') = 0 THEN NULL ELSE u END", "uint256"),
        ("CAST(u AS STRING)", "U256_TO_STRING(u)", ""),
        ("CAST(i AS STRING)", "I256_TO_STRING(i)", ""),
        ("CAST(n AS UINT256)", "CASE WHEN n IS NULL THEN NULL ELSE TO_U256(n) END", "uint256"),
        ("CAST(u AS INT256)", "CASE WHEN u IS NULL THEN NULL ELSE TO_I256(u) END", "int256"),
        ("CAST(u AS BIGINT)", "CAST(u AS BIGINT)", ""),
        ("CAST(u AS DOUBLE) * 1.5", "CAST(u AS DOUBLE) * 1.5", ""),
        ("b AND s = 'x' OR b", "b AND s = 'x' OR b", ""),
        ("u || 'x'", "u || 'x'", ""),
        ("u = 'x'", "u = 'x'", ""),
        ("u = s", "(CASE WHEN s RLIKE '^-?[0-9]+$' THEN I256_COMPARE(u, s) = 0 ELSE u = s END)", ""),
        ("nvl2(s, u, i)", "NVL2(s, CASE WHEN u IS NULL THEN NULL ELSE TO_I256(u) END, i)", "int256"),
        ("nvl2(s, u, u) < nvl2(s, u, 0)", "U256_COMPARE(NVL2(s, u, u), NVL2(s, u, TO_U256('0'))) < 0", ""),
        ("equal_null(u, 5)", "(COALESCE(U256_COMPARE(u, '5') = 0, FALSE) OR (u IS NULL AND 5 IS NULL))", ""),
        ("decode(u, 5, i)", "CASE WHEN (COALESCE(U256_COMPARE(u, '5') = 0, FALSE) OR (u IS NULL AND 5 IS NULL)) THEN i END", "int256"),
        ("coalesce(u, split_part(s, ',', 1))", "COALESCE(u, SPLIT_PART(s, ',', 1))", ""),
        ("coalesce(u, json_value(s, '$.x'))", "COALESCE(u, JSON_VALUE(s, '$.x'))", ""),
        ("coalesce(u, xxhash64(s))", "COALESCE(u, CASE WHEN XXHASH64(s) IS NULL THEN NULL ELSE TO_U256(XXHASH64(s)) END)", "uint256"),
        ("if(b, u, CAST(7 AS DECIMAL(20)))", None, "uint256"),
        ("coalesce(u, length(s))", "COALESCE(u, CASE WHEN LENGTH(s) IS NULL THEN NULL ELSE TO_U256(LENGTH(s)) END)", "uint256"),
        ("negative(i)", "I256_NEG(i)", "int256"),
        ("explode(array(u, u))", "EXPLODE(ARRAY(u, u))", "uint256"),
        ("w", "w", "decimal256(39, 0)"),
        ("w + 1", "I256_ADD(w, TO_I256('1'))", "int256"),
        ("w < 9", "I256_COMPARE(w, '9') < 0", ""),
        ("c", "c", "decimal256(60, 4)"),
        ("coalesce(c, 0, NULL)", "COALESCE(c, '0', NULL)", "decimal256(60, 4)"),
        ("coalesce(c, 'none')", "COALESCE(c, 'none')", ""),
        ("c LIKE '1%' OR c IS NULL", "c LIKE '1%' OR c IS NULL", ""),
        ("CAST(c AS DOUBLE) * 2", "CAST(c AS DOUBLE) * 2", ""),
        ("u LIKE '1%'", "u LIKE '1%'", ""),
        ("u IS NULL", "u IS NULL", ""),
        ("length(u) + 1", "LENGTH(u) + 1", ""),
        ("n + k", "n + k", ""),
        ("coalesce(u, 'none')", "COALESCE(u, 'none')", ""),
    ],
)
def test_operators_beside_wide_integers_are_functions(written: str, meant: str | None, kind: str) -> None:
    text, found = said(written)
    assert (text if meant is not None else None, found) == (meant, kind)


LIST = "array(u, i, 5)"
MADE = "ARRAY(CASE WHEN u IS NULL THEN NULL ELSE TO_I256(u) END, i, TO_I256('5'))"


@pytest.mark.parametrize(
    ("written", "meant", "kind"),
    [
        (f"{LIST}[0] < 9", f"I256_COMPARE({MADE}[0], '9') < 0", ""),
        ("element_at(array(u), 1) + 1", "U256_ADD(ELEMENT_AT(ARRAY(u), 1), TO_U256('1'))", "uint256"),
        ("get(array(c), 0)", "GET(ARRAY(c), 0)", "decimal256(60, 4)"),
        ("named_struct('a', u).a < '9'", "U256_COMPARE(STRUCT(u AS a).a, '9') < 0", ""),
        ("map('a', u)['a'] = 5", "U256_COMPARE(MAP('a', u)['a'], '5') = 0", ""),
        ("filter(array(u), X -> x > 10)", "FILTER(ARRAY(u), X -> U256_COMPARE(x, '10') > 0)", ""),
        ("exists(array(c), x -> x > c2)", None, ""),
        ("array_max(array(struct(i AS v)).v) > '9'", None, ""),
        ("arrays_zip(array(u), array(i))[0]['1'] > '9'", None, ""),
        ("map_entries(map('a', i))[0].value > '9'", None, ""),
        ("map_concat(map('a', u), map('b', i))['a'] > '9'", None, ""),
        ("zip_with(array(u), array(i), (a, b) -> a < b)", "ZIP_WITH(ARRAY(u), ARRAY(i), (a, b) -> I256_COMPARE(a, b) < 0)", ""),
        ("map_filter(map('a', u), (k, v) -> v > 5)", "MAP_FILTER(MAP('a', u), (k, v) -> U256_COMPARE(v, '5') > 0)", ""),
        ("map_values(transform_values(map('a', n), (k, v) -> u))[0] < i", None, ""),
        ("transform(array(array(u)), x -> filter(x, x -> x < 5))", "TRANSFORM(ARRAY(ARRAY(u)), x -> FILTER(x, x -> U256_COMPARE(x, '5') < 0))", ""),
        ("transform(array(u), x -> transform(xs, x -> x + 1))", "TRANSFORM(ARRAY(u), x -> TRANSFORM(xs, x -> x + 1))", ""),
        ("transform(array(struct(u AS v)), x -> x.v < 5)", "TRANSFORM(ARRAY(STRUCT(u AS v)), x -> U256_COMPARE(x.v, '5') < 0)", ""),
        ("array_sort(array(u), (a, b) -> if(a < b, 1, 0))", "ARRAY_SORT(ARRAY(u), (a, b) -> IF(U256_COMPARE(a, b) < 0, 1, 0))", ""),
        ("concat(array(u), array(i))[0] < u", "I256_COMPARE(CONCAT(ARRAY(u), ARRAY(i))[0], u) < 0", ""),
        ("array_contains(array(u), 5)", "ARRAY_CONTAINS(ARRAY(u), TO_U256('5'))", ""),
        ("array_contains(array(i), n)", "ARRAY_CONTAINS(ARRAY(i), CASE WHEN n IS NULL THEN NULL ELSE TO_I256(n) END)", ""),
        ("array_position(array(c), 1.50)", "ARRAY_POSITION(ARRAY(c), '1.5')", ""),
        ("explode(array(c))", "EXPLODE(ARRAY(c))", "decimal256(60, 4)"),
        ("CAST(NULL AS uint256)", "CAST(NULL AS STRING)", "uint256"),
    ],
)  # fmt: skip
def test_numbers_in_lists_maps_and_structs_stay_numbers(written: str, meant: str | None, kind: str) -> None:
    text, found = said(written)
    assert found == kind
    assert text == meant if meant is not None else "I256_COMPARE(" in text


@pytest.mark.parametrize(
    ("written", "parts"),
    [
        ("array_max(array(u))", ["AGGREGATE(ARRAY(u)", "U256_COMPARE(hr_x, hr_a) > 0"]),
        ("array_min(transform(xs, x -> to_i256(x)))", ["I256_COMPARE(hr_x, hr_a) < 0"]),
        ("sort_array(array(u))", ["ARRAY_SORT(ARRAY(u)", "hr_a IS NULL THEN -1", "U256_COMPARE(hr_a, hr_b)"]),
        ("sort_array(array(u), false)", ["hr_a IS NULL THEN 1", "U256_COMPARE(hr_b, hr_a)"]),
        ("array_sort(array(u))", ["hr_a IS NULL THEN 1", "U256_COMPARE(hr_a, hr_b)"]),
        ("aggregate(array(u), u, (a, x) -> greatest(a, x))", ["U256_COMPARE(a, x) >= 0"]),
    ],
)
def test_lists_are_sorted_by_numbers(written: str, parts: list[str]) -> None:
    text, _ = said(written)
    assert [part for part in parts if part not in text] == []


def test_an_order_that_a_row_decides_is_an_error() -> None:
    with pytest.raises(UserError, match=r"node 'x'.*has an order that a row decides, over a list of uint256"):
        said("sort_array(array(u), b)")


def test_a_list_keeps_its_type_through_with_and_from_node_to_node() -> None:
    query = sql.parse(
        "WITH c AS (SELECT array(u) AS us, named_struct('v', i) AS p FROM t) SELECT us, p, us[0] < 5 AS l, p.v < 5 AS m FROM c"
    )
    found = typed(query, {"t": COLUMNS})
    assert "U256_COMPARE(us[0], '5') < 0 AS l, I256_COMPARE(p.v, '5') < 0 AS m" in query.sql(dialect=sql.DIALECT)
    again = sql.parse("SELECT filter(us, x -> x > 5) AS us FROM n")
    typed(again, {"n": found.held})
    listed = sql.parse("SELECT ps.v AS vs FROM (SELECT array(named_struct('v', u)) AS ps FROM t)")
    assert typed(listed, {"t": COLUMNS}).held["vs"].sql("spark") == "ARRAY<UINT256>"
    assert "U256_COMPARE(x, '5') > 0" in again.sql(dialect=sql.DIALECT)


@pytest.mark.parametrize("written", ["transform(array(u), x -> x + 1)", "aggregate(array(u), to_u256(0), (a, x) -> a + x)"])
def test_what_a_lambda_cannot_call_is_told(written: str) -> None:
    query = sql.parse(f"SELECT {written} AS c FROM t")
    typed(query, {"t": COLUMNS})
    with pytest.raises(UserError, match=r"node 'x': `U256_ADD\(.*\)` stands in a lambda, and `u256_add` takes whole columns"):
        sql.with_hidden(query, [], node="x")


def test_the_largest_and_the_smallest_are_found_by_numbers() -> None:
    text, kind = said("greatest(u, 5)")
    assert "U256_COMPARE(u, '5') >= 0" in text
    assert kind == "uint256"
    assert "I256_COMPARE(i, u) <= 0" in said("least(i, u)")[0]


def test_the_largest_of_many_is_no_longer_than_their_list() -> None:
    text, kind = said("greatest(u, n, i, u, n, 5, u, u, NULL)")
    assert (text.count("I256_COMPARE("), kind) == (1, "int256")
    assert text.startswith("AGGREGATE(ARRAY(CASE WHEN u IS NULL THEN NULL ELSE TO_I256(u) END, ")


@pytest.mark.parametrize("written", ["u * 1.5", "u > d", "d + i", "u / 2.5", "u BETWEEN 1 AND 2 AND u = 1.5"])
def test_what_would_lose_digits_is_an_error(written: str) -> None:
    with pytest.raises(UserError, match=r"node 'x'.*beside a number with a fraction"):
        said(written)


@pytest.mark.parametrize(
    "written",
    [
        "array(u, s)[0] < '9'",
        "array_max(array(u, s))",
        "sort_array(array(u, s))",
        "array_max(concat(array(u), array(s)))",
        "array(u) < array(u)",
        "map('a', s)['a'] < array(u, s)[0]",
        "struct(u, i) < struct(i, u)",
        "coalesce(u, s) > '9'",
        "CASE WHEN b THEN u ELSE s END BETWEEN '1' AND '9'",
    ],
)
def test_digits_are_not_compared_as_a_text(written: str) -> None:
    with pytest.raises(UserError, match=r"node 'x'.* would compare the digits of `.*u.*` as a text"):
        said(written)


@pytest.mark.parametrize(
    ("written", "what"),
    [
        ("round(u)", "`u` is uint256"),
        ("shiftleft(u, 1)", "moves the bits of `u`, which is uint256"),
        ("i >> 1", "moves the bits of `i`, which is int256"),
        ("hex(u)", "spells the digits of `u`, which is uint256, as the bytes of a text"),
        ("try_cast(s AS uint256)", "cannot give NULL for what is no uint256"),
        ("try_add(i, 1)", "`i` is int256"),
        ("format_number(u, 2)", "`u` is uint256"),
        ("round(c, 2)", "`c` is a decimal of up to 60 digits"),
        ("c + 1", "computes with `c`, which is a decimal of up to 60 digits"),
        ("-c", "computes with `c`"),
        ("abs(c)", "computes with `c`"),
        ("u > d * 2", "beside a number with a fraction"),
        ("c > d", "`c` is compared with `d`, and one of the two is decimal256\\(60, 4\\)"),
        ("c = s", "`c` is compared with `s`"),
        ("c = 'x'", "`c` is compared with `'x'`"),
        ("greatest(c, c2)", "`c2` stands beside a column of type decimal256\\(60, 4\\)"),
        ("greatest(c, 0.00001)", "`0.00001` stands beside"),
        ("coalesce(c, c2)", "is `c`, of type decimal256\\(60, 4\\), or `c2`"),
        ("coalesce(c, n)", "or `n`"),
        ("if(b, u, d)", "is `u`, of type uint256, or `d`"),
        ("coalesce(u, 0.5)", "or `0.5`"),
        ("array(u, d)", "is `u`, of type uint256, or `d`, which is a DOUBLE"),
        (
            "coalesce(u, nofunc(n))",
            "or `NOFUNC\\(n\\)`, which is of a type that cannot be told\\n  Say it: CAST\\(NOFUNC\\(n\\) AS BIGINT\\)",
        ),
        ("array_contains(array(u), d)", "`ARRAY_CONTAINS.*` puts a 256-bit integer beside"),
        ("u BETWEEN 1.5 AND 9", "`\\(u, 1.5\\)` puts a 256-bit integer beside"),
        ("u IN (1, 2.5)", "`u = 2.5` puts a 256-bit integer beside"),
        ("greatest(u, d)", "`GREATEST.*` puts a 256-bit integer beside"),
        ("coalesce(u, json_value(s, '$.x' RETURNING int))", "or `JSON_VALUE"),
    ],
)
def test_what_spark_would_make_another_number_of_is_an_error(written: str, what: str) -> None:
    with pytest.raises(UserError, match=what):
        said(written)


@pytest.mark.parametrize(
    ("statement", "wide"),
    [
        ("SELECT * FROM t", ALL),
        ("SELECT t.* FROM t", ALL),
        ("SELECT * EXCEPT (i, c, c2, w), st.* FROM t", {"u": "uint256"}),
        ("SELECT c AS x, c FROM t UNION ALL SELECT c, NULL FROM t", {"x": "decimal256(60, 4)", "c": "decimal256(60, 4)"}),
        ("SELECT x, x < 5 AS less FROM t LATERAL VIEW explode(array(u, u + 1)) e AS x", {"x": "uint256"}),
        ("WITH c AS (SELECT u + 1 AS v, * FROM t) SELECT v, v * 2 AS w FROM c", {"v": "uint256", "w": "uint256"}),
        ("SELECT q.v + 1 AS w FROM (SELECT u AS v FROM t) AS q", {"w": "uint256"}),
        ("SELECT w + 1 AS v FROM (SELECT u FROM t) AS q(w)", {"v": "uint256"}),
        ("SELECT u + 1 AS x, x + 1 AS y FROM t", {"x": "uint256", "y": "uint256"}),
        ("SELECT u FROM t UNION ALL SELECT u + 1 FROM t UNION ALL SELECT NULL FROM t", {"u": "uint256"}),
        ("SELECT a.u, x FROM t AS a LATERAL VIEW explode(xs) e AS x WHERE a.u > 5", {"u": "uint256"}),
        ("SELECT n, explode(xs) AS x FROM t", {}),
    ],
)
def test_output_columns_carry_the_type(statement: str, wide: dict[str, str]) -> None:
    found = typed(sql.parse(statement), {"t": COLUMNS})
    assert {name: str(kind) for name, kind in found.wide.items()} == wide


@pytest.mark.parametrize(
    ("first", "second"), [("u", "i"), ("u", "n"), ("s", "i"), ("c", "c2"), ("c", "s"), ("u", "nofunc(u)"), ("array(u) AS a", "array(i)")]
)
def test_branches_must_have_one_type(first: str, second: str) -> None:
    with pytest.raises(UserError, match=f"column `{first[-1]}` is .* in one branch of UNION ALL, and .* in another"):
        typed(sql.parse(f"SELECT {first} FROM t UNION ALL SELECT {second} FROM t"), {"t": COLUMNS})


def test_an_empty_list_in_one_branch_leaves_the_other_s_type() -> None:
    found = typed(sql.parse("SELECT array() AS a, map('k', i) AS m FROM t UNION ALL SELECT array(u), map() FROM t"), {"t": COLUMNS})
    assert {name: kind.sql("spark") for name, kind in found.held.items()} == {"a": "ARRAY<UINT256>", "m": "MAP<STRING, INT256>"}


def test_symmetric_bounds_are_taken_in_either_order() -> None:
    text, _ = said("u BETWEEN SYMMETRIC 10 AND 9", "postgres")
    assert text == (
        "(U256_COMPARE(u, '10') >= 0 AND U256_COMPARE(u, '9') <= 0 OR (U256_COMPARE(u, '10') <= 0 AND U256_COMPARE(u, '9') >= 0))"
    )


@pytest.mark.parametrize(
    ("written", "dialect", "meant"),
    [
        ("n / k", "postgres", "CAST((n DIV k) AS BIGINT)"),
        ("k / 2", "datafusion", "CAST((k DIV 2) AS INT)"),
        ("(n + 1) / k", "trino", "CAST(((n + 1) DIV k) AS BIGINT)"),
        ("xs[1] / 2", "datafusion", "CAST((TRY_ELEMENT_AT(xs, 1) DIV 2) AS INT)"),
        ("array_length(xs) / 2", "datafusion", "CAST((SIZE(xs) DIV 2) AS INT)"),
        ("st.a / 2", "postgres", "CAST((st.a DIV 2) AS INT)"),
        ("n / d", "postgres", "n / d"),
        ("n / 2.5", "postgres", "n / 2.5"),
        ("k / 2", "spark", "k / 2"),
        ("k / 2", "duckdb", "k / 2"),
        ("k / 2", "clickhouse", "k / 2"),
        ("u / 2", "postgres", "U256_DIV(u, TO_U256('2'))"),
    ],
)
def test_whole_numbers_divide_as_the_dialect_says(written: str, dialect: str, meant: str) -> None:
    assert said(written, dialect)[0] == meant


def test_a_division_of_unknown_types_is_an_error() -> None:
    with pytest.raises(UserError, match="whether `NOFUNC\\(n\\) / 2` divides whole numbers cannot be told"):
        said("nofunc(n) / 2", "postgres")


def test_a_statement_without_any_of_this_needs_no_types() -> None:
    assert not needs_types(sql.parse("SELECT n + 1 AS m FROM t WHERE k / 2 > 1"), wide=False)
    assert needs_types(sql.parse("SELECT n / 2 AS m FROM t", dialect="postgres"), wide=False)
    assert needs_types(sql.parse("SELECT to_u256(n) AS m FROM t"), wide=False)


def test_lists_behind_from_are_rewritten_too() -> None:
    query = sql.parse("SELECT x < 5 AS less FROM t LATERAL VIEW explode(array(u + 1, u)) e AS x")
    typed(query, {"t": COLUMNS})
    assert "EXPLODE(ARRAY(U256_ADD(u, TO_U256('1')), u))" in query.sql(dialect=sql.DIALECT)
    assert "U256_COMPARE(x, '5') < 0 AS less" in query.sql(dialect=sql.DIALECT)


@pytest.mark.parametrize(
    ("behind", "compared"),
    [
        ("explode(map('a', u)) e AS k, v", "U256_COMPARE(v, '9')"),
        ("explode(map(i, 1)) e AS v, k", "I256_COMPARE(v, '9')"),
        ("posexplode(array(u)) e AS at, v", "U256_COMPARE(v, '9')"),
        ("inline(array(named_struct('a', s, 'b', u))) e AS a, v", "U256_COMPARE(v, '9')"),
        ("stack(2, u, i) e AS v", "I256_COMPARE(v, '9')"),
        ("explode(filter(array(array(u), array(i)), y -> size(y) > 0)[0]) e AS v", "I256_COMPARE(v, '9')"),
    ],
)
def test_every_function_that_makes_rows_gives_numbers(behind: str, compared: str) -> None:
    query = sql.parse(f"SELECT v > '9' AS more FROM t LATERAL VIEW {behind}")
    typed(query, {"t": COLUMNS})
    assert f"SELECT {compared} > 0 AS more" in query.sql(dialect=sql.DIALECT)


def test_unnest_of_a_struct_is_its_fields() -> None:
    query = sql.parse("SELECT n, unnest(st), unnest(t.st) FROM t", dialect="datafusion")
    typed(query, {"t": COLUMNS})
    assert query.sql(dialect=sql.DIALECT) == "SELECT n, st.*, t.st.* FROM t"
    assert not query.find(exp.Unnest)

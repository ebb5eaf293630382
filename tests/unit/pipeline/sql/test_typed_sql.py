"""The effect of types in a statement.

Operators on numbers of more than 38 digits, and division of whole numbers.
"""

from __future__ import annotations

import pyarrow as pa
import pytest
from sqlglot import exp

from headrace.pipeline.errors import UserError
from headrace.pipeline.sql import statements
from headrace.pipeline.sql.int256.types import type_of_wide
from headrace.pipeline.sql.types import apply_types, needs_types, spark_type
from headrace.pipeline.types.int256 import INT256, UINT256

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
ALL = {
    "u": "uint256",
    "i": "int256",
    "w": "decimal256(39, 0)",
    "c": "decimal256(60, 4)",
    "c2": "decimal256(70, 10)",
}
MOST = "115792089237316195423570985008687907853269984665640564039457584007913129639935"


def translated(expression: str, dialect: str = "spark") -> tuple[str, str]:
    """The expression in Spark's SQL, and its type if that is a 256-bit integer."""
    query = statements.parse(f"SELECT {expression} AS c FROM t", dialect=dialect)
    result = apply_types(query, {"t": COLUMNS}, node="x")
    return query.selects[0].unalias().sql(dialect=statements.DIALECT), str(result.numbers.get("c", ""))


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
        ("try_cast(n AS uint256)", "CASE WHEN n IS NULL THEN NULL ELSE TO_U256(n) END", "uint256"),
        ("u NOT IN (1, 2)", "NOT (U256_COMPARE(u, '1') = 0 OR U256_COMPARE(u, '2') = 0)", ""),
        (
            "CASE WHEN u > 5 THEN u ELSE 0 END",
            "CASE WHEN U256_COMPARE(u, '5') > 0 THEN u ELSE TO_U256('0') END",
            "uint256",
        ),
        ("coalesce(u, 0)", "COALESCE(u, TO_U256('0'))", "uint256"),
        ("if(b, u, NULL)", "IF(b, u, NULL)", "uint256"),
        ("nullif(u, 0)", "CASE WHEN U256_COMPARE(u, '0') = 0 THEN NULL ELSE u END", "uint256"),
        ("CAST(u AS STRING)", "U256_TO_STRING(u)", ""),
        ("CAST(i AS STRING)", "I256_TO_STRING(i)", ""),
        ("CAST(n AS UINT256)", "CASE WHEN n IS NULL THEN NULL ELSE TO_U256(n) END", "uint256"),
        ("CAST(u AS INT256)", "CASE WHEN u IS NULL THEN NULL ELSE TO_I256(u) END", "int256"),
        ("CAST(s AS UINT256)", "CASE WHEN s IS NULL THEN NULL ELSE TO_U256(s) END", "uint256"),
        ("CAST(u AS BIGINT)", "CAST(u AS BIGINT)", ""),
        ("CAST(u AS DOUBLE) * 1.5", "CAST(u AS DOUBLE) * 1.5", ""),
        ("b AND s = 'x' OR b", "b AND s = 'x' OR b", ""),
        ("u || 'x'", "u || 'x'", ""),
        ("nvl2(s, u, u) < nvl2(s, u, 0)", "U256_COMPARE(NVL2(s, u, u), NVL2(s, u, TO_U256('0'))) < 0", ""),
        ("equal_null(u, 5)", "(COALESCE(U256_COMPARE(u, '5') = 0, FALSE) OR (u IS NULL AND 5 IS NULL))", ""),
        ("negative(i)", "I256_NEG(i)", "int256"),
        ("explode(array(u, u))", "EXPLODE(ARRAY(u, u))", "uint256"),
        ("w", "w", "decimal256(39, 0)"),
        ("w < 9", "I256_COMPARE(w, '9') < 0", ""),
        ("c", "c", "decimal256(60, 4)"),
        ("coalesce(c, 0, NULL)", "COALESCE(c, '0', NULL)", "decimal256(60, 4)"),
        ("coalesce_meta(NULL, u, 0)", "COALESCE_META(NULL, u, TO_U256('0'))", "uint256"),
        ("nvl2(u, 1, 2)", "NVL2(u, 1, 2)", ""),
        ("nullif(n, u)", "CASE WHEN I256_COMPARE(n, u) = 0 THEN NULL ELSE n END", ""),
        (
            "u IS DISTINCT FROM i",
            "NOT (COALESCE(I256_COMPARE(u, i) = 0, FALSE) OR (u IS NULL AND i IS NULL))",
            "",
        ),
        ("u = NULL", "I256_COMPARE(u, NULL) = 0", ""),
        ("to_int64(u)", "TO_INT64(u)", ""),
        ("CAST(u AS DECIMAL(38, 0)) + 1", "CAST(u AS DECIMAL(38, 0)) + 1", ""),
        ("substr(u, 1)", "SUBSTRING(u, 1)", ""),
        ("concat(u, s)", "CONCAT(u, s)", ""),
        ("isnull(u)", "ISNULL(u)", ""),
        ("c LIKE '1%' OR c IS NULL", "c LIKE '1%' OR c IS NULL", ""),
        ("CAST(c AS DOUBLE) * 2", "CAST(c AS DOUBLE) * 2", ""),
        ("u LIKE '1%'", "u LIKE '1%'", ""),
        ("u IS NULL", "u IS NULL", ""),
        ("length(u) + 1", "LENGTH(u) + 1", ""),
        ("n + k", "n + k", ""),
    ],
)
def test_operators_on_wide_numbers_are_functions(written: str, meant: str | None, kind: str) -> None:
    text, result = translated(written)
    assert (text if meant is not None else None, result) == (meant, kind)


@pytest.mark.parametrize(
    ("written", "meant", "kind"),
    [
        ("array(u, 5, NULL)[0] < 9", "U256_COMPARE(ARRAY(u, TO_U256('5'), NULL)[0], '9') < 0", ""),
        ("element_at(array(u), 1) + 1", "U256_ADD(ELEMENT_AT(ARRAY(u), 1), TO_U256('1'))", "uint256"),
        ("get(array(c), 0)", "GET(ARRAY(c), 0)", "decimal256(60, 4)"),
        ("named_struct('a', u).a < '9'", "U256_COMPARE(STRUCT(u AS a).a, '9') < 0", ""),
        ("map('a', u)['a'] = 5", "U256_COMPARE(MAP('a', u)['a'], '5') = 0", ""),
        ("array(struct(i AS v)).v[0] > '9'", "I256_COMPARE(ARRAY(STRUCT(i AS v)).v[0], '9') > 0", ""),
        (("array(named_struct('a', s, 'b', u))[0].b +"
         " 1"), "U256_ADD(ARRAY(STRUCT(s AS a, u AS b))[0].b, TO_U256('1'))", "uint256"),
        (("map('a', u, nofunc(s), u)['a'] +"
         " 1"), "U256_ADD(MAP('a', u, NOFUNC(s), u)['a'], TO_U256('1'))", "uint256"),
        ("array(struct(u AS a, NULL AS b), struct(NULL AS a, i AS b))[0].b", None, "int256"),
        ("coalesce(array(u), array())[0] > 1", "U256_COMPARE(COALESCE(ARRAY(u), ARRAY())[0], '1') > 0", ""),
        ("explode(array(c))", "EXPLODE(ARRAY(c))", "decimal256(60, 4)"),
        ("explode(array(u, 5)) > 9", "U256_COMPARE(EXPLODE(ARRAY(u, TO_U256('5'))), '9') > 0", ""),
        ("size(array(u)) + 1", "SIZE(ARRAY(u)) + 1", ""),
        ("CAST(array(u) AS ARRAY<STRING>)[0]", "CAST(ARRAY(u) AS ARRAY<STRING>)[0]", ""),
        ("CAST(NULL AS uint256)", "CAST(NULL AS STRING)", "uint256"),
        ("filter(xs, x -> x < u)", "FILTER(xs, x -> I256_COMPARE(x, u) < 0)", ""),
        ("filter(xs, U -> u > 5)", "FILTER(xs, U -> u > 5)", ""),
        ("transform(xs, x -> st.a + x)", "TRANSFORM(xs, x -> st.a + x)", ""),
    ],
)  # fmt: skip
def test_numbers_in_lists_maps_and_structs_keep_their_type(
    written: str, meant: str | None, kind: str
) -> None:
    text, result = translated(written)
    assert (text if meant is not None else None, result) == (meant, kind)


def test_a_list_keeps_its_type_through_with_and_from_node_to_node() -> None:
    query = statements.parse(
        "WITH c AS (SELECT array(u) AS us, named_struct('v', i) AS p FROM t) SELECT us, p, us[0] < 5 AS l,"
        " p.v < 5 AS m FROM c"
    )
    result = apply_types(query, {"t": COLUMNS})
    assert "U256_COMPARE(us[0], '5') < 0 AS l, I256_COMPARE(p.v, '5') < 0 AS m" in query.sql(
        dialect=statements.DIALECT
    )
    again = statements.parse("SELECT us[1] > '5' AS more FROM n")
    apply_types(again, {"n": result.nested})
    assert "U256_COMPARE(us[1], '5') > 0" in again.sql(dialect=statements.DIALECT)
    listed = statements.parse("SELECT ps.v AS vs FROM (SELECT array(named_struct('v', u)) AS ps FROM t)")
    assert apply_types(listed, {"t": COLUMNS}).nested["vs"].sql("spark") == "ARRAY<UINT256>"


def test_a_lambda_cannot_compute_with_wide_numbers() -> None:
    query = statements.parse("SELECT filter(xs, x -> u256_add(u, u) > x) AS c FROM t")
    apply_types(query, {"t": COLUMNS})
    with pytest.raises(
        UserError, match=r"node 'x': `U256_ADD\(.*\)` is in a lambda, and `u256_add` takes whole columns"
    ):
        statements.compile_statement(query, [], node="x")


@pytest.mark.parametrize(
    ("written", "number"),
    [
        *[
            (f"{call}(array(u))", "ARRAY(u)")
            for call in ("array_max", "array_min", "sort_array", "array_sort", "array_distinct", "reverse")
        ],
        *[
            (f"{call}(array(u), array(u))", "ARRAY(u)")
            for call in ("concat", "array_union", "array_except", "array_intersect", "arrays_zip")
        ],
        *[
            (f"{call}(array(u), 5)", "ARRAY(u)")
            for call in ("array_contains", "array_position", "array_remove", "array_append")
        ],
        *[
            (f"{call}(map('a', u))", "MAP('a', u)")
            for call in ("map_keys", "map_values", "map_entries", "map_concat")
        ],
        *[
            (f"{call}(array(u), x -> x > 10)", "ARRAY(u)")
            for call in ("filter", "exists", "forall", "transform", "any_match")
        ],
        ("array_contains(array(9, NULL), u)", "u"),
        ("aggregate(array(u), to_u256(0), (a, x) -> a + x)", "ARRAY(u)"),
        ("zip_with(array(u), array(i), (a, b) -> a < b)", "ARRAY(u)"),
        ("map_filter(map('a', u), (k, v) -> v > 5)", "MAP('a', u)"),
        ("transform_values(map('a', n), (k, v) -> u)", "u"),
        ("transform(xs, x -> u)", "u"),
        ("struct(u AS a, st.*)", "u"),
        ("array_sort(array(u), (a, b) -> if(a < b, 1, 0))", "ARRAY(u)"),
        ("array(u)[0:1]", "ARRAY(u)"),
        ("array(xs, xs)[u]", "u"),
        ("map(u, 1)['05']", "MAP(u, 1)"),
        ("flatten(array(array(u)))", "ARRAY(ARRAY(u))"),
        ("to_json(struct(u))", "STRUCT(u AS u)"),
        ("length(array(u))", "ARRAY(u)"),
        ("u256_add(array(u), 1)", "ARRAY(u)"),
        ("CAST(array(u) AS uint256)", "ARRAY(u)"),
        ("(u, i) = (u, i)", "u"),
        *[
            (f"{call}(u)", "u")
            for call in (
                "round",
                "hex",
                "sum_of",
                "hash",
                "md5",
                "keccak256",
                "to_json",
                "zeroifnull",
                "sqrt",
                "upper",
            )
        ],
        *[
            (f"{call}(u, 5)", "u")
            for call in (
                "greatest",
                "least",
                "shiftleft",
                "format_number",
                "try_add",
                "nullifzero",
                "lpad",
                "pow",
            )
        ],
        *[(f"u {operator} '1'", "u") for operator in ("&", "|", "<<", "RLIKE", "ILIKE", "SIMILAR TO")],
        *[(f"{call}(c)", "c") for call in ("abs", "round", "floor", "greatest")],
        ("-c", "c"),
        *[(f"c {operator} 1", "c") for operator in "+-*/%"],
        ("w + 1", "w"),
        ("u + c", "c"),
        ("decode(u, 5, i)", "u"),
        ("CASE u WHEN 5 THEN 'a' END", "u"),
        ("CASE n WHEN u THEN 'a' END", "u"),
        ("if(u, 1, 2)", "u"),
        ("u IS TRUE", "u"),
        ("NOT u", "u"),
        ("dynamic_table_check('t', u)", "u"),
    ],
)
def test_every_other_operator_is_refused(written: str, number: str) -> None:
    with pytest.raises(UserError) as caught:
        translated(written)
    assert f" is not available for `{number}`, which is " in caught.value.message
    assert "CAST" in caught.value.hint
    assert caught.value.node == "x"


@pytest.mark.parametrize(
    "item",
    [
        "explode(array(u))",
        "posexplode(array(u)) AS (p, x)",
        "explode(map('a', u)) AS (k, v)",
        "stack(1, u) AS x",
    ],
)
def test_a_generator_whose_column_would_lose_its_type_is_refused(item: str) -> None:
    with pytest.raises(
        UserError, match=r" is not available for `.*u.*`, which is .*UINT256|uint256"
    ) as caught:
        apply_types(statements.parse(f"SELECT n, {item} FROM t"), {"t": COLUMNS})
    assert "LATERAL VIEW" in caught.value.hint


@pytest.mark.parametrize(
    ("written", "number", "other"),
    [
        *[(f"u {operator} 1.5", "u", "1.5") for operator in ("+", "-", "*", "/", "%", "<", "=", "<=>")],
        *[(f"u {operator} d", "u", "d") for operator in ("+", ">", "<>")],
        *[(f"u {operator} s", "u", "s") for operator in ("+", ">", "=")],
        ("d + i", "i", "d"),
        ("u > d * 2", "u", "d * 2"),
        ("u + NULL", "u", "NULL"),
        ("u = 'x'", "u", "'x'"),
        ("u + '1e3'", "u", "'1e3'"),
        ("u = nofunc(n)", "u", "NOFUNC(n)"),
        ("u > CAST(1 AS DECIMAL(10, 2))", "u", "CAST(1 AS DECIMAL(10, 2))"),
        ("u BETWEEN 1 AND 2 AND u = 1.5", "u", "1.5"),
        ("u BETWEEN 1.5 AND 9", "u", "1.5"),
        ("u IN (1, 2.5)", "u", "2.5"),
        ("u IN ('x', 5)", "u", "'x'"),
        ("nullif(u, 'x')", "u", "'x'"),
        ("c > d", "c", "d"),
        ("c = s", "c", "s"),
        ("c = 'x'", "c", "'x'"),
        ("coalesce(u, n)", "u", "n"),
        ("coalesce(u, 'none')", "u", "'none'"),
        ("coalesce(u, 0.5)", "u", "0.5"),
        ("coalesce(c, 'none')", "c", "'none'"),
        ("coalesce(c, c2)", "c", "c2"),
        ("coalesce(c, 0.00001)", "c", "0.00001"),
        (f"coalesce(c, {MOST})", "c", MOST),
        ("map('a', nofunc(n), 'b', array(u))", "ARRAY(u)", "NOFUNC(n)"),
        ("coalesce(u, nofunc(n))", "u", "NOFUNC(n)"),
        ("coalesce(u, s) > '9'", "u", "s"),
        ("nvl2(s, u, i)", "u", "i"),
        ("if(b, u, d)", "u", "d"),
        ("CASE WHEN b THEN u ELSE s END BETWEEN '1' AND '9'", "u", "s"),
        ("array(u, i)", "u", "i"),
        ("array(u, s)[0] < '9'", "u", "s"),
        ("array(array(u), array(i))", "ARRAY(u)", "ARRAY(i)"),
        ("array(u) < array(u)", "ARRAY(u)", "ARRAY(u)"),
        ("struct(u, i) < struct(i, u)", "STRUCT(u AS u, i AS i)", "STRUCT(i AS i, u AS u)"),
    ],
)
def test_a_number_beside_another_type_is_refused(written: str, number: str, other: str) -> None:
    with pytest.raises(UserError) as caught:
        translated(written)
    assert f" combines `{number}`, which is " in caught.value.message
    assert f", with `{other}`, which is " in caught.value.message
    assert "CAST" in caught.value.hint
    assert caught.value.node == "x"


def test_try_cast_cannot_give_null() -> None:
    with pytest.raises(
        UserError, match=r"`TRY_CAST\(s AS UINT256\)` cannot give NULL for a value that is not uint256"
    ):
        translated("try_cast(s AS uint256)")


@pytest.mark.parametrize(
    ("statement", "wide"),
    [
        ("SELECT * FROM t", ALL),
        ("SELECT t.* FROM t", ALL),
        ("SELECT * EXCEPT (i, c, c2, w), st.* FROM t", {"u": "uint256"}),
        (
            "SELECT c AS x, c FROM t UNION ALL SELECT c, NULL FROM t",
            {"x": "decimal256(60, 4)", "c": "decimal256(60, 4)"},
        ),
        ("SELECT x, x < 5 AS less FROM t LATERAL VIEW explode(array(u, u + 1)) e AS x", {"x": "uint256"}),
        (
            "WITH c AS (SELECT u + 1 AS v, * FROM t) SELECT v, v * 2 AS w FROM c",
            {"v": "uint256", "w": "uint256"},
        ),
        ("SELECT q.v + 1 AS w FROM (SELECT u AS v FROM t) AS q", {"w": "uint256"}),
        ("SELECT w + 1 AS v FROM (SELECT u FROM t) AS q(w)", {"v": "uint256"}),
        ("SELECT u + 1 AS x, x + 1 AS y FROM t", {"x": "uint256", "y": "uint256"}),
        ("SELECT u FROM t UNION ALL SELECT u + 1 FROM t UNION ALL SELECT NULL FROM t", {"u": "uint256"}),
        ("SELECT a.u, x FROM t AS a LATERAL VIEW explode(xs) e AS x WHERE a.u > 5", {"u": "uint256"}),
        ("SELECT n, explode(xs) AS x FROM t", {}),
        (
            "SELECT * FROM (SELECT n, u FROM t) LATERAL VIEW explode(array(u, 5)) e AS x",
            {"u": "uint256", "x": "uint256"},
        ),
        ("SELECT s.* FROM (SELECT named_struct('v', u, 'n', n) AS s FROM t)", {"v": "uint256"}),
        (
            "SELECT v.s.* FROM (SELECT named_struct('v', u, 'n', nofunc(n)) AS s FROM t) AS v",
            {"v": "uint256"},
        ),
        ("SELECT u + 1, array(i)[0] FROM t", {"u + 1": "uint256", "array(i)[0]": "int256"}),
        ("SELECT e.* FROM t LATERAL VIEW explode(array(s)) e AS u", {}),
        ("SELECT t.u, e.u AS v FROM t LATERAL VIEW explode(array(s)) e AS u", {"u": "uint256"}),
    ],
)
def test_output_columns_carry_the_type(statement: str, wide: dict[str, str]) -> None:
    result = apply_types(statements.parse(statement), {"t": COLUMNS})
    assert {name: str(kind) for name, kind in result.numbers.items()} == wide


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("u", "i"),
        ("u", "n"),
        ("s", "i"),
        ("c", "c2"),
        ("c", "s"),
        ("u", "nofunc(n)"),
        ("array(u) AS a", "array(i)"),
    ],
)
def test_branches_must_have_one_type(first: str, second: str) -> None:
    with pytest.raises(
        UserError, match=f"column `{first[-1]}` is .* in one branch of UNION ALL, and .* in another"
    ):
        apply_types(
            statements.parse(f"SELECT {first} FROM t UNION ALL SELECT {second} FROM t"), {"t": COLUMNS}
        )


def test_an_empty_list_in_one_branch_leaves_the_other_s_type() -> None:
    result = apply_types(
        statements.parse(
            "SELECT array() AS a, map('k', i) AS m FROM t UNION ALL SELECT array(u), map() FROM t"
        ),
        {"t": COLUMNS},
    )
    assert {name: kind.sql("spark") for name, kind in result.nested.items()} == {
        "a": "ARRAY<UINT256>",
        "m": "MAP<STRING, INT256>",
    }


def test_symmetric_bounds_are_taken_in_either_order() -> None:
    text, _ = translated("u BETWEEN SYMMETRIC 10 AND 9", "postgres")
    assert text == (
        "(U256_COMPARE(u, '10') >= 0 AND U256_COMPARE(u, '9') <= 0 OR (U256_COMPARE(u, '10') <= 0 AND"
        " U256_COMPARE(u, '9') >= 0))"
    )


@pytest.mark.parametrize(
    ("written", "dialect", "meant"),
    [
        ("n / k", "postgres", "CAST((n DIV k) AS BIGINT)"),
        ("k / 2", "datafusion", "CAST((k DIV 2) AS INT)"),
        ("(n + 1) / k", "postgres", "CAST(((n + 1) DIV k) AS BIGINT)"),
        ("xs[1] / 2", "datafusion", "CAST((TRY_ELEMENT_AT(xs, 1) DIV 2) AS INT)"),
        ("array_length(xs) / 2", "datafusion", "CAST((SIZE(xs) DIV 2) AS INT)"),
        ("st.a / 2", "postgres", "CAST((st.a DIV 2) AS INT)"),
        ("n / d", "postgres", "n / d"),
        ("n / 2.5", "postgres", "n / 2.5"),
        ("k / 2", "spark", "k / 2"),
        ("u / 2", "postgres", "U256_DIV(u, TO_U256('2'))"),
    ],
)
def test_whole_numbers_divide_as_the_dialect_says(written: str, dialect: str, meant: str) -> None:
    assert translated(written, dialect)[0] == meant


def test_a_division_of_unknown_types_is_an_error() -> None:
    with pytest.raises(UserError, match="the types of `NOFUNC\\(n\\) / 2` cannot be inferred"):
        translated("nofunc(n) / 2", "postgres")


def test_a_statement_without_any_of_this_needs_no_types() -> None:
    assert not needs_types(statements.parse("SELECT n + 1 AS m FROM t WHERE k / 2 > 1"), wide=False)
    assert needs_types(statements.parse("SELECT n / 2 AS m FROM t", dialect="postgres"), wide=False)
    assert needs_types(statements.parse("SELECT to_u256(n) AS m FROM t"), wide=False)


def test_lists_behind_from_are_rewritten_too() -> None:
    query = statements.parse("SELECT x < 5 AS less FROM t LATERAL VIEW explode(array(u + 1, u)) e AS x")
    apply_types(query, {"t": COLUMNS})
    assert "EXPLODE(ARRAY(U256_ADD(u, TO_U256('1')), u))" in query.sql(dialect=statements.DIALECT)
    assert "U256_COMPARE(x, '5') < 0 AS less" in query.sql(dialect=statements.DIALECT)


@pytest.mark.parametrize(
    ("behind", "compared"),
    [
        ("explode(map('a', u)) e AS k, v", "U256_COMPARE(v, '9')"),
        ("explode(map(i, 1)) e AS v, k", "I256_COMPARE(v, '9')"),
        ("posexplode(array(u)) e AS at, v", "U256_COMPARE(v, '9')"),
        ("inline(array(named_struct('a', s, 'b', u))) e AS a, v", "U256_COMPARE(v, '9')"),
        ("stack(2, 'a', i, s, i) e AS k, v", "I256_COMPARE(v, '9')"),
        ("explode(array(array(i), array())[0]) e AS v", "I256_COMPARE(v, '9')"),
    ],
)
def test_every_function_that_makes_rows_gives_numbers(behind: str, compared: str) -> None:
    query = statements.parse(f"SELECT v > '9' AS more FROM t LATERAL VIEW {behind}")
    apply_types(query, {"t": COLUMNS})
    assert f"SELECT {compared} > 0 AS more" in query.sql(dialect=statements.DIALECT)


def test_unnest_of_a_struct_is_its_fields() -> None:
    query = statements.parse("SELECT n, unnest(st), unnest(t.st) FROM t", dialect="datafusion")
    apply_types(query, {"t": COLUMNS})
    assert query.sql(dialect=statements.DIALECT) == "SELECT n, st.*, t.st.* FROM t"
    assert not query.find(exp.Unnest)


@pytest.mark.parametrize(
    ("written", "dialect", "meant", "kind"),
    [
        ("concat(u, s)", "datafusion", "CONCAT_WS('', u, s)", ""),
        ("u::text", "postgres", "U256_TO_STRING(u)", ""),
        ("s::uint256", "datafusion", "CASE WHEN s IS NULL THEN NULL ELSE TO_U256(s) END", "uint256"),
        (
            "make_array(u, 5)[1] + 1",
            "datafusion",
            "U256_ADD(TRY_ELEMENT_AT(ARRAY(u, TO_U256('5')), 1), TO_U256('1'))",
            "uint256",
        ),
        (
            "struct(n, u + 1).col2 > 1",
            "datafusion",
            "U256_COMPARE(STRUCT(n, U256_ADD(u, TO_U256('1'))).col2, '1') > 0",
            "",
        ),
        (
            "named_struct('a', u)['a'] + 1",
            "datafusion",
            "U256_ADD(NAMED_STRUCT('a', u)['a'], TO_U256('1'))",
            "uint256",
        ),
        (
            "array_transform(xs, x -> x / 2)",
            "datafusion",
            "ARRAY_TRANSFORM(xs, x -> CAST((x DIV 2) AS INT))",
            "",
        ),
    ],
)
def test_types_are_the_same_in_every_dialect(written: str, dialect: str, meant: str, kind: str) -> None:
    assert translated(written, dialect) == (meant, kind)

"""Statements in other dialects as text: names, suggestions, and unsupported syntax.

And the hidden columns of any statement.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest
import sqlglot
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlglot import exp

from headrace.jobs.staging.determinism import nondeterministic_nodes
from headrace.pipeline.errors import PipelineFileError, UserError
from headrace.pipeline.file.loader import parse_pipeline
from headrace.pipeline.model import graph
from headrace.pipeline.model.transforms import SqlTransformConfig
from headrace.pipeline.sql import statements
from headrace.pipeline.sql.dialects.translation import DIALECTS, double_quoted
from headrace.pipeline.sql.system_columns import HIDDEN, OP, POS


def translated(text: str, dialect: str) -> str:
    return statements.spark_text(text, dialect=dialect)


@pytest.mark.parametrize(
    ("dialect", "text", "meant"),
    [
        ("spark", 'SELECT Id AS "x" FROM T', 'SELECT Id AS "x" FROM T'),
        (
            "datafusion",
            'SELECT Id, "Big" AS "B", Big AS C FROM Orders',
            "SELECT id, `Big` AS `B`, big AS c FROM orders",
        ),
        ("postgres", 'SELECT T.Id FROM "Raw"."T" AS T', "SELECT t.id FROM `Raw`.`T` AS t"),
    ],
)
def test_names_fold_where_the_dialect_folds_them(dialect: str, text: str, meant: str) -> None:
    assert translated(text, dialect) == meant


def test_types_that_are_called_alike_or_that_spark_lacks() -> None:
    text = (
        "SELECT CAST(a AS FLOAT) AS f, a::REAL AS r, a::FLOAT8 AS d, CAST(a AS SMALLINT UNSIGNED) AS s,"
        " CAST(a AS INT UNSIGNED) AS i FROM t"
    )
    meant = (
        "SELECT CAST(a AS {}) AS f, CAST(a AS FLOAT) AS r, CAST(a AS DOUBLE) AS d, CAST(a AS INT) AS s,"
        " CAST(a AS BIGINT) AS i FROM t"
    )
    assert translated(text, "datafusion") == meant.format("FLOAT")
    assert translated(text, "postgres") == meant.format("DOUBLE")


@pytest.mark.parametrize(
    ("dialect", "expression", "wrong"),
    [
        ("postgres", "regexp_replace(a, 'b', 'c')", "replaces the first match alone"),
        ("postgres", "a::time", "no type for a time of day"),
        ("postgres", "encode(a, 'escape')", "the code `escape` cannot be written"),
        ("postgres", "regexp_match(a, 'x(.)')", "regexp_match cannot be written"),
        ("datafusion", "(regexp_match(a, b, 'i'))[1]", "regexp_match cannot be written"),
        (
            "datafusion",
            "date_bin(INTERVAL '1 month', a)",
            "date_bin by `INTERVAL '1 MONTH'` cannot be written",
        ),
        ("postgres", "date_bin(b, a, c)", "date_bin by `b` cannot be written"),
        ("datafusion", "date_bin(a)", "date_bin takes a stride, a time and an origin, found 1"),
        (
            "postgres",
            "a SIMILAR TO b",
            "`a SIMILAR TO b` cannot be written .* the pattern must be written out",
        ),
        (
            "postgres",
            "a SIMILAR TO 'x#%' ESCAPE '#'",
            "`a SIMILAR TO 'x#%'` cannot be written .* without ESCAPE",
        ),
        (
            "datafusion",
            "arrow_cast(a, 'Dictionary(Int32, Utf8)')",
            "arrow_cast to `Dictionary\\(Int32, Utf8\\)`",
        ),
        ("datafusion", "to_char(a, '%Q')", "`%Q` of the format"),
        ("datafusion", "xs[1:5:2]", "a slice with a step"),
        ("datafusion", "digest(a, 'blake3')", "digest by `blake3`"),
        ("datafusion", "array_remove(xs, 1)", "array_remove cannot be written"),
    ],
)
def test_what_cannot_be_said_is_an_error_that_names_it(dialect: str, expression: str, wrong: str) -> None:
    with pytest.raises(UserError, match=wrong) as caught:
        statements.parse(f"SELECT {expression} AS x FROM t", node="x", dialect=dialect)
    assert caught.value.node == "x"
    assert caught.value.hint


def test_a_parser_s_error_counts_lines_of_the_text_as_it_is_written() -> None:
    with pytest.raises(UserError, match="at line 2, column 10"):
        statements.parse('SELECT "a"\nFROM t (((', dialect="datafusion")


def test_what_is_refused_is_refused_in_every_dialect() -> None:
    for dialect in DIALECTS:
        with pytest.raises(UserError, match="unsupported plan: an aggregate"):
            statements.parse("SELECT max(a) FROM t", dialect=dialect)
    for name in ("json_arrayagg_null_on_null", "JSON_OBJECTAGG_ABSENT_ON_NULL"):
        with pytest.raises(UserError, match="unsupported plan: an aggregate"):
            statements.parse(f"SELECT {name}(a) FROM t", dialect="datafusion")
    with pytest.raises(UserError, match="unsupported plan: DISTINCT ON"):
        statements.parse("SELECT DISTINCT ON (a) a FROM t", dialect="postgres")
    with pytest.raises(UserError, match="unsupported plan: QUALIFY"):
        statements.parse("SELECT a FROM t QUALIFY row_number() OVER (ORDER BY a) = 1", dialect="spark")


@pytest.mark.parametrize(
    ("dialect", "call", "message"),
    [
        ("postgres", "regexp_replace(a, 'x', 'y', 'gn')", "the flags `n` of regexp_replace"),
        ("postgres", "xs[-1]", "Postgres does not count from the end"),
        ("postgres", "regexp_instr(a, 'x', 2)", "regexp_instr with more than a text and a pattern"),
        ("datafusion", "date_trunc('decade', a)", "date_trunc to `decade`"),
    ],
)
def test_what_spark_would_answer_otherwise_is_refused(dialect: str, call: str, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        statements.parse(f"SELECT {call} FROM t", dialect=dialect)
    assert caught.value.hint


def test_a_file_says_the_dialect() -> None:
    text = """
name: p
sources: {orders: {type: kafka, topic: o, schema: {id: int64, name: string}, primary_key: id}}
transforms: {x: {type: sql, dialect: DIALECT, sql: 'SELECT "id" FROM ORDERS WHERE "name" ~ ''^a'''}}
sinks: {b: {type: blackhole, from: x}}
"""
    file = parse_pipeline(text.replace("DIALECT", "datafusion"))
    assert file.model.transforms["x"].inputs("x") == ("orders",)
    node = file.model.transforms["x"]
    assert isinstance(node, SqlTransformConfig)
    assert node.spark_sql() == "SELECT `id` FROM orders WHERE `name` RLIKE '^a'"
    for wrong, message in (
        ("oracle", "dialect"),
        ("duckdb", "dialect"),
        ("spark", "add `dialect: datafusion`"),
    ):
        with pytest.raises(PipelineFileError, match=message):
            parse_pipeline(text.replace("DIALECT", wrong))


def test_texts_in_double_quotes_are_found() -> None:
    assert double_quoted("""SELECT "a", 'b', `c`, 'say "d"', "e""f" FROM t -- "g" """) == ("a", 'e"f')


NAMES = st.sampled_from(["a", "B", "c d", "_gs_op", "ü"])
ITEMS = st.one_of(
    NAMES.map(lambda name: f"`{name}`"),
    st.tuples(NAMES, NAMES).map(
        lambda pair: f"`{pair[0]}` AS `{pair[1]}`" if pair[1] != "_gs_op" else f"`{pair[0]}`"
    ),
    st.just("*"),
    st.just("t.*"),
    st.just("upper(a) AS up"),
    st.just("explode(xs) AS x"),
    st.just("struct(*) AS s"),
)
SELECTS = st.lists(ITEMS, min_size=1, max_size=4).filter(
    lambda items: sum("explode" in item for item in items) < 2
)
SHAPES = st.sampled_from(
    [
        "SELECT {0} FROM t",
        "SELECT {0} FROM t WHERE a > 1 UNION ALL SELECT {1} FROM t",
        "SELECT * FROM (SELECT {0} FROM t) AS q",
        "WITH w AS (SELECT {0} FROM t) SELECT {1} FROM w AS t",
        "SELECT {0} FROM t LATERAL VIEW posexplode(ys) e AS n, y",
    ]
)


@settings(deadline=None, max_examples=150)
@given(SHAPES, SELECTS, SELECTS)
def test_every_select_ends_in_the_hidden_columns_once(
    shape: str, first: list[str], second: list[str]
) -> None:
    text = shape.format(", ".join(first), ", ".join(second))
    result = sqlglot.parse_one(
        statements.compile_statement(text, HIDDEN, rename={"t": "hr_t_0"}), dialect=statements.DIALECT
    )
    for select in result.find_all(exp.Select):
        names = [item.alias_or_name for item in select.expressions]
        assert names[-2:] == [OP, POS]
        assert not {OP, POS} & {name.lower() for name in names[:-2]}
        for star in select.find_all(exp.Star):
            inside = star.find_ancestor(exp.Select) is select and star.parent
            if inside and not (isinstance(inside, exp.Column) and inside.table.startswith(("_gs_", "e"))):
                assert {OP, POS} <= {column.name for column in star.args["except_"]}
    assert {table.name for table in result.find_all(exp.Table)} <= {"hr_t_0", "w"}


@settings(deadline=None, max_examples=100)
@given(
    st.sampled_from(["datafusion", "postgres"]),
    st.lists(st.sampled_from(["a", "B", "c d", 'x"y', "select"]), min_size=1, max_size=4),
    st.text(max_size=12),
)
def test_names_and_texts_survive_the_way_to_spark(dialect: str, names: list[str], text: str) -> None:
    """Quoted names and literals, whatever is in them, are the same in Spark's SQL, also when that is parsed again."""
    listed = ", ".join(exp.to_identifier(name, quoted=True).sql(dialect=DIALECTS[dialect]) for name in names)
    literal = exp.Literal.string(text).sql(dialect=DIALECTS[dialect])
    statement = f"SELECT {listed}, {literal} AS text FROM t"
    again = statements.parse(translated(statement, dialect))
    assert [item.alias_or_name for item in again.selects[:-1]] == names
    assert again.selects[-1].unalias().name == text


NOW = datetime(2025, 3, 4, 23, 6, 7, 890000, UTC)
MOMENT, DAY = "CAST('2025-03-04 23:06:07.890000+00:00' AS TIMESTAMP)", "CAST('2025-03-04' AS DATE)"


@pytest.mark.parametrize(
    ("dialect", "expression", "chance"),
    [
        ("spark", "random()", "rand"),
        ("spark", "uniform(0, 10)", "uniform"),
        ("spark", "randstr(5)", "randstr"),
        ("spark", "AES_ENCRYPT(a, b)", "aes_encrypt"),
        ("spark", "reflect('java.util.UUID', 'randomUUID')", "reflect"),
        ("spark", "DATE 'today CET'", "today CET"),
        ("spark", "try_to_date('today CET')", "today CET"),
        ("postgres", "random()", "rand"),
        ("postgres", "gen_random_uuid()::text", "uuid"),
        ("datafusion", "RANDOM()", "rand"),
        ("datafusion", "uuid()", "uuid"),
        ("postgres", "a::text ~ 'random()' AND b = 'uuid'", None),
    ],
)
def test_chance_is_seen_in_every_dialect(dialect: str, expression: str, chance: str | None) -> None:
    assert statements.nondeterministic_calls(f"SELECT {expression} AS x FROM t", dialect=dialect) == (
        (chance,) if chance else ()
    )


@pytest.mark.parametrize(
    ("dialect", "expression", "meant"),
    [
        ("spark", "now()", MOMENT),
        ("spark", "TIMESTAMP 'now'", "CAST('2025-03-04 23:06:07.890000' AS TIMESTAMP)"),
        ("spark", "DATE 'tomorrow'", "CAST('2025-03-05' AS DATE)"),
        ("spark", "to_date('Yesterday')", "TO_DATE('2025-03-03')"),
        ("spark", "try_to_timestamp('now')", "TRY_TO_TIMESTAMP('2025-03-04 23:06:07.890000')"),
        ("spark", "to_timestamp_ntz('tomorrow')", "TO_TIMESTAMP_NTZ('2025-03-05')"),
        ("spark", "to_timestamp_ltz('now')", "TO_TIMESTAMP_LTZ('2025-03-04 23:06:07.890000')"),
        ("spark", "try_to_date('today')", "TRY_TO_DATE('2025-03-04')"),
        ("spark", "try_to_timestamp('now', 'yyyy')", "TRY_TO_TIMESTAMP('now', 'yyyy')"),
        ("spark", "concat('now', 'today')", "CONCAT('now', 'today')"),
        ("postgres", "clock_timestamp()", MOMENT),
        ("postgres", "CURRENT_TIMESTAMP", MOMENT),
        ("postgres", "'now'::timestamp", "CAST('2025-03-04 23:06:07.890000' AS TIMESTAMP)"),
        ("postgres", "'today'::date", DAY),
        ("postgres", "CURRENT_TIME", "'23:06:07.890000'"),
        ("datafusion", "now()", MOMENT),
        ("datafusion", "today()", DAY),
    ],
)
def test_clocks_stand_still_in_every_dialect(dialect: str, expression: str, meant: str) -> None:
    query = statements.parse(f"SELECT {expression} AS x FROM t", dialect=dialect)
    assert statements.compile_statement(query, (), now=NOW) == f"SELECT {meant} AS x FROM t"
    assert statements.nondeterministic_calls(f"SELECT {expression} AS x FROM t", dialect=dialect) == ()


TABLES = """
name: p
sources: {{t: {{type: kafka, topic: t, schema: {{id: int64, name: string}}, primary_key: id}}}}
transforms:
  seen:
    type: dynamic_table
    backend_type: InMemory
    backend_entity_name: seen
    dialect: {0}
    sql: SELECT id::text FROM t WHERE "name" ~ 'x'
  some: {{type: sql, dialect: {0}, sql: SELECT id FROM t WHERE random() < 0.5 AND "name" ~ 'a'}}
  old: {{type: sql, dialect: {0}, sql: "SELECT id, now() AS at FROM t WHERE name !~ 'x' AND dynamic_table_check('seen', id::text)"}}
sinks:
  one: {{type: blackhole, from: some}}
  two: {{type: blackhole, from: old}}
"""


@pytest.mark.parametrize("dialect", ["postgres", "datafusion"])
def test_nodes_are_looked_at_in_their_own_dialect(dialect: str) -> None:
    model = parse_pipeline(TABLES.format(dialect), "p.yaml").model
    assert nondeterministic_nodes(model) == {"some": "`rand` gives another value each time"}
    assert graph.looked_up_tables(model, "old") == ("seen",)
    assert graph.inputs_of(model, "seen") == ("t",)
    with pytest.raises(PipelineFileError, match="failed to parse SQL"):
        parse_pipeline(TABLES.format(dialect).replace(f"    dialect: {dialect}\n", ""), "p.yaml")

"""Sql nodes in the planner: columns, errors of the analyzer and of rows, limits, wide numbers."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from headrace.connectors.lazy_session import create_frame
from headrace.jobs.planning.planner import PipelinePlanner
from headrace.jobs.planning.source_schemas import FixedSchemaSource
from headrace.jobs.sources.source_batch import SourceBatch
from headrace.jobs.spark.errors import as_headrace_error
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import DataError, SchemaError, UserError
from headrace.pipeline.file.loader import parse_pipeline
from headrace.pipeline.protocol.epochs import EpochPlan, Phase
from headrace.pipeline.sql.system_columns import OP, POS, POS_TYPE
from headrace.pipeline.types.int256 import UINT256

SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "n": pa.int32(),
        "f": pa.float64(),
        "name": pa.string(),
        "Big": pa.string(),
        "xs": pa.list_(pa.int32()),
        "m": pa.map_(pa.string(), pa.int32()),
        "st": pa.struct([("p", pa.int32()), ("q", pa.string())]),
        "wei": UINT256,
    }
)
Plan = Callable[..., PipelinePlanner]


@pytest.fixture
def plan(spark: SparkSession) -> Plan:
    """`plan(statement, dialect=…)`: a pipeline of one source `t`, this transform `x`, and a sink."""

    def make(statement: str, dialect: str = "spark") -> PipelinePlanner:
        text = f"""
name: p
sources: {{t: {{type: clickhouse, table_name: t, primary_key: id}}}}
transforms:
  x:
    type: sql
    dialect: {dialect}
    sql: |
      {statement}
sinks: {{out: {{type: blackhole, from: x}}}}
"""
        return PipelinePlanner(
            parse_pipeline(text, "f.yaml"), spark, {"t": FixedSchemaSource(SCHEMA)}, Settings()
        )

    return make


def rows(planner: PipelinePlanner) -> list[dict[str, Any]]:
    """What comes of three rows."""
    made = planner.spark.sql(
        "SELECT id, CAST(id - 2 AS INT) AS n, id / 2D AS f, concat('n', id) AS name, 'b' AS Big, array(1,"
        " 2) AS xs, map('k', 1) AS m,"
        " named_struct('p', 1, 'q', 'z') AS st, CAST(id AS STRING) AS wei,"
        f" CASE id WHEN 3 THEN 'd' ELSE 'i' END AS {OP}, named_struct('source', 0, 'part', 0, 'off', id,"
        f" 'sub', 0L) AS {POS} FROM range(1, 4)"
    )
    reading = {"t": SourceBatch(made, 3)}
    epoch = EpochPlan(1, Phase.LIVE, {}, {}, planner.file.hash, datetime(2025, 1, 1, tzinfo=UTC))
    with planner.frames(epoch, reading, ["out"]) as frames:
        frame = frames["out"]
        try:
            result = frame.rows.toArrow().to_pylist()
        except Exception as error:
            raise as_headrace_error(error, node="out", texts=planner.texts) from error
        assert frame.estimate is None or len(result) <= frame.estimate
        return sorted(result, key=lambda row: tuple(row[POS].values()))


@pytest.mark.parametrize(
    ("dialect", "statement", "columns"),
    [
        (
            "datafusion",
            'SELECT Id, "Big" AS "B", Big AS C, n / id AS h, n / 2.0 AS g FROM T',
            "id: int64, B: string, c: string, h: int64, g",
        ),
        (
            "datafusion",
            "SELECT id, unnest(xs), unnest(st) FROM t",
            "id: int64, unnest: int32, p: int32, q: string",
        ),
        ("spark", "SELECT id, n / 2 AS h, n + f AS d FROM t", "id: int64, h: double, d: double"),
        (
            "spark",
            "SELECT * EXCEPT (st, m, name, Big, f) FROM t",
            "id: int64, n: int32, xs: list<element: int32>, wei: uint256",
        ),
        (
            "spark",
            "SELECT wei AS w, coalesce(wei, NULL) AS c, substr(wei, 1) AS s, id FROM t",
            "w: uint256, c: uint256, s: string, id",
        ),
    ],
)
def test_columns_and_types(plan: Plan, dialect: str, statement: str, columns: str) -> None:
    result = plan(statement, dialect).schemas["x"]
    shown = [f"{field.name}: {field.type}" for field in result]
    assert len(shown) == len(columns.split(", "))
    for field, wanted in zip(shown, columns.split(", "), strict=True):
        assert field.startswith(wanted)


@pytest.mark.parametrize(
    ("statement", "message", "hint"),
    [
        (
            "SELECT id, name FROM t UNION ALL SELECT id FROM t",
            "the second branch of UNION ALL has 1 column, and the first has 2",
            "write NULL",
        ),
        (
            "SELECT id, name FROM t UNION ALL SELECT id, xs FROM t",
            (
                "the second column of the second branch of UNION ALL is ARRAY<INT>, and of the first branch"
                " STRING"
            ),
            "CAST",
        ),
        (
            "SELECT id, explode(name) AS x FROM t",
            "what becomes several rows is a STRING",
            "explode and unnest take a list or a map",
        ),
        (
            "SELECT id, inline(xs) FROM t",
            "what becomes several rows is a list of INT",
            "inline and stack take lists of structs",
        ),
        (
            "SELECT id, explode(m) AS x FROM t",
            "2 columns to be named where one row becomes several, and 1 named",
            "a map two",
        ),
        (
            "SELECT id, explode(xs) AS (a, b) FROM t",
            "1 column to be named where one row becomes several, and 2 named",
            "A list gives one",
        ),
        (
            "SELECT id, histogram_numeric(n, 5) AS x FROM t",
            "unsupported plan: an aggregate",
            "rows beyond the one at hand",
        ),
        (
            "SELECT id, x FROM t LATERAL VIEW explode(ys) e AS x",
            "there is no column `ys`",
            "There are, among others: ",
        ),
        ("SELECT id, explode(xs) AS id FROM t", "column `id` appears twice", "AS"),
        (
            "SELECT id FROM t WHERE \"name\" = 'a'",
            '"name" is a text in Spark\'s SQL, and a column of `t`',
            "add `dialect: datafusion`",
        ),
        (
            'SELECT id, "BIG" AS x FROM t',
            '"BIG" is a text in Spark\'s SQL, and a column of `t` is called `Big`',
            "write `BIG` in backticks",
        ),
        (
            "SELECT id, wei FROM t UNION ALL SELECT id, name FROM t",
            "column `wei` is uint256 in one branch of UNION ALL",
            "to_u256",
        ),
        (
            "SELECT id, wei * 1.5 AS w FROM t",
            "`wei * 1.5` combines `wei`, which is uint256, with `1.5`",
            "CAST",
        ),
        (
            "SELECT id, greatest(wei, 5) AS w FROM t",
            "`GREATEST(wei, 5)` is not available for `wei`, which is uint256",
            "CAST",
        ),
        (
            "SELECT id, array_max(array(wei)) AS w FROM t",
            "is not available for `ARRAY(wei)`, which is ARRAY<UINT256>",
            "CAST",
        ),
        ("SELECT id, 'x' AS _gs_op FROM t", "column `_gs_op` says `x`", "Allowed: i, u, d."),
        (
            "SELECT id, named_struct('a', 1) AS _gs_pos FROM t",
            "`_gs_pos` is the order of rows, and cannot be set",
            "another name",
        ),
        (
            "SELECT id, array() AS a FROM t",
            "column `a` is array<void>, a type that cannot leave Spark",
            "CAST(array() AS ARRAY<STRING>)",
        ),
        (
            "SELECT id, array(struct(n, id AS n)) AS a FROM t",
            "column `a` is array<struct<n:int,n:bigint>>, a struct with two fields `n`",
            "another",
        ),
        (
            "SELECT id, map() AS a FROM t",
            "column `a` is map<void,void>, a type that cannot leave Spark",
            "MAP<STRING, STRING>",
        ),
        (
            "SELECT id, INTERVAL 1 YEAR AS a FROM t",
            "column `a` is interval year, a type that cannot leave Spark",
            "months of type INT",
        ),
        (
            "SELECT id, make_interval(1) AS a FROM t",
            "column `a` is interval, a type that cannot leave Spark",
            "AS STRING",
        ),
        (
            "SELECT id, array(struct()) AS a, rand() AS r FROM t",
            (
                "column `a` is array<struct<>>: a struct without fields, and the rows of this node are stored"
                " in Parquet (`rand`"
            ),
            "Give it a field",
        ),
        (
            "SELECT id, map('k', named_struct('a', 1, 'A', 2)) AS m, uuid() AS r FROM t",
            (
                "column `m` is map<string,struct<a:int,A:int>>: its fields `a` and `A` are one name there, and"
                " the rows of this node"
            ),
            "another name",
        ),
        ("SELECT id, explode(xs), posexplode(xs) FROM t", "two row-generating functions", "LATERAL VIEW"),
    ],
)
def test_mistakes_name_the_node_the_place_and_the_way_out(
    plan: Plan, statement: str, message: str, hint: str
) -> None:
    with pytest.raises(UserError) as caught:
        plan(statement)
    result = caught.value
    assert (result.node, str(result.place).split(":")[0]) == ("x", "f.yaml")
    assert message in result.message
    assert hint in result.hint
    assert "_gs_n" not in str(result)


def test_a_type_that_parquet_lacks_is_none_of_a_node_that_is_not_staged(plan: Plan) -> None:
    assert plan("SELECT id, struct() AS a, named_struct('a', 1, 'A', 2) AS b FROM t").schemas["x"].names == [
        "id",
        "a",
        "b",
    ]
    assert plan("SELECT id, array(NULL) AS a, INTERVAL 1 DAY AS b, rand() AS r FROM t").schemas[
        "x"
    ].names == ["id", "a", "b", "r"]


def test_a_format_that_does_not_fit_is_the_user_s_mistake(plan: Plan) -> None:
    with pytest.raises(DataError, match=r"a format does not fit its value: d != ") as caught:
        rows(plan("SELECT id, format_string('%d', CAST(wei AS STRING)) AS x FROM t"))
    assert "an integer of 256 bits, %s" in caught.value.hint


def test_wide_numbers_in_lists_and_structs_stay_numbers(plan: Plan) -> None:
    statement = "SELECT id, us, st, us[0] + 1 AS m, st.w > us[1] AS l, x, x > 9 AS o"
    statement += (
        " FROM (SELECT id, array(wei * 5, 9) AS us, struct(wei AS w) AS st FROM t) LATERAL VIEW"
        " explode(us) e AS x"
    )
    planner = plan(f"{statement} WHERE us[0] >= 10")
    assert {name: str(planner.schemas["x"].field(name).type) for name in "mx"} == {
        "m": "uint256",
        "x": "uint256",
    }
    assert [tuple(row[name] for name in ("us", "st", "m", "l", "x", "o")) for row in rows(planner)] == [
        (["10", "9"], {"w": "2"}, "11", False, "10", True),
        (["10", "9"], {"w": "2"}, "11", False, "9", False),
        (["15", "9"], {"w": "3"}, "16", False, "15", True),
        (["15", "9"], {"w": "3"}, "16", False, "9", False),
    ]


def test_a_text_in_double_quotes_that_is_no_column_is_a_text(plan: Plan) -> None:
    assert plan('SELECT id, "text" AS x FROM t').schemas["x"].names == ["id", "x"]


@pytest.mark.parametrize(
    ("dialect", "statement", "message", "part"),
    [
        ("spark", "SELECT id, id DIV n AS q FROM t", "Division by zero", "In id DIV n"),
        ("spark", "SELECT id, id / n AS q FROM t", "Division by zero", "In id / n"),
        ("postgres", "SELECT id, id / n AS q FROM t", "Division by zero", "In CAST((id DIV n) AS BIGINT)"),
        ("spark", "SELECT id, id % n AS q FROM t", "by zero", "In id % n"),
        (
            "spark",
            "SELECT id, id + 9223372036854775807 AS q FROM t",
            "overflow",
            "In id + 9223372036854775807",
        ),
        ("spark", "SELECT id, CAST(name AS INT) AS q FROM t", "cannot be cast", "In CAST(name AS INT)"),
        ("spark", "SELECT id, xs[2] AS q FROM t", "out of bounds", "In xs[2]"),
    ],
)
def test_what_a_row_cannot_give_is_an_error_of_the_transform(
    plan: Plan, dialect: str, statement: str, message: str, part: str
) -> None:
    with pytest.raises(DataError) as caught:
        rows(plan(statement, dialect))
    assert (caught.value.node, caught.value.hint) == ("x", part)
    assert message in caught.value.message
    assert not re.search(r"SQLSTATE|spark\.sql", caught.value.message)


def test_whole_numbers_and_fractions(plan: Plan) -> None:
    result = rows(plan("SELECT id, n + f AS d, id / 2 AS h FROM t"))
    assert [(row["d"], row["h"]) for row in result] == [(-0.5, 0.5), (1.0, 1.0), (2.5, 1.5)]
    result = rows(plan("SELECT id, id / 2 AS h FROM t", "datafusion"))
    assert [row["h"] for row in result] == [0, 1, 1]


def test_operations_that_a_row_may_not_have(plan: Plan) -> None:
    with pytest.raises(DataError, match=r"node 'x': column `_gs_op` says `n1`"):
        rows(plan("SELECT id, name AS _gs_op FROM t WHERE id = 1"))
    result = rows(plan("SELECT id, CASE WHEN _gs_op = 'd' THEN 'u' ELSE _gs_op END AS _gs_op FROM t"))
    assert [row[OP] for row in result] == ["i", "i", "u"]


def test_operators_beside_wide_integers_keep_every_digit(plan: Plan) -> None:
    most = 2**256 - 1
    planner = plan(
        f"SELECT id, wei + {most - 9} AS a, {most} - wei AS b, -wei AS c, wei * wei % 4 AS d, CAST(wei AS"
        " STRING) AS s,"
        " CASE WHEN wei < 10 THEN wei ELSE 0 END AS e FROM t WHERE wei BETWEEN 2 AND id AND wei > 1"
    )
    kinds = {field.name: str(field.type) for field in planner.schemas["x"]}
    assert kinds == {
        "id": "int64",
        "a": "uint256",
        "b": "uint256",
        "c": "int256",
        "d": "uint256",
        "s": "string",
        "e": "uint256",
    }
    result = [{name: row[name] for name in "abcdse"} for row in rows(planner)]
    assert result == [
        {
            "a": str(most - 9 + n),
            "b": str(most - n),
            "c": str(-n),
            "d": str(n * n % 4),
            "s": str(n),
            "e": str(n),
        }
        for n in (2, 3)
    ]
    with pytest.raises(DataError, match="node 'x': u256_sub overflow"):
        rows(plan("SELECT id, wei - 5 AS w FROM t"))


NODE = """
name: p
sources: {{t: {{type: clickhouse, table_name: t, primary_key: id}}}}
transforms: {{x: {{{node}}}}}
sinks: {{out: {{type: blackhole, from: x}}}}
"""


def test_rows_made_of_rows_have_no_bound(plan: Plan, spark: SparkSession) -> None:
    result = rows(plan("SELECT id, explode(xs) AS x FROM t"))
    assert [(row["id"], row["x"], row[POS]["sub"]) for row in result] == [
        (i, x, x - 1) for i in (1, 2, 3) for x in (1, 2)
    ]
    epoch = EpochPlan(1, Phase.LIVE, {}, {}, "", datetime(2025, 1, 1, tzinfo=UTC))
    script = "type: script, from: t, language: javascript, script: 'const invoke = (row) => [row, row]'"
    for node, bound, likely in (
        ("type: sql, sql: SELECT id FROM t UNION ALL SELECT id FROM t WHERE id = 1", 6, 6),
        ("type: sql, sql: 'SELECT id, explode(xs) AS x FROM t'", None, 3),
        ("type: sql, sql: 'SELECT id, x FROM t LATERAL VIEW explode(xs) e AS x'", None, 3),
        (script, None, 3),
    ):
        planner = PipelinePlanner(
            parse_pipeline(NODE.format(node=node), "f.yaml"),
            spark,
            {"t": FixedSchemaSource(SCHEMA)},
            Settings(),
        )
        with planner.frames(
            epoch, {"t": SourceBatch(create_frame(planner.spark, [], SCHEMA), 3)}, ["out"]
        ) as frames:
            assert (frames["out"].estimate, frames["out"].likely) == (bound, likely)


@pytest.mark.parametrize(
    ("column", "message"), [("10 / id", "Division by zero"), ("raise_error('no')", "no")]
)
def test_an_error_of_a_node_with_two_sinks_names_the_node(
    spark: SparkSession, column: str, message: str
) -> None:
    """Rows of the driver are computed before a sink writes."""
    text = NODE.format(node=f'type: sql, sql: "SELECT id, {column} AS x FROM t"')
    text = text.replace("from: x}}", "from: x}, other: {type: blackhole, from: x}}")
    epoch = EpochPlan(1, Phase.LIVE, {}, {}, "", datetime(2025, 1, 1, tzinfo=UTC))
    source = FixedSchemaSource(pa.schema([("id", pa.int64())]))
    planner = PipelinePlanner(parse_pipeline(text, "f.yaml"), spark, {"t": source}, Settings())
    made = planner.spark.createDataFrame(
        [(0, "i", (0, 0, 0, 0))], f"id bigint, {OP} string, {POS} {POS_TYPE}"
    )
    local = planner.spark.createDataFrame(made.toArrow(), made.schema)
    with (
        pytest.raises(DataError, match=message) as caught,
        planner.frames(epoch, {"t": SourceBatch(local, 1, is_local=True)}, ["out", "other"]),
    ):
        pass
    assert caught.value.node == "x"


def test_a_filter_protects_a_column_of_rows_in_the_driver(spark: SparkSession) -> None:
    """Spark pushes the filter below the division. Catalyst's evaluation of local rows comes before that."""
    statement = "SELECT id, x FROM (SELECT id, 10 / id AS x FROM t) WHERE id > 0"
    text = NODE.format(node=f'type: sql, sql: "{statement}"')
    epoch = EpochPlan(1, Phase.LIVE, {}, {}, "", datetime(2025, 1, 1, tzinfo=UTC))
    source = FixedSchemaSource(pa.schema([("id", pa.int64())]))
    planner = PipelinePlanner(parse_pipeline(text, "f.yaml"), spark, {"t": source}, Settings())
    made = planner.spark.createDataFrame(
        [(0, "i", (0, 0, 0, 0)), (5, "i", (0, 0, 1, 0))], f"id bigint, {OP} string, {POS} {POS_TYPE}"
    )
    local = planner.spark.createDataFrame(made.toArrow(), made.schema)
    with planner.frames(epoch, {"t": SourceBatch(local, 2, is_local=True)}, ["out"]) as frames:
        result = frames["out"].rows.select("id", "x").collect()
    assert [tuple(row) for row in result] == [(5, 2.0)]


def test_a_wrong_key_is_still_told(plan: Plan) -> None:
    with pytest.raises(SchemaError, match="Primary key validation failed"):
        plan("SELECT name FROM t")


@pytest.mark.parametrize(
    ("statement", "word"),
    [
        ("SELECT id FROM t WHERE timestamp_seconds(id) < 'today'", "today"),
        ("SELECT id, hour('now') AS h FROM t", "now"),
        ("SELECT id, date_trunc('DAY', ' Now ') AS d FROM t", "Now"),
        ("SELECT id FROM t WHERE timestamp_seconds(id) IN ('2020-01-01', 'yesterday CET')", "yesterday CET"),
    ],
)
def test_a_text_that_becomes_another_time_in_each_replay_is_refused(
    plan: Plan, statement: str, word: str
) -> None:
    with pytest.raises(SchemaError, match=f"'{word}' is implicitly cast to ") as caught:
        plan(statement)
    assert "CAST(" in (caught.value.hint or "")
    assert caught.value.place
    assert str(caught.value.place).startswith("f.yaml:")


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT id FROM t WHERE name IN ('now', 'today')",
        "SELECT id, concat('now ', 'today') AS c, 'now' AS n FROM t",
        (
            "SELECT id FROM t WHERE timestamp_seconds(id) < CAST('today' AS TIMESTAMP) AND to_date('now') >"
            " DATE 'yesterday'"
        ),
        "SELECT id, to_timestamp('now', 'yyyy') AS n FROM t",
        "SELECT id, CAST('now CET' AS TIMESTAMP) AS n FROM t",
    ],
)
def test_a_text_that_stays_one_or_stands_still_is_left_alone(plan: Plan, statement: str) -> None:
    assert plan(statement).schemas["x"].names[0] == "id"

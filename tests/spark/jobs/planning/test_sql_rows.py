"""Results of statements on Spark: generated rows, dialects, operations. Many cases, few queries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headrace.jobs.spark.errors import as_headrace_error
from headrace.pipeline.errors import DataError, HeadraceError
from headrace.pipeline.sql import statements
from headrace.pipeline.sql.system_columns import FAN_OUT, HIDDEN, OP, POS

Run = Callable[..., list[tuple[Any, ...]]]

TABLE = """
SELECT * FROM VALUES
  (1, 'Ann Bee', array(10, 20, 30), array('a', 'b'), map('k', 1), array(named_struct('p', 1, 'q', 'x'), named_struct('p', 2, 'q', 'y'))),
  (2, "it's", array(), NULL, NULL, NULL),
  (3, NULL, NULL, array('c'), map('m', 2, 'n', 3), array(named_struct('p', 3, 'q', 'z')))
AS v(id, name, xs, ys, m, ss)
"""


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """One session with one node `t`, whose rows are 1 an insert, 2 an update, 3 a delete."""
    made = spark.newSession()
    made.conf.set("spark.sql.session.timeZone", "UTC")
    made.sql(
        f"SELECT *, CASE id WHEN 1 THEN 'i' WHEN 2 THEN 'u' ELSE 'd' END AS {OP},"
        " named_struct('source', 1, 'part', 0, 'off', CAST(id AS BIGINT), 'sub', CAST(id AS BIGINT) - 1)"
        f" AS {POS} FROM ({TABLE})"
    ).coalesce(1).cache().createOrReplaceTempView("hr_t_0")
    yield made
    made.catalog.uncacheTable("hr_t_0")


@pytest.fixture(scope="module")
def run(session: SparkSession) -> Run:
    """`run(text, dialect=…)`.

    The rows of a statement over `t` in their order, with `_gs_op` and `_gs_pos.sub` behind the columns.
    """

    def rows(text: str, dialect: str = "spark") -> list[tuple[Any, ...]]:
        statement = statements.compile_statement(
            statements.parse(text, dialect=dialect), HIDDEN, rename={"t": "hr_t_0"}, node="x"
        )
        try:
            table = session.sql(statement).toArrow()
        except Exception as error:
            raise as_headrace_error(error) from error
        assert table.column_names[-2:] == list(HIDDEN)
        result = sorted(
            (tuple(row.values()) for row in table.to_pylist(maps_as_pydicts="strict")),
            key=lambda row: tuple(row[-1].values()),
        )
        assert len({tuple(row[-1].values()) for row in result}) == len(result), "two rows have one place"
        return [(*row[:-1], row[-1]["sub"]) for row in result]

    return rows


N = FAN_OUT
XS = [(1, 10, "i", 0), (1, 20, "i", 1), (1, 30, "i", 2)]
UNNESTED: dict[str, list[tuple[Any, ...]]] = {
    "SELECT id, explode(xs) AS x FROM t": XS,
    "SELECT id, explode(xs) FROM t": XS,
    "SELECT id, explode(xs) AS (x) FROM t": XS,
    "SELECT id, unnest(xs) AS x FROM t": XS,
    "SELECT id, unnest(xs) FROM t": XS,
    "SELECT id, explode(xs) AS xs FROM t": XS,
    "SELECT t.id, u.x FROM t, unnest(t.xs) AS u(x)": XS,
    "SELECT id, x FROM t CROSS JOIN UNNEST(xs) AS u(x)": XS,
    "SELECT id, u FROM t, unnest(xs) AS u": XS,
    "SELECT id, x FROM t, LATERAL explode(xs) AS e(x)": XS,
    "SELECT id, x FROM t JOIN LATERAL explode(xs) AS e(x) ON true": XS,
    "SELECT id, x FROM t LATERAL VIEW explode(xs) e AS x": XS,
    "SELECT id, col FROM t LATERAL VIEW explode(xs) e": XS,
    "SELECT id, e.* FROM t LATERAL VIEW explode(xs) e": XS,
    "SELECT id, e.* FROM t LATERAL VIEW explode(xs) e AS x": XS,
    "SELECT id, x FROM (SELECT id, explode(xs) AS x FROM t)": XS,
    "WITH c(i, x) AS (SELECT id, explode(xs) FROM t) SELECT * FROM c": XS,
    "SELECT id, x FROM t LATERAL VIEW explode(xs) e AS x WHERE x > 10": XS[1:],
    "SELECT id, explode(xs) AS x FROM t WHERE id = 2": [],
    "SELECT * EXCEPT (name, xs, ys, m, ss), explode(xs) AS x FROM t": XS,
    "SELECT * EXCEPT (name, xs, ys, m, ss) FROM t LATERAL VIEW explode(xs) e AS x": XS,
    "SELECT id, unnest(xs) * 2 AS x FROM t": [(1, 20, "i", 0), (1, 40, "i", 1), (1, 60, "i", 2)],
    "SELECT id, posexplode(xs) FROM t": [(1, 0, 10, "i", 0), (1, 1, 20, "i", 1), (1, 2, 30, "i", 2)],
    ("SELECT id, posexplode(xs) AS (n, x) FROM"
    " t"): [(1, 0, 10, "i", 0), (1, 1, 20, "i", 1), (1, 2, 30, "i", 2)],
    ("SELECT id, i, x FROM t CROSS JOIN unnest(xs) WITH ORDINALITY AS u(x,"
    " i)"): [(1, 1, 10, "i", 0), (1, 2, 20, "i", 1), (1, 3, 30, "i", 2)],
    "SELECT id, explode_outer(xs) AS x FROM t": [*XS, (2, None, "u", N), (3, None, "d", 2 * N)],
    ("SELECT id, x FROM t LEFT JOIN LATERAL explode(xs) AS e(x) ON"
    " true"): [*XS, (2, None, "u", N), (3, None, "d", 2 * N)],
    ("SELECT id, posexplode_outer(xs) AS (n, x) FROM t WHERE id >"
    " 1"): [(2, None, None, "u", N), (3, None, None, "d", 2 * N)],
    "SELECT id, explode(m) FROM t": [(1, "k", 1, "i", 0), (3, "m", 2, "d", 2 * N), (3, "n", 3, "d", 2 * N + 1)],
    "SELECT id, explode(m) AS (a, b) FROM t WHERE id = 1": [(1, "k", 1, "i", 0)],
    "SELECT id, inline(ss) FROM t": [(1, 1, "x", "i", 0), (1, 2, "y", "i", 1), (3, 3, "z", "d", 2 * N)],
    ("SELECT id, inline_outer(ss) AS (a, b) FROM t WHERE id >"
    " 1"): [(2, None, None, "u", N), (3, 3, "z", "d", 2 * N)],
    ("SELECT id, e.a FROM t LATERAL VIEW inline(ss) e AS a,"
    " b"): [(1, 1, "i", 0), (1, 2, "i", 1), (3, 3, "d", 2 * N)],
    ("SELECT id, unnest(ss).p AS a, unnest(ss).q AS b FROM"
    " t"): [(1, 1, "x", "i", 0), (1, 2, "y", "i", 1), (3, 3, "z", "d", 2 * N)],
    ("SELECT id, stack(2, id, 'a', id * 10, 'b') AS (n, w) FROM t WHERE id ="
    " 2"): [(2, 2, "a", "u", N), (2, 20, "b", "u", N + 1)],
    "SELECT id, stack(2, id, 7, 8) FROM t WHERE id = 1": [(1, 1, 7, "i", 0), (1, 8, None, "i", 1)],
    "SELECT id, unnest(xs) AS x, unnest(ys) AS y FROM t": [
        (1, 10, "a", "i", 0), (1, 20, "b", "i", 1), (1, 30, None, "i", 2), (3, None, "c", "d", 2 * N),
    ],
    "SELECT x, y FROM t LATERAL VIEW explode(xs) a AS x LATERAL VIEW explode(ys) b AS y WHERE x < 30": [
        (10, "a", "i", 0), (10, "b", "i", 1), (20, "a", "i", N), (20, "b", "i", N + 1),
    ],
    "SELECT id, json_tuple('{\"a\": 1}', 'a') AS j FROM t WHERE id = 1": [(1, "1", "i", 0)],
}  # fmt: skip


@pytest.mark.parametrize("text", UNNESTED)
def test_rows_of_a_row_are_numbered(run: Run, text: str) -> None:
    assert run(text) == UNNESTED[text]


def test_a_list_that_is_too_long_and_a_chain_that_is_too_deep_are_errors(run: Run) -> None:
    with pytest.raises(HeadraceError, match="node 'x': one row makes 1048576 rows or more"):
        run(f"SELECT explode(sequence(0, {FAN_OUT})) AS x FROM t WHERE id = 1")
    deep = "SELECT id, explode(array(1, 2)) AS x FROM t WHERE id = 3"
    for _ in range(2):
        deep = f"SELECT id, explode(array(1, 2)) AS x FROM ({deep})"
    with pytest.raises(HeadraceError, match="node 'x': more than three row-generating transforms"):
        run(deep.replace("FROM t", "FROM (SELECT id, explode(array(1, 2)) AS x FROM t)"))


def test_branches_that_read_the_same_rows_have_places_of_their_own_in_their_order(run: Run) -> None:
    moved = (
        "SELECT id, 'd' AS _gs_op FROM t WHERE id = 2 UNION ALL SELECT id, 'u' AS _gs_op FROM t WHERE id = 2"
    )
    assert run(moved) == [(2, "d", 2), (2, "u", 3)]
    three = (
        "WITH w AS (SELECT id FROM t) SELECT id FROM w UNION ALL (SELECT -id FROM t UNION ALL SELECT id"
        " FROM (SELECT explode(xs) AS id FROM t))"
    )
    assert run(f"SELECT id FROM ({three}) WHERE abs(id) IN (1, 20)") == [
        (1, "i", 0),
        (-1, "i", 1),
        (20, "i", 5),
    ]
    assert len(run(f"{three} UNION ALL SELECT id FROM t")) == 12
    deep = "SELECT id FROM t WHERE id = 3"
    for inner in ("explode(array(1))",) * 3:
        deep = f"SELECT id, {inner} AS x FROM ({deep})"
    for _ in range(2):
        deep = f"SELECT id FROM ({deep}) UNION ALL SELECT id FROM t WHERE false"
    with pytest.raises(HeadraceError, match="overflow"):
        run(deep)


def test_operations(run: Run) -> None:
    assert run("SELECT _gs_op, id FROM t UNION ALL SELECT id FROM t WHERE false") == [
        (1, "i", 0),
        (2, "u", 2),
        (3, "d", 4),
    ]
    assert run("SELECT *, 'u' AS _gs_op FROM (SELECT id FROM t)") == [(1, "u", 0), (2, "u", 1), (3, "u", 2)]
    assert run("SELECT id, _gs_op AS op FROM t WHERE _gs_op <> 'i'") == [(2, "u", "u", 1), (3, "d", "d", 2)]
    assert run("SELECT id, CASE WHEN id = 1 THEN 'd' ELSE _gs_op END AS _GS_OP FROM t") == [
        (1, "d", 0),
        (2, "u", 1),
        (3, "d", 2),
    ]
    assert run("SELECT struct(*).id AS id FROM (SELECT id FROM t)") == [(1, "i", 0), (2, "u", 1), (3, "d", 2)]
    assert run("SELECT to_json(struct(*)) AS j FROM (SELECT id FROM t) WHERE id = 1") == [
        ('{"id":1}', "i", 0)
    ]
    for wrong in ("name", "CASE WHEN id = 1 THEN 'i' END", "upper(_gs_op)"):
        with pytest.raises(DataError, match=r"node 'x': column `_gs_op` says `.+`\n  Allowed: i, u, d."):
            run(f"SELECT id, {wrong} AS _gs_op FROM t")

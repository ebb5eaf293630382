"""Which filters mark rows, and which sinks treat these as deletes, from files alone."""

from __future__ import annotations

import pytest

from headrace.pipeline.file.loader import parse_pipeline
from headrace.pipeline.lineage.retractions import Retractions, retractions
from headrace.pipeline.sql import statements
from headrace.pipeline.sql.filter_marking import Marking, conditions_for_good
from headrace.pipeline.sql.system_columns import HIDDEN
from headrace.pipeline.sql.total import is_total, without_errors
from headrace.pipeline.sql.traces import trace

FILE = """
name: p
sources:
  s: {{type: kafka, topic: s, primary_key: {key}, schema: {{id: int64, n: int64, v: int64}}{more}}}
transforms:
  a: {{type: sql, sql: "{first}"}}
  b: {{type: sql, sql: "select * from a"}}
sinks:
  out: {{type: postgres, from: b, table: out, primary_key: [{sink}]}}
  shown: {{type: print, from: b}}
"""


def find_retractions(first: str, *, key: str = "id", sink: str = "id", more: str = "") -> Retractions:
    return retractions(
        parse_pipeline(FILE.format(first=first, key=key, sink=sink, more=more), "f.yaml").model,
        lambda _: True,
    )


def test_rows_are_marked_from_the_filter_on() -> None:
    plain = find_retractions("select id, v from s")
    assert (plain.marked, plain.sinks) == (frozenset(), {})
    assert find_retractions("select id, v from s", more=", filter: v > 1").marked == {"s", "a", "b"}
    made = find_retractions("select id, v from s where v > 1")
    assert made.marked == {"a", "b"}
    assert made.sinks == {"out": frozenset()}
    assert made.filtering == {"a": "WHERE v > 1"}
    assert made.needs == {"s": {"id"}, "a": {"id"}, "b": {"id"}}


def test_a_filter_deletes_only_by_a_key_that_holds_the_sources_own() -> None:
    """The last large order of a customer is not deleted by a small one: it is another row."""
    assert find_retractions("select id, n from s where v > 1", sink="n").sinks == {}
    assert find_retractions("select id, n from s where v > 1", sink="id, n").sinks == {"out": frozenset()}
    assert find_retractions("select concat(id, '-', n) as id from s where v > 1", key="[id, n]").sinks == {
        "out": frozenset()
    }
    assert find_retractions("select id, n from s where v > 1", key="[id, n]").sinks == {}


@pytest.mark.parametrize(
    "column", ["id", "cast(id as string)", "concat('s-', id)", "md5(id)", "id + 1000", "coalesce(id, 0)"]
)
def test_a_filter_deletes_by_a_key_that_keeps_the_sources_keys_apart(column: str) -> None:
    assert find_retractions(f"select {column} as k from s where v > 1", sink="k").sinks == {
        "out": frozenset()
    }


@pytest.mark.parametrize(
    "column",
    [
        "lower(id)",
        "substr(id, 1, 1)",
        "id div 10",
        "case when id < 5 then 1 end",
        "cast(id as date)",
        "id + n",
    ],
)
def test_a_filter_does_not_delete_by_a_key_that_two_rows_of_the_source_share(column: str) -> None:
    """Else a row that fails the filter deletes the row of another key of the source."""
    assert find_retractions(f"select {column} as k from s where v > 1", sink="k").sinks == {}
    star = f"select * except (id), {column} as id from s where v > 1"
    assert find_retractions(star).sinks == {}


def test_a_version_and_the_key_of_one_sink_alone_leave_no_row_out_for_good() -> None:
    text = "select * from s where n is not null"
    assert find_retractions(text, sink="id, n").filtering == {}
    assert find_retractions(text).filtering == {"a": "WHERE NOT n IS NULL"}
    model = FILE.format(first=text, key="id", sink="id, n", more="").replace(
        "{type: print, from: b}", "{type: delta, from: b, path: x}"
    )
    both = retractions(parse_pipeline(model, "f.yaml").model, lambda _: True)
    assert both.keys["a"] == {"id"}
    assert both.filtering == {"a": "WHERE NOT n IS NULL"}
    versioned = FILE.format(first=text, key="id", sink="id", more="").replace(
        "table: out,", "table: out, version_column: n,"
    )
    made = retractions(parse_pipeline(versioned, "f.yaml").model, lambda _: True)
    assert (made.needs["a"], made.keys["a"], made.marked) == ({"id", "n"}, {"id"}, {"a", "b"})


@pytest.mark.parametrize(
    ("text", "deletes"),
    [
        ("select id, n, v from s where id % 2 = 0", False),
        ("select * from s where n = 1 and id like 'a%'", False),
        ("select id as id, n from s where id + n > 3 and _gs_op <> 'd'", False),
        ("select * from s where v > 1", True),
        ("select * from s where id > 1 or v > 1", True),
        ("select id + 1 as id, n from s where id > 1", True),
        ("select n as id, id as n from s where id > 1", False),
        ("select * from s where id > rand()", True),
        ("select * from s where id > unix_timestamp()", True),
        ("select * from s where my_function(id)", True),
        ("select * from (select * from s) where id > 1", True),
        ("select * from s where id > 1 union all select * from s where id < 1", True),
    ],
)
def test_a_shared_target_takes_a_filter_of_keys_alone(text: str, deletes: bool) -> None:
    shared = FILE.format(first=text, key="id", sink="id, n", more="").replace(
        "table: out,", "table: out, share: true,"
    )
    made = retractions(parse_pipeline(shared, "f.yaml").model, lambda _: True)
    assert bool(made.sinks) is deletes
    alone = retractions(parse_pipeline(shared.replace(", share: true", ""), "f.yaml").model, lambda _: True)
    assert alone.sinks, (
        "a filter of a target of one's own deletes: an earlier version of the file may have let the row in"
    )


@pytest.mark.parametrize(
    ("text", "wanted", "inputs"),
    [
        ("select id, v from t", ["id"], {"t": {"id"}}),
        ("select upper(a) as id, v from t as x", ["ID"], {"t": {"a"}}),
        ("select * from t", ["id"], {"t": {"id"}}),
        ("with c(k, w) as (select a, b from t) select k as id from c", ["id"], {"t": {"a"}}),
        ("select a as id, v from t union all select v, b from u", ["id"], {"t": {"a"}, "u": {"v"}}),
        ("select lower(a) as l, concat(l, b) as id from t", ["id"], {"t": {"a", "b", "l"}}),
        ("select id, x from t lateral view explode(xs) e as x", ["id"], {"t": {"id"}}),
        ("select id, x from t lateral view explode(xs) e as x", ["x"], {"t": {"x", "xs"}}),
        ("select s.k as id from (select st as s from t)", ["id"], {"t": {"st"}}),
    ],
)
def test_columns_are_traced_to_what_they_are_made_of(
    text: str, wanted: list[str], inputs: dict[str, set[str]]
) -> None:
    assert trace(statements.parse(text), wanted) == inputs


def test_what_may_fail_is_tried() -> None:
    def item(text: str) -> tuple[bool, str | None]:
        value = statements.parse(f"SELECT {text} AS x FROM t").expressions[0].this
        tried = without_errors(value)
        return is_total(value), tried.sql(dialect=statements.DIALECT) if tried is not None else None

    assert item("concat(lower(a), '-', b)") == (True, "(CONCAT(LOWER(a), '-', b))")
    assert item("CAST(a AS STRING)") == (True, "(CAST(a AS STRING))")
    assert item("CAST(a AS BIGINT) + 1") == (False, "(TRY_ADD(TRY_CAST(a AS BIGINT), 1))")
    assert item("10 / v") == (False, "(TRY_DIVIDE(10, v))")
    assert item("to_date(a)") == (False, "(TRY_CAST(a AS DATE))")
    assert item("xs[0]") == (False, None)
    assert item("my_function(a)") == (False, None)


def test_conditions_on_the_operation_leave_rows_out_for_good() -> None:
    assert conditions_for_good("_gs_op <> 'd' AND v > 1") == ["_gs_op <> 'd'"]
    assert conditions_for_good("_gs_op = 'd' OR v > 1") == []
    assert conditions_for_good("v > 1") == []


def test_a_statement_without_marks_stays_as_it_is() -> None:
    text = "SELECT id, 10 / v AS w FROM t"
    assert statements.compile_statement(
        text, HIDDEN, marking=Marking(frozenset({"id"}), marked=False)
    ) == statements.compile_statement(text, HIDDEN)
    marked = statements.compile_statement(
        "SELECT id, 10 / v AS w FROM t WHERE v <> 0", HIDDEN, marking=Marking(frozenset({"id"}), marked=False)
    )
    assert marked.count("v <> 0") == 1, "the predicate is computed once"
    assert "WHERE" not in marked.replace("CASE WHEN", "")

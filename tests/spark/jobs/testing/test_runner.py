"""Tests of pipelines in Spark.

What is given, what comes of it at nodes and sinks, and what makes a test fail.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from textwrap import indent

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.pipeline_cases import ORDERS, Run

from headrace.jobs.testing.report import failure


def text(inputs: str, expect: str, more: str = "") -> str:
    """A test; `given` and `expect` are maps of nodes."""
    return (
        f"  t:\n{indent(more, '    ')}    given:\n{indent(inputs, '      ')}\n   "
        f" expect:\n{indent(expect, '      ')}\n"
    )


def sql(statement: str) -> str:
    """The pipeline with another transform."""
    return ORDERS.replace(ORDERS.split("sql: ", 1)[1].splitlines()[0], statement)


def test_rows_go_through_the_sql_in_their_types(run: Run) -> None:
    inputs = "orders: {rows: [{id: 1, cents: 250, placed_at: 2025-01-01T10:00:00Z}, {id: 2}]}"
    good = "priced: {rows: [{id: 2}, {id: 1, amount: 2.50, placed_at: 2025-01-01T11:00:00+01:00}]}"
    assert failure(run(text(inputs, good))) == []
    lines = failure(run(text(inputs, good.replace("2.50", "2.51"))))
    assert lines[0] == "priced: 2 rows came, 2 expected: 1 different"
    assert lines[1:3] == ["  ~ {id: 1}", "      amount: expected 2.51, came 2.50"]


def test_operations_are_carried_and_compared_where_they_are_named(run: Run) -> None:
    inputs = "orders: {rows: [{id: 1, cents: 1}, {id: 1, cents: 2, _gs_op: u}, {id: 1, _gs_op: d}]}"
    bare = "priced: {columns: id, rows: [{id: 1}, {id: 1}, {id: 1}]}"
    assert run(text(inputs, bare)).passed
    named = "priced: {columns: id, rows: [{id: 1, _gs_op: i}, {id: 1, _gs_op: u}, {id: 1, _gs_op: d}]}"
    assert run(text(inputs, named)).passed
    assert not run(text(inputs, named.replace("_gs_op: d", "_gs_op: u"))).passed
    assert not run(text(inputs, named.replace("{id: 1, _gs_op: d}", "{id: 1}"))).passed


def test_now_is_what_the_test_says(run: Run) -> None:
    pipeline = sql("SELECT id, now() AS at, current_date() AS day FROM orders")
    inputs, expect = (
        "orders: {rows: [{id: 1}]}",
        "priced: {rows: [{id: 1, at: 2025-03-01T12:30:00Z, day: 2025-03-01}]}",
    )
    assert run(text(inputs, expect, "now: 2025-03-01T12:30:00Z\n"), pipeline).passed
    assert not run(text(inputs, expect, "now: 2025-03-01T12:30:01Z\n"), pipeline).passed
    assert not run(text(inputs, expect), pipeline).passed


def test_rows_come_from_csv_json_and_parquet_and_are_expected_from_them(run: Run, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("id,cents,placed_at,_gs_op\n1,250,2025-01-01T10:00:00Z,\n2,100,,d\n")
    (tmp_path / "in.ndjson").write_text(
        '{"id": 1, "cents": 250, "placed_at": "2025-01-01T10:00:00Z"}\n{"id": 2, "cents": "100", "_gs_op":'
        ' "d"}\n'
    )
    at = pa.array([datetime(2025, 1, 1, 10), None], pa.timestamp("ms"))
    pq.write_table(
        pa.table({"id": [1, 2], "cents": ["250", "100"], "placed_at": at, "_gs_op": [None, "d"]}),
        tmp_path / "in.parquet",
    )
    (tmp_path / "out.csv").write_text("_gs_op,id,amount,placed_at\ni,1,2.5,2025-01-01T10:00:00Z\nd,2,1,\n")
    (tmp_path / "out.ndjson").write_text(
        '{"id": 1, "amount": 2.5, "placed_at": "2025-01-01 10:00:00"}\n{"id": 2, "amount": 1, "_gs_op":'
        ' "d"}\n'
    )
    for inputs in ("csv: in.csv", "json: in.ndjson", "parquet: in.parquet"):
        for expect in ("csv: out.csv", "json: out.ndjson"):
            assert failure(run(text(f"orders: {{{inputs}}}", f"priced: {{{expect}}}"))) == [], (
                inputs,
                expect,
            )
    (tmp_path / "out.csv").write_text("_gs_op,id,amount,placed_at\nu,1,2.5,2025-01-01T10:00:00Z\nd,2,1,\n")
    assert not run(text("orders: {csv: in.csv}", "priced: {csv: out.csv}")).passed


def test_floats_may_differ_by_the_tolerance(run: Run) -> None:
    pipeline = sql("SELECT id, CAST(cents AS DOUBLE) / 3 AS third FROM orders")
    inputs = "orders: {rows: [{id: 1, cents: 1}]}"
    assert run(text(inputs, "priced: {rows: [{id: 1, third: 0.333}], tolerance: 0.001}"), pipeline).passed
    assert not run(
        text(inputs, "priced: {rows: [{id: 1, third: 0.333}], tolerance: 0.0001}"), pipeline
    ).passed
    assert not run(text(inputs, "priced: {rows: [{id: 1, third: 0.333}]}"), pipeline).passed


def test_order_is_that_of_the_source(run: Run) -> None:
    inputs = "orders: {rows: [{id: 3}, {id: 1}, {id: 2}]}"
    assert run(text(inputs, "priced: {columns: id, ordered: true, rows: [{id: 3}, {id: 1}, {id: 2}]}")).passed
    lines = failure(
        run(text(inputs, "priced: {columns: id, ordered: true, rows: [{id: 1}, {id: 2}, {id: 3}]}"))
    )
    assert lines[:4] == [
        "priced: 3 rows came as expected, in another order",
        "  row 1",
        "    expected {id: 1}",
        "    came     {id: 3}",
    ]
    assert run(text(inputs, "priced: {columns: id, rows: [{id: 1}, {id: 2}, {id: 3}]}")).passed


ERROR = "  t:\n    given: {orders: {rows: [{id: 1, cents: abc}]}}\n    expect_error: "


def test_an_expected_error_must_come_and_say_that(run: Run) -> None:
    assert run(f"{ERROR}cannot be cast\n").passed
    lines = failure(run(f"{ERROR}overflow\n"))
    assert lines[0] == "another error came than one with `overflow`:"
    assert "cannot be cast" in " ".join(lines)
    assert (
        failure(run(f"{ERROR}cannot be cast\n".replace("abc", "5")))[0]
        == "no error came, and one with `cannot be cast` was expected"
    )


def test_an_error_that_was_not_expected_fails_the_test(run: Run) -> None:
    result = run(text("orders: {rows: [{id: 1, cents: abc}]}", "priced: {rows: []}"))
    assert "node 'priced'" in failure(result)[0]
    assert "cannot be cast" in " ".join(failure(result))


def test_a_given_value_that_does_not_fit_is_told_with_its_row_and_place(run: Run, tmp_path: Path) -> None:
    lines = " ".join(
        failure(
            run(text("orders:\n  rows:\n    - {id: 1}\n    - {id: x}\n    - {id: 2.5}", "priced: {rows: []}"))
        )
    )
    assert "node 'orders': test `t`: row 2, column `id`: `x` cannot be cast to int64" in lines
    assert "row 3, column `id`: `2.5` cannot be cast to int64" in lines
    assert f"({tmp_path}/orders.test.yaml:8:14)" in lines
    assert run(
        "  t:\n    given: {orders: {rows: [{id: x}]}}\n    expect_error: cannot be cast to int64\n"
    ).passed


@pytest.mark.parametrize(
    ("expect", "message"),
    [
        ("priced: {rows: [{id: 1, amuont: 2}]}", "`priced` has no column `amuont`; did you mean `amount`?"),
        (
            "priced: {rows: [{id: 1, amount: 2}]}",
            "the expected rows of `priced` do not name the columns placed_at",
        ),
        ("priced: {columns: ids, rows: [{id: 1}]}", "`priced` has no column `ids`; did you mean `id`?"),
        (
            "priced: {columns: id, rows: [{id: one}]}",
            "expected row 1 of `priced`, column `id`: `one` cannot be cast to int64",
        ),
        ("orders_pg: {columns: id, rows: [{id: 1, _gs_op: d}]}", "`orders_pg` has no column `_gs_op`"),
    ],
)
def test_expected_rows_that_the_node_could_never_have(expect: str, message: str, run: Run) -> None:
    result = run(text("orders: {rows: [{id: 1}]}", expect))
    assert not result.passed
    assert message in " ".join(failure(result))
    assert result.error is not None
    assert all(problem.place is not None for problem in result.error.problems)  # type: ignore[attr-defined]


def test_sql_that_does_not_fit_is_an_error_of_the_pipeline(run: Run) -> None:
    result = run(text("orders: {rows: []}", "priced: {rows: []}"), sql("SELECT idd FROM orders"))
    assert "orders.yaml:16:5" in failure(result)[0]
    assert "there is no column `idd`; did you mean `id`?" in " ".join(failure(result))


UNION = """\
version: 1
name: both
sources:
  old: {type: clickhouse, table_name: t, primary_key: id}
  new: {type: kafka, topic: t, primary_key: id, schema: {id: int64, v: int32}}
transforms:
  kept: {type: sql, sql: "SELECT id, v FROM old WHERE v > 0"}
  all: {type: sql, sql: "SELECT id, v FROM kept UNION ALL SELECT id, CAST(v AS BIGINT) AS v FROM new"}
sinks:
  a: {type: postgres, from: all, table: a}
  b: {type: print, from: new}
"""


def test_a_union_keeps_the_order_of_its_sources(run: Run) -> None:
    inputs = (
        "new: {rows: [{id: 1, v: 5}, {id: 2, _gs_op: d}]}\nold: {rows: [{id: 1, v: 1}, {id: 2, v: 2},"
        " {id: 3, v: 0}]}"
    )
    rows = "[{id: 1, v: 1}, {id: 2, v: 2}, {id: 1, v: 5}, {id: 2, v: null, _gs_op: d}]"
    assert (
        failure(
            run(text(inputs, f"all: {{ordered: true, rows: {rows}}}\na: {{rows: [{{id: 1, v: 5}}]}}"), UNION)
        )
        == []
    )


def test_a_table_has_the_columns_that_the_test_says_or_that_its_rows_show(run: Run) -> None:
    inputs = "old: {rows: [{id: 1, v: 1}]}"
    assert run(text(inputs, "kept: {rows: [{id: 1, v: 1}]}"), UNION).passed
    typed = "old: {rows: [{id: 1, v: 1}], schema: {id: int8, v: 'decimal(5, 1)'}}"
    assert run(text(typed, "old: {rows: [{id: 1, v: 1.0}]}"), UNION).passed
    assert "`v`: `1.25` cannot be cast to decimal(5, 1)" in " ".join(
        failure(run(text(typed.replace("v: 1}", "v: 1.25}"), "old: {rows: []}"), UNION))
    )
    mixed = "old: {rows: [{id: 1, v: 1}, {id: 2, v: a}]}"
    assert "the type of column `v` cannot be inferred" in " ".join(
        failure(run(text(mixed, "kept: {rows: []}"), UNION))
    )
    unknown = "old: {rows: [{id: 1, w: 1}], schema: {id: int8, v: int8}}"
    with pytest.raises(Exception, match="`old` has no column `w`"):
        run(text(unknown, "kept: {rows: []}"), UNION)


def test_a_parquet_file_brings_its_types(run: Run, tmp_path: Path) -> None:
    columns = {
        "id": pa.array([200], pa.uint8()),
        "v": pa.array([3], pa.int64()),
        "kind": pa.array(["x"]).dictionary_encode(),
        "at": pa.array([datetime(2025, 1, 1)], pa.timestamp("ns", tz="UTC")),
    }
    pq.write_table(pa.table(columns), tmp_path / "old.parquet")
    expect = "old: {rows: [{id: 200, v: 3, kind: x, at: 2025-01-01}]}"
    assert failure(run(text("old: {parquet: old.parquet}", expect), UNION)) == []
    assert not run(text("old: {parquet: old.parquet}", expect.replace("200", "201")), UNION).passed


def test_what_hangs_on_a_table_that_is_not_given_cannot_be_expected_and_the_rest_can(run: Run) -> None:
    inputs = "new: {rows: [{id: 1, v: 5}]}"
    assert run(text(inputs, "b: {rows: [{id: 1, v: 5, _gs_op: i}]}"), UNION).passed
    lines = " ".join(failure(run(text(inputs, "all: {rows: []}"), UNION)))
    assert "`all` reads old, whose columns only a server knows" in lines
    assert run(
        text(f"{inputs}\nold: {{rows: [], schema: {{id: int64, v: int64}}}}", "all: {rows: [{id: 1, v: 5}]}"),
        UNION,
    ).passed


def test_a_transform_is_given_in_its_own_types_and_stands_for_what_feeds_it(run: Run) -> None:
    assert run(
        text(
            "priced: {rows: [{id: 1, amount: 2.5}]}",
            "orders_pg: {rows: [{id: 1, amount: 2.50, placed_at: null}]}",
        )
    ).passed
    lines = " ".join(failure(run(text("priced: {rows: [{id: 1, amount: 2.555}]}", "orders_pg: {rows: []}"))))
    assert "`2.555` cannot be cast to decimal(10, 2)" in lines
    assert run(text("kept: {rows: [{id: 1, v: 1}]}", "a: {rows: [{id: 1, v: 1}]}"), UNION).passed


def test_the_filter_of_a_stream_of_files_counts(run: Run) -> None:
    pipeline = """\
name: files
sources:
  events: {type: file, path: in, format: csv, schema: {id: int64, v: int64}, filter: v > 1, primary_key: id}
sinks:
  out: {type: postgres, from: events, table: out}
"""
    inputs = "events: {rows: [{id: 1, v: 5}, {id: 2, v: 7}, {id: 2, v: 0}]}"
    assert failure(run(text(inputs, "out: {rows: [{id: 1, v: 5}]}"), pipeline)) == []


def test_the_filter_of_a_topic_counts(run: Run) -> None:
    pipeline = ORDERS.replace("    topic: orders\n", "    topic: orders\n    filter: id > 1\n")
    inputs, expect = "orders: {rows: [{id: 1}, {id: 2}]}", "orders: {columns: id, rows: [{id: 2}]}"
    assert run(text(inputs, expect), pipeline).passed
    assert not run(text(inputs, expect)).passed
    assert "the filter `idd > 1` is wrong" in " ".join(
        failure(run(text(inputs, expect), pipeline.replace("id > 1", "idd > 1")))
    )


STEPS = (
    "orders: {rows: [{id: 1, cents: 500}, {id: 1, cents: 400, _gs_op: u}, {id: 2, cents: 1}, {id: 2,"
    " _gs_op: d}, {id: 2, cents: 7}]}"
)


@pytest.mark.parametrize(
    ("sink", "rows"),
    [
        ("", "[{id: 1, amount: 4}, {id: 2, amount: 0.07}]"),
        ("    on_conflict: nothing\n", "[{id: 1, amount: 5}, {id: 2, amount: 0.07}]"),
        ("    update_where: {amount: '>'}\n", "[{id: 1, amount: 5}, {id: 2, amount: 0.07}]"),
        ("    update_where: {amount: '<'}\n", "[{id: 1, amount: 4}, {id: 2, amount: 0.07}]"),
    ],
)
def test_a_sink_holds_what_its_target_would(sink: str, rows: str, run: Run) -> None:
    pipeline = ORDERS.replace("    table: orders\n", f"    table: orders\n{sink}")
    assert failure(run(text(STEPS, f"orders_pg: {{columns: [id, amount], rows: {rows}}}"), pipeline)) == []


def test_a_sink_without_a_key_appends_and_refuses_a_delete(run: Run) -> None:
    pipeline = ORDERS.replace("    primary_key: id\n", "")
    inputs = "orders: {rows: [{id: 1}, {id: 1, _gs_op: u}]}"
    assert run(text(inputs, "orders_pg: {columns: id, rows: [{id: 1}, {id: 1}]}"), pipeline).passed
    assert not run(text(inputs, "orders_pg: {columns: id, rows: [{id: 1}]}"), pipeline).passed
    error = (
        "  t:\n    given: {orders: {rows: [{id: 1, _gs_op: d}]}}\n    expect_error: a table without a"
        " key cannot apply it\n"
    )
    assert run(error, pipeline).passed
    assert not run(error).passed


def test_a_test_without_rows_says_what_an_empty_source_gives(run: Run) -> None:
    assert run("  t: {expect: {orders_pg: {rows: []}}}\n").passed
    assert not run("  t: {expect: {orders_pg: {columns: id, rows: [{id: 1}]}}}\n").passed


def test_numbers_beyond_spark_keep_their_digits(run: Run) -> None:
    pipeline = ORDERS.replace(
        "      note: string\n", "      big: uint256\n      price: decimal256(60, 4)\n"
    ).replace("placed_at FROM", "big, price FROM")
    big, price = 2**256 - 1, "12345678901234567890123456789012345678901234.5"
    inputs = f"orders: {{rows: [{{id: 1, big: {big}, price: {price}}}]}}"
    expect = f"orders_pg: {{columns: [id, big, price], rows: [{{id: 1, big: {big}, price: {price}000}}]}}"
    assert failure(run(text(inputs, expect), pipeline)) == []
    assert not run(text(inputs, expect.replace("234.5000", "234.5001")), pipeline).passed
    assert "`-1` cannot be cast to uint256" in " ".join(
        failure(run(text(inputs.replace(str(big), "-1"), expect), pipeline))
    )

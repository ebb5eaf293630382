"""Filters at sinks with a key, without servers.

Random changes of few rows against a plain model of what must be in each target.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from headrace.connectors.filter_marks import mark_filtered_rows
from headrace.connectors.spark_types import arrow_schema
from headrace.jobs.planning.planner import PipelinePlanner
from headrace.jobs.planning.source_schemas import FixedSchemaSource
from headrace.jobs.sources.source_batch import SourceBatch
from headrace.jobs.spark.errors import as_headrace_error
from headrace.jobs.transforms.retractions import SinkBoundary
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import DataError, UserError
from headrace.pipeline.file.loader import parse_pipeline
from headrace.pipeline.lineage.retractions import Retractions
from headrace.pipeline.protocol.epochs import EpochPlan, Phase
from headrace.pipeline.sql.filter_marking import EMPTIED, FAILED
from headrace.pipeline.sql.system_columns import OP, POS, POS_TYPE

COLUMNS = "id bigint, v bigint, code string, xs array<int>"
FILE = """
name: p
sources: {{t: {{type: kafka, topic: t, {key}schema: {{id: int64}}{more}}}}}
transforms:
{transforms}
sinks:
{sinks}
"""
Change = tuple[str, int, int | None, str | None, tuple[int, ...] | None]
"""Operation, id, v, code and xs; the last three are NULL in a delete."""
Rows = list[tuple[Any, ...]]


@dataclass(frozen=True)
class Case:
    """A statement, and by its model the rows that one change makes.

    (key, row), the row None where a filter leaves it out.
    """

    sql: str
    made: Callable[[Change], list[tuple[Any, Any]]]
    key: str = "id"
    filter: str = ""


def one(
    passes: Callable[[Change], bool], row: Callable[[Change], Any] = lambda c: (c[1], c[2])
) -> Callable[[Change], list[tuple[Any, Any]]]:
    """One row for each change."""
    return lambda c: [(row(c)[0], row(c) if c[0] != "d" and passes(c) else None)]


def large(c: Change) -> bool:
    """v > 10."""
    return c[2] is not None and c[2] > 10


def digits(c: Change) -> bool:
    """The code is a number."""
    return c[3] is not None and c[3].isdigit()


def items(c: Change) -> list[tuple[Any, Any]]:
    """A row for each item above 1."""
    return [((c[1], x), (c[1], x) if x > 1 and c[0] != "d" else None) for x in c[4] or ()]


def last_item(c: Change) -> list[tuple[Any, Any]]:
    """The last item above 1; without one the row leaves."""
    passing = [x for x in c[4] or () if x > 1]
    return [(c[1], (c[1], passing[-1]) if passing and c[0] != "d" else None)]


def by_branch(c: Change) -> list[tuple[Any, Any]]:
    """Large ones from one branch, small ones from the other; NULL in neither."""
    return [(c[1], None if c[0] == "d" or c[2] is None else (c[1], c[2] if c[2] > 10 else -c[2]))]


CASES = {
    "plain": Case("SELECT id, v FROM t WHERE v > 10", one(large)),
    "no_rows": Case("SELECT id, v FROM t WHERE false", one(lambda _: False)),
    "star": Case("SELECT * EXCEPT (code, xs) FROM t WHERE v > 10 AND v <"
                 " 30", one(lambda c: large(c) and (c[2] or 0) < 30)),
    "guarded": Case("SELECT id, 100 / v AS v FROM t WHERE v <>"
                    " 0", one(lambda c: bool(c[2]), lambda c: (c[1], 100 / c[2] if c[2] else 0))),
    "nested": Case("WITH c AS (SELECT id, v FROM t WHERE v > 10) SELECT id, w FROM (SELECT id, 1000 div (v"
                   " - 10) AS w FROM c) WHERE w > 50",
        one(lambda c: large(c) and 1000 // ((c[2] or 0) - 10) > 50, lambda c: (c[1], 1000 // (c[2] - 10) if large(c) and c[2] else 0))),
    "renamed": Case("SELECT id + 1000 AS id, v FROM (SELECT id, v FROM t WHERE v >"
                    " 10)", one(large, lambda c: (c[1] + 1000, c[2]))),
    "union": Case("SELECT id, v FROM t WHERE v > 10 UNION ALL SELECT id, -v FROM t WHERE v <= 10", by_branch),
    "union_reversed": Case("SELECT id, -v AS v FROM t WHERE v <= 10 UNION ALL SELECT id, v FROM t WHERE v >"
                           " 10", by_branch),
    "chain": Case("SELECT id, v FROM plain WHERE v < 30", one(lambda c: large(c) and (c[2] or 0) < 30)),
    "items": Case("SELECT id, x FROM t LATERAL VIEW explode(xs) e AS x WHERE x > 1", items, key="id, x"),
    "last_item": Case("SELECT id, x FROM t LATERAL VIEW explode(xs) e AS x WHERE x > 1", last_item),
    "cast_key": Case("SELECT * FROM (SELECT CAST(code AS BIGINT) AS k, id FROM t WHERE code RLIKE"
                     " '^[0-9]+$') WHERE k IS NOT NULL",
        lambda c: [((int(c[3]), c[1]), (int(c[3]), c[1]))] if c[0] != "d" and digits(c) and c[3] else [], key="k, id"),
    "said": Case("SELECT id, v, CASE WHEN v = 20 THEN 'd' ELSE _gs_op END AS _gs_op FROM t WHERE v >"
                 " 10", one(lambda c: large(c) and c[2] != 20)),
    "asks_operation": Case("SELECT id, v FROM t WHERE _gs_op = 'd' OR v > 10", one(large)),
}  # fmt: skip
PORTABLE = {"plain", "no_rows", "chain"}
"""The cases that Arrow computes."""
KEPT = "SELECT id, v FROM t WHERE _gs_op <> 'd' AND v > 10"
"""Deletes are kept out by the user's own word: a row that was deleted stays."""


def changes(dice: random.Random, count: int) -> list[Change]:
    result: list[Change] = []
    for _ in range(count):
        op, key = dice.choices("iud", [2, 5, 2])[0], dice.randrange(6)
        v, code = dice.choice([None, 0, 5, 11, 20, 25, 40]), dice.choice([None, "x", "7", "70"])
        xs = dice.choice([None, (), (1,), (1, 2, 3), (3, 1), (2,)])
        result.append((op, key, None, None, None) if op == "d" else (op, key, v, code, xs))
    return result


def frame_of(spark: SparkSession, source_changes: list[Change], first: int, predicate: str) -> Any:
    rows = [
        (c[1], c[2], c[3], list(c[4]) if c[4] is not None else None, c[0], (9, 0, first + at, 0))
        for at, c in enumerate(source_changes)
    ]
    made = spark.createDataFrame(rows, f"{COLUMNS}, {OP} string, {POS} {POS_TYPE}")
    frame = spark.createDataFrame(made.toArrow(), made.schema)
    return mark_filtered_rows(frame, predicate) if predicate else frame


def planner(
    spark: SparkSession, transforms: dict[str, str], keys: dict[str, str], more: str = "", append: str = ""
) -> PipelinePlanner:
    nodes = (
        "\n".join(f'  {name}: {{type: sql, sql: "{text}"}}' for name, text in transforms.items()) or "  {}"
    )
    sinks = [
        f"  to_{name}: {{type: postgres, from: {name}, table: {name}, primary_key: [{key}]}}"
        for name, key in keys.items()
    ]
    sinks += [f"  log: {{type: delta, from: {append}, path: /nowhere}}"] if append else []
    text = FILE.format(
        transforms=nodes, sinks="\n".join(sinks), more=more, key="" if append else "primary_key: id, "
    )
    payload = arrow_schema(spark.createDataFrame([], COLUMNS).schema)
    return PipelinePlanner(
        parse_pipeline(text, "f.yaml"), spark, {"t": FixedSchemaSource(payload)}, Settings()
    )


Deliver = Callable[[PipelinePlanner, Any, int], Iterator[tuple[str, Rows, list[str]]]]


@pytest.fixture(params=["in_tasks", "in_the_driver", "over_arrow"])
def delivered(request: pytest.FixtureRequest) -> Deliver:
    """Computes an epoch whose source's rows are read by Spark's tasks, by the driver, or as Arrow."""
    return functools.partial(deliver, route=request.param)


in_tasks_daily = pytest.mark.parametrize(
    "delivered",
    ["in_tasks", *(pytest.param(one, marks=pytest.mark.slow) for one in ("in_the_driver", "over_arrow"))],
    indirect=True,
)
"""For rules of the plan, which all routes share."""


def deliver(
    made: PipelinePlanner, frame: Any, count: int, *, route: str
) -> Iterator[tuple[str, Rows, list[str]]]:
    """By sink: the rows of an epoch in their order, each with its operation in front; and the columns."""
    plan = EpochPlan(1, Phase.LIVE, {}, {}, "h", datetime(2025, 1, 1, tzinfo=UTC))
    is_local = route != "in_tasks"
    table = frame.toArrow() if route == "over_arrow" else None
    readings = {"t": SourceBatch(frame, count, table=table, is_local=is_local)}
    with made.frames(plan, readings, list(made.file.model.sinks)) as frames:
        for name in PORTABLE.intersection(made.file.model.transforms):
            computed = made._portable_nodes.compute([name], readings)
            assert (name in computed) == (table is not None), name
        for sink in frames if is_local else ():
            node = made.file.model.sinks[sink].from_
            needs_tasks = node in CASES and re.search("explode|UNION", CASES[node].sql) is not None
            assert (frames[sink].table is None) == needs_tasks, sink
        for sink, result in frames.items():
            try:
                table = result.rows.toArrow() if result.table is None else result.table
                rows = table.to_pylist()
            except Exception as error:
                raise as_headrace_error(error) from error
            rows.sort(key=lambda row: tuple(row[POS].values()))
            names = list(result.schema.names)
            yield sink, [(row[OP], *(row[name] for name in names)) for row in rows], names


def test_targets_hold_what_the_model_says(spark: SparkSession, delivered: Deliver) -> None:
    dice = random.Random(11)
    made = planner(
        spark,
        {name: case.sql for name, case in CASES.items()},
        {name: case.key for name, case in CASES.items()},
    )
    targets: dict[str, dict[Any, Any]] = {name: {} for name in CASES}
    models: dict[str, dict[Any, Any]] = {name: {} for name in CASES}
    first = 0
    for count in (60, 45):
        source_changes = changes(dice, count)
        for sink, rows, names in delivered(made, frame_of(made.spark, source_changes, first, ""), count):
            key = [name.strip() for name in CASES[sink[3:]].key.split(",")]
            for op, *values in rows:
                row = dict(zip(names, values, strict=True))
                at = tuple(row[name] for name in key)
                assert None not in at, (sink, row)
                if op == "d":
                    targets[sink[3:]].pop(at, None)
                else:
                    targets[sink[3:]][at] = tuple(values)
        for name, case in CASES.items():
            for change in source_changes:
                for key, row in case.made(change):
                    at = key if isinstance(key, tuple) else (key,)
                    models[name].pop(at, None)
                    if row is not None:
                        models[name][at] = row
            assert targets[name] == models[name], name
        first += count


@in_tasks_daily
def test_sinks_without_a_key_and_filters_on_the_operation_keep_their_meaning(
    spark: SparkSession, delivered: Deliver
) -> None:
    """Appending sinks get what passes, beside one with a key that gets deletes as well.

    A source's filter is one of them.
    """
    source_changes: list[Change] = [
        ("i", 1, 50, None, None),
        ("u", 1, 5, None, None),
        ("u", 2, 60, None, None),
        ("d", 2, None, None, None),
        ("d", 3, 70, None, None),
    ]
    made = planner(
        spark, {"kept": KEPT, "plain": CASES["plain"].sql}, {"kept": "id", "plain": "id"}, append="kept"
    )
    result = {
        sink: rows
        for sink, rows, _ in delivered(made, frame_of(made.spark, source_changes, 0, ""), len(source_changes))
    }
    assert result["log"] == [("i", 1, 50), ("u", 2, 60)]
    assert result["to_kept"] == [("i", 1, 50), ("d", 1, None), ("u", 2, 60)]
    assert result["to_plain"] == [("i", 1, 50), ("d", 1, None), ("u", 2, 60), ("d", 2, None), ("d", 3, 70)]
    made = planner(
        spark,
        {"all": "SELECT id, 100 / v AS w FROM t"},
        {"all": "id"},
        more=', filter: "v <> 0"',
        append="all",
    )
    source_changes = [("i", 1, 50, None, None), ("u", 1, 0, None, None), ("d", 2, None, None, None)]
    result = {
        sink: rows
        for sink, rows, _ in delivered(
            made, frame_of(made.spark, source_changes, 0, "v <> 0"), len(source_changes)
        )
    }
    assert result == {"log": [("i", 1, 2.0)], "to_all": [("i", 1, 2.0), ("d", 1, None), ("d", 2, None)]}


@in_tasks_daily
def test_a_delete_without_its_key_is_an_error_and_an_update_without_one_is_left_out(
    spark: SparkSession, delivered: Deliver
) -> None:
    made = planner(spark, {"x": "SELECT id, code || 'x' AS k, v FROM t WHERE v > 10"}, {"x": "id, k"})
    source_changes: list[Change] = [("u", 1, 5, None, None), ("u", 1, 20, "a", None)]
    result = {
        sink: rows
        for sink, rows, _ in delivered(made, frame_of(made.spark, source_changes, 0, ""), len(source_changes))
    }
    assert result == {"to_x": [("u", 1, "ax", 20)]}
    result = {
        sink: rows
        for sink, rows, _ in delivered(made, frame_of(made.spark, [("d", 1, None, None, None)], 0, ""), 1)
    }
    assert result == {"to_x": [("d", 1, None, None)]}, "the sink refuses it, as it does without a filter"
    made = planner(
        spark,
        {"x": "SELECT id, code || 'x' AS k, v FROM t WHERE v > 10 AND code IS NOT NULL"},
        {"x": "id, k"},
    )
    assert made.retractions.sinks == {"to_x": frozenset()}


@pytest.mark.parametrize(
    ("statement", "key", "message"),
    [
        ("SELECT element_at(xs, 1) AS k, id FROM t WHERE size(xs) > 0", "k, id", "the key column `k` is"),
        (
            "SELECT id, explode(sequence(1, v)) AS x FROM t WHERE v < 100",
            "id, x",
            "the list that rows are made of is `SEQUENCE",
        ),
        ("SELECT id, 10 / v FROM t WHERE v <> 0", "id", "`10 / v` has no name"),
    ],
)
def test_what_may_fail_for_rows_that_a_filter_leaves_out_is_refused(
    spark: SparkSession, statement: str, key: str, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        planner(spark, {"x": statement}, {"x": key})


def test_an_error_of_a_row_that_passes_is_told_as_ever(spark: SparkSession, delivered: Deliver) -> None:
    made = planner(spark, {"x": "SELECT id, CAST(code AS BIGINT) AS n FROM t WHERE v > 10"}, {"x": "id"})
    assert {
        sink: rows
        for sink, rows, _ in delivered(made, frame_of(made.spark, [("i", 1, 5, "no", None)], 0, ""), 1)
    }["to_x"] == [("d", 1, None)]
    with pytest.raises(DataError):
        list(delivered(made, frame_of(made.spark, [("i", 1, 20, "no", None)], 0, ""), 1))


@pytest.mark.parametrize("deletes", [None, (), ("s",)])
@pytest.mark.parametrize("options", ["", ", version_column: v", ", on_conflict: nothing"])
def test_the_driver_makes_the_same_deletes_as_spark(
    spark: SparkSession, options: str, deletes: tuple[str, ...] | None
) -> None:
    """`deletes` are the sources whose marked rows delete nothing. None: the sink drops marked rows."""
    text = f"""
    name: p
    sources:
      s: {{type: kafka, topic: s, primary_key: id, schema: {{id: int64}}}}
      t: {{type: kafka, topic: t, primary_key: id, schema: {{id: int64}}}}
    transforms: {{both: {{type: sql, sql: "SELECT id FROM s UNION ALL SELECT id FROM t"}}}}
    sinks: {{out: {{type: postgres, table: out, primary_key: [id], from: both{options}}}}}
    """
    sinks = {} if deletes is None else {"out": frozenset(deletes)}
    result = Retractions(marked=frozenset({"both"}), sinks=sinks)
    boundary = SinkBoundary(parse_pipeline(text, "f.yaml").model, result, {"out": ("id",)})
    dice = random.Random(5)
    rows = []
    for at in range(300):
        position = (dice.choice([0, 9, 10, 19]), 0, at, dice.choice([0, 3, FAILED, EMPTIED]))
        row = dice.choice([None, 1, 2]), dice.choice([None, 7]), "x", [1], dice.choice("iud"), position
        rows.append(row)
    frame = spark.createDataFrame(rows, f"{COLUMNS}, {OP} string, {POS} {POS_TYPE}")
    table = frame.toArrow()
    assert boundary.local_rows("out", table).to_pylist() == boundary.rows("out", frame).toArrow().to_pylist()
    passed = table.filter(pa.array(row["sub"] >= 0 for row in table[POS].to_pylist()))
    assert boundary.local_rows("out", passed).to_pylist() == passed.to_pylist()

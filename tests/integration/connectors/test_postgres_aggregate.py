"""Totals in Postgres: they always are what a query over the landing table gives."""

from __future__ import annotations

import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from helpers.aggregate_sink import aggregate_sink_maker, compare_totals
from helpers.sink_makers import KEYED, SinkMaker, frame, plan
from pyspark.sql import SparkSession

from headrace.connectors.postgres.commit_store import RecordStore
from headrace.pipeline.errors import HeadraceError, SchemaError, TargetError, TransientError, UserError

ROWS = pa.schema(
    [
        ("id", pa.int64()),
        ("shop", pa.string()),
        ("day", pa.int32()),
        ("cents", pa.int64()),
        ("price", pa.decimal128(20, 4)),
        ("weight", pa.float64()),
    ]
)
NODE: dict[str, Any] = {
    "group_by": {"place": {"from": "shop"}, "day": {"type": "bigint"}},
    "aggregate": {
        "cents": {"fn": "sum"},
        "rows": {"fn": "count"},
        "priced": {"from": "price", "fn": "count"},
        "price": {"fn": "avg"},
        "low": {"from": "price", "fn": "min"},
        "high": {"from": "cents", "fn": "max"},
        "weight": {"fn": "sum"},
    },
}
COLUMNS = "place, day, cents, rows, priced, price_sum, price_count, round(price, 6), low, high, weight"
QUERY = (
    "SELECT shop, day::bigint, coalesce(sum(cents), 0), count(*), count(price), coalesce(sum(price), 0),"
    " count(price), round(sum(price) / nullif(count(price), 0), 6), min(price), max(cents),"
    " coalesce(sum(weight::numeric), 0) FROM target GROUP BY 1, 2"
)


def row(dice: random.Random, key: int) -> dict[str, Any]:
    def some(value: Any) -> Any:
        return None if dice.random() < 0.15 else value

    return {
        "id": key,
        "shop": some(dice.choice(["a", "b", "c'\\"])),
        "day": some(dice.randrange(2)),
        "cents": some(dice.randrange(-50, 50)),
        "price": some(Decimal(dice.randrange(10**6)).scaleb(-4)),
        "weight": some(dice.random() * 10),
    }


# The contract of the sinks has daily tests of epochs that pass through the driver.
@pytest.mark.parametrize(
    "large", [pytest.param(False, marks=pytest.mark.slow), True], ids=["driver", "staged"]
)
def test_totals_follow_inserts_updates_and_deletes(
    spark: SparkSession, pg: str, tmp_path: Path, large: bool
) -> None:
    maker = aggregate_sink_maker(spark, pg, tmp_path, NODE | ({"max_driver_rows": 1} if large else {}))
    sink, dice = maker.joined(ROWS), random.Random(5)
    for epoch in range(1, 5 if large else 9):
        ops = dice.choices("iud", [3, 4, 3], k=40)
        rows = [row(dice, dice.randrange(25)) for _ in ops]
        for op, one in zip(ops, rows, strict=True):  # A delete often has only its key.
            if op == "d" and dice.random() < 0.5:
                one.update(dict.fromkeys(ROWS.names[1:]))
        sink.write(plan(epoch), frame(spark, ROWS, rows, "".join(ops)))
        assert compare_totals(pg, COLUMNS, QUERY)
    sink.write(
        plan(9 if not large else 5), frame(spark, ROWS, [row(dice, key) for key in range(25)], "d" * 25)
    )
    assert compare_totals(pg, COLUMNS, QUERY) == []
    sink.close()


def test_without_groups_one_row_has_the_totals(spark: SparkSession, pg: str, tmp_path: Path) -> None:
    node = {"aggregate": {"rows": {"fn": "count"}, "low": {"from": "id", "fn": "min"}}}
    maker = aggregate_sink_maker(spark, pg, tmp_path, node)
    sink = maker.joined(KEYED)
    people = [{"id": key, "name": "x"} for key in (3, 1, 2, 1)]
    sink.write(plan(1), frame(spark, KEYED, people, "iiii"))
    assert totals(pg) == [("value", 3, 1)]
    sink.write(plan(2), frame(spark, KEYED, people[1:2], "d"))
    assert totals(pg) == [("value", 2, 2)]
    sink.truncate()
    assert totals(pg) == []
    record = sink.record()
    assert record is not None
    assert record.epoch == 2
    sink.close()


def totals(pg: str, columns: str = "key, rows, low") -> list[tuple[Any, ...]]:
    with psycopg.connect(pg) as client:
        return client.execute(f"SELECT {columns} FROM totals ORDER BY 1".encode()).fetchall()


def test_another_definition_computes_the_totals_again(spark: SparkSession, pg: str, tmp_path: Path) -> None:
    maker = aggregate_sink_maker(spark, pg, tmp_path)
    sink = maker.joined(KEYED)
    sink.write(
        plan(1), frame(spark, KEYED, [{"id": key, "name": "ab"[key % 2]} for key in range(5)], "i" * 5)
    )
    sink.close()
    assert totals(pg, "name, rows") == [("a", 3), ("b", 2)]
    node = {"group_by": {"name": {}}, "aggregate": {"most": {"from": "id", "fn": "max", "type": "numeric"}}}
    sink = aggregate_sink_maker(spark, pg, tmp_path, node)
    sink = changed(maker, node).open(KEYED)
    sink.prepare(KEYED, 2)
    assert totals(pg, "name, most") == [("a", 4), ("b", 3)]
    sink.write(plan(2), frame(spark, KEYED, [{"id": 4, "name": "b"}], "u"))
    assert totals(pg, "name, most") == [("a", 2), ("b", 4)]
    sink.close()


def changed(maker: SinkMaker, node: dict[str, Any]) -> SinkMaker:
    from dataclasses import replace

    other = aggregate_sink_maker(maker.spark, "host=x port=1 user=x password=x dbname=x", Path(), node)
    return replace(maker, node=other.node)


def test_rows_that_are_there_and_other_writers_count(spark: SparkSession, pg: str, tmp_path: Path) -> None:
    with psycopg.connect(pg, autocommit=True) as client:
        client.execute("CREATE TABLE target (id bigint PRIMARY KEY, name text)")
        client.execute("INSERT INTO target VALUES (1, 'a'), (2, NULL)")
        sink = aggregate_sink_maker(spark, pg, tmp_path).joined(KEYED)
        assert totals(pg, "name, rows") == [("a", 1), (None, 1)]
        client.execute("UPDATE target SET name = 'b'")
        assert totals(pg, "name, rows") == [("b", 2)]
        sink.write(plan(1), frame(spark, KEYED, [{"id": 3, "name": "b"}], "i"))
        assert totals(pg, "name, rows") == [("b", 3)]
        client.execute("TRUNCATE target")
        assert totals(pg, "name, rows") == []
    sink.close()


def test_an_epoch_that_fails_at_its_record_leaves_the_totals(
    spark: SparkSession, pg: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = aggregate_sink_maker(spark, pg, tmp_path).joined(KEYED)
    rows = frame(spark, KEYED, [{"id": 1, "name": "a"}], "i")

    def fail(*_: object, **__: object) -> None:
        msg = "the record is refused"
        raise TransientError(msg)

    with monkeypatch.context() as patch:
        patch.setattr(RecordStore, "advance", fail)
        with pytest.raises(TransientError):
            sink.write(plan(1), rows)
    assert totals(pg, "name, rows") == []
    for _ in range(2):  # The second one has the epoch already.
        assert sink.write(plan(1), rows).rows == 1
        assert totals(pg, "name, rows") == [("a", 1)]
    sink.close()


def test_long_names_are_shortened(spark: SparkSession, pg: str, tmp_path: Path) -> None:
    node = {"landing_table": "l" * 60, "agg_table": "ä" * 30, "group_by": {"name": {}}}
    node |= {"aggregate": {"low": {"from": "id", "fn": "min"}}}
    maker = aggregate_sink_maker(spark, pg, tmp_path, node)
    sink = maker.joined(KEYED)
    sink.write(plan(1), frame(spark, KEYED, [{"id": 1, "name": "a"}], "i"))
    with psycopg.connect(pg) as client:
        assert client.execute(f'SELECT name, low FROM "{"ä" * 30}"'.encode()).fetchall() == [("a", 1)]
    sink.close()


ONE = {"rows": {"fn": "count"}}
REFUSED: dict[str, tuple[dict[str, Any], tuple[str, ...], type[HeadraceError], str]] = {
    "group": (
        {"group_by": {"shop": {}}, "aggregate": ONE},
        ("id",),
        SchemaError,
        "`group_by.shop` reads `shop`, which is not among the columns id, name",
    ),
    "sum of text": (
        {"aggregate": {"name": {"fn": "sum"}}},
        ("id",),
        SchemaError,
        "`aggregate.name` adds `name`, which is string",
    ),
    "no column": (
        {"aggregate": {"total": {"fn": "sum"}}},
        ("id",),
        SchemaError,
        "`aggregate.total` reads `total`, which is not among",
    ),
    "no key": ({"aggregate": ONE}, (), UserError, "needs a primary key"),
    "other table": (
        {"agg_table": "mine", "aggregate": ONE},
        ("id",),
        TargetError,
        "the table public.mine was not made by Headrace, not of target",
    ),
    "other landing table": (
        {"landing_table": "second", "aggregate": ONE},
        ("id",),
        TargetError,
        "the table public.totals has the totals of target, not of second",
    ),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused(
    spark: SparkSession,
    pg: str,
    tmp_path: Path,
    case: tuple[dict[str, Any], tuple[str, ...], type[HeadraceError], str],
) -> None:
    node, key, kind, says = case
    with psycopg.connect(pg, autocommit=True) as client:
        client.execute("CREATE TABLE mine (x int)")
    aggregate_sink_maker(spark, pg, tmp_path).joined(KEYED).close()
    for check in ("validate", "prepare"):
        sink = aggregate_sink_maker(spark, pg, tmp_path, node).open(KEYED, key)
        with pytest.raises(kind, match=says) as caught:
            sink.validate_target() if check == "validate" else sink.prepare(KEYED, 2)
        assert caught.value.node
        sink.close()

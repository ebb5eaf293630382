"""Direct loads into a ClickHouse table: tasks stage splits, and the epoch is attached as any other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from helpers import split_rows
from helpers.clickhouse_sink import ClickHouseSinkMaker, clickhouse_sink_maker
from helpers.sink_makers import KEYED, frame, plan
from helpers.split_rows import GivenSplits
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from headrace.connectors.clickhouse import direct
from headrace.connectors.clickhouse import sink as clickhouse_sink
from headrace.connectors.clickhouse.loader import StageLoad
from headrace.connectors.clickhouse.sink import ClickHouseSink
from headrace.pipeline.errors import DataError, FencedError, TransientError
from headrace.services import Services

TYPES = pa.schema(
    [
        ("id", pa.int64()),
        ("small", pa.int16()),
        ("flag", pa.bool_()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("amount", pa.decimal128(12, 2)),
        ("ratio", pa.float64()),
        ("text", pa.string()),
    ]
)
VALUES: list[list[Any]] = [
    [
        *(1, 32_767, True, date(1900, 1, 1), datetime(2024, 5, 1, 1, 2, 3, 4_000, UTC)),
        *(Decimal("-0.01"), float("inf"), "ä\U0010ffff"),
    ],
    [2, *[None] * 7],
]
Make = Callable[..., ClickHouseSinkMaker]


@pytest.fixture
def make(spark: SparkSession, services: Services, ch_db: str, tmp_path: Path) -> Make:
    """`make(**node)` returns the maker of sinks into a table that they create."""
    return lambda **node: clickhouse_sink_maker(spark, services, ch_db, tmp_path, **node)


def splits(schema: pa.Schema = KEYED, **rows: Any) -> GivenSplits:
    return GivenSplits(schema, rows, [])


def joined(
    maker: ClickHouseSinkMaker, schema: pa.Schema = KEYED, key: tuple[str, ...] = ("id",)
) -> ClickHouseSink:
    sink = maker.joined(schema, key)
    assert isinstance(sink, ClickHouseSink)
    return sink


def stored(maker: ClickHouseSinkMaker, names: tuple[str, ...] = ("id", "name")) -> list[tuple[Any, ...]]:
    return sorted(maker.rows(list(names)))


@pytest.mark.parametrize("key", [(), ("id",)], ids=["append", "keyed"])
def test_splits_are_one_epoch_and_are_not_loaded_twice(make: Make, key: tuple[str, ...]) -> None:
    maker = make()
    sink, rows = joined(maker, key=key), splits(a=[(1, "a"), (2, "b")], b=[], c=[(3, "c")])
    counts = sink.write_direct(plan(1), rows, maker.spark)
    assert counts is not None
    assert counts.rows == 3
    assert stored(maker) == [(1, "a"), (2, "b"), (3, "c")]
    assert sorted(rows.reads) == ["a", "b", "c"]
    assert sink.write_direct(plan(1), rows, maker.spark) == counts
    assert sorted(rows.reads) == ["a", "b", "c"]
    sink.write(plan(2), frame(maker.spark, KEYED, [{"id": 4, "name": "d"}], "i", key))
    assert stored(maker)[-1] == (4, "d")
    sink.close()


def test_the_last_row_of_a_key_in_a_split_stays_and_replaces_an_earlier_epoch(make: Make) -> None:
    maker = make()
    sink = joined(maker)
    rows = splits(a=[(1, "old"), (2, "b"), (1, "new")])
    counts = sink.write_direct(plan(1), rows, maker.spark)
    assert counts is not None
    assert (counts.rows, stored(maker)) == (2, [(1, "new"), (2, "b")])
    sink.write_direct(plan(2), splits(a=[(2, "later")]), maker.spark)
    assert stored(maker) == [(1, "new"), (2, "later")]
    sink.close()


def test_values_are_those_that_spark_writes(make: Make) -> None:
    maker = make()
    sink = joined(maker, TYPES)
    assert sink.write_direct(plan(1), splits(TYPES, a=VALUES), maker.spark) is not None
    result = stored(maker, tuple(TYPES.names))
    rows = [dict(zip(TYPES.names, row, strict=True)) | {"id": row[0] + 10} for row in VALUES]
    sink.write(plan(2), frame(maker.spark, TYPES, rows, "ii"))
    by_spark = stored(maker, tuple(TYPES.names))[2:]
    assert [(row[0] - 10, *row[1:]) for row in by_spark] == result
    assert result[1] == tuple(VALUES[1])
    sink.close()


@pytest.mark.parametrize(
    ("schema", "node"),
    [
        (pa.schema([("id", pa.int64()), ("xs", pa.list_(pa.int64()))]), {}),
        (pa.schema([("id", pa.float64()), ("name", pa.string())]), {}),
        (pa.schema([("id", pa.int64()), ("v", pa.int64())]), {"version_column": "v"}),
    ],
    ids=["list", "float key", "version"],
)
def test_rows_that_need_spark_are_left_to_it(make: Make, schema: pa.Schema, node: dict[str, Any]) -> None:
    maker = make(**node)
    sink, rows = joined(maker, schema), splits(schema, a=[(1, None)])
    assert sink.write_direct(plan(1), rows, maker.spark) is None
    assert not rows.reads
    sink.close()


def test_a_split_that_fails_leaves_nothing_and_the_epoch_can_be_written_again(make: Make) -> None:
    maker = make()
    sink = joined(maker)
    with pytest.raises(DataError, match="the row cannot be read"):
        sink.write_direct(plan(1), splits(a=[(1, "a")], b=[None]), maker.spark)
    assert stored(maker) == []
    assert sink.write_direct(plan(1), splits(a=[(1, "a")], b=[(2, "b")]), maker.spark) is not None
    assert stored(maker) == [(1, "a"), (2, "b")]
    with pytest.raises(DataError, match="key column `id` is null in 1 rows"):
        sink.write_direct(plan(2), splits(a=[(None, "a")]), maker.spark)
    sink.close()


def test_a_split_that_was_inserted_twice_is_noticed(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a task of Spark that ran twice, or an insert that a proxy repeated."""
    maker, load, times = make(), StageLoad.load, [2]
    sink = joined(maker)

    def load_twice(self: StageLoad, batches: Any) -> int:
        every, rows = list(batches), 0
        for _ in range(times[0]):
            rows = load(self, every)
        return rows

    monkeypatch.setattr(StageLoad, "load", load_twice)
    with pytest.raises(TransientError, match=r"2 rows are staged .* and the tasks loaded 1"):
        sink.write_direct(plan(1), splits(a=[(1, "a")]), maker.spark)
    times[0] = 1
    assert sink.write_direct(plan(1), splits(a=[(1, "a")]), maker.spark) is not None
    assert stored(maker) == [(1, "a")]
    sink.close()


def test_an_older_run_that_stages_splits_is_fenced(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    maker = make()
    sink, stage = joined(maker), direct.DirectSplits.stage

    def overtaken(self: direct.DirectSplits, load: StageLoad) -> int:
        newer = maker.open(KEYED)
        newer.prepare(KEYED, 2)
        newer.close()
        return stage(self, load)

    monkeypatch.setattr(direct.DirectSplits, "stage", overtaken)
    with pytest.raises(FencedError):
        sink.write_direct(plan(1), splits(a=[(1, "a")]), maker.spark)
    assert stored(maker) == []
    sink.close()


def test_tasks_of_a_cluster_stage_splits(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    maker = make()
    monkeypatch.setattr(clickhouse_sink, "count_task_threads", lambda _: 0)
    cloudpickle.register_pickle_by_value(split_rows)  # workers do not have the tests
    sink, rows = joined(maker), splits(a=[(1, "a")], b=[(2, "b")])
    assert sink.write_direct(plan(1), replace(rows, reads=[]), maker.spark) is not None
    assert stored(maker) == [(1, "a"), (2, "b")]
    sink.close()

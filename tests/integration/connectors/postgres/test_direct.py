"""Direct loads: each split is loaded once, whatever dies or runs twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from helpers.postgres_epochs import SCHEMA, Bench, plan
from pyspark import cloudpickle

from headrace.connectors.postgres.direct import SplitTask
from headrace.connectors.postgres.sink import PostgresSink
from headrace.connectors.source_base import SplitReader
from headrace.pipeline.errors import DataError, FencedError, SchemaError, SinkStateError, TransientError
from headrace.pipeline.protocol.epochs import Phase, WriteCounts

SPLITS = [{"from": at * 100, "rows": 100} for at in range(4)]


def numbers(split: dict[str, Any]) -> Iterator[pa.RecordBatch]:
    """Two batches of (id, v), ids from the split's range."""
    for part in range(2):
        ids = range(split["from"] + part * 50, split["from"] + part * 50 + 50)
        yield pa.record_batch({"v": [f"v{at}" for at in ids], "id": pa.array(ids, pa.int32())})


@pytest.fixture
def fetching() -> Iterator[Callable[..., SplitReader]]:
    """Makes fetches out of a function.

    Tasks get its code by value, since tests are no module that workers could import.
    """
    import sys

    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)

    @dataclass
    class Fetch(SplitReader):
        splits: Any
        read: Callable[[dict[str, Any]], Iterator[pa.RecordBatch]]

        def fetch(self, split: dict[str, Any]) -> Iterator[pa.RecordBatch]:
            return self.read(split)

    yield lambda read=numbers, splits=tuple(SPLITS): Fetch(splits, read)
    cloudpickle.unregister_pickle_by_value(module)


def split_task(sink: PostgresSink, fetch: SplitReader) -> SplitTask:
    """The task that loads a split of epoch 1."""
    return SplitTask(sink._connections.address, sink._store, sink._loading, plan(1), fetch, straight=True)


CLUSTER = "spark://executors"
"""A master with which Spark runs the tasks, here in the local session of the tests."""
CROSS = [
    pytest.param("local[2]", ("id",), id="threads-keyed"),
    pytest.param(CLUSTER, (), id="tasks-appending"),
    pytest.param("local[2]", (), id="threads-appending", marks=pytest.mark.slow),
    pytest.param(CLUSTER, ("id",), id="tasks-keyed", marks=pytest.mark.slow),
]


# Daily: threads with a key, tasks without one.
@pytest.mark.parametrize(("master", "key"), CROSS)
def test_all_splits_arrive_and_the_record_follows(
    bench: Bench, fetching: Any, key: tuple[str, ...], master: str
) -> None:
    bench.master = master
    sink = bench.joined(key=key)
    first = sink.write_direct(plan(1, splits=SPLITS), fetching(), bench.spark)
    assert first == WriteCounts(400, 400, 0, 0)
    assert bench.rows() == sorted([(at, f"v{at}") for at in range(400)], key=repr)
    assert sink.write_direct(plan(1, splits=SPLITS), fetching(), bench.spark) == first
    record = sink.record()
    assert record is not None
    assert (record.epoch, record.counts) == (1, first)
    assert len(bench.rows()) == 400


@pytest.mark.parametrize(
    "options",
    [{}, {"on_conflict": "nothing"}, {"update_where": {"v": ">"}}],
    ids=["update", "nothing", "where"],
)
def test_keys_that_are_there_are_merged(bench: Bench, fetching: Any, options: dict[str, Any]) -> None:
    sink = bench.joined(**options)
    sink.write(plan(1), bench.frame([("i", 5, "a"), ("i", 150, "z"), ("i", 1000, "other")]))
    counts = sink.write_direct(plan(2, splits=SPLITS), fetching(), bench.spark)
    updated = {"": 2, "nothing": 0, "v": 1}[
        options.get("on_conflict") or next(iter(options.get("update_where", {})), "")
    ]
    assert counts == WriteCounts(400, 398, updated, 0)
    assert len(bench.rows()) == 401


@pytest.mark.parametrize("master", ["local[2]", CLUSTER], ids=["threads", "tasks"])
def test_of_a_key_in_several_splits_the_row_of_the_last_one_stays(
    bench: Bench, fetching: Any, master: str
) -> None:
    def first_is_slow(split: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        time.sleep(0 if split["from"] else 0.5)
        yield pa.record_batch({"id": [7, 1000 + split["from"]], "v": [str(split["from"]), "own"]})

    bench.master = master
    counts = bench.joined().write_direct(
        plan(1, splits=SPLITS), fetching(first_is_slow), bench.spark, keys_spread=True
    )
    assert counts == WriteCounts(8, 5, 3, 0)
    assert dict(bench.rows())[7] == "300"


def test_a_key_twice_in_a_split_takes_the_later_row(bench: Bench, fetching: Any) -> None:
    def twice(split: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"id": [1, 2, 1], "v": ["a", "b", "last"]})

    counts = bench.joined().write_direct(plan(1, splits=SPLITS[:1]), fetching(twice, SPLITS[:1]), bench.spark)
    assert bench.rows() == [(1, "last"), (2, "b")]
    assert counts == WriteCounts(2, 2, 0, 0)


def test_keys_that_are_one_to_the_target_keep_the_order_of_splits(bench: Bench, fetching: Any) -> None:
    """A char column does not count blanks at the end, so two splits may bring one key."""

    def blank(split: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        number = split["from"] // 100
        if number < 3:
            import time

            time.sleep(0.1 * (3 - number))
        yield pa.record_batch({"id": pa.array([number], pa.int64()), "v": ["a" + " " * number]})

    bench.run(f"CREATE SCHEMA {bench.schema}")
    bench.run("CREATE TABLE {t} (id bigint, v char(8) PRIMARY KEY)")
    bench.joined(key=("v",)).write_direct(plan(1, splits=SPLITS), fetching(blank), bench.spark)
    assert [row[0] for row in bench.rows()] == [3]


@pytest.mark.parametrize(("master", "key"), CROSS)
def test_a_split_that_breaks_is_the_only_one_loaded_again(
    bench: Bench, fetching: Any, key: tuple[str, ...], master: str, tmp_path: Path
) -> None:
    bench.master, seen = master, str(tmp_path)

    def breaking(split: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        from pathlib import Path

        with Path(seen, str(split["from"])).open("a") as file:
            file.write("x")
        first, second = numbers(split)
        yield first
        if split["from"] == 200 and not Path(seen, "mended").exists():
            msg = "the source broke in the middle"
            raise DataError(msg, node="src")
        yield second

    sink = bench.joined(key=key)
    with pytest.raises(DataError, match="node 'src': the source broke"):
        sink.write_direct(plan(1, splits=SPLITS), fetching(breaking), bench.spark)
    record = sink.record()
    assert record is not None
    assert record.epoch == 0
    assert len(bench.rows()) == 300
    Path(seen, "mended").touch()
    counts = sink.write_direct(plan(1, splits=SPLITS), fetching(breaking), bench.spark)
    assert counts == WriteCounts(400, 400, 0, 0)
    assert len(bench.rows()) == 400
    assert [Path(seen, str(split["from"])).read_text() for split in SPLITS] == ["x", "x", "xx", "x"]


@pytest.mark.parametrize(
    "key", [pytest.param(("id",), marks=pytest.mark.slow), ()], ids=["keyed", "appending"]
)
def test_a_worker_killed_in_copy_leaves_nothing_of_its_split(
    bench: Bench, fetching: Any, key: tuple[str, ...], tmp_path: Path
) -> None:
    bench.master, flag = CLUSTER, str(tmp_path / "killed")

    def killing(split: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        import os
        import signal
        from pathlib import Path

        for batch in numbers(split):
            yield batch
            if split["from"] == 100 and not Path(flag).exists():
                Path(flag).touch()
                os.kill(os.getpid(), signal.SIGKILL)

    sink = bench.joined(key=key)
    with pytest.raises(Exception, match="Python worker exited"):
        sink.write_direct(plan(1, splits=SPLITS), fetching(killing), bench.spark)
    assert not [row for row in bench.rows() if 100 <= row[0] < 200]
    assert sink.write_direct(plan(1, splits=SPLITS), fetching(killing), bench.spark) == WriteCounts(
        400, 400, 0, 0
    )
    assert bench.rows() == sorted([(at, f"v{at}") for at in range(400)], key=repr)


def test_a_zombie_is_fenced_before_it_loads(bench: Bench, fetching: Any) -> None:
    old = bench.joined(key=(), generation=1)
    bench.sink(key=()).prepare(SCHEMA, 2)
    with pytest.raises(FencedError):
        old.write_direct(plan(1, splits=SPLITS), fetching(), bench.spark)
    assert bench.rows() == []


def test_a_zombies_task_is_fenced_in_its_own_transaction(bench: Bench, fetching: Any) -> None:
    """The driver was overtaken after it had sent its tasks out."""
    old = bench.joined(key=(), generation=1)
    task = split_task(old, fetching())
    assert task(SPLITS[0])["failure"] is None
    bench.sink(key=()).prepare(SCHEMA, 2)
    failure = task(SPLITS[1])["failure"]
    assert '"kind": "FencedError"' in failure
    assert len(bench.rows()) == 100


def test_the_next_generation_finishes_what_splits_it_finds(bench: Bench, fetching: Any) -> None:
    task = split_task(bench.joined(key=(), generation=1), fetching())
    task(SPLITS[0])
    task(SPLITS[3])
    new = bench.sink(key=())
    new.prepare(SCHEMA, 2)
    assert new.write_direct(plan(1, splits=SPLITS), fetching(), bench.spark) == WriteCounts(400, 400, 0, 0)
    assert len(bench.rows()) == 400


def test_an_epoch_begun_by_splits_is_not_finished_by_rows(bench: Bench, fetching: Any) -> None:
    sink = bench.joined(key=())
    history = replace(plan(1), phase=Phase.HISTORY)
    assert not sink.has_partial_epoch(history)
    split_task(sink, fetching())(SPLITS[0])
    assert sink.has_partial_epoch(history)
    with pytest.raises(SinkStateError, match="begun by direct load"):
        sink.write(plan(1), bench.frame([("i", 1, "a")], key=()))
    with pytest.raises(SinkStateError, match="splits that are not planned"):
        sink.write_direct(plan(1, splits=SPLITS[1:]), fetching(numbers, SPLITS[1:]), bench.spark)


def test_markers_of_older_epochs_go(bench: Bench, fetching: Any) -> None:
    sink = bench.joined(key=())
    sink.write_direct(plan(1, splits=SPLITS[:2]), fetching(numbers, SPLITS[:2]), bench.spark)
    sink.write_direct(plan(2, splits=SPLITS[2:]), fetching(numbers, SPLITS[2:]), bench.spark)
    assert bench.run("SELECT DISTINCT epoch FROM headrace.splits WHERE pipeline = %s", bench.pipeline) == [
        (2,)
    ]


def test_widening_loses_nothing_and_nesting_is_refused(bench: Bench, fetching: Any) -> None:
    schema = pa.schema(
        [
            ("id", pa.uint64()),
            ("h", pa.float16()),
            ("c", pa.dictionary(pa.int8(), pa.string())),
            ("f", pa.binary(2)),
        ]
    )

    def wide(split: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        columns = [
            pa.array([2**64 - 1], pa.uint64()),
            pa.array([1.5], pa.float16()),
            pa.array(["x"]).dictionary_encode(),
        ]
        yield pa.RecordBatch.from_arrays(
            [*columns, pa.array([b"ab"], pa.binary(2))], names=["id", "h", "c", "f"]
        )

    bench.joined(schema).write_direct(plan(1, splits=SPLITS[:1]), fetching(wide, SPLITS[:1]), bench.spark)
    assert bench.rows() == [(2**64 - 1, 1.5, "x", b"ab")]
    nested = bench.joined(
        pa.schema([("id", pa.int64()), ("v", pa.list_(pa.int64()))]), name="nested", table="nested"
    )
    with pytest.raises(SchemaError, match="column 'v'"):
        nested.write_direct(plan(1, splits=SPLITS), fetching(), bench.spark)


def test_json_targets_go_by_way_of_staging(bench: Bench, fetching: Any) -> None:
    def texts(split: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"id": [split["from"]], "v": ['{"a": 1}']})

    bench.run(f"CREATE SCHEMA {bench.schema}")
    bench.run("CREATE TABLE {t} (id bigint, v jsonb)")
    counts = bench.joined(key=()).write_direct(plan(1, splits=SPLITS), fetching(texts), bench.spark)
    assert counts == WriteCounts(4, 4, 0, 0)
    assert bench.run("SELECT sum((v->>'a')::int) FROM {t}") == [(4,)]


def test_a_source_that_fails_in_passing_is_asked_again(bench: Bench, fetching: Any, tmp_path: Path) -> None:
    flag = str(tmp_path / "failed")

    def failing(split: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        from pathlib import Path

        first, second = numbers(split)
        yield first
        if not Path(flag).exists():
            Path(flag).touch()
            msg = "the source stumbled"
            raise TransientError(msg)
        yield second

    assert bench.joined(key=()).write_direct(
        plan(1, splits=SPLITS[:1]), fetching(failing, SPLITS[:1]), bench.spark
    ) == WriteCounts(100, 100, 0, 0)
    assert Path(flag).exists()
    assert len(bench.rows()) == 100

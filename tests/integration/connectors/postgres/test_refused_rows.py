"""Rows that the table refuses: each is found, stored with its reason, and costs few merges."""

from __future__ import annotations

import json
import math
from typing import Any

import pyarrow as pa
import pytest
from helpers.postgres_epochs import SCHEMA, STAGED, Bench, plan

from headrace.connectors.postgres.sink import PostgresSink
from headrace.connectors.postgres_table.merge import StagedMerge
from headrace.pipeline.errors import DataError, SchemaError
from headrace.pipeline.protocol.epochs import CommitRecord, WriteCounts

ROWS = 1_000
PATHS = pytest.mark.parametrize("estimate", [0, pytest.param(STAGED, marks=pytest.mark.slow)])


@pytest.fixture
def merges(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each merge of this test."""
    result: list[int] = []
    run = StagedMerge.run

    def counted(self: StagedMerge, *arguments: Any, **options: Any) -> WriteCounts:
        result.append(1)
        return run(self, *arguments, **options)

    monkeypatch.setattr(StagedMerge, "run", counted)
    return result


def create(bench: Bench, columns: str) -> None:
    bench.run(f"CREATE SCHEMA {bench.schema}")
    bench.run(f"CREATE TABLE {{t}} ({columns})")


def joined(bench: Bench, **options: Any) -> PostgresSink:
    more: dict[str, Any] = {"on_error": "dead_letter"} | options
    return bench.joined(**more)


def refused(bench: Bench) -> list[tuple[Any, ...]]:
    """Epoch, number, operation, row and offset of each refused row."""
    rows = bench.run(
        f'SELECT epoch, number, operation, "row", "position" FROM {bench.schema}.target_errors'
        " WHERE node = 'out' ORDER BY epoch, number"
    )
    return [(epoch, at, op, json.loads(row), place["off"]) for epoch, at, op, row, place in rows]


def reasons(bench: Bench) -> str:
    return "\n".join(
        row[0] for row in bench.run(f"SELECT reason FROM {bench.schema}.target_errors ORDER BY number")
    )


@PATHS
@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("places", [(0,), (617,), (ROWS - 1,), (3, 4, 900)], ids=str)
def test_bad_rows_of_a_thousand(
    bench: Bench, merges: list[int], estimate: int | None, keyed: bool, places: tuple[int, ...]
) -> None:
    create(bench, f"id bigint {'PRIMARY KEY' if keyed else ''}, v text CHECK (v <> 'bad')")
    key = ("id",) if keyed else ()
    sink = joined(bench, key=key)
    rows = [("i", at, "bad" if at in places else f"v{at}") for at in range(ROWS)]
    counts = sink.write(plan(1), bench.frame(rows, key=key, estimate=estimate))
    good = ROWS - len(places)
    assert counts == WriteCounts(good, good, 0, 0)
    assert sorted(bench.rows()) == [(at, v) for _, at, v in rows if v != "bad"]
    assert refused(bench) == [
        (1, number, "i", {"id": at, "v": "bad"}, at) for number, at in enumerate(places, 1)
    ]
    assert reasons(bench).count("violates check constraint") == len(places)
    assert sink.count_refused_rows() == len(places)
    # The whole epoch once, and for each row a search, the row by itself, and all rows after it.
    assert len(merges) <= 1 + len(places) * (math.ceil(math.log2(ROWS)) + 2)


def test_a_refused_row_fails_the_epoch_by_default(bench: Bench, merges: list[int]) -> None:
    create(bench, "id bigint PRIMARY KEY, v text CHECK (v <> 'bad')")
    sink = bench.joined()
    with pytest.raises(DataError, match="violates check constraint"):
        sink.write(plan(1), bench.frame([("i", at, "bad" if at == 7 else "v") for at in range(ROWS)]))
    assert bench.rows() == []
    assert len(merges) == 1


@PATHS
def test_rows_that_cannot_be_sent_are_refused_too(bench: Bench, estimate: int | None) -> None:
    """A character NUL and a null in the key never reach the server."""
    sink = joined(bench)
    rows = [("i", 1, "a"), ("i", 2, "b\0"), ("u", None, "c"), ("i", 3, "d"), ("d", 1, None), ("d", None, "x")]
    counts = sink.write(plan(1), bench.frame(rows, estimate=estimate))
    assert bench.rows() == [(3, "d")]
    assert counts == WriteCounts(2, 1, 0, 0)
    assert refused(bench) == [
        (1, 1, "i", {"id": 2, "v": "b\0"}, 1),
        (1, 2, "u", {"id": None, "v": "c"}, 2),
        (1, 3, "d", {"id": None, "v": "x"}, 5),
    ]
    assert "the character NUL" in reasons(bench)
    assert reasons(bench).count("key column 'id' is null") == 2


def test_an_earlier_row_of_the_key_stays_and_the_order_counts(bench: Bench) -> None:
    """The refused row is left out; the rows before and after it have their effect."""
    create(bench, "id bigint PRIMARY KEY, v text CHECK (v <> 'bad')")
    sink = joined(bench)
    rows = [
        ("i", 1, "first"), ("u", 1, "bad"),
        ("i", 2, "first"), ("d", 2, None), ("i", 2, "bad"),
        ("i", 3, "first"), ("u", 3, "last"),
    ]  # fmt: skip
    sink.write(plan(1), bench.frame(rows))
    assert bench.rows() == [(1, "first"), (3, "last")]
    assert [place for *_, place in refused(bench)] == [1, 4]


@pytest.mark.parametrize("deferred", ["", "DEFERRABLE INITIALLY DEFERRED"], ids=["immediate", "deferred"])
def test_of_two_rows_with_one_value_the_second_is_refused(bench: Bench, deferred: str) -> None:
    create(bench, f"id bigint PRIMARY KEY, v text, CONSTRAINT one_v UNIQUE (v) {deferred}")
    sink = joined(bench)
    sink.write(plan(1), bench.frame([("i", 1, "same"), ("i", 2, "other"), ("i", 3, "same"), ("i", 4, "x")]))
    assert bench.rows() == [(1, "same"), (2, "other"), (4, "x")]
    assert [(row["id"], place) for *_, row, place in refused(bench)] == [(3, 2)]
    assert "one_v" in reasons(bench)


def test_values_out_of_range_have_their_own_reasons(bench: Bench) -> None:
    create(bench, "id smallint PRIMARY KEY, v varchar(3)")
    sink = joined(bench)
    sink.write(plan(1), bench.frame([("i", 70_000, "a"), ("i", 1, "long"), ("i", 2, "abc")]))
    assert bench.rows() == [(2, "abc")]
    first, second = reasons(bench).splitlines()
    assert "smallint out of range" in first
    assert "value too long" in second


def test_nested_values_are_objects_in_the_stored_row(bench: Bench) -> None:
    schema = pa.schema([("id", pa.int64()), ("v", pa.list_(pa.struct([("x", pa.int32())])))])
    create(bench, "id bigint PRIMARY KEY CHECK (id < 5), v jsonb")
    sink = joined(bench, schema=schema)
    sink.write(plan(1), bench.frame([("i", 1, [{"x": 1}]), ("i", 9, [{"x": 2}])], schema=schema))
    assert [row for _, _, _, row, _ in refused(bench)] == [{"id": 9, "v": [{"x": 2}]}]


def test_an_epoch_that_is_refused_whole_fails(bench: Bench) -> None:
    create(bench, "id bigint PRIMARY KEY, v text CHECK (v <> 'bad')")
    sink = joined(bench)
    rows = [("i", at, "bad" if at % 5 == 0 else "v") for at in range(100)]
    with pytest.raises(DataError, match=r"`max_error_rate` 0\.1 allows fewer") as failed:
        sink.write(plan(1), bench.frame(rows))
    assert "violates check constraint" in failed.value.message
    assert bench.rows() == refused(bench) == []
    sink = joined(bench, generation=2, max_error_rate=0.2)
    sink.write(plan(1), bench.frame(rows))
    assert len(bench.rows()) == 80
    assert len(refused(bench)) == 20


def test_an_epoch_that_is_written_again_replaces_its_refused_rows(bench: Bench) -> None:
    create(bench, "id bigint PRIMARY KEY, v text CHECK (v <> 'bad')")
    sink = joined(bench)
    rows = bench.frame([("i", 1, "bad"), ("i", 2, "good")])
    sink.write(plan(1), rows)
    sink.write(plan(1), rows)
    assert len(refused(bench)) == 1
    again = joined(bench, generation=2)
    again.register(CommitRecord.for_registration(again._context.key, 2, 0, {}, "hash", None))
    again.write(plan(1), rows)
    assert len(refused(bench)) == 1
    again.truncate()
    assert bench.rows() == refused(bench) == []


def test_a_table_of_errors_with_other_columns_is_refused(bench: Bench) -> None:
    create(bench, "id bigint PRIMARY KEY, v text")
    bench.run(f"CREATE TABLE {bench.schema}.target_errors (reason text)")
    sink = bench.sink(on_error="dead_letter")
    for check in (sink.validate_target, lambda: sink.prepare(SCHEMA, 1)):
        with pytest.raises(SchemaError, match="has no column `pipeline`") as failed:
            check()
        assert failed.value.keys == ("errors_table",)

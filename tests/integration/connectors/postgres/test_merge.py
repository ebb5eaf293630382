"""The effect of an epoch on the table: the same through the driver and through staging."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from helpers.pipeline_world import postgres_database
from helpers.postgres_epochs import STAGED, Bench, plan

from headrace.connectors.postgres import load
from headrace.pipeline.errors import GuaranteeError
from headrace.pipeline.protocol.epochs import WriteCounts
from headrace.services import Services


@pytest.fixture(autouse=True)
def _epochs_may_be_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let COPY try epochs of few rows too. It must not change the result."""
    monkeypatch.setattr(load, "_NEW_KEYS", 1)


PATHS = pytest.mark.parametrize("estimate", [0, STAGED, None], ids=["driver", "staged", "unknown"])


@pytest.fixture(scope="module")
def pg(services: Services) -> Iterator[str]:
    """Yield a database for all tests here: each has a schema of its own."""
    with postgres_database(services) as conninfo:
        yield conninfo


@PATHS
def test_last_one_wins_whatever_it_is(bench: Bench, estimate: int | None) -> None:
    sink = bench.joined()
    sink.write(plan(1), bench.frame([("i", 1, "old"), ("i", 2, "old"), ("i", 3, "old")]))
    rows = [
        ("u", 1, "first"), ("u", 1, "last"),  # updated twice
        ("d", 2, "x"), ("i", 2, "back"),  # gone and back
        ("u", 3, "x"), ("d", 3, "x"),  # updated, then gone
        ("i", 4, "new"), ("d", 4, "x"),  # came and went
        ("u", 5, "unseen"),  # an update of an unknown key inserts
        ("d", 6, "x"),  # a delete of an unknown key does nothing
    ]  # fmt: skip
    counts = sink.write(plan(2), bench.frame(rows, estimate=estimate))
    assert bench.rows() == [(1, "last"), (2, "back"), (5, "unseen")]
    assert counts == WriteCounts(rows=6, inserted=1, updated=2, deleted=1)


@PATHS
def test_counts_add_up_to_the_table(bench: Bench, estimate: int | None) -> None:
    bench.run("CREATE SCHEMA {s}".replace("{s}", bench.schema))
    bench.run("CREATE TABLE {t} (id bigint PRIMARY KEY, v text)")
    bench.run("INSERT INTO {t} VALUES (100, 'there before'), (1, 'there before')")
    sink = bench.joined()
    for number in range(1, 4):
        rows = [("d" if (at + number) % 3 == 0 else "u", at % 7, f"{number}-{at}") for at in range(20)]
        sink.write(plan(number), bench.frame(rows, estimate=estimate))
    result = sink.read_row_count()
    assert result is not None
    record, rows_there = result
    assert record is not None
    assert record.baseline == 2
    assert record.totals.inserted is not None
    assert record.totals.deleted is not None
    assert rows_there == record.baseline + record.totals.inserted - record.totals.deleted == len(bench.rows())


@PATHS
def test_first_one_wins_with_on_conflict_nothing(bench: Bench, estimate: int | None) -> None:
    sink = bench.joined(on_conflict="nothing")
    sink.write(plan(1), bench.frame([("i", 1, "kept")]))
    rows = [
        ("i", 1, "ignored"),
        ("i", 2, "first"),
        ("i", 2, "second"),
        ("i", 3, "a"),
        ("d", 3, "a"),
        ("i", 3, "b"),
        ("i", 3, "c"),
    ]
    counts = sink.write(plan(2), bench.frame(rows, estimate=estimate))
    assert bench.rows() == [(1, "kept"), (2, "first"), (3, "b")]
    assert counts == WriteCounts(rows=3, inserted=2, updated=0, deleted=0)


@pytest.mark.parametrize("cuts", [[8], [1] * 8, [3, 5], [5, 3]], ids=str)
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [(1, "8"), (2, "1")]),
        ({"on_conflict": "nothing"}, [(1, "5"), (2, "3")]),
        ({"update_where": {"v": ">="}}, [(1, "9"), (2, "3")]),
        ({"update_where": {"v": "<"}}, [(1, "5"), (2, "1")]),
    ],
    ids=["update", "nothing", "ge", "lt"],
)
def test_the_result_does_not_depend_on_where_epochs_are_cut(
    bench: Bench, cuts: list[int], options: dict[str, Any], expected: list[tuple[int, str]]
) -> None:
    rows = [
        ("i", 2, "0"),
        ("i", 1, "5"),
        ("u", 1, "9"),
        ("u", 1, "7"),
        ("d", 2, ""),
        ("i", 2, "3"),
        ("u", 2, "1"),
        ("u", 1, "8"),
    ]
    sink = bench.joined(**options)
    at = 0
    for number, size in enumerate(cuts, start=1):
        sink.write(plan(number), bench.frame(rows[at : at + size]))
        at += size
    assert bench.rows() == expected


@PATHS
def test_update_where_compares_with_the_row_that_is_there(bench: Bench, estimate: int | None) -> None:
    sink = bench.joined(update_where={"v": ">"})
    sink.write(plan(1), bench.frame([("i", 1, "5"), ("i", 2, "5")]))
    counts = sink.write(
        plan(2), bench.frame([("u", 1, "8"), ("u", 1, "6"), ("u", 2, "4"), ("i", 3, "1")], estimate=estimate)
    )
    assert bench.rows() == [(1, "8"), (2, "5"), (3, "1")]
    assert counts == WriteCounts(rows=3, inserted=1, updated=1, deleted=0)


@PATHS
def test_all_columns_key_does_nothing_on_conflict(bench: Bench, estimate: int | None) -> None:
    sink = bench.joined(key=("id", "v"))
    sink.write(plan(1), bench.frame([("i", 1, "a")], key=("id", "v")))
    counts = sink.write(
        plan(2),
        bench.frame([("i", 1, "a"), ("i", 1, "b"), ("u", 1, "b")], key=("id", "v"), estimate=estimate),
    )
    assert bench.rows() == [(1, "a"), (1, "b")]
    assert counts == WriteCounts(rows=2, inserted=1, updated=0, deleted=0)


@PATHS
def test_without_a_key_rows_are_appended(bench: Bench, estimate: int | None) -> None:
    sink = bench.joined(key=())
    counts = sink.write(
        plan(1), bench.frame([("i", 1, "a"), ("u", 1, "b"), ("i", 1, "a")], key=(), estimate=estimate)
    )
    assert bench.rows() == [(1, "a"), (1, "a"), (1, "b")]
    assert counts == WriteCounts(rows=3, inserted=3, updated=0, deleted=0)


@PATHS
def test_without_a_key_a_delete_is_refused_and_nothing_lands(bench: Bench, estimate: int | None) -> None:
    sink = bench.joined(key=())
    with pytest.raises(GuaranteeError, match="node 'out': a delete arrived"):
        sink.write(plan(1), bench.frame([("i", 1, "a"), ("d", 1, "a")], key=(), estimate=estimate))
    assert bench.rows() == []
    record = sink.record()
    assert record is not None
    assert record.epoch == 0


@PATHS
def test_an_empty_epoch_moves_the_record_alone(bench: Bench, estimate: int | None) -> None:
    sink = bench.joined()
    assert sink.write(plan(1), bench.frame([], estimate=estimate)) == WriteCounts()
    record = sink.record()
    assert record is not None
    assert (record.epoch, record.end) == (1, {"src": 1})


def test_partitioned_targets_count_like_others(bench: Bench) -> None:
    bench.run(f"CREATE SCHEMA {bench.schema}")
    bench.run("CREATE TABLE {t} (id bigint PRIMARY KEY, v text) PARTITION BY HASH (id)")
    for part in range(2):
        bench.run(
            f"CREATE TABLE {bench.schema}.part{part} PARTITION OF {{t}} FOR VALUES WITH (MODULUS 2,"
            f" REMAINDER {part})"
        )
    sink = bench.joined()
    assert sink.write(plan(1), bench.frame([("i", at, "a") for at in range(4)])) == WriteCounts(4, 4, 0, 0)
    assert sink.write(plan(2), bench.frame([("u", 1, "b"), ("d", 2, ""), ("i", 9, "c")])) == WriteCounts(
        3, 1, 1, 1
    )


def test_quoting_holds_for_any_name(bench: Bench) -> None:
    import pyarrow as pa

    schema = pa.schema([('we "ird` id', pa.int64()), ("select; drop", pa.string())])
    key = ('we "ird` id',)
    sink = bench.joined(schema, key=key)
    for number, estimate in ((1, 0), (2, STAGED)):
        sink.write(plan(number), bench.frame([("i", number, "x")], schema=schema, key=key, estimate=estimate))
    assert bench.rows() == [(1, "x"), (2, "x")]

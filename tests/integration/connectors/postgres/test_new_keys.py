"""Epochs of new keys, written by COPY into the target itself: a key that is there costs only time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from helpers.pipeline_world import postgres_database
from helpers.postgres_epochs import Bench, plan

from headrace.connectors.postgres import load
from headrace.pipeline.errors import DataError
from headrace.pipeline.protocol.epochs import WriteCounts
from headrace.services import Services


@pytest.fixture(scope="module")
def pg(services: Services) -> Iterator[str]:
    """Yield a database for all tests here: each has a schema of its own."""
    with postgres_database(services) as conninfo:
        yield conninfo


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How epochs were written, or were tried to: by `copy` or `merge`."""
    result: list[str] = []
    copy, merge = load._copy, load.LoadContext.merge

    def note_copy(*arguments: Any) -> WriteCounts:
        result.append("copy")
        return copy(*arguments)

    def note_merge(*arguments: Any, **options: Any) -> WriteCounts:
        result.append("merge")
        return merge(*arguments, **options)

    monkeypatch.setattr(load, "_NEW_KEYS", 2)
    monkeypatch.setattr(load, "_copy", note_copy)
    monkeypatch.setattr(load.LoadContext, "merge", note_merge)
    return result


def new_rows(epoch: int) -> list[tuple[str, int, str]]:
    return [("u", 10 * epoch + at, f"{epoch}-{at}") for at in range(3)]


def test_a_key_that_is_there_is_updated_and_the_next_epochs_are_merged(bench: Bench, ways: list[str]) -> None:
    sink = bench.joined()
    assert sink.write(plan(1), bench.frame(new_rows(1))) == WriteCounts(3, 3, 0, 0)
    rows = [*new_rows(2), ("u", 12, "again")]
    assert sink.write(plan(2), bench.frame(rows)) == WriteCounts(4, 3, 1, 0)
    assert ways == ["copy", "copy", "merge"]
    ways.clear()
    for epoch in range(3, 6):
        sink.write(plan(epoch), bench.frame(new_rows(epoch)))
    assert ways == ["merge", "copy", "copy"]
    expected = {key: value for epoch in range(1, 6) for _, key, value in new_rows(epoch)} | {12: "again"}
    assert bench.rows() == sorted(expected.items(), key=repr)
    result = sink.read_row_count()
    assert result is not None
    assert result[0] is not None
    assert result[1] == result[0].totals.inserted == 15


def test_each_failure_doubles_the_pause() -> None:
    new_keys, pauses = load.NewKeyLoad(), []
    for _ in range(8):
        new_keys.note_failure()
        pauses.append(new_keys._left)
    assert pauses == [1, 2, 4, 8, 16, 32, 64, 64]
    new_keys.note_success()
    new_keys.note_failure()
    assert new_keys._left == 1


@pytest.mark.parametrize(
    "rows",
    [
        [("i", 1, "a"), ("d", 2, "b")],
        [("i", 1, "a")],
        [("i", 1, "a"), ("u", 1, "b")],
        [("i", 1, "a"), ("i", 2, "b"), ("d", 2, "b")],
    ],
    ids=["few upserts", "few", "few keys", "few keys that stay"],
)
def test_other_epochs_are_merged_at_once(bench: Bench, ways: list[str], rows: list[Any]) -> None:
    sink = bench.joined()
    sink.write(plan(1), bench.frame(rows))
    assert ways == ["merge"]


def test_only_the_last_row_of_a_key_is_copied(bench: Bench, ways: list[str]) -> None:
    sink = bench.joined()
    rows = [("i", 1, "old"), ("i", 2, "only"), ("u", 1, "newest")]
    assert sink.write(plan(1), bench.frame(rows)) == WriteCounts(2, 2, 0, 0)
    assert ways == ["copy"]
    assert bench.rows() == [(1, "newest"), (2, "only")]


def test_deletes_of_other_keys_are_staged_and_upserts_are_copied(bench: Bench, ways: list[str]) -> None:
    sink = bench.joined()
    sink.write(plan(1), bench.frame(new_rows(1)))
    rows = [
        ("d", 11, None),
        ("i", 20, "a"),
        ("i", 21, "old"),
        ("d", 22, None),
        ("i", 12, "x"),
        ("d", 12, None),
    ]
    rows += [("d", 21, None), ("i", 21, "newest"), ("d", 99, None)]
    assert sink.write(plan(2), bench.frame(rows)) == WriteCounts(6, 2, 0, 2)
    assert ways == ["copy", "copy"]
    assert bench.rows() == [(10, "1-0"), (20, "a"), (21, "newest")]


def test_deletes_before_a_key_that_is_there_are_rolled_back_and_merged(bench: Bench, ways: list[str]) -> None:
    sink = bench.joined()
    sink.write(plan(1), bench.frame(new_rows(1)))
    rows = [("d", 11, None), ("i", 20, "a"), ("i", 21, "b"), ("u", 10, "changed")]
    assert sink.write(plan(2), bench.frame(rows)) == WriteCounts(4, 2, 1, 1)
    assert ways == ["copy", "copy", "merge"]
    assert bench.rows() == [(10, "changed"), (12, "1-2"), (20, "a"), (21, "b")]


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE {t} ENABLE ROW LEVEL SECURITY",
        "ALTER TABLE {t} ADD FOREIGN KEY (v) REFERENCES {t} (v)",
    ],
    ids=["row security", "foreign key"],
)
def test_a_table_with_triggers_or_row_security_is_merged(
    bench: Bench, ways: list[str], statement: str
) -> None:
    bench.run("CREATE SCHEMA {s}".replace("{s}", bench.schema))
    bench.run("CREATE TABLE {t} (id bigint PRIMARY KEY, v text UNIQUE)")
    bench.run(statement)
    bench.joined().write(plan(1), bench.frame(new_rows(1)))
    assert ways == ["merge"]


def test_rows_without_a_key_are_copied(bench: Bench, ways: list[str]) -> None:
    sink = bench.joined(key=())
    assert sink.write(plan(1), bench.frame([("i", 1, "a")], key=())) == WriteCounts(1, 1, 0, 0)
    assert ways == ["copy"]
    assert bench.rows() == [(1, "a")]


def test_another_unique_column_is_an_error_as_before(bench: Bench, ways: list[str]) -> None:
    bench.run("CREATE SCHEMA {s}".replace("{s}", bench.schema))
    bench.run("CREATE TABLE {t} (id bigint PRIMARY KEY, v text UNIQUE)")
    sink = bench.joined()
    with pytest.raises(DataError, match="target_v_key"):
        sink.write(plan(1), bench.frame([("i", 1, "same"), ("i", 2, "same")]))
    assert ways == ["copy", "merge"]
    assert not bench.rows()
    record = sink.record()
    assert record is not None
    assert record.epoch == 0

"""What every exactly-once sink must do, whatever it writes to."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path

import pytest
from contract_kit import KEYED, TYPES, VALUES, SinkMaker, frame, plan, position, sink_maker
from pyspark.sql import SparkSession

from headrace.pipeline.errors import DataError, FencedError, HeadraceError
from headrace.pipeline.records import Counts, Record

pytestmark = [pytest.mark.services, pytest.mark.spark]


@pytest.fixture(params=["postgres", "postgres-staged", "delta", "iceberg"])
def maker(request: pytest.FixtureRequest, spark: SparkSession, pg: str, tmp_path: Path) -> SinkMaker:
    return sink_maker(request.param, spark, pg, tmp_path)


def people(*pairs: tuple[int, str | None]) -> list[dict[str, object]]:
    return [{"id": key, "name": name} for key, name in pairs]


def test_a_new_target_has_no_record_and_joins_with_its_rows_as_baseline(maker: SinkMaker) -> None:
    sink = maker.open(KEYED)
    sink.prepare(KEYED, 1)
    assert sink.record() is None
    sink.join(Record.joined(maker.key, 1, 0, position(0), "feedfacecafebeef", None))
    record = sink.record()
    assert record is not None
    assert (record.epoch, record.generation, record.baseline, dict(record.end)) == (0, 1, 0, position(0))
    sink.close()


def test_the_last_of_a_key_wins_in_an_epoch_and_over_epochs(maker: SinkMaker) -> None:
    sink = maker.joined(KEYED)
    first = sink.write(plan(1), frame(maker.spark, KEYED, people((1, "a"), (2, "b"), (1, "c"), (3, "d")), "iiui"))
    assert first == Counts(3, 3, 0, 0)
    second = sink.write(
        plan(2), frame(maker.spark, KEYED, people((1, None), (2, "e"), (4, "f"), (4, None), (5, "g"), (5, None), (5, "h")), "duididi")
    )
    assert sorted(maker.rows(["id", "name"])) == [(2, "e"), (3, "d"), (5, "h")]
    assert (second.inserted, second.updated, second.deleted) == (1, 1, 1)
    record = sink.record()
    assert record is not None
    assert (record.epoch, dict(record.start), dict(record.end)) == (2, position(1), position(2))
    assert sink.count() is not None
    assert (record.baseline or 0) + (record.totals.inserted or 0) - (record.totals.deleted or 0) == (sink.count() or (None, -1))[1]
    sink.close()


def test_an_epoch_that_is_held_is_not_written_again(maker: SinkMaker) -> None:
    sink = maker.joined(KEYED)
    sink.write(plan(1), frame(maker.spark, KEYED, people((1, "a")), "i"))
    with suppress(HeadraceError):  # refused, or answered with what it holds
        sink.write(plan(1), frame(maker.spark, KEYED, people((1, "other"), (2, "b")), "ii"))
    assert maker.rows(["id", "name"]) == [(1, "a")]
    sink.close()


def test_an_epoch_that_does_not_follow_is_refused(maker: SinkMaker) -> None:
    sink = maker.joined(KEYED)
    with pytest.raises(HeadraceError):
        sink.write(plan(2), frame(maker.spark, KEYED, people((1, "a")), "i"))
    assert maker.rows(["id", "name"]) == []
    sink.close()


def test_an_empty_epoch_moves_the_record(maker: SinkMaker) -> None:
    sink = maker.joined(KEYED)
    assert sink.write(plan(1), frame(maker.spark, KEYED, [], "")) == Counts(0, 0, 0, 0)
    record = sink.record()
    assert record is not None
    assert record.epoch == 1
    sink.close()


def test_an_older_generation_cannot_write(maker: SinkMaker) -> None:
    zombie = maker.joined(KEYED)
    successor = maker.open(KEYED)
    successor.prepare(KEYED, 2)
    if type(successor).capabilities.fences:
        with pytest.raises(FencedError):
            zombie.write(plan(1), frame(maker.spark, KEYED, people((1, "zombie")), "i"))
    successor.write(plan(1), frame(maker.spark, KEYED, people((1, "a")), "i"))
    with suppress(HeadraceError):
        zombie.write(plan(1), frame(maker.spark, KEYED, people((1, "zombie")), "u"))
    assert maker.rows(["id", "name"]) == [(1, "a")]
    zombie.close()
    successor.close()


def test_a_record_of_another_ledger_is_found(maker: SinkMaker) -> None:
    maker.joined(KEYED).close()
    from dataclasses import replace

    other = replace(maker, key=replace(maker.key, pipeline="0" * 32))
    sink = other.open(KEYED)
    sink.prepare(KEYED, 1)
    found = sink.foreign_record()
    assert found is not None
    assert found.key.pipeline == maker.key.pipeline
    sink.close()


def test_values_come_back_as_they_went_in(maker: SinkMaker) -> None:
    sink = maker.joined(TYPES)
    sink.write(plan(1), frame(maker.spark, TYPES, VALUES, "iiii"))
    found = {row[0]: dict(zip(TYPES.names, row, strict=True)) for row in maker.rows(TYPES.names)}
    assert found == {row["id"]: row for row in VALUES}
    sink.close()


def test_not_a_number_comes_back(maker: SinkMaker) -> None:
    schema = TYPES.empty_table().select(["id", "single", "double"]).schema
    sink = maker.joined(schema)
    sink.write(plan(1), frame(maker.spark, schema, [{"id": 1, "single": math.nan, "double": math.nan}], "i"))
    (row,) = maker.rows(schema.names)
    assert math.isnan(row[1])
    assert math.isnan(row[2])
    sink.close()


def test_a_null_in_the_key_is_an_error_that_names_it(maker: SinkMaker) -> None:
    sink = maker.joined(KEYED)
    with pytest.raises(DataError, match="id"):
        sink.write(plan(1), frame(maker.spark, KEYED, [{"id": None, "name": "a"}], "i"))
    assert maker.rows(["id", "name"]) == []
    sink.close()


def test_rows_without_a_key_are_appended(maker: SinkMaker) -> None:
    sink = maker.joined(KEYED, ())
    sink.write(plan(1), frame(maker.spark, KEYED, people((1, "a"), (1, "a")), "ii", ()))
    sink.write(plan(2), frame(maker.spark, KEYED, people((1, "a")), "u", ()))
    assert maker.rows(["id", "name"]) == [(1, "a")] * 3
    with pytest.raises(HeadraceError, match="key"):
        sink.write(plan(3), frame(maker.spark, KEYED, people((1, "a")), "d", ()))
    assert len(maker.rows(["id"])) == 3
    sink.close()

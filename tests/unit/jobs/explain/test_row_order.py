"""Which row of a key wins: allowed settings, and the assumptions that `headrace explain` prints.

Without servers and without Spark.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from headrace.jobs.explain.model import Order
from headrace.jobs.explain.order import LAST, order_of
from headrace.jobs.planning.column_checks import version_problems
from headrace.pipeline.errors import PipelineFileError
from headrace.pipeline.file.loader import parse_pipeline
from headrace.pipeline.model.nodes import PipelineModel
from headrace.pipeline.types.int256 import INT256

FILE = """
name: p
sources:
  src:
    type: hybrid
    primary_key: id
    bounded_sources: [{{source_type: clickhouse, table_name: d.h}}]
    unbounded_source: {{source_type: kafka, topic: news, schema: {{id: int64, at: timestamp, v: string}}}}
    {cut}
sinks:
  out: {sink}
{more}
"""
OFFSETS = "offset_table: {}"
POSTGRES = "{{type: postgres, from: src, table: t{}}}"
ONE_PARTITION = "assumed: one partition of `news` has all messages of a key (id); the file cannot show it"
BY_OFFSET = "assumed: the sorting key of `src` has the history rows of a key in the order of their offsets"
HISTORY_PARTITION = "guaranteed: a partition of history is refused after a later one"
WINDOWS = "partitions: {column: at, every: day, start: 2024-01-01, end: 2024-01-02, history_end: 2024-01-02}"


@pytest.mark.parametrize(
    ("sink", "hint", "message"),
    [
        (
            POSTGRES.format(", version_column: at, primary_key: at"),
            "not in the key",
            "`at` is part of the key",
        ),
        (
            POSTGRES.format(", version_column: at, on_conflict: nothing"),
            "one of the two",
            "contradicts `on_conflict: nothing`",
        ),
        (
            POSTGRES.format(", version_column: at, update_where: {at: '>'}"),
            "one of the two",
            "and `update_where` both decide",
        ),
        ("{type: print, from: src, version_column: at}", "", "version_column"),
    ],
)
def test_a_version_that_decides_nothing_is_refused(sink: str, hint: str, message: str) -> None:
    with pytest.raises(PipelineFileError, match=message) as caught:
        parse_pipeline(FILE.format(cut=OFFSETS, sink=sink, more=""))
    assert hint in str(caught.value)


def test_a_version_needs_a_key() -> None:
    text = FILE.format(cut=OFFSETS, sink=POSTGRES.format(", version_column: at"), more="").replace(
        "primary_key: id", ""
    )
    with pytest.raises(
        PipelineFileError, match="`version_column` needs a key: without one every row is kept"
    ):
        parse_pipeline(text)


@pytest.mark.parametrize(
    "kind",
    [
        pa.int8(),
        pa.uint64(),
        pa.decimal128(38, 9),
        pa.date32(),
        pa.timestamp("us"),
        pa.timestamp("us", "UTC"),
    ],
)
def test_versions_have_one_order_at_every_sink(kind: pa.DataType) -> None:
    assert not list(version_problems(VERSIONED, "out", pa.schema([("id", pa.int64()), ("at", kind)])))


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.float32(), pa.float64(), pa.bool_(), pa.binary(), INT256, pa.list_(pa.int64())]
)
def test_other_versions_are_refused_at_their_place(kind: pa.DataType) -> None:
    (problem,) = version_problems(VERSIONED, "out", pa.schema([("id", pa.int64()), ("at", kind)]))
    assert (
        "which is not a whole number, a decimal of up to 38 digits, a date or a timestamp" in problem.message
    )
    VERSIONED.locate(problem)
    assert problem.place is not None
    assert problem.place == VERSIONED.place_of("out", "version_column")
    assert problem.place.line


def test_a_version_that_the_rows_lack_is_refused() -> None:
    (problem,) = version_problems(VERSIONED, "out", pa.schema([("id", pa.int64())]))
    assert problem.message == "`version_column` names `at`, and the rows have id"


def order(model: PipelineModel, spread: str | None) -> Order | None:
    return order_of(model, "out", lambda *_: spread, lambda *_: ("id",))


VERSIONED = parse_pipeline(FILE.format(cut=OFFSETS, sink=POSTGRES.format(", version_column: at"), more=""))


@pytest.mark.parametrize(
    ("cut", "spread", "more", "notes"),
    [
        (OFFSETS, "", "", ("guaranteed: ", ONE_PARTITION)),
        (OFFSETS, "sorted by at", "", (BY_OFFSET, ONE_PARTITION)),
        (OFFSETS, None, "", ("unchecked: ", ONE_PARTITION)),
        (
            "handoff_lag: 1h",
            "sorted by at",
            "",
            ("guaranteed: history rows of `src` go in the order of its splits", ONE_PARTITION),
        ),
        (OFFSETS, "", WINDOWS, (HISTORY_PARTITION, "guaranteed: ", ONE_PARTITION)),
        (OFFSETS, "", "job_mode: true", ("guaranteed: ",)),
    ],
)
def test_what_the_last_row_rests_on(cut: str, spread: str | None, more: str, notes: Sequence[str]) -> None:
    model = parse_pipeline(FILE.format(cut=cut, sink=POSTGRES.format(""), more=more)).model
    result = order(model, spread)
    assert result
    assert (result.wins, result.guaranteed) == (LAST, all(note.startswith("guaranteed") for note in notes))
    assert len(result.notes) == len(notes)
    assert all(note.startswith(wanted) for note, wanted in zip(result.notes, notes, strict=True)), (
        result.notes
    )


def test_a_version_rests_on_nothing() -> None:
    result = order(VERSIONED.model, None)
    assert result
    assert (result.wins, result.guaranteed) == (
        f"the row with the highest `at`, and of equal ones {LAST}",
        True,
    )


def test_there_is_no_order_where_every_row_is_kept() -> None:
    text = FILE.format(cut=OFFSETS, sink=POSTGRES.format(""), more="").replace("primary_key: id", "")
    assert order(parse_pipeline(text).model, "") is None

"""JSON text of Arrow columns: of parts of arrays, and what is refused. tests/spark compares it with Spark's."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from helpers.typed_values import ODD_TEXTS, types, values
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.connectors.json_arrow import SparkTextError, is_supported, write_objects


@settings(max_examples=300)
@given(data=st.data(), kind=types)
def test_a_part_of_an_array_has_the_text_of_its_rows(data: st.DataObject, kind: Any) -> None:
    rows = data.draw(st.lists(values(kind), max_size=8))
    column = pa.array(rows, kind)
    start = data.draw(st.integers(0, len(rows)))
    end = data.draw(st.integers(start, len(rows)))
    assert is_supported(kind)
    texts = [write_objects({"a": pa.array([row], kind)})[0].as_py() for row in rows]
    assert write_objects({"a": column}).to_pylist() == texts
    assert write_objects({"a": column.slice(start, end - start)}).to_pylist() == texts[start:end]
    order = data.draw(st.permutations(range(len(rows))))
    taken = column.take(pa.array(order, pa.int64()))
    assert write_objects({"a": taken}).to_pylist() == [texts[at] for at in order]


@given(texts=st.lists(st.sampled_from(ODD_TEXTS) | st.text(), min_size=1))
def test_a_json_parser_reads_every_text_and_name(texts: list[str]) -> None:
    (result,) = write_objects({text: pa.array([text]) for text in texts}).to_pylist()
    assert json.loads(result, strict=True) == {text: text for text in texts}


@pytest.mark.parametrize(
    "kind",
    [
        pa.float16(),
        pa.float32(),
        pa.float64(),
        pa.list_(pa.float64()),
        pa.struct([("x", pa.float64())]),
        pa.map_(pa.string(), pa.float32()),
        pa.map_(pa.float64(), pa.string()),
        pa.map_(pa.list_(pa.string()), pa.string()),
        pa.struct([]),
        pa.struct([("x", pa.int8()), ("x", pa.int8())]),
        pa.null(),
        pa.uint8(),
        pa.time64("us"),
        pa.duration("us"),
        pa.timestamp("ns"),
        pa.decimal256(40, 2),
        pa.large_string(),
        pa.binary(4),
        pa.dictionary(pa.int8(), pa.string()),
    ],
)
def test_types_without_a_proof_are_left_to_spark(kind: Any) -> None:
    assert not is_supported(kind)


@pytest.mark.parametrize(
    "column",
    [
        pa.array([0, 2_932_897], pa.int32()).cast(pa.date32()),
        pa.array([-719_163], pa.int32()).cast(pa.date32()),
        pa.array([253_402_300_800_000_000], pa.int64()).cast(pa.timestamp("us")),
        pa.array([-62_135_596_800_000_001], pa.int64()).cast(pa.timestamp("us", "UTC")),
        pa.array([b"a", b"\xff"]).view(pa.string()),
        pa.array([b"\xed\xa0\x80"]).view(pa.string()),
    ],
)
def test_values_with_another_text_in_spark_are_refused(column: Any) -> None:
    for nested in (column, pa.array([[value] for value in column], pa.list_(column.type))):
        with pytest.raises(SparkTextError):
            write_objects({"a": nested})

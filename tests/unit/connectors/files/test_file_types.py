"""The types of columns in files, as Spark returns them. No JVM is started."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark import SparkContext

from headrace.connectors.files.schema import plain

CASES = {
    pa.int8(): pa.int8(),
    pa.uint8(): pa.int16(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.decimal128(38, 9): pa.decimal128(38, 9),
    pa.decimal256(50, 5): pa.string(),
    pa.date64(): pa.date32(),
    pa.timestamp("ns", tz="Europe/Berlin"): pa.timestamp("us", tz="UTC"),
    pa.timestamp("s"): pa.timestamp("us"),
    pa.binary(16): pa.binary(),
    pa.large_string(): pa.string(),
    pa.time64("us"): pa.string(),
    pa.dictionary(pa.int32(), pa.large_string()): pa.string(),
    pa.large_list(pa.uint16()): pa.list_(pa.int32()),
    pa.map_(pa.string(), pa.uint8()): pa.map_(pa.string(), pa.int16()),
    pa.struct([("a`b", pa.list_(pa.time32("s")))]): pa.struct([("a`b", pa.list_(pa.string()))]),
}


@pytest.mark.parametrize(("kind", "expected"), CASES.items(), ids=str)
def test_types_of_files_need_no_session(
    kind: pa.DataType, expected: pa.DataType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)  # other tests of a process start Spark
    assert plain(kind).equals(expected)

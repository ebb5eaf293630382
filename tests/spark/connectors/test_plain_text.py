"""Text that Arrow converts has the value that Spark gives it. Other text is left to Spark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from helpers.depth import FULL
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from headrace.connectors.files import text_values
from headrace.connectors.files.arrow_rows import parse_folder
from headrace.connectors.files.schema import plain
from headrace.connectors.plain_text import UnprovenTextError, convert_text, is_supported
from headrace.connectors.row_errors import RowConditions
from headrace.pipeline.types.arrow import parse_type

DIGITS = st.text("0123456789", max_size=40)
SIGN = st.sampled_from(["", "-", "+", " ", "--"])
NUMBERS = st.builds(
    "".join, st.tuples(SIGN, DIGITS, st.sampled_from(["", ".", ".5", ".50", "e5", "E-3", "L", "f", " "]))
)
PARTS = st.builds("{:d}".format, st.integers(0, 62)) | st.builds("{:02d}".format, st.integers(0, 62))
DATES = st.builds(
    "{}-{}-{}{}".format,
    st.sampled_from(["2024", "1999", "0001", "1582", "99", "12024", "-2024", "1000", "9999"]),
    PARTS,
    PARTS,
    st.sampled_from(["", " ", "T", "Z"]),
)
TIMES = st.builds(
    "{}{}{}:{}:{}{}".format,
    DATES,
    st.sampled_from(["T", " ", "", "  "]),
    PARTS,
    PARTS,
    PARTS,
    st.sampled_from(["", ".1", ".123456", ".1234567", "Z", ".5Z", "+02:00", " UTC", "z"]),
)
ANY = st.text("0123456789abcdefxTFtrueNaInf-+.:eE /Z\t", max_size=12)
NAMED = st.sampled_from(
    ["true", "false", "TRUE", "t", "yes", "1", "0", "NaN", "Infinity", "-inf", "", "null", "0x1F", "1_000", "\N{FULLWIDTH DIGIT ONE}",
     "9223372036854775807", "9223372036854775808", "-9223372036854775808", "-0", "-0.0", "1e308", "1e309", "4.9e-324", "2.5e-324", "1e-400",
     "99999999999999999999999999999999999999", "0.1", "123456789.123456789", "0" * 30 + "7", "2024-02-30", "2024-02-29", "1582-10-10"]
)  # fmt: skip
KINDS = [
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float64", "boolean", "string", "date32",
    "decimal(10,2)", "decimal(38,10)", "decimal(3,3)", "timestamp",
]  # fmt: skip


def accept(text: str, kind: str) -> Any:
    """The value of a text, or None if Arrow leaves it to Spark."""
    declared = parse_type(kind)
    try:
        return convert_text(pa.array([text]), declared).cast(plain(declared))
    except UnprovenTextError:
        return None


def read_with_spark(spark: SparkSession, texts: list[str], kind: str) -> list[Any]:
    """The values that a file's text has in Spark. A text that does not fit fails the job."""
    frame = spark.createDataFrame([(at, text) for at, text in enumerate(texts)], "at int, raw string")
    value = text_values.value(RowConditions("src"), "raw", "v", kind, {"file": F.lit("f")})
    table = frame.select("at", value).orderBy("at").toArrow()
    return table["v"].to_pylist()


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=100 if FULL else 2)
@given(texts=st.lists(NUMBERS | DATES | TIMES | ANY | NAMED, min_size=100, max_size=300))
def test_the_same_value_as_in_spark(spark: SparkSession, kind: str, texts: list[str]) -> None:
    result = {text: value for text in texts if (value := accept(text, kind)) is not None}
    expected = read_with_spark(spark, list(result), kind)
    assert [(text, value[0].as_py()) for text, value in result.items()] == list(
        zip(result, expected, strict=True)
    )


@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        ("int64", ["0", "-1", "007", "9223372036854775807"]),
        ("uint64", ["18446744073709551615"]),
        ("float64", ["1.5", "-1e5", "0", "2.5e-324"]),
        ("boolean", ["true", "false"]),
        ("decimal(10,2)", ["1", "-1.50", "12345678.99"]),
        ("date32", ["2024-02-29", "1582-10-10"]),
        ("timestamp", ["2024-02-29T05:06:07", "2024-02-29 05:06:07.123456Z"]),
        ("string", ["", " x ", "\0"]),
    ],
)
def test_usual_text_needs_no_spark(kind: str, texts: list[str]) -> None:
    assert is_supported(parse_type(kind))
    assert [text for text in texts if accept(text, kind) is None] == []
    column = convert_text(pa.array([None, *texts]), parse_type(kind))
    assert column.null_count == 1


@pytest.mark.parametrize("kind", ["float32", "binary"])
def test_other_types_are_not_supported(kind: str) -> None:
    assert not is_supported(parse_type(kind))


@pytest.mark.parametrize("kind", ["int8", "int64", "string", "date32"])
@settings(max_examples=100 if FULL else 3)
@given(texts=st.lists(NUMBERS | DATES | ANY | NAMED, min_size=50, max_size=100))
def test_values_of_folders(spark: SparkSession, kind: str, texts: list[str]) -> None:
    result = {}
    for text in texts:
        try:
            result[text] = parse_folder(text, plain(parse_type(kind))).as_py()
        except UnprovenTextError:
            continue
    assert list(result.values()) == read_with_spark(spark, list(result), kind)

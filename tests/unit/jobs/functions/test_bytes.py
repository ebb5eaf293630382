"""Hashes and base encodings over Arrow, compared with other implementations and known values."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest
from Crypto.Hash import keccak
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.jobs.functions import base_encoding, with_argument_errors
from headrace.jobs.functions.clickhouse_tuple import clickhouse_tuples
from headrace.jobs.functions.hashes import keccak256, xxhash
from headrace.jobs.spark.errors import as_headrace_error
from headrace.pipeline.errors import SchemaError

ROWS = st.lists(st.none() | st.binary(max_size=300), min_size=1, max_size=8)


def hashed(data: bytes) -> str:
    return "0x" + keccak.new(digest_bits=256, data=data).hexdigest()


@settings(deadline=None)
@given(ROWS)
@example([b"", bytes(135), bytes(136), bytes(137), bytes(271), bytes(272), None])
def test_keccak_of_bytes(rows: list[bytes | None]) -> None:
    assert keccak256(pa.array(rows, pa.binary())).to_pylist() == [
        None if row is None else hashed(row) for row in rows
    ]


def test_keccak_of_text_and_of_hexadecimal_side_by_side() -> None:
    rows = ["abc", "0x616263", "0x", "0x0", "0xzz", "é", None, "0XFF", "x" * 500, "0x" + "ab" * 200]
    decoded = [b"abc", b"abc", b"", b"0x0", b"0xzz", "é".encode(), None, b"0XFF", b"x" * 500, b"\xab" * 200]
    assert keccak256(pa.array(rows)).to_pylist() == [None if row is None else hashed(row) for row in decoded]


@settings(deadline=None)
@given(st.lists(st.from_regex(r"(0x)?[0-9a-fA-FxXé]{0,6}", fullmatch=True), min_size=1, max_size=8))
@example(["0x6162", "0xx1", "0xé1", "x0", "0x61\n"])
def test_keccak_decodes_only_whole_bytes_behind_0x(rows: list[str]) -> None:
    decoded = [
        bytes.fromhex(row[2:]) if re.fullmatch("0x([0-9a-fA-F]{2})*", row) else row.encode() for row in rows
    ]
    assert keccak256(pa.array(["0x", *rows]).slice(1)).to_pylist() == [hashed(row) for row in decoded]


def test_keccak_of_slices_and_many_rows() -> None:
    rows = [str(number) for number in range(3000)]
    assert keccak256(pa.array(rows).slice(1000, 1500)).to_pylist() == [
        hashed(row.encode()) for row in rows[1000:2500]
    ]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("", "99aa06d3014798d86001c324468d497f"), ("a", "a96faf705af16834e6c632b61e964e1f"), (None, None)],
)
def test_xxh3(text: str | None, wanted: str | None) -> None:
    assert xxhash(pa.array([text], pa.string())).to_pylist() == [wanted]


def encoded(data: bytes) -> str:
    alphabet, number, result = (
        "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz",
        int.from_bytes(data, "big"),
        "",
    )
    while number:
        number, digit = divmod(number, 58)
        result = alphabet[digit] + result
    return "1" * (len(data) - len(data.lstrip(b"\0"))) + result


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=64), min_size=1, max_size=8))
@example([b"\xff" * 64, b"", b"\0", bytes(64), b"\xff"])
@example([b"\xff" * 64])
@example([b"\xff" * 200, b"a"])
def test_base58_there_and_back(rows: list[bytes]) -> None:
    result = base_encoding.to_base58(pa.array(rows, pa.binary()))
    assert result.to_pylist() == [encoded(row) for row in rows]
    assert base_encoding.from_base58(result).to_pylist() == rows


def test_base58_of_nothing_and_of_no_base58() -> None:
    assert base_encoding.to_base58(pa.array([None, b"a"], pa.binary())).to_pylist() == [None, "2g"]
    assert base_encoding.from_base58(pa.array([None, "0", "2g", "é", "l" * 90, ""])).to_pylist() == [
        b"",
        b"",
        b"a",
        b"",
        b"",
        b"",
    ]


@settings(deadline=None)
@given(st.integers(-(2**256), 2**256), st.integers(2, 36), st.integers(2, 36))
def test_bases_there_and_back(number: int, source: int, target: int) -> None:
    def convert(text: str, one: int, other: int) -> str:
        (result,) = base_encoding.conv_base(
            pa.array([text]), pa.array([str(one)]), pa.array([str(other)])
        ).to_pylist()
        return result

    written = convert(str(number), 10, source)
    assert int(written, source) == number
    assert int(convert(written, source, target), target) == number


@pytest.mark.parametrize("text", ['{"a": 1}', "[[", "null", '[{"a": 1}] x', "[" * 100_000])
def test_tuples_of_what_is_no_list(text: str) -> None:
    (result,) = clickhouse_tuples(pa.array([text]), pa.array([["a"]])).to_pylist()
    assert result == f"!_gs_json_objects_to_clickhouse_tuples: this is no JSON array: {text[:100]}"


def test_tuples_keep_numbers_as_they_are_written() -> None:
    rows = [' [{"a": 1.50e3, "b": [-0, {"c": 1E2, "d": "1"}]}] ', '[{"a": "1"}, {"b": true}, 7]', None]
    wanted = ['[(1.50e3, [-0,\'{"c":1E2,"d":"1"}\'])]', "[('1', null), (null, true), (null, null)]", "[]"]
    assert clickhouse_tuples(pa.array(rows), pa.array([["a", "b"]] * 3)).to_pylist() == wanted


def test_arguments_that_no_function_can_take_are_told_with_the_call() -> None:
    called = with_argument_errors("to_base58", "to_base58(bytes)", base_encoding.to_base58, "t")
    assert called(pa.array([b""])).to_pylist() == [""]
    with pytest.raises(RuntimeError) as caught:
        called(pa.array([1]))
    error = as_headrace_error(caught.value, node="sink")
    assert (type(error), error.node) == (SchemaError, "t")
    assert error.message.startswith("`to_base58` cannot take int64: ")
    assert error.hint.startswith("It is called as to_base58(bytes); ")


def test_a_worker_that_fails_is_told_by_its_exception() -> None:
    error = as_headrace_error(
        ValueError(
            "\n  An exception was thrown:\nTraceback (most recent call last):\n  File x\nKeyError:"
            " 'a'\nOSError: no room\n\n\tat org.apache"
        )
    )
    assert error.message == "ValueError: OSError: no room"

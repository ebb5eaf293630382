"""256-bit integers over Arrow, compared with Python's integers."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.jobs.functions import int256
from headrace.pipeline.functions import ERROR, Group, distinct

U_MAX, I_MAX, I_MIN = 2**256 - 1, 2**255 - 1, -(2**255)
EDGES = [
    0,
    1,
    2,
    9,
    10,
    2**63 - 1,
    2**63,
    2**64,
    10**37,
    10**38,
    10**74,
    10**75 - 1,
    10**75,
    2**128,
    2**255 - 1,
    2**255,
    U_MAX - 1,
    U_MAX,
]
UNSIGNED = st.integers(0, 2**64) | st.integers(0, U_MAX) | st.sampled_from(EDGES)
SIGNED = (
    st.integers(-(2**64), 2**64)
    | st.integers(I_MIN, I_MAX)
    | st.sampled_from([*[n for n in EDGES if n <= I_MAX], I_MIN, I_MIN + 1, -1, -(10**75)])
)


def quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


EXPECTED: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": quotient,
    "mod": lambda a, b: a - quotient(a, b) * b,
}


def texts(numbers: list[int]) -> pa.Array:
    return pa.array([str(number) for number in numbers], pa.string())


@pytest.mark.parametrize("operation", EXPECTED)
@pytest.mark.parametrize(
    ("prefix", "numbers", "low", "high"), [("u256", UNSIGNED, 0, U_MAX), ("i256", SIGNED, I_MIN, I_MAX)]
)
def test_arithmetic_is_that_of_integers_or_an_error(
    operation: str, prefix: str, numbers: st.SearchStrategy[int], low: int, high: int
) -> None:
    function = getattr(int256, f"{prefix}_{operation}")

    @settings(deadline=None)
    @given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=6))
    def check(pairs: list[tuple[int, int]]) -> None:
        actual = function(texts([a for a, _ in pairs]), texts([b for _, b in pairs])).to_pylist()
        for (a, b), result in zip(pairs, actual, strict=True):
            if operation in ("div", "mod") and b == 0:
                assert result.startswith(ERROR)
                assert "division by zero" in result
                continue
            wanted = EXPECTED[operation](a, b)
            if low <= wanted <= high:
                assert result == str(wanted)
            else:
                assert result.startswith(f"{ERROR}{prefix}_{operation} overflow: {a} ")

    check()


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**36), st.integers(0, 10**36)), min_size=1, max_size=6))
def test_short_numbers_take_the_quick_way_and_mean_the_same(pairs: list[tuple[int, int]]) -> None:
    a, b = texts([max(pair) for pair in pairs]), texts([min(pair) for pair in pairs])
    for operation in ("add", "sub", "mul"):
        assert int256._quick(operation, a, b, int256.UINT256) is not None
        for prefix in ("u256", "i256"):
            result = getattr(int256, f"{prefix}_{operation}")(a, b).to_pylist()
            assert result == [str(EXPECTED[operation](max(pair), min(pair))) for pair in pairs]


@settings(deadline=None)
@given(st.lists(SIGNED, min_size=1, max_size=6))
def test_signs(numbers: list[int]) -> None:
    for name, wanted in (("i256_neg", [-n for n in numbers]), ("i256_abs", [abs(n) for n in numbers])):
        actual = getattr(int256, name)(texts(numbers)).to_pylist()
        assert [result for result in actual if not result.startswith(ERROR)] == [
            str(n) for n in wanted if n <= I_MAX
        ]


@settings(deadline=None)
@given(st.lists(UNSIGNED, min_size=1, max_size=6), st.lists(SIGNED, min_size=1, max_size=6))
def test_bytes_of_both_orders_and_text_come_back(unsigned: list[int], signed: list[int]) -> None:
    for name, numbers, sign in (("to_u256", unsigned, False), ("to_i256", signed, True)):
        function = getattr(int256, name)
        big = pa.array([n.to_bytes(32, "big", signed=sign) for n in numbers], pa.binary())
        turned = pa.array([n.to_bytes(32, "little", signed=sign)[::-1] for n in numbers], pa.binary(32))
        for column in (
            big,
            turned,
            texts(numbers),
            pa.array([f"{'-' if n < 0 else ''}000{abs(n)}" for n in numbers]),
        ):
            assert function(column).to_pylist() == [str(n) for n in numbers]


@pytest.mark.parametrize(
    "kind", [pa.int8(), pa.int64(), pa.uint64(), pa.decimal128(20, 0), pa.large_string()]
)
def test_columns_of_any_whole_type_are_taken(kind: pa.DataType) -> None:
    assert int256.to_i256(pa.array([7, 0], pa.int8()).cast(kind)).to_pylist() == ["7", "0"]
    assert int256.u256_add(pa.array([7], pa.int8()).cast(kind), pa.array(["1"])).to_pylist() == ["8"]


def test_null_is_an_error_and_an_error_goes_through() -> None:
    nothing = int256.u256_add(pa.array([None, "1"], pa.string()), pa.array(["1", None], pa.string()))
    assert nothing.to_pylist() == ["!u256_add does not support null values"] * 2
    assert int256.u256_mul(nothing, pa.array(["2", "2"])).to_pylist() == nothing.to_pylist()
    assert int256.to_u256(pa.nulls(1)).to_pylist() == ["!to_u256 does not support null values"]


def test_empty_columns_stay_empty() -> None:
    empty = pa.array([], pa.string())
    assert len(int256.u256_add(empty, empty)) == len(int256.to_u256(empty)) == 0


CASES = [
    (one, call, message)
    for one in distinct()
    if one.group is Group.WIDE and one.arrow
    for call, message in one.errors
]


@pytest.mark.parametrize(("function", "call", "message"), CASES, ids=[call[:50] for _, call, _ in CASES])
def test_errors_of_the_page(function: object, call: str, message: str) -> None:
    name = call.split("(", 1)[0]
    words = call.removeprefix(f"{name}(").removesuffix(")").split(", ")
    columns = [
        pa.nulls(1)
        if word == "NULL"
        else pa.array([bytes.fromhex(word[2:-1])])
        if word[0] == "X"
        else pa.array([word.strip("'")])
        for word in words
    ]
    (result,) = getattr(int256, name)(*columns).to_pylist()
    assert result.startswith(ERROR)
    assert message in result

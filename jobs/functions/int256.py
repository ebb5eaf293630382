"""256-bit integers over Arrow: decimal digits in string columns in, canonical digits out.

A row that cannot be computed becomes a string that begins with `ERROR`. Further functions return it
unchanged, and the expression around the call fails the row if its value is used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute

from headrace.pipeline.functions.registry import ERROR
from headrace.pipeline.types.int256 import INT256, UINT256, WideInteger

pc: Any = pyarrow.compute
"""Its functions are made when it is loaded: no checker of types knows them."""

_WHOLE = re.compile(r"\s*([+-]?)(?:0[xX]([0-9a-fA-F]+)|([0-9]+))(?:\.0*)?\s*", re.ASCII)
_BYTES = 32
_ROOM = 75
"""Digits for which Arrow's own decimals have room, results included."""
_SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "mod": "%"}
_Number = int | str
"""A number, or an error text."""


def _quotient(a: int, b: int) -> int:
    """Cut off towards zero."""
    result = abs(a) // abs(b)
    return result if (a < 0) == (b < 0) else -result


_COMPUTES: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": _quotient,
    "mod": lambda a, b: a - b * _quotient(a, b),
}


def _numbers(name: str, column: Any, kind: WideInteger) -> list[_Number]:
    """Return the values of a column of any type as Python integers.

    NULL and values that are not numbers become errors.
    """
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    nothing = f"{ERROR}{name} does not support null values"
    if pa.types.is_null(column.type):
        return [nothing] * len(column)
    if (
        pa.types.is_binary(column.type)
        or pa.types.is_large_binary(column.type)
        or pa.types.is_fixed_size_binary(column.type)
    ):
        return [nothing if value is None else _of_bytes(name, value, kind) for value in column.to_pylist()]
    if pa.types.is_integer(column.type):
        return [nothing if value is None else value for value in column.to_pylist()]
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        column = pc.cast(column, pa.string())
    return [
        nothing
        if value is None
        else int(value)
        if value.isdecimal() and value.isascii()
        else _of_text(name, value)
        for value in column.to_pylist()
    ]


def _of_text(name: str, value: str) -> _Number:
    if value.startswith(ERROR):
        return value
    match = _WHOLE.fullmatch(value)
    if match is None:
        return f"{ERROR}{name}: `{value[:100]}` is no whole number"
    number = int(match[2], 16) if match[2] else int(match[3])
    return -number if match[1] == "-" else number


def _of_bytes(name: str, value: bytes, kind: WideInteger) -> _Number:
    if len(value) != _BYTES:
        return f"{ERROR}{name} takes {_BYTES} bytes, found {len(value)}"
    return int.from_bytes(value, "big", signed=kind.signed)


def _outside(number: int, kind: WideInteger) -> str:
    if number > kind.highest:
        return f"is above 2^{255 if kind.signed else 256} - 1"
    return "is below -2^255" if kind.signed else "is below 0"


def _texts(numbers: Sequence[_Number]) -> pa.Array:
    return pa.array(map(str, numbers), pa.string())


def _binary(name: str, operation: str, kind: WideInteger) -> Callable[[pa.Array, pa.Array], pa.Array]:
    compute, sign = _COMPUTES[operation], _SIGNS[operation]
    low, high = kind.lowest, kind.highest

    def one(a: _Number, b: _Number) -> _Number:
        """Return the result of one pair of operands, or an error text."""
        for value in (a, b):
            if isinstance(value, str):
                return value
            if not low <= value <= high:
                return f"{ERROR}{name} overflow: {value} {_outside(value, kind)}"
        assert isinstance(a, int)  # noqa: S101  for the type checker
        assert isinstance(b, int)  # noqa: S101
        if sign in "/%" and b == 0:
            return f"{ERROR}{name}: division by zero: {a} {sign} 0"
        result = compute(a, b)
        return (
            result
            if low <= result <= high
            else f"{ERROR}{name} overflow: {a} {sign} {b} {_outside(result, kind)}"
        )

    def function(a: pa.Array, b: pa.Array) -> pa.Array:
        if (quick := _quick(operation, a, b, kind)) is not None:
            return quick
        return _texts(
            [one(x, y) for x, y in zip(_numbers(name, a, kind), _numbers(name, b, kind), strict=True)]
        )

    function.__name__ = name
    return function


def _quick(operation: str, a: pa.Array, b: pa.Array, kind: WideInteger) -> pa.Array | None:
    """Return sums, differences or products by Arrow decimals.

    None if a value of the batch is not decimal digits, or if results may not fit.
    """
    if operation not in ("add", "sub", "mul") or len(a) == 0:
        return None
    digits = [_digits(column, kind) for column in (a, b)]
    if 0 in digits or (sum(digits) if operation == "mul" else max(digits) + 1) > _ROOM:
        return None
    x, y = (pc.cast(column, pa.decimal256(count, 0)) for column, count in zip((a, b), digits, strict=True))
    result = {"add": pc.add, "sub": pc.subtract, "mul": pc.multiply}[operation](x, y)
    if not kind.signed and operation == "sub" and pc.min(result).as_py() < 0:
        return None
    return pc.cast(result, pa.string())


def _digits(column: pa.Array, kind: WideInteger) -> int:
    """Return how many digits the longest value has. 0 if a row is NULL or is not only digits."""
    if not pa.types.is_string(column.type) or column.null_count:
        return 0
    bare = (
        pc.replace_substring_regex(column, "^-", "")
        if kind.signed and pc.any(pc.starts_with(column, "-")).as_py()
        else column
    )
    return pc.max(pc.binary_length(bare)).as_py() if pc.all(pc.ascii_is_decimal(bare)).as_py() else 0


def _unary(
    name: str, compute: Callable[[int], int], kind: WideInteger, *, form: str = "{}"
) -> Callable[[pa.Array], pa.Array]:
    low, high = kind.lowest, kind.highest

    def one(value: _Number) -> _Number:
        if isinstance(value, str):
            return value
        result = compute(value)
        if low <= value <= high and low <= result <= high:
            return result
        if result < 0 and not kind.signed:
            return f"{ERROR}{name} does not support negative values: {value}"
        return f"{ERROR}{name} overflow: {form.format(value)} {_outside(result, kind)}"

    def function(value: pa.Array) -> pa.Array:
        return _texts([one(number) for number in _numbers(name, value, kind)])

    function.__name__ = name
    return function


u256_add = _binary("u256_add", "add", UINT256)
u256_sub = _binary("u256_sub", "sub", UINT256)
u256_mul = _binary("u256_mul", "mul", UINT256)
u256_div = _binary("u256_div", "div", UINT256)
u256_mod = _binary("u256_mod", "mod", UINT256)
i256_add = _binary("i256_add", "add", INT256)
i256_sub = _binary("i256_sub", "sub", INT256)
i256_mul = _binary("i256_mul", "mul", INT256)
i256_div = _binary("i256_div", "div", INT256)
i256_mod = _binary("i256_mod", "mod", INT256)
to_u256 = _unary("to_u256", lambda value: value, UINT256)
to_i256 = _unary("to_i256", lambda value: value, INT256)
i256_neg = _unary("i256_neg", lambda value: -value, INT256, form="-({})")
i256_abs = _unary("i256_abs", abs, INT256, form="abs({})")

"""Numbers that are wider than Spark's 38 digits.

They are stored as strings of digits, and keep their type by name. Decimals of 39 to 76 digits are Arrow's
own. Arrow has no 256-bit integers (78 digits), so there is an extension type.
"""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pyarrow.compute
from pyarrow import types as kinds

pc: Any = pyarrow.compute

SPARK_DIGITS = 38
_INTEGER_DIGITS = 78
SPELLED = r"^(-?)0*([0-9]+)(?:\.0*|(\.[0-9]*[1-9])0*)?$"
"""The sign, the digits, and the point with the digits after it. Omitted parts have no meaning.

The pattern is valid in Java, RE2 and Python.
"""
MINUS_NOTHING = "-0"


class WideInteger(pa.ExtensionType):
    """A 256-bit integer, stored as its decimal digits."""

    def __init__(self, *, signed: bool) -> None:
        self.signed = signed
        super().__init__(pa.string(), f"headrace.{'int256' if signed else 'uint256'}")

    def __arrow_ext_serialize__(self) -> bytes:
        """Return the parameter of the type: signed or unsigned."""
        return b"signed" if self.signed else b"unsigned"

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> WideInteger:
        """Create the type from its serialized parameter."""
        del storage_type
        return cls(signed=serialized == b"signed")

    def __str__(self) -> str:
        """Return the type's name in a pipeline file."""
        return "int256" if self.signed else "uint256"

    def __hash__(self) -> int:
        return hash(str(self))

    @property
    def lowest(self) -> int:
        """The smallest value."""
        return -(2**255) if self.signed else 0

    @property
    def highest(self) -> int:
        """The largest value."""
        return 2**255 - 1 if self.signed else 2**256 - 1


INT256, UINT256 = WideInteger(signed=True), WideInteger(signed=False)


def is_wide(kind: pa.DataType) -> bool:
    """Return whether a number does not fit into Spark's decimals."""
    return isinstance(kind, WideInteger) or (kinds.is_decimal(kind) and kind.precision > SPARK_DIGITS)


def storage_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema as rows store it: wide numbers are strings."""
    return pa.schema([field.with_type(pa.string()) if is_wide(field.type) else field for field in schema])


def digits(kind: Any) -> tuple[int, int]:
    """Return precision and scale of a wide number."""
    return (_INTEGER_DIGITS, 0) if isinstance(kind, WideInteger) else (kind.precision, kind.scale)


def pattern(kind: pa.DataType) -> str:
    """Return a regular expression for the whole text of a wide number.

    It does not check the range of integers.
    """
    precision, scale = digits(kind)
    behind = rf"(\.\d{{0,{scale}}}0*)?" if scale else r"(\.0*)?"
    sign = "" if isinstance(kind, WideInteger) and not kind.signed else "-?"
    before = rf"0*\d{{1,{precision - scale}}}" if precision > scale else "0+"
    return rf"^{sign}{before}{behind}$"


def plain_digits(text: str) -> str:
    """Return the canonical text of a number, as keys are compared: `7` for `007.0`.

    Other text stays unchanged.
    """
    if (match := re.match(SPELLED, text, re.ASCII)) is None:
        return text
    message = f"{match[1]}{match[2]}{match[3] or ''}"
    return "0" if message == MINUS_NOTHING else message


def plain_columns(column: Any) -> Any:
    """Return a column of Arrow strings with each value as in `plain_digits`."""
    text = pc.replace_substring_regex(column, SPELLED, r"\1\2\3")
    return pc.if_else(pc.equal(text, MINUS_NOTHING), "0", text)

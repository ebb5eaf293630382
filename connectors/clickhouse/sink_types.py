"""ClickHouse types that store the columns of rows, and the values that they cannot store.

The server converts Arrow silently where a value has no room: it wraps integers and makes an empty list of a
null. So `ColumnRule` refuses such values first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute
from pyarrow import types as kinds

from headrace.connectors.clickhouse.types import UTC_MICROS, quote
from headrace.pipeline.errors import DataError, SchemaError
from headrace.pipeline.types.arrow import is_binary, is_nested
from headrace.pipeline.types.int256 import WideInteger, is_wide, pattern

pc: Any = pyarrow.compute
"""Its functions are made at import, so type checkers do not see them."""

_FLAT: tuple[tuple[Any, str], ...] = (
    (kinds.is_boolean, "Bool"),
    (kinds.is_float16, "Float32"),
    (kinds.is_float32, "Float32"),
    (kinds.is_float64, "Float64"),
    (lambda t: kinds.is_string(t) or kinds.is_large_string(t) or kinds.is_string_view(t), "String"),
    (is_binary, "String"),
    (kinds.is_date, "Date32"),
    (kinds.is_timestamp, UTC_MICROS),
)
_WRAPPED = re.compile(r"^(Nullable|LowCardinality)\((.*)\)$", re.DOTALL)
_INTEGER = re.compile(r"^(U?)Int(8|16|32|64|128|256)$")
_DECIMAL = re.compile(r"^Decimal\((\d+), (\d+)\)$")
_TIME = re.compile(r"^DateTime64\((\d)(?:, '[^']*')?\)$")
_PARSED = re.compile(r"^(UUID|IPv4|IPv6|Enum8\(.*|Enum16\(.*)$", re.DOTALL)
"""Types whose text the server parses, or refuses."""
_DAYS = (0, 65_535)
"""Days since 1970 that `Date` has."""


def column_type(kind: pa.DataType, *, required: bool = False) -> str:
    """Return the ClickHouse type of a column. Only flat types are nullable. Raise SchemaError."""
    if kinds.is_dictionary(kind):
        return column_type(kind.value_type, required=required)
    if kinds.is_struct(kind):
        return f"Tuple({', '.join(f'{quote(field.name)} {column_type(field.type)}' for field in kind)})"
    if kinds.is_map(kind):
        return f"Map({column_type(kind.key_type, required=True)}, {column_type(kind.item_type)})"
    if is_nested(kind):
        return f"Array({column_type(kind.value_type)})"
    flat = _flat_type(kind)
    return flat if required else f"Nullable({flat})"


def _flat_type(kind: pa.DataType) -> str:
    if isinstance(kind, WideInteger):
        return "Int256" if kind.signed else "UInt256"
    if kinds.is_integer(kind):
        return f"{'U' if kinds.is_unsigned_integer(kind) else ''}Int{kind.bit_width}"
    if kinds.is_decimal(kind):
        return f"Decimal({kind.precision}, {kind.scale})"
    for fits, name in _FLAT:
        if fits(kind):
            return name
    msg = f"ClickHouse cannot store {kind}"
    raise SchemaError(msg, hint="Convert it in a transform.")


@dataclass(frozen=True, slots=True)
class ColumnRule:
    """What must hold of the values of one column, so that the server loses none. Picklable."""

    name: str
    low: int | None = None
    high: int | None = None
    """The smallest and largest value that fit: of integers, days, or microseconds since 1970."""
    spelling: str = ""
    """What the digits of a wide number match."""
    nested: bool = False

    def check(self, column: Any, node: str) -> None:
        """Raise DataError for the first value that the column cannot store."""
        problem = None
        if self.nested and has_inner_null(column):
            problem = "holds a list, map or struct that is null, and ClickHouse would make it empty"
        elif self.spelling and (value := _first(column, self._misspelt(column))) is not None:
            problem = f"holds {str(value)[:100]!r}, which its type cannot hold"
        elif self.low is not None and self.high is not None and not self.spelling:
            result = pc.min_max(_as_numbers(column))
            for value in (result["min"].as_py(), result["max"].as_py()):
                if value is not None and not self.low <= value <= self.high:
                    problem = f"holds {value}, and the table's column only {self.low} to {self.high}"
        if problem is not None:
            hint = "Filter such rows out, or convert the column in a transform."
            msg = f"column `{self.name}` {problem}"
            raise DataError(msg, hint=hint, node=node)

    def _misspelt(self, column: Any) -> Any:
        wrong = pc.invert(pc.match_substring_regex(column, self.spelling))
        if self.high is None:
            return wrong
        # Of two texts of digits without leading zeros the longer one is larger.
        sizes, limits = pc.ascii_ltrim(column, "-0"), (str(self.high), str(-(self.low or 0)))
        for negative, limit in zip((False, True), limits, strict=True):
            size = pc.utf8_length(sizes)
            over = pc.or_(
                pc.greater(size, len(limit)),
                pc.and_(pc.equal(size, len(limit)), pc.greater(sizes, limit)),
            )
            wrong = pc.or_(wrong, pc.and_(pc.equal(pc.starts_with(column, "-"), negative), over))
        return wrong


def rule_for(field: pa.Field, table_type: str) -> ColumnRule | None:
    """Return the rule for a column of the rows in a column of the table; None if every value fits.

    Raise SchemaError if the table's column loses values of the type.
    """
    kind = field.type.value_type if kinds.is_dictionary(field.type) else field.type
    while wrapped := _WRAPPED.match(table_type):
        table_type = wrapped[2]
    if is_nested(kind):
        if _squeeze(column_type(kind)) != _squeeze(table_type):
            raise _misfit(field, table_type)
        return ColumnRule(field.name, nested=True)
    flat, limits = _flat_type(kind), _integer_limits(table_type)
    if is_wide(kind) and (table_type == flat or (limits and isinstance(kind, WideInteger))):
        return ColumnRule(field.name, *(limits or (None, None)), pattern(kind))
    if limits and (kinds.is_integer(kind) or (kinds.is_decimal(kind) and kind.scale == 0)):
        return _integer_rule(field.name, kind, limits)
    if kinds.is_date(kind) and table_type == "Date":
        return ColumnRule(field.name, *_DAYS)
    if kinds.is_timestamp(kind) and (digits := _TIME.match(table_type)) and int(digits[1]) >= 6:
        most = 2**63 // 10 ** (int(digits[1]) - 6)  # microseconds
        return None if digits[1] == "6" else ColumnRule(field.name, -most, most)
    if not _stores_all(kind, flat, table_type):
        raise _misfit(field, table_type)
    return None


def _integer_rule(name: str, kind: pa.DataType, limits: tuple[int, int]) -> ColumnRule | None:
    own = _integer_limits(_flat_type(kind))
    fits = own is not None and limits[0] <= own[0] and own[1] <= limits[1]
    # Spark has no unsigned types: rows of uint8 arrive as int16.
    return None if fits and not kinds.is_unsigned_integer(kind) else ColumnRule(name, *limits)


def _stores_all(kind: pa.DataType, flat: str, table_type: str) -> bool:
    """Return whether a column of the table stores every value of a flat type, or refuses it."""
    if table_type == flat or (flat, table_type) in {("Float32", "Float64"), ("Bool", "UInt8")}:
        return True
    if kinds.is_string(kind):
        return _PARSED.match(table_type) is not None
    mine, its = _DECIMAL.match(flat), _DECIMAL.match(table_type)
    if mine is None or its is None:
        return False
    (precision, scale), (most, places) = map(int, mine.groups()), map(int, its.groups())
    return places >= scale and most - places >= precision - scale


def has_inner_null(column: Any) -> bool:
    """Return whether a list, map or struct is null, at any depth."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return any(_has_null(chunk) for chunk in chunks)


def _has_null(array: Any) -> bool:
    if not is_nested(array.type):
        return False
    if array.null_count:
        return True
    if kinds.is_struct(array.type):
        return any(_has_null(child) for child in array.flatten())
    if kinds.is_map(array.type):
        start, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
        return any(_has_null(part.slice(start, end - start)) for part in (array.keys, array.items))
    return _has_null(array.flatten())


def _as_numbers(column: Any) -> Any:
    if kinds.is_date(column.type):
        return pc.cast(pc.cast(column, pa.date32()), pa.int32())
    return pc.cast(column, pa.int64()) if kinds.is_timestamp(column.type) else column


def _first(column: Any, wrong: Any) -> Any:
    """Return the first value for which `wrong` is true, or None."""
    place = pc.index(wrong, pa.scalar(value=True)).as_py()
    return None if place < 0 else column[place].as_py()


def _integer_limits(table_type: str) -> tuple[int, int] | None:
    if (match := _INTEGER.match(table_type)) is None:
        return None
    bits = int(match[2])
    return (0, 2**bits - 1) if match[1] else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _squeeze(text: str) -> str:
    return re.sub(r"[\s`]", "", text)


def _misfit(field: pa.Field, table_type: str) -> SchemaError:
    return SchemaError(f"column `{field.name}` is {table_type}, the rows need {column_type(field.type)}")

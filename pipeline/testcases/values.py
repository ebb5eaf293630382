"""Strictly typed values: converts a cell of a test file to a column's Arrow type, or gives the reason.

A value is never rounded, wrapped or cut off. A string with a number becomes that number, because CSV has only
strings. A number in a string column becomes the text as written.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
from pyarrow import types as kinds

from headrace.pipeline.errors import UserError
from headrace.pipeline.types.arrow import is_binary
from headrace.pipeline.types.durations import parse_duration
from headrace.pipeline.types.int256 import WideInteger
from headrace.pipeline.yaml.reader import shorten

_NAMES: dict[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.date32(): "date32",
    pa.date64(): "date64",
    pa.float16(): "float16",
    pa.float32(): "float32",
    pa.float64(): "float64",
}
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d(?:[Tt ]\s*\d.*)?")


class Timestamp(str):
    """A date or a timestamp as the file has it, without quotes."""

    __slots__ = ()


def as_written(value: Any, text: str | None) -> Any:
    """Return a scalar of a YAML file without loss: floats as exact decimals, dates and times as strings."""
    if text is None or isinstance(value, bool):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return Decimal(text.replace("_", ""))
    return Timestamp(text) if isinstance(value, date) else value


def spell_type(kind: pa.DataType) -> str:
    """Return a type as a pipeline file names it."""
    if kinds.is_decimal(kind):
        return f"decimal({kind.precision}, {kind.scale})"
    if kinds.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp without a zone"
    return _NAMES.get(kind, str(kind))


def fit(value: Any, kind: pa.DataType) -> Any:
    """Convert the value to the type, as Arrow returns it to Python. Raise ValueError with the reason."""
    if value is None:
        return None
    try:
        if isinstance(kind, WideInteger):
            return _wide_integer(value, kind)
        return pa.scalar(_convert_value(value, kind), kind).as_py(maps_as_pydicts="strict")
    except (
        pa.ArrowInvalid,
        pa.ArrowTypeError,
        pa.ArrowNotImplementedError,
        InvalidOperation,
        OverflowError,
        _UnfitError,
    ):
        msg = f"`{shorten(spell(value))}` cannot be cast to {spell_type(kind)}"
        raise ValueError(msg) from None


def spell(value: Any) -> str:
    """Return a value as YAML or JSON writes it, without quotes around a string."""
    if isinstance(value, date | time):
        return value.isoformat()
    return (
        str(value)
        if isinstance(value, str | Decimal | int | float) and not isinstance(value, bool)
        else _json(value)
    )


def infer(values: Iterable[Any]) -> pa.DataType | None:
    """Return the narrowest type that fits all values. String if all are null, None if no type fits."""
    result = {_infer_type(value) for value in values if value is not None}
    if result <= {pa.int64(), pa.float64()} and len(result) == 2:
        return pa.float64()
    if result == {pa.date32(), pa.timestamp("us", tz="UTC")}:
        return pa.timestamp("us", tz="UTC")
    return result.pop() if len(result) == 1 else None if result else pa.string()


class _UnfitError(Exception):
    """The value is not valid for the type."""


def _infer_type(value: Any) -> pa.DataType:
    if isinstance(value, Timestamp):
        return pa.date32() if _DAY.fullmatch(value) else pa.timestamp("us", tz="UTC")
    for kind, arrow in (
        (bool, pa.bool_()),
        (int, pa.int64()),
        (Decimal | float, pa.float64()),
        (bytes, pa.binary()),
    ):
        if isinstance(value, kind):
            return arrow
    if isinstance(value, list):
        return pa.list_(infer(value) or pa.string())
    if isinstance(value, dict):
        return pa.struct(
            [
                (name, _infer_type(inner) if inner is not None else pa.string())
                for name, inner in value.items()
            ]
        )
    return pa.string()


def _convert_value(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    for fits, convert in _CONVERT:
        if fits(kind):
            return convert(value, kind)
    raise _UnfitError


def _text(value: Any, _: pa.DataType) -> str:
    return spell(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_json_default)


def _json_default(value: Any) -> Any:
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return value.hex() if isinstance(value, bytes) else str(value)


def _boolean(value: Any, _: pa.DataType) -> bool:
    if isinstance(value, bool):
        return value
    if str(value).lower() in ("true", "false"):
        return str(value).lower() == "true"
    raise _UnfitError


def _number(value: Any) -> Decimal:
    """Return the number. NaN and the infinities are valid, because Decimal has them."""
    if isinstance(value, bool | bytes | list | dict):
        raise _UnfitError
    return Decimal(str(value).strip())


def _integer(value: Any, _: pa.DataType) -> int:
    number = _number(value)
    if not number.is_finite() or number != number.to_integral_value():
        raise _UnfitError
    return int(number)


def _wide_integer(value: Any, kind: WideInteger) -> int:
    number = _integer(value, kind)
    if not kind.lowest <= number <= kind.highest:
        raise _UnfitError
    return number


def _decimal(value: Any, _: pa.DataType) -> Decimal:
    number = _number(value)
    if not number.is_finite():
        raise _UnfitError
    return number


def _float(value: Any, kind: pa.DataType) -> float:
    number = float(_number(value))
    if math.isinf(pa.scalar(number, kind).as_py()) and _number(value).is_finite():
        raise _UnfitError
    return number


def _date(value: Any, _: pa.DataType) -> date:
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    try:
        if isinstance(value, str) and _DAY.fullmatch(value):
            return date.fromisoformat(value)
    except ValueError:
        pass
    raise _UnfitError


def _timestamp(value: Any, kind: pa.DataType) -> datetime:
    """Return the timestamp. Without a zone it is UTC in a column with a zone.

    A column without a zone accepts no zone.
    """
    try:
        moment = value if isinstance(value, datetime) else _read_moment(value)
    except ValueError:
        raise _UnfitError from None
    if (moment.tzinfo is not None) and kind.tz is None:
        raise _UnfitError
    return moment if kind.tz is None or moment.tzinfo else moment.replace(tzinfo=UTC)


def _read_moment(value: Any) -> datetime:
    if isinstance(value, date):
        return datetime.combine(value, time())
    if not isinstance(value, str) or not _MOMENT.fullmatch(value):
        raise _UnfitError
    return datetime.fromisoformat(re.sub(r"(?<=\d)\s+(?=[Z+-])", "", value))


def _bytes(value: Any, _: pa.DataType) -> bytes:
    try:
        return value if isinstance(value, bytes) else bytes.fromhex(value)
    except (ValueError, TypeError):
        raise _UnfitError from None


def _duration(value: Any, _: pa.DataType) -> timedelta:
    try:
        return value if isinstance(value, timedelta) else parse_duration(str(value))
    except UserError:
        raise _UnfitError from None


def _struct(value: Any, kind: pa.DataType) -> dict[str, Any]:
    names = [field.name for field in kind]
    if not isinstance(value, dict) or set(value) - set(names):
        raise _UnfitError
    return {field.name: _convert_value(value.get(field.name), field.type) for field in kind}


def _map(value: Any, kind: pa.DataType) -> list[tuple[Any, Any]]:
    if not isinstance(value, dict):
        raise _UnfitError
    return [
        (_convert_value(key, kind.key_type), _convert_value(inner, kind.item_type))
        for key, inner in value.items()
    ]


def _list(value: Any, kind: pa.DataType) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise _UnfitError
    return [_convert_value(inner, kind.value_type) for inner in value]


_CONVERT: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any, pa.DataType], Any]], ...] = (
    (lambda kind: kinds.is_string(kind) or kinds.is_large_string(kind), _text),
    (kinds.is_boolean, _boolean),
    (kinds.is_integer, _integer),
    (kinds.is_floating, _float),
    (kinds.is_decimal, _decimal),
    (kinds.is_date, _date),
    (kinds.is_timestamp, _timestamp),
    (is_binary, _bytes),
    (kinds.is_duration, _duration),
    (kinds.is_struct, _struct),
    (kinds.is_map, _map),
    (lambda kind: kinds.is_list(kind) or kinds.is_large_list(kind), _list),
)

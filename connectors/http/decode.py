"""Responses of a service as Arrow, by the JSON reader of Arrow, or by Python if that fails.

The Python path locates errors, and reads what Arrow cannot: maps, nested dates, 256-bit integers that are
JSON numbers.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation, localcontext
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pyarrow.json as pj
from pyarrow import types as kinds

from headrace.connectors.http.wire_types import from_wire_type, wire_type
from headrace.pipeline.sql.system_columns import OP
from headrace.pipeline.types.int256 import WideInteger, is_wide, pattern, plain_digits

pc: Any = pyarrow.compute  # its functions are made at run time, where no type checker sees them
_DIGITS = 100
_NAMES = {
    bool: "a boolean",
    int: "a number",
    Decimal: "a number",
    str: "a text",
    list: "an array",
    dict: "an object",
    type(None): "null",
}


class AnswerError(Exception):
    """An error in a response, for people."""


@dataclass(frozen=True, slots=True)
class DecodedResponse:
    """The rows of a response: payload columns in order, as Spark stores them.

    `ops` has nulls for rows without an operation.
    """

    columns: list[pa.Array]
    ops: pa.Array
    rows: int


@dataclass(frozen=True)
class ResponseDecoder:
    """Reads answers of one node.

    Picklable. `schema` has the declared types; `version` is `payload_version`.
    """

    schema: pa.Schema
    version: int
    single: bool

    def read(self, body: bytes) -> DecodedResponse:
        """Return the rows of a response. Raises AnswerError for a body that is not what was declared."""
        text = clean_body(body)
        if text.startswith(b"{") and self.single:
            text = b"[" + text + b"]"
        mode = "single-row" if self.single else "batch"
        if not text.startswith(b"["):
            wanted = "an object or an array of objects" if self.single else "an array of objects"
            msg = f"failed to parse JSON in {mode} mode: expected {wanted}, found {_describe_json(text)}"
            raise AnswerError(msg)
        answer = self._fast(text)
        return answer if answer is not None else self._slow(text, mode)

    # --- by Arrow

    def _fast(self, text: bytes) -> DecodedResponse | None:
        """Return the rows by the reader of Arrow, or None if it fails."""
        row = self.wire_row()
        if row is None:
            return None
        try:
            table = read_document(b'{"r":' + text + b"}", pa.schema([("r", pa.list_(row))]))
        except pa.ArrowException:
            return None
        if table.num_rows != 1 or table["r"].null_count:
            return None
        return self.read_arrays(table["r"].combine_chunks().flatten())

    def wire_row(self) -> pa.StructType | None:
        """Return the type of a row to request from Arrow's reader, or None if it cannot read a column."""
        fields = [
            field.with_type(wire) for field in self.schema if (wire := wire_type(field.type)) is not None
        ]
        if len(fields) != len(self.schema):
            return None
        row = pa.struct([field.with_nullable(True) for field in fields] + [pa.field(OP, pa.string())])
        if self.version:
            row = pa.struct([("data", row), ("metadata", pa.struct([("op", pa.string())]))])
        return row

    def read_arrays(self, rows: pa.StructArray) -> DecodedResponse | None:
        """Return rows that Arrow's reader returned as `wire_row`, or None if Python must read them."""
        try:
            if rows.null_count:
                return None
            data = rows.field("data") if self.version else rows
            if data.null_count:
                return None
            ops = data.field(OP)
            if self.version:
                ops = pc.coalesce(ops, rows.field("metadata").field("op"))
            columns = [from_wire_type(data.field(at), field.type) for at, field in enumerate(self.schema)]
        except (pa.ArrowException, ValueError):
            return None
        return DecodedResponse(columns, ops, len(rows))

    # --- by Python

    def _slow(self, text: bytes, mode: str) -> DecodedResponse:
        try:
            result = parse_exact(text)
        except ValueError as error:
            msg = f"failed to parse JSON in {mode} mode: {error}"
            raise AnswerError(msg) from None
        return self.read_values(result)

    def read_values(self, items: list[Any]) -> DecodedResponse:
        """Return the rows of an array that `parse_exact` has read. Raises AnswerError for a wrong value."""
        rows = [self._row(row, number) for number, row in enumerate(items)]
        values: dict[str, list[Any]] = {field.name: [] for field in self.schema}
        for number, (row, _) in enumerate(rows):
            for field in self.schema:
                values[field.name].append(
                    _value(row.get(field.name), field.type, f"row {number}, column `{field.name}`")
                )
        columns = [
            _column(field.name, values[field.name], pa.string() if is_wide(field.type) else field.type)
            for field in self.schema
        ]
        return DecodedResponse(columns, _column(OP, [op for _, op in rows], pa.string()), len(rows))

    def _row(self, row: Any, number: int) -> tuple[Mapping[str, Any], str | None]:
        if not isinstance(row, dict):
            msg = f"row {number} is {describe_kind(row)}, an object is expected"
            raise AnswerError(msg)
        op = None
        if self.version:
            meta = row.get("metadata")
            op = meta.get("op") if isinstance(meta, dict) else None
            if not isinstance(row.get("data"), dict):
                msg = f"row {number}: field 'data' not found in JSON object"
                raise AnswerError(msg)
            row = row["data"]
        op = row[OP] if row.get(OP) is not None else op
        if op is not None and not isinstance(op, str):
            msg = f"row {number}: `{OP}` is {describe_kind(op)}; allowed: i, u, d"
            raise AnswerError(msg)
        return row, op


def _column(name: str, values: list[Any], kind: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, kind)
    except UnicodeEncodeError:
        msg = f"column `{name}` holds half of a surrogate pair, which is no character"
    except (pa.ArrowException, OverflowError) as error:
        msg = f"a value has no room in its column `{name}`: {error}"
    raise AnswerError(msg)


def _value(value: Any, kind: pa.DataType, where: str) -> Any:
    """Return one value in the type of its column.

    Raises AnswerError with the location and the expected type.
    """
    if value is None:
        return None
    if is_wide(kind):
        return _wide(value, kind, where)
    if kinds.is_nested(kind):
        return _decode_nested(value, kind, where)
    if kinds.is_boolean(kind) or kinds.is_string(kind):
        return _as(value, bool if kinds.is_boolean(kind) else str, kind, where)
    if kinds.is_integer(kind):
        return _integer(value, kind, where)
    return _text_value(value, kind, where)


def _decode_nested(value: Any, kind: Any, where: str) -> Any:
    if kinds.is_struct(kind):
        parts = _as(value, dict, kind, where)
        return {
            field.name: _value(parts.get(field.name), field.type, f"{where}.{field.name}") for field in kind
        }
    if kinds.is_map(kind):
        return [
            (key, _value(item, kind.item_type, f"{where}[{key}]"))
            for key, item in _as(value, dict, kind, where).items()
        ]
    return [
        _value(item, kind.value_type, f"{where}[{at}]")
        for at, item in enumerate(_as(value, list, kind, where))
    ]


def _text_value(value: Any, kind: pa.DataType, where: str) -> Any:
    """Numbers with a point, and what is written as text."""
    try:
        if kinds.is_floating(kind):
            number = float(_as(value, (int, Decimal), kind, where))
            return number if math.isfinite(number) else _refuse_value(value)
        if kinds.is_decimal(kind):
            return _decimal(_as(value, (int, Decimal, str), kind, where), kind)
        text = _as(value, str, kind, where)
        if kinds.is_binary(kind):
            return bytes.fromhex(re.sub("^0[xX]", "", text))
        if kinds.is_date(kind):
            return date.fromisoformat(text)
        if kinds.is_timestamp(kind):
            return _moment(text, kind)
    except (ValueError, OverflowError, InvalidOperation):
        raise _wrong(value, kind, where) from None
    msg = f"{where}: a {kind} cannot be read from JSON"
    raise AnswerError(msg)


def _refuse_value(value: Any) -> Any:
    raise ValueError(str(value))


def _moment(text: str, kind: pa.TimestampType) -> datetime:
    result = datetime.fromisoformat(text)
    if kind.tz is None:
        if result.tzinfo is not None:
            raise ValueError(text)
        return result
    return result.astimezone(UTC) if result.tzinfo else result.replace(tzinfo=UTC)


def _decimal(value: int | Decimal | str, kind: pa.Decimal128Type) -> Decimal:
    number = Decimal(value)
    if not number.is_finite() or abs(number) >= Decimal(10) ** (kind.precision - kind.scale):
        raise ValueError(str(value))
    with localcontext(prec=_DIGITS):
        rounded = round(number, kind.scale)
    if rounded != number:
        raise ValueError(str(value))
    return rounded


def _integer(value: Any, kind: pa.DataType, where: str) -> int:
    number = _as(value, (int, Decimal), kind, where)
    if isinstance(number, Decimal) and (_is_long(number) or number != number.to_integral_value()):
        raise _wrong(value, kind, where)
    low, high = (
        (0, 2**kind.bit_width - 1)
        if kinds.is_unsigned_integer(kind)
        else (-(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1)
    )
    if not low <= int(number) <= high:
        raise _wrong(value, kind, where)
    return int(number)


def _is_long(number: Decimal) -> bool:
    """Return whether a number has more digits than any column: 1e999999999 would be a gigabyte."""
    return abs(number.adjusted()) > _DIGITS


def _wide(value: Any, kind: pa.DataType, where: str) -> str:
    if isinstance(value, Decimal) and _is_long(value):
        raise _wrong(value, kind, where)
    text = format(value, "f") if isinstance(value, Decimal) else str(_as(value, (int, str), kind, where))
    if not re.match(pattern(kind), text):
        raise _wrong(value, kind, where)
    if isinstance(kind, WideInteger) and not kind.lowest <= int(text.split(".")[0]) <= kind.highest:
        raise _wrong(value, kind, where)
    return plain_digits(text)


def _as(value: Any, wanted: Any, kind: pa.DataType, where: str) -> Any:
    allowed = wanted if isinstance(wanted, tuple) else (wanted,)
    if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
        raise _wrong(value, kind, where)
    return value


def _wrong(value: Any, kind: pa.DataType, where: str) -> AnswerError:
    shown = (
        "" if value is None or isinstance(value, dict | list) else f" {json.dumps(value, default=str)[:60]}"
    )
    return AnswerError(f"{where} is declared as {kind}, found {describe_kind(value)}{shown}")


def clean_body(body: bytes) -> bytes:
    """Return the JSON text of a body. Raises AnswerError if it is empty or not UTF-8."""
    text = body.strip(b" \t\r\n\xef\xbb\xbf")
    if not text:
        msg = "the body is empty"
        raise AnswerError(msg)
    try:
        text.decode()  # Arrow's reader takes any bytes for text
    except UnicodeDecodeError as error:
        msg = f"the body is not UTF-8, which JSON is: {error.reason} {text[error.start : error.start + 1]!r}"
        raise AnswerError(msg) from None
    return text


def read_document(text: bytes, schema: pa.Schema) -> pa.Table:
    """Return a JSON object as one row. Other keys are ignored. Raises ArrowException if it does not fit."""
    options = pj.ParseOptions(
        explicit_schema=schema, newlines_in_values=True, unexpected_field_behavior="ignore"
    )
    return pj.read_json(
        pa.BufferReader(text),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(text) + 1),
        parse_options=options,
    )


def parse_exact(text: bytes) -> Any:
    """Return a JSON document with exact numbers. Raises ValueError for what is no JSON."""
    try:
        return json.loads(text, parse_float=Decimal, parse_constant=_no_constant)
    except RecursionError as error:
        raise ValueError(str(error)) from None


def describe_kind(value: object) -> str:
    """Return the kind of a JSON value, for messages."""
    return _NAMES.get(type(value), type(value).__name__)


def _describe_json(text: bytes) -> str:
    try:
        return describe_kind(json.loads(text, parse_float=Decimal))
    except (ValueError, RecursionError):
        return "no JSON"


def _no_constant(name: str) -> Any:
    msg = f"{name} is no JSON"
    raise ValueError(msg)

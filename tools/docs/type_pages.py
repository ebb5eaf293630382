"""docs/reference/types.md: prose from tools/docs/parts/types.md, with the tables that the code uses.

A line `<!-- table: NAME -->` is replaced by the table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from headrace.connectors.avro.columns import record_columns
from headrace.connectors.avro.schema import parse_record
from headrace.connectors.clickhouse.types import SCALARS, convert, parse
from headrace.connectors.iceberg.table import iceberg_type
from headrace.connectors.kafka.json_decoder import arrives_as
from headrace.connectors.kafka.protobuf.columns import SCALARS as PROTOBUF_SCALARS
from headrace.connectors.kafka.protobuf.columns import TIMESTAMP, field_type
from headrace.connectors.kafka.protobuf.schema import MESSAGE, ProtobufField, ProtobufType
from headrace.connectors.postgres_table.target import PARSES_TEXT, TAKES
from headrace.pipeline.types.arrow import (
    DECIMALS,
    FILE_TYPES,
    POSTGRES,
    SPARK,
    parse_type,
    postgres_type,
    spark_type,
)

_WRITTEN = (
    "<!-- Written by `make docs` from the connectors' tables and tools/docs/parts/types.md. Change"
    " those. -->\n"
)
_MARK = re.compile(r"^<!-- table: (\w+) -->\n", re.MULTILINE)
_PLACE = {"precision": "p", "scale": "s"}
_CONTAINERS = ("Decimal(20, 4)", "Decimal(60, 4)", "FixedString(8)", "LowCardinality(String)", "SimpleAggregateFunction(sum, Int64)", "Array(UInt8)",
               "Map(String, UInt32)", "Tuple(a UInt8, b Date)", "Nested(a UInt8, b Date)")  # fmt: skip
_JSON: Mapping[str, str] = {
    "string": "string; an object or a list stays JSON text, its numbers with up to 38 digits",
    "int": "integer in the range of the type",
    "int256": "integer or string of digits, in the range of the type",
    "float": "number, or string; also `NaN`, `Infinity`, `-Infinity`",
    "decimal": "number or string, up to 38 digits, at most as many fractional digits as the scale",
    "decimal256(": "the same, up to 76 digits; a string if there are more than 38",
    "boolean": "`true` or `false`",
    "date": "ISO 8601 string. Example: `2025-01-31`",
    "timestamp": "ISO 8601 string; UTC without a zone; truncated to microseconds",
    "time": "string, unchanged",
    "binary": "hexadecimal string",
}
"""Allowed values in a message, by the beginning of the type's name."""
_SAME: Mapping[str, str] = {"utf8": "string", "i256": "int256", "u256": "int256"}


def _logical(kind: str, name: str, **more: int) -> str:
    return json.dumps({"type": kind, "logicalType": name, **more})


_AVRO: Mapping[str, str] = {
    "boolean": '"boolean"',
    "int": '"int"',
    "long": '"long"',
    "timestamp-nanos, local-timestamp-nanos (their number)": _logical("long", "timestamp-nanos"),
    "float": '"float"',
    "double": '"double"',
    "string": '"string"',
    "enum": '{"type": "enum", "name": "e", "symbols": ["A"]}',
    "uuid of a string or of 16 bytes": _logical("string", "uuid"),
    "time-millis, time-micros": _logical("int", "time-millis"),
    "bytes": '"bytes"',
    "fixed": '{"type": "fixed", "name": "f", "size": 2}',
    "duration": '{"type": "fixed", "name": "f", "size": 12, "logicalType": "duration"}',
    "date": _logical("int", "date"),
    "timestamp-millis, timestamp-micros": _logical("long", "timestamp-micros"),
    "local-timestamp-millis, local-timestamp-micros": _logical("long", "local-timestamp-micros"),
    "decimal(20, 4)": _logical("bytes", "decimal", precision=20, scale=4),
    "decimal(60, 4)": _logical("bytes", "decimal", precision=60, scale=4),
    "decimal(78, 0)": _logical("bytes", "decimal", precision=78, scale=0),
    "array of int": '{"type": "array", "items": "int"}',
    "map of long": '{"type": "map", "values": "long"}',
    "record": '{"type": "record", "name": "r", "fields": [{"name": "a", "type": "int"}]}',
}
"""Types with a column of their own, as JSON. A union with null has the same column."""

ICEBERG: Mapping[str, str] = {
    "boolean": "BOOLEAN",
    "int": "INT",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "decimal(20,4)": "DECIMAL(20,4)",
    "date": "DATE",
    "timestamptz": "TIMESTAMP",
    "timestamp": "TIMESTAMP_NTZ",
    "string": "STRING",
    "uuid": "STRING",
    "fixed[16]": "BINARY",
    "binary": "BINARY",
}
"""Iceberg's mapping to Spark. A test compares it with the library."""


def page(parts: Path) -> str:
    """Return the whole page."""
    text = (parts / "types.md").read_text(encoding="utf-8")
    title, _, rest = text.partition("\n")
    return f"{title}\n\n{_WRITTEN}{_MARK.sub(lambda match: TABLES[match[1]](), rest)}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(line)} |\n" for line in (head, *rows)]
    return "".join([lines[0], "|" + "---|" * len(head) + "\n", *lines[1:]])


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _file_types() -> str:
    rows: dict[str, list[str]] = {}
    for name in [*FILE_TYPES, *DECIMALS]:
        rows.setdefault(_arrow_name(parse_type(name)), []).append(name)
    return _table(["in the file", "Arrow"], [[_code(names), f"`{kind}`"] for kind, names in rows.items()])


def _arrow_name(kind: pa.DataType) -> str:
    return str(kind).replace("month_day_nano_interval", "interval")


def _kafka() -> str:
    rows: dict[tuple[str, ...], list[str]] = {}
    for name in [*FILE_TYPES, *DECIMALS, "decimal256(60, 4)"]:
        kind = arrives_as(parse_type(name))
        refused = ("refused: declare it as string, and convert it in a transform", "", "")
        forms = (
            refused
            if kind is None
            else (_json_form(name), f"`{spark_type(kind)}`", f"`{postgres_type(kind)}`")
        )
        rows.setdefault(forms, []).append(name)
    return _table(
        ["in `schema`", "in the message", "in Spark and Delta", "in Postgres"],
        [[_code(names), *row] for row, names in rows.items()],
    )


def _json_form(name: str) -> str:
    plain = _SAME.get(name, name.removeprefix("u") if name.startswith("uint") else name)
    begin = max((key for key in _JSON if plain.startswith(key)), key=len)
    return _JSON[begin]


def _avro() -> str:
    rows: dict[tuple[str, str], list[str]] = {}
    for name, text in _AVRO.items():
        kind = json.loads(text)
        record = {"type": "record", "name": "r", "fields": [{"name": "c", "type": kind}]}
        column = record_columns(parse_record(json.dumps(record))).field(0).type
        forms = (f"`{spark_type(column).replace('`', '')}`", f"`{postgres_type(column)}`")
        rows.setdefault(forms, []).append(name)
    return _table(
        ["Avro", "in Spark and Delta", "in Postgres"],
        [[", ".join(names), *row] for row, names in rows.items()],
    )


def _protobuf() -> str:
    fields = {kind: ProtobufType(kind) for kind in PROTOBUF_SCALARS}
    fields["google.protobuf.Timestamp"] = ProtobufType(MESSAGE, TIMESTAMP)
    number = ProtobufField("a", 1, ProtobufType("int32"))
    types = {name: field_type(ProtobufField("c", 1, kind)) for name, kind in fields.items()}
    types["google.protobuf.Int64Value and the like"] = types["int64"]
    types["repeated int32"] = field_type(ProtobufField("c", 1, number.type, is_repeated=True))
    types["map<string, int32>"] = pa.map_(pa.string(), pa.int32())
    types["message"] = field_type(ProtobufField("c", 1, ProtobufType(MESSAGE, "M", (number,))))
    rows: dict[tuple[str, str], list[str]] = {}
    for name, kind in types.items():
        forms = (f"`{spark_type(kind).replace('`', '')}`", f"`{postgres_type(kind)}`")
        rows.setdefault(forms, []).append(name)
    return _table(
        ["Protobuf", "in Spark and Delta", "in Postgres"],
        [[_code(names), *row] for row, names in rows.items()],
    )


def _clickhouse() -> str:
    rows: dict[str, list[str]] = {}
    for name, (_, arrow) in SCALARS.items():
        rows.setdefault(spark_type(arrow), []).append(name)
    for name in _CONTAINERS:
        rows.setdefault(spark_type(convert(parse(name))[1]), []).append(name)
    return _table(
        ["ClickHouse", "arrives as"],
        [[_code(names), f"`{kind.replace('`', '')}`"] for kind, names in rows.items()],
    )


def _iceberg() -> str:
    rows: dict[str, list[str]] = {}
    for name, kind in ICEBERG.items():
        rows.setdefault(kind, []).append(name)
    return _table(["in Iceberg", "in Spark"], [[_code(names), f"`{kind}`"] for kind, names in rows.items()])


def _iceberg_made() -> str:
    """Return the Iceberg type of created columns, whose Spark type the column has."""
    iceberg_types = {
        kind.split("(")[0]: name.split("(")[0]
        for name, kind in ICEBERG.items()
        if name not in ("uuid", "fixed[16]")
    }
    rows: dict[str, list[str]] = {}
    for what, _, kind in SPARK:
        small = kind in ("TINYINT", "SMALLINT")
        plain = iceberg_type(pa.int16()) if small else kind.split("(")[0]
        rows.setdefault(iceberg_types.get(plain, ""), []).append(what)
    return _table(
        ["Arrow", "created column"],
        [[", ".join(kinds), f"`{name}`" if name else "refused"] for name, kinds in rows.items()],
    )


def _rows_of(table: Iterable[tuple[str, Callable[[pa.DataType], bool], str]]) -> Iterator[list[str]]:
    for what, _, name in table:
        yield [what, f"`{name.format(**_PLACE)}`"]


def _accepted_types() -> str:
    rows = [[f"`{ours}`", _code(theirs)] for ours, theirs in TAKES.items()]
    return _table(["type of the rows", "accepted column types"], rows)


TABLES: Mapping[str, Callable[[], str]] = {
    "file_types": _file_types,
    "kafka": _kafka,
    "avro": _avro,
    "protobuf": _protobuf,
    "clickhouse": _clickhouse,
    "iceberg": _iceberg,
    "iceberg_made": _iceberg_made,
    "spark": lambda: _table(["Arrow", "Spark"], _rows_of(SPARK)),
    "postgres": lambda: _table(["Arrow", "created column"], _rows_of(POSTGRES)),
    "takes": _accepted_types,
    "parses_text": lambda: _table(
        ["type of the rows", "columns that parse it"], [["`text`", f"{_code(PARSES_TEXT)}, enumerations"]]
    ),
}

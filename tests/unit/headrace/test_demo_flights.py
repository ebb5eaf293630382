"""The demo's data, compared with a slow computation."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest

from headrace.demo.compare import compare
from headrace.demo.flights import KEY, LIVE, PARTITIONS, expected_table, flights, history_table, messages


def _by_hand() -> dict[tuple, dict]:
    """The expected table, row by row in plain Python."""
    table = {tuple(row[name] for name in KEY): row for row in history_table().to_pylist()}
    for message in messages():
        if message.op == "d":
            table.pop(message.key, None)
        else:
            table[message.key] = message.row
    return table


def _bucket(delay: int | None) -> str:
    if delay is None:
        return "never left"
    return (
        "on time"
        if delay <= 0
        else "up to 15 min"
        if delay <= 15
        else "up to 1 h"
        if delay <= 60
        else "over 1 h"
    )


def test_every_flight_is_there_once_under_its_key() -> None:
    assert flights().num_rows == 336_776
    assert flights().group_by(list(KEY)).aggregate([]).num_rows == 336_776
    assert (
        history_table().num_rows + sum(1 for key in {message.key for message in messages()} if key[0] >= LIVE)
        == 336_776
    )


def test_expected_is_what_the_messages_make_of_history() -> None:
    by_hand, result = _by_hand(), expected_table()
    assert result.num_rows == len(by_hand)
    for row in result.to_pylist():
        raw = by_hand[tuple(row[name] for name in KEY)]
        minutes = {
            name: None if raw[name] == "NA" else int(raw[name])
            for name in ("dep_delay", "arr_delay", "air_time")
        }
        tail = raw["tailnum"].strip().upper()
        want = {
            **raw,
            **minutes,
            "tailnum": None if tail == "NA" else tail,
            "delay_bucket": _bucket(minutes["dep_delay"]),
        }
        assert row == {name: want[name] for name in result.column_names}


def test_offsets_in_history_are_those_of_the_same_messages() -> None:
    seen: Counter[int] = Counter()
    at = {}
    for message in messages():
        at[message.partition, seen[message.partition]] = message.key
        seen[message.partition] += 1
    loaded = [row for row in history_table().to_pylist() if row["_kafka_offset"] is not None]
    assert len(loaded) > 5_000
    assert all(
        at[row["_kafka_partition"], row["_kafka_offset"]] == tuple(row[name] for name in KEY)
        for row in loaded
    )
    for partition in range(PARTITIONS):
        offsets = sorted(row["_kafka_offset"] for row in loaded if row["_kafka_partition"] == partition)
        assert offsets == list(range(len(offsets)))


def test_messages_reach_back_and_contradict_each_other() -> None:
    ops = Counter((message.op, message.key[0] < LIVE) for message in messages())
    assert all(ops[op, before] > 50 for op in "ud" for before in (True, False))
    gone = {message.key for message in messages() if message.op == "d"}
    assert {message.key for message in messages()[-len(messages()) :] if message.op == "c"} & gone
    per_key: dict[tuple, set[int]] = {}
    for message in messages():
        per_key.setdefault(message.key, set()).add(message.partition)
    assert all(len(partitions) == 1 for partitions in per_key.values())


@pytest.fixture(scope="module")
def good() -> pa.Table:
    return expected_table()


def test_compare_is_content_with_another_order_and_kin_types(good: pa.Table) -> None:
    other = good.sort_by([("dest", "descending")]).set_column(
        0, "time_hour", good.sort_by([("dest", "descending")])["time_hour"].cast(pa.timestamp("us", "UTC"))
    )
    assert compare(other, good).is_equal


def test_compare_finds_what_is_lost_doubled_changed_and_foreign(good: pa.Table) -> None:
    lost = compare(good.slice(1), good)
    assert (lost.missing.num_rows, lost.duplicates, lost.is_equal) == (1, 0, False)
    assert lost.missing.to_pylist()[0] == {name: good.slice(0, 1).to_pylist()[0][name] for name in KEY}
    doubled = compare(pa.concat_tables([good, good.slice(5, 2)]), good)
    assert (doubled.duplicates, doubled.missing.num_rows, doubled.is_equal) == (2, 0, False)
    row = good.slice(7, 1).to_pylist()[0]
    changed = pa.Table.from_pylist([{**row, "distance": row["distance"] + 1}], schema=good.schema)
    result = compare(pa.concat_tables([good.slice(0, 7), changed, good.slice(8)]), good)
    assert (result.changed.num_rows, result.missing.num_rows, result.extra.num_rows, result.is_equal) == (
        1,
        0,
        0,
        False,
    )
    foreign = pa.Table.from_pylist([{**row, "carrier": "ZZ"}], schema=good.schema)
    assert compare(pa.concat_tables([good, foreign]), good).extra.num_rows == 1
    blank = pa.Table.from_pylist([{**row, "tailnum": None}], schema=good.schema)
    assert compare(pa.concat_tables([good.slice(0, 7), blank, good.slice(8)]), good).changed.num_rows == 1

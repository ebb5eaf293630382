"""How fast `dynamic_table_check` answers: the function over Arrow alone, on one core, in memory and with Postgres behind it."""

from __future__ import annotations

import random
import secrets
from typing import Any

import pyarrow as pa

from benchmarks.kit import Bench, timed
from headrace.connectors.postgres.lookup_table import LookupTableColumns, ValueTable
from headrace.connectors.postgres.session import Address
from headrace.jobs.dynamic_tables.base import checker
from headrace.jobs.dynamic_tables.broadcast import BroadcastLookup, ValueSegment
from headrace.pipeline.model.transforms import DynamicTableConfig

_BATCH = 10_000
"""Rows that Spark hands to a worker at once."""
GATE = 100_000


def lookups(bench: Bench, rows: int) -> list[str]:
    """Different wallets, half of them held. In memory it is gated."""
    asked = min(rows, 1_000_000)
    missed = []
    for held in (10_000, 1_000_000):
        segment = ValueSegment(_wallets(range(held)))
        assert len(segment.texts) == held
        speed = _speed(BroadcastLookup((), segment), held, asked)
        bench.add("lookups", f"in memory, {held:,} values held", f"{speed / 1e6:.2f} M lookups/s")
        missed += [f"lookups: {speed:,.0f}/s in memory, {GATE:,} wanted"] if speed < GATE else []
    connection = bench.settings().postgres_for_tables()
    node = DynamicTableConfig(backend_type="Postgres", backend_entity_name=f"bench_{secrets.token_hex(4)}")
    table = ValueTable("bench", LookupTableColumns.of(node, connection), Address(connection, "headrace bench", "bench"))
    try:
        table.prepare()
        table.add(_wallets(range(100_000)).to_pylist())
        for at_most in (1_000, 10_000):
            speed = _speed(table.lookup(at_most), 100_000, asked // 10)
            bench.add("lookups", f"Postgres, 100,000 values held, {at_most:,} a question", f"{speed / 1e6:.2f} M lookups/s")
    finally:
        table.close()
    return missed


def _speed(lookup: Any, held: int, asked: int) -> float:
    dice = random.Random(1)
    check = checker({"t": lookup})
    values, name = _wallets([dice.randrange(2 * held) for _ in range(asked)]), pa.array(["t"] * _BATCH)
    check(name, values.slice(0, 1))
    began = timed()
    found = sum(check(name, values.slice(at, _BATCH)).true_count for at in range(0, asked, _BATCH))
    seconds = timed() - began
    assert 0.45 * asked < found < 0.55 * asked
    return asked / seconds


def _wallets(numbers: range | list[int]) -> pa.Array:
    return pa.array([f"0x{number:040x}" for number in numbers])

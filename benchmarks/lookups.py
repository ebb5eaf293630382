"""Speed of `dynamic_table_check`: the Arrow function alone, on one core, in memory and with Postgres."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa

from benchmarks.kit import BenchmarkRunner, random_name, read_clock
from headrace.connectors.postgres_client.session import Address
from headrace.jobs.dynamic_tables.base import checker
from headrace.jobs.dynamic_tables.broadcast import BroadcastLookup, ValueSegment
from headrace.jobs.dynamic_tables.lookup_table import LookupTableColumns, ValueTable
from headrace.pipeline.model.transforms import DynamicTableConfig

_BATCH = 10_000
"""Rows per batch that Spark passes to a worker."""
GATE = 100_000


def lookups(runner: BenchmarkRunner, rows: int) -> list[str]:
    """Look up different wallets, half of which are in the table. The variant in memory is gated."""
    lookup_count = min(rows, 1_000_000)
    missed = []
    for size in (10_000, 1_000_000):
        segment = ValueSegment(_wallets(range(size)))
        assert len(segment.texts) == size
        speed = _measure_lookups(BroadcastLookup((), segment), size, lookup_count)
        runner.add_figure("lookups", f"in memory, {size:,} values held", f"{speed / 1e6:.2f} M lookups/s")
        missed += [f"lookups: {speed:,.0f}/s in memory, {GATE:,} wanted"] if speed < GATE else []
    connection = runner.settings().postgres_for_tables()
    node = DynamicTableConfig(backend_type="Postgres", backend_entity_name=random_name())
    table = ValueTable(
        "bench", LookupTableColumns.of(node, connection), Address(connection, "headrace bench", "bench")
    )
    try:
        table.prepare()
        table.add(_wallets(range(100_000)).to_pylist())
        for batch_size in (1_000, 10_000):
            speed = _measure_lookups(table.lookup(batch_size), 100_000, lookup_count // 10)
            runner.add_figure(
                "lookups",
                f"Postgres, 100,000 values held, {batch_size:,} a question",
                f"{speed / 1e6:.2f} M lookups/s",
            )
    finally:
        table.close()
    return missed


def _measure_lookups(lookup: Any, values_held: int, lookup_count: int) -> float:
    generator = random.Random(1)
    check = checker({"t": lookup})
    values, name = (
        _wallets([generator.randrange(2 * values_held) for _ in range(lookup_count)]),
        pa.array(["t"] * _BATCH),
    )
    check(name, values.slice(0, 1))
    began = read_clock()
    matches = sum(check(name, values.slice(at, _BATCH)).true_count for at in range(0, lookup_count, _BATCH))
    seconds = read_clock() - began
    assert 0.45 * lookup_count < matches < 0.55 * lookup_count
    return lookup_count / seconds


def _wallets(numbers: range | list[int]) -> pa.Array:
    return pa.array([f"0x{number:040x}" for number in numbers])

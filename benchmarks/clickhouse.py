"""A ClickHouse table into another one, compared with bare inserts of Arrow."""

from __future__ import annotations

import secrets

import clickhouse_connect
import pyarrow as pa

from benchmarks.kit import (
    ARROW_TRANSFORM,
    COLUMNS,
    TRANSFORM,
    BenchmarkRunner,
    format_rate,
    random_name,
    read_clock,
)

_PIPELINE = """
name: {name}
sources:
  src: {{type: clickhouse, table_name: {table}, primary_key: id}}
{transforms}
sinks:
  out: {{type: clickhouse, from: {last}, table: bench.{name}}}
epoch: {{history_rows: 1000000}}
"""
_BATCH = 500_000


def clickhouse(runner: BenchmarkRunner, rows: int) -> list[str]:
    """Measure a keyed ClickHouse sink, as it is and after SQL."""
    table = runner.create_table(rows)
    bare = _insert_arrow(runner, table, rows)
    runner.add_figure(
        "clickhouse", f"bare: one process, Arrow inserts, {rows:,} rows", format_rate(rows, bare), "1.00"
    )
    for what, transforms, last in (
        ("as they are", "", "src"),
        ("after SQL", ARROW_TRANSFORM, "shout"),
        ("after SQL of Spark", TRANSFORM, "shout"),
    ):
        name = random_name()
        text = _PIPELINE.format(name=name, table=table, transforms=transforms, last=last)
        seconds, epochs = runner.run_pipeline(text)
        assert _count(runner, f"bench.{name}") == rows
        ratio = f"{bare / seconds:.2f}"
        runner.add_figure(
            "clickhouse", f"headrace, rows {what}, {len(epochs)} epochs", format_rate(rows, seconds), ratio
        )
    return []


def _insert_arrow(runner: BenchmarkRunner, table: str, rows: int) -> float:
    """Read the table as Arrow, and insert batches into a table like that of the sink. Return the seconds."""
    target = f"bench.bench_{secrets.token_hex(4)}"
    arguments = runner.services.clickhouse.client_arguments()
    with (
        clickhouse_connect.get_client(**arguments) as reader,
        clickhouse_connect.get_client(**arguments) as writer,
    ):
        writer.command("CREATE DATABASE IF NOT EXISTS bench")  # the default one is not Atomic
        writer.command(
            f"CREATE TABLE {target} ({COLUMNS}, insert_time UInt64, is_deleted UInt8)"
            " ENGINE = ReplacingMergeTree(insert_time, is_deleted) ORDER BY id"
        )
        began = read_clock()
        waiting: list[pa.RecordBatch] = []
        query = f"SELECT *, toUInt64(0) AS insert_time, toUInt8(0) AS is_deleted FROM {table}"
        with reader.query_arrow_stream(query) as batches:
            for batch in batches:
                waiting += batch.to_batches() if isinstance(batch, pa.Table) else [batch]
                if sum(one.num_rows for one in waiting) >= _BATCH:
                    writer.insert_arrow(target, pa.Table.from_batches(waiting))
                    waiting = []
        if waiting:
            writer.insert_arrow(target, pa.Table.from_batches(waiting))
        seconds = read_clock() - began
    assert _count(runner, target) == rows
    return seconds


def _count(runner: BenchmarkRunner, table: str) -> int:
    with clickhouse_connect.get_client(**runner.services.clickhouse.client_arguments()) as client:
        return client.query(f"SELECT count() FROM {table} FINAL").result_rows[0][0]

"""The cost of monitoring: one history without, with metrics, and with rows for `headrace tail` as well."""

from __future__ import annotations

from typing import Any

from benchmarks.kit import HISTORY, TRANSFORM, BenchmarkRunner, format_rate, random_name

METRICS: dict[str, Any] = {"admin_api_port": 0}
ROUNDS = 3
"""Rounds of all variants. The best of each counts, since other work on the machine only adds time."""


def watching(runner: BenchmarkRunner, rows: int) -> list[str]:
    """Load ClickHouse into keyed Postgres through Spark.

    An epoch has a million rows, and its first rows are sampled.
    """
    rows = rows // 5
    table = runner.create_table(rows)
    variants = {
        "not watched": {},
        "with metrics": METRICS,
        "with metrics and rows for `tail`": METRICS | {"live_data_inspect_enabled": True},
    }
    best = dict.fromkeys(variants, float("inf"))
    for _ in range(ROUNDS):
        for what, settings in variants.items():
            name = random_name()
            text = HISTORY.format(name=name, table=table, transforms=TRANSFORM, last="shout", target=name)
            seconds, _ = runner.run_pipeline(text, settings)
            best[what] = min(best[what], seconds)
            assert runner.count_rows(name) == rows
    plain = best["not watched"]
    for what, seconds in best.items():
        runner.add_figure(
            "watching", f"{what}, {rows:,} rows", format_rate(rows, seconds), f"{plain / seconds:.2f}"
        )
    return []

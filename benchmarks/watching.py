"""What it costs to be watched: one history without, with metrics, and with rows for `headrace tail` as well."""

from __future__ import annotations

import secrets
from typing import Any

from benchmarks.kit import HISTORY, TRANSFORM, Bench, rate

METRICS: dict[str, Any] = {"admin_api_port": 0}
ROUNDS = 3
"""Every way runs so often, in turns; the best of each counts, since other work on the machine only ever adds."""


def watching(bench: Bench, rows: int) -> list[str]:
    """ClickHouse to keyed Postgres by the rows route. An epoch has a million rows, and its beginning is looked at."""
    rows = rows // 5
    table = bench.table(rows)
    ways = {"not watched": {}, "with metrics": METRICS, "with metrics and rows for `tail`": METRICS | {"live_data_inspect_enabled": True}}
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(ROUNDS):
        for what, settings in ways.items():
            name = f"bench_{secrets.token_hex(4)}"
            text = HISTORY.format(name=name, table=table, transforms=TRANSFORM, last="shout", target=name)
            seconds, _ = bench.headrace(text, settings)
            best[what] = min(best[what], seconds)
            assert bench.count(name) == rows
    plain = best["not watched"]
    for what, seconds in best.items():
        bench.add("watching", f"{what}, {rows:,} rows", rate(rows, seconds), f"{plain / seconds:.2f}")
    return []

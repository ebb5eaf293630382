"""The page with the figures of all tools."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "internals" / "peers.md"
HEAD = """# Compared with other tools

Written by `make bench-peers` on {day}: {machine}, {cores} cores, {runs}. Compare inside a table. "Whole" is the whole command with
its start; "work" begins when the tool is ready to read. CPU and memory are those of the tool's processes, without the servers. Every
result was compared with the source before its figure counted. "After kill -9" says what the target lacked or had twice after the tool
was killed in the middle and started again with the same command. The programs are in `benchmarks/peers`. The plots show thousands of rows
per second of the whole command.
"""
PLOT = """```mermaid
xychart-beta horizontal
    x-axis [{tools}]
    y-axis "thousand rows/s, whole command" 0 --> {most}
    bar [{rates}]
```
"""
TITLES = {
    "A": "A: ClickHouse into keyed Postgres",
    "B": "B: Kafka JSON into Postgres by key",
    "C": "C: Kafka JSON into Delta",
    "D": "D: ClickHouse into Delta",
    "B5": "B with more messages",
    "C5": "C with more messages",
}
NAMES = {
    "headrace": "Headrace",
    "bare": "bare script",
    "dlt": "dlt",
    "bytewax": "Bytewax",
    "spark_by_hand": "Spark by hand",
}


@dataclass
class PeerFigure:
    """A verified run: seconds of the whole command and of its work, processor seconds, and the peak in GiB."""

    peer: str
    rows: int
    whole: float
    work: float
    cpu: float
    peak: float

    def line(self) -> str:
        """Return the figures as cells of a table."""
        return (
            f"{NAMES[self.peer]} | {self.rows / self.whole / 1000:,.0f} k | {self.rows / self.work / 1000:,.0f} k"
            f" | {self.cpu:.0f} s | {self.peak:.2f} GiB | {self.rows / self.work / self.peak / 1000:,.0f} k"
        )


@dataclass
class PeerOutcome:
    """What a kill in the middle and a second start left."""

    peer: str
    code: int
    lost: int
    doubled: int

    def cell(self) -> str:
        """Return the words for a table."""
        parts = [f"second start fails (exit {self.code})"] if self.code else []
        parts += [f"{self.lost:,} lost"] if self.lost else []
        parts += [f"{self.doubled:,} twice"] if self.doubled else []
        return ", ".join(parts) or "right"


def format_page(results: Mapping[str, tuple[list[PeerFigure], list[PeerOutcome]]], rounds: int) -> str:
    """Return the page as Markdown."""
    machine = f"{platform.system()} on {platform.machine()}, Python {platform.python_version()}"
    runs = "one run each" if rounds == 1 else f"medians of {rounds} runs"
    day = datetime.now(UTC).date()
    lines = [HEAD.format(day=day, machine=machine, cores=os.cpu_count(), runs=runs)]
    for scenario, (figures, outcomes) in results.items():
        rates = [round(figure.rows / figure.whole / 1000) for figure in figures]
        tools = ", ".join(f'"{NAMES[figure.peer]}"' for figure in figures)
        ends = {outcome.peer: outcome.cell() for outcome in outcomes}
        lines += [
            f"## {TITLES[scenario]}, {figures[0].rows:,} rows",
            "",
            PLOT.format(tools=tools, most=round(1.1 * max(rates)), rates=", ".join(map(str, rates))),
            "| tool | rows/s, whole | rows/s, work | CPU | memory | rows/s per GiB | after kill -9 |",
            "|---|---|---|---|---|---|---|",
            *(f"| {figure.line()} | {ends.get(figure.peer, '')} |" for figure in figures),
            "",
        ]
    return "\n".join(lines)

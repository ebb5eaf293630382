"""`python -m benchmarks [NAME …] [--rows N] [--rounds N] [--write]`: run benchmarks.

Without names run all, and write docs/internals/benchmarks.md. With names `--write` replaces their tables.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import cases
from benchmarks.kit import BenchmarkFigure, BenchmarkRunner, open_runner
from benchmarks.rounds import ROUNDS, choose_medians, has_rounds

PAGE = Path(__file__).parent.parent / "docs" / "internals" / "benchmarks.md"
HEAD = """# Benchmarks

Written by `make bench`. Compare inside a table, never across machines: ratios are against the first line of their table, the best bare
way to do the same where there is one, in the same run. What each case does is in `benchmarks/README.md`.
"""
TITLE = "## "

NOTES = {
    "functions": """\
One core, after the JVM has compiled: one cached table, one task, a sink that throws rows away. What counts is the processor time of
the JVM, its collector among it, and of its Python workers. A call runs over the same rows until it gets no faster, and its best pass
counts, without what reading the same columns takes. The first seconds of a run are slower. The ratio is against the goal, 1 M rows/s
for expressions and 0.15 M over Arrow; where Spark has a function that does nearly the same, the line says which part of its speed is
reached.

Those that parse JSON, here a document of 75 bytes, are held by Spark's own `get_json_object` and `try_parse_json`, which take about
1 us for it; `json_value` and `json_exists` add almost nothing to it. `json_query` also looks in the document for texts that may be
taken for objects, and `is_json` and `try_parse_json` at the text after the first value.
"""
}
"""Notes for the readers of a table, by its name."""


def main() -> int:
    """Run the benchmarks. Return 1 if a gated figure is missed."""
    parser = argparse.ArgumentParser(prog="benchmarks")
    parser.add_argument("names", nargs="*", choices=[*cases.CASES, []], help="default: all")
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of which the median counts")
    parser.add_argument("--write", action="store_true", help="replace the tables of the names in the page")
    arguments = parser.parse_args()
    missed: list[str] = []
    tables: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder, open_runner(Path(folder)) as runner:
        for name in arguments.names or list(cases.CASES):
            rounds = arguments.rounds if has_rounds(name) else 1
            figures, gates = run_case(runner, name, arguments.rows, rounds)
            tables |= format_tables(figures, rounds)
            missed += gates
    if not arguments.names:
        PAGE.write_text(format_page(tables))
    elif arguments.write:
        PAGE.write_text(format_page(read_tables(PAGE.read_text()) | tables))
    for line in missed:
        print(f"missed: {line}", file=sys.stderr)
    return 1 if missed else 0


def run_case(
    runner: BenchmarkRunner, name: str, rows: int, rounds: int
) -> tuple[dict[str, list[BenchmarkFigure]], list[str]]:
    """Run a benchmark several times. Return the medians by table, and the gates that it missed."""
    missed: list[str] = []
    results: list[dict[str, list[BenchmarkFigure]]] = []
    for _ in range(rounds):
        missed += cases.CASES[name](runner, rows)
        results.append(runner.take_figures())
    return {title: choose_medians([result[title] for result in results]) for title in results[0]}, missed


def read_tables(page: str) -> dict[str, str]:
    """Return the sections of a page by their titles."""
    _, *sections = page.split(f"\n{TITLE}")
    return {section.partition("\n")[0]: f"{TITLE}{section.rstrip()}\n" for section in sections}


def format_page(tables: Mapping[str, str]) -> str:
    """Return a page of sections."""
    return "\n".join([HEAD, *tables.values()])


def format_tables(tables: Mapping[str, Sequence[BenchmarkFigure]], rounds: int) -> dict[str, str]:
    """Return the figures as sections by their titles."""
    machine = f"{platform.system()} on {platform.machine()}, Python {platform.python_version()}"
    median = f", the median of {rounds} runs" if rounds > 1 else ""
    measured = f"Measured on {datetime.now(UTC).date()}{median}: {machine}, {os.cpu_count()} cores."
    result = {}
    for name, figures in tables.items():
        lines = [f"{TITLE}{name}", "", measured, "", *([NOTES[name]] if name in NOTES else [])]
        lines += ["| what | figure | ratio |", "|---|---|---|"]
        lines += [f"| {figure.what} | {figure.value} | {figure.ratio} |" for figure in figures]
        result[name] = "\n".join([*lines, ""])
    return result


if __name__ == "__main__":
    sys.exit(main())

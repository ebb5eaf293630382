"""The output of the demo at its beginning and its end, in 80 columns."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from headrace.commands.inspect import show_checks
from headrace.console import WIDTH, format_count
from headrace.demo.compare import Comparison, compare
from headrace.demo.environment import DemoEnvironment
from headrace.demo.flights import expected_table
from headrace.demo.targets import bucket_counts, delta_table, postgres_table
from headrace.jobs.run.events import CheckResult

QUERY = "SELECT delay_bucket, count(*) FROM flights GROUP BY 1 ORDER BY 2 DESC"


def command_name() -> str:
    """Return how to call `headrace` from here."""
    name = Path(sys.argv[0])
    installed = shutil.which(name.name)
    return name.name if installed and Path(installed).samefile(name) else os.path.relpath(name)


def print_title(console: Console) -> None:
    """Print what the demo does."""
    console.rule("Headrace: every flight that left New York in 2013", align="left")
    console.print("January to November are in a ClickHouse table, December arrives live by Kafka.")
    console.print("Both go into Postgres and Delta, every row once, with a kill -9 on the way.")
    console.print()


def compare_targets(environment: DemoEnvironment) -> dict[str, Comparison]:
    """Compare both targets, row by row, with the expected table."""
    expected = expected_table()
    return {
        "Postgres": compare(postgres_table(environment.services, expected.column_names), expected),
        "Delta": compare(delta_table(environment.delta_path, expected.column_names), expected),
    }


def print_report(
    environment: DemoEnvironment, checks: list[CheckResult], comparisons: dict[str, Comparison]
) -> None:
    """Print numbers, checks, the comparison, and where to look."""
    console = environment.console
    console.print()
    console.print(_phase_table(environment))
    _print_kill(environment)
    console.print()
    console.print("Checks of the sinks:")
    show_checks(console, checks)
    console.print()
    console.print(_comparison_table(comparisons))
    for name, comparison in comparisons.items():
        if not comparison.is_equal:
            console.print(f"[bold red]{name}[/]: {comparison.summarize()}")
    console.print()
    _print_locations(environment)
    good = all(check.passed for check in checks) and all(
        comparison.is_equal for comparison in comparisons.values()
    )
    console.rule(
        "[green]every check passed[/]" if good else "[bold red]not every check passed[/]", align="left"
    )


def _create_table(*names: str) -> Table:
    table = Table(box=None, padding=(0, 2), pad_edge=False, width=WIDTH - 4)
    table.add_column(names[0])
    for name in names[1:]:
        table.add_column(name, justify="right")
    return table


def _phase_table(environment: DemoEnvironment) -> Table:
    table = _create_table("phase", "rows", "rows/s", "epochs", "seconds")
    for phase in environment.progress.summarize_phases(
        without_epoch=environment.load_state().get("killed_epoch")
    ):
        table.add_row(
            phase.name,
            format_count(phase.rows),
            f"{phase.rate:,.0f}",
            str(phase.epochs),
            f"{phase.seconds:.1f}",
        )
    return table


def _print_kill(environment: DemoEnvironment) -> None:
    if killed := environment.load_state().get("killed_epoch"):
        environment.console.print(
            f"Epoch {killed} was killed with -9 and finished by the next process: not timed."
        )


def _comparison_table(comparisons: dict[str, Comparison]) -> Table:
    table = _create_table("compared row by row", "rows", "lost", "doubled", "other values")
    table.add_row("expected", format_count(next(iter(comparisons.values())).expected), "", "", "")
    for name, comparison in comparisons.items():
        table.add_row(
            name,
            format_count(comparison.rows),
            format_count(comparison.missing.num_rows),
            format_count(comparison.duplicates),
            format_count(comparison.changed.num_rows + comparison.extra.num_rows),
        )
    return table


def _print_locations(environment: DemoEnvironment) -> None:
    console = environment.console
    console.print(f"Postgres: table flights.   Delta: {environment.delta_path}")
    console.print(f'  {command_name()} services psql -c \\\n    "{QUERY}"', markup=False)
    for bucket, rows in bucket_counts(environment.services, QUERY):
        console.print(f"    {bucket:<14}{rows:>9,}")
    console.print("Runs, partitions and checks in Dagster's pages:  make ui")

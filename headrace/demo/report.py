"""What the demo prints at its beginning and its end, in 80 columns."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from headrace.commands.inspect import show_checks
from headrace.console import WIDTH, count
from headrace.demo.compare import Comparison, compare
from headrace.demo.flights import expected
from headrace.demo.held import bucket_counts, delta_table, postgres_table
from headrace.demo.setting import Setting
from headrace.jobs.run.events import CheckResult

QUERY = "SELECT delay_bucket, count(*) FROM flights GROUP BY 1 ORDER BY 2 DESC"


def command() -> str:
    """How to call `headrace` from here."""
    name = Path(sys.argv[0])
    found = shutil.which(name.name)
    return name.name if found and Path(found).samefile(name) else os.path.relpath(name)


def title(console: Console) -> None:
    """What this is going to be."""
    console.rule("Headrace: every flight that left New York in 2013", align="left")
    console.print("January to November lie in a ClickHouse table, December comes live by Kafka.")
    console.print("Both go into Postgres and Delta, every row once, with a kill -9 on the way.")
    console.print()


def compared(setting: Setting) -> dict[str, Comparison]:
    """Both targets, row by row, against the table that had to come out."""
    want = expected()
    return {
        "Postgres": compare(postgres_table(setting.services, want.column_names), want),
        "Delta": compare(delta_table(setting.delta, want.column_names), want),
    }


def show(setting: Setting, checks: list[CheckResult], compared: dict[str, Comparison]) -> None:
    """Figures, checks, the comparison, and where to look."""
    console = setting.console
    console.print()
    console.print(_phases(setting))
    _about_the_kill(setting)
    console.print()
    console.print("Checks, asked of the sinks themselves:")
    show_checks(console, checks)
    console.print()
    console.print(_rows(compared))
    for name, comparison in compared.items():
        if not comparison.equal:
            console.print(f"[bold red]{name}[/]: {comparison.said()}")
    console.print()
    _where(setting)
    good = all(check.passed for check in checks) and all(comparison.equal for comparison in compared.values())
    console.rule("[green]every check passed[/]" if good else "[bold red]not every check passed[/]", align="left")


def _table(*names: str) -> Table:
    table = Table(box=None, padding=(0, 2), pad_edge=False, width=WIDTH - 4)
    table.add_column(names[0])
    for name in names[1:]:
        table.add_column(name, justify="right")
    return table


def _phases(setting: Setting) -> Table:
    table = _table("phase", "rows", "rows/s", "epochs", "seconds")
    for phase in setting.lane.sums(without=setting.kept().get("killed_epoch")):
        table.add_row(phase.name, count(phase.rows), f"{phase.rate:,.0f}", str(phase.epochs), f"{phase.seconds:.1f}")
    return table


def _about_the_kill(setting: Setting) -> None:
    if killed := setting.kept().get("killed_epoch"):
        setting.console.print(f"Epoch {killed} was killed with -9 and finished by the next process: not timed.")


def _rows(compared: dict[str, Comparison]) -> Table:
    table = _table("compared row by row", "rows", "lost", "doubled", "other values")
    table.add_row("expected", count(next(iter(compared.values())).expected), "", "", "")
    for name, found in compared.items():
        table.add_row(
            name, count(found.rows), count(found.lost.num_rows), count(found.doubled), count(found.changed.num_rows + found.extra.num_rows)
        )
    return table


def _where(setting: Setting) -> None:
    console = setting.console
    console.print(f"Postgres: table flights.   Delta: {setting.delta}")
    console.print(f'  {command()} services psql -c \\\n    "{QUERY}"', markup=False)
    for bucket, rows in bucket_counts(setting.services, QUERY):
        console.print(f"    {bucket:<14}{rows:>9,}")
    console.print("Runs, partitions and checks in Dagster's pages:  make ui")

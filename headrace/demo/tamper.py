"""`headrace demo --tamper`: a row goes behind the sink's back, a check finds it, replay puts it back."""

from __future__ import annotations

from typing import Any

from headrace.commands.inspect import show_checks
from headrace.demo import report
from headrace.demo.flights import KEY
from headrace.demo.held import delete_row, delta_table, postgres_table
from headrace.demo.setting import POSTGRES, Setting
from headrace.jobs.checks.audit import audit
from headrace.jobs.run.events import CheckResult
from headrace.jobs.run.repair import replay

MONTH = "2013-11-01"
DAY = "2013-11-05 00:00:00+00"


def tamper_and_repair(setting: Setting) -> bool:
    """True if the check failed, named the row's loss, and passed after the repair, with every row as expected."""
    console = setting.console
    console.print()
    console.rule("Tampering", align="left")
    key = delete_row(setting.services, DAY)
    console.print(f"Deleted a row of Postgres behind Headrace's back: {_words(key)}")
    broken = audit(setting.file, setting.settings, sinks=[POSTGRES])
    show_checks(console, broken)
    lost = _lost(setting)
    console.print(f"Delta has, and Postgres has not: {', '.join(_words(row) for row in lost)}")
    if not _red(broken) or lost != [key]:
        console.print("[bold red]The check did not find it.[/]")
        return False
    epoch = next(row.plan.number for row in setting.lane.epochs() if row.plan.window == MONTH)
    console.print(f"{report.command()} replay {setting.file.path} --sink {POSTGRES} --from {epoch}", markup=False)
    with console.status(f"writing epochs {epoch} and later into Postgres again"):
        replay(setting.file, setting.settings, sink=POSTGRES, from_epoch=epoch)
        mended = audit(setting.file, setting.settings, sinks=[POSTGRES])
        compared = report.compared(setting)
    show_checks(console, mended)
    for name, comparison in compared.items():
        console.print(f"  {name}: {comparison.said()}")
    good = all(check.passed for check in mended) and all(comparison.equal for comparison in compared.values())
    console.rule("[green]found and repaired[/]" if good else "[bold red]not repaired[/]", align="left")
    return good


def _red(checks: list[CheckResult]) -> bool:
    return any(check.name == "row_count_matches" and check.passed is False for check in checks)


def _lost(setting: Setting) -> list[dict[str, Any]]:
    """Keys that Delta holds and Postgres does not."""
    names = list(KEY)
    postgres = postgres_table(setting.services, names)
    delta = delta_table(setting.delta, names).cast(postgres.schema)
    return delta.join(postgres, names, join_type="left anti").to_pylist()


def _words(key: dict[str, Any]) -> str:
    return f"{key['carrier']} {key['flight']} of {key['time_hour']:%Y-%m-%d %H:%M} UTC"

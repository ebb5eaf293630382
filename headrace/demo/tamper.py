"""`headrace demo --tamper`: delete a row without Headrace, let a check find it, and repair it by replay."""

from __future__ import annotations

from typing import Any

from headrace.commands.inspect import show_checks
from headrace.demo import report
from headrace.demo.environment import POSTGRES, DemoEnvironment
from headrace.demo.flights import KEY
from headrace.demo.targets import delete_row, delta_table, postgres_table
from headrace.jobs.checks.audit import audit
from headrace.jobs.run.events import CheckResult
from headrace.jobs.run.repair import replay

MONTH = "2013-11-01"
DAY = "2013-11-05 00:00:00+00"


def tamper_and_repair(environment: DemoEnvironment) -> bool:
    """Return True if the check failed, named the lost row, and passed after the repair.

    All rows must then be as expected.
    """
    console = environment.console
    console.print()
    console.rule("Tampering", align="left")
    key = delete_row(environment.services, DAY)
    console.print(f"Deleted a row of Postgres without Headrace: {_format_key(key)}")
    broken = audit(environment.file, environment.settings, sinks=[POSTGRES])
    show_checks(console, broken)
    missing = _find_missing_keys(environment)
    console.print(f"Delta has, and Postgres has not: {', '.join(_format_key(row) for row in missing)}")
    if not _has_row_count_failure(broken) or missing != [key]:
        console.print("[bold red]The check did not find it.[/]")
        return False
    epoch = next(row.plan.number for row in environment.progress.epochs() if row.plan.window == MONTH)
    console.print(
        f"{report.command_name()} replay {environment.file.path} --sink {POSTGRES} --from {epoch}",
        markup=False,
    )
    with console.status(f"writing epochs {epoch} and later into Postgres again"):
        replay(environment.file, environment.settings, sink=POSTGRES, from_epoch=epoch)
        repaired = audit(environment.file, environment.settings, sinks=[POSTGRES])
        comparisons = report.compare_targets(environment)
    show_checks(console, repaired)
    for name, comparison in comparisons.items():
        console.print(f"  {name}: {comparison.summarize()}")
    good = all(check.passed for check in repaired) and all(
        comparison.is_equal for comparison in comparisons.values()
    )
    console.rule("[green]found and repaired[/]" if good else "[bold red]not repaired[/]", align="left")
    return good


def _has_row_count_failure(checks: list[CheckResult]) -> bool:
    return any(check.name == "row_count_matches" and check.passed is False for check in checks)


def _find_missing_keys(environment: DemoEnvironment) -> list[dict[str, Any]]:
    """Return the keys that are in Delta and not in Postgres."""
    names = list(KEY)
    postgres = postgres_table(environment.services, names)
    delta = delta_table(environment.delta_path, names).cast(postgres.schema)
    return delta.join(postgres, names, join_type="left anti").to_pylist()


def _format_key(key: dict[str, Any]) -> str:
    return f"{key['carrier']} {key['flight']} of {key['time_hour']:%Y-%m-%d %H:%M} UTC"

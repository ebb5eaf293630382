"""What runs and checks say, as Dagster's metadata and events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dagster as dg

from headrace.jobs.run.events import CheckResult, RunResult
from headrace.pipeline.protocol.epochs import WriteCounts

WHAT_CHECKS_SAY = {
    "exactly_once_epochs": "The sink's own record, the ledger and the positions agree: epochs gapless, none twice.",
    "row_count_matches": "Rows in the target = rows at first + inserted - deleted, as the sink acknowledged them, read in one snapshot.",
    "handoff_has_no_gap": "The stream began exactly at the offsets that the history is known to hold.",
    "content_matches": "A sample of the target's rows is what the sources say, as of the epoch that the target holds.",
}


def run_metadata(result: RunResult, sink: str) -> dict[str, Any]:
    """What a run did at one sink."""
    found = counts_metadata(result.counts.get(sink, WriteCounts())) | {
        "epochs": result.epochs,
        "last epoch": result.last_epoch,
        "history complete": result.history_complete,
        "caught up": result.caught_up,
        "ended by": result.stop_reason,
        "ledger id": result.pipeline,
    }
    for phase, figures in result.phases.items():
        found[f"{phase} rows"] = figures.rows
        found[f"{phase} seconds"] = round(figures.seconds, 3)
    return found


def counts_metadata(counts: WriteCounts) -> dict[str, Any]:
    """Acknowledged rows; what the sink cannot know is left out."""
    named = {"rows written": counts.rows, "inserted": counts.inserted, "updated": counts.updated, "deleted": counts.deleted}
    return {name: value for name, value in named.items() if value is not None}


def target_metadata(checks: Mapping[str, CheckResult]) -> dict[str, Any]:
    """The target's own row count, where the check has counted it."""
    rows = checks["row_count_matches"].numbers.get("rows") if "row_count_matches" in checks else None
    return {} if rows is None else {"dagster/row_count": rows}


def check_result(check: CheckResult, key: dg.AssetKey) -> dg.AssetCheckResult:
    """The result for a step's own check. One that does not apply is a warning: not green, and in nobody's way."""
    return dg.AssetCheckResult(
        passed=bool(check.passed),
        asset_key=key,
        check_name=check.name,
        severity=dg.AssetCheckSeverity.WARN if check.passed is None else dg.AssetCheckSeverity.ERROR,
        description=check.message,
        metadata=check_metadata(check),
    )


def log_check(context: Any, check: CheckResult, key: dg.AssetKey, *, partition: str | None = None) -> None:
    """The same as an event of its own, for one partition or outside the step that declares the check.

    `context` is an op's or an asset's: both take check evaluations, though their annotations do not say so.
    """
    result = check_result(check, key)
    context.log_event(
        dg.AssetCheckEvaluation(
            asset_key=key,
            check_name=check.name,
            passed=result.passed,
            severity=result.severity,
            description=result.description,
            metadata=result.metadata,
            blocking=True,
            partition=partition,
        )
    )


def check_metadata(check: CheckResult) -> dict[str, Any]:
    """The check's numbers; None is left out, since Dagster would show it as a number that is missing."""
    return {"applies": check.passed is not None} | {name: value for name, value in check.numbers.items() if value is not None}

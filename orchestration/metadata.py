"""Results of runs and checks as Dagster metadata and events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dagster as dg

from headrace.jobs.run.events import CheckResult, RunResult
from headrace.pipeline.protocol.epochs import WriteCounts

CHECK_DESCRIPTIONS = {
    "exactly_once_epochs": "The sink's commit record, the ledger and the positions agree: no epoch is"
    " missing or repeated.",
    "row_count_matches": "Rows in the target equal the initial rows + inserted - deleted that the sink"
    " acknowledged, in one snapshot.",
    "handoff_has_no_gap": "The stream started exactly at the offsets where the history ends.",
    "content_matches": "A sample of target rows equals the rows of the sources, as of the target's epoch.",
}


def run_metadata(result: RunResult, sink: str) -> dict[str, Any]:
    """Return the metadata of a run for one sink."""
    metadata = counts_metadata(result.counts.get(sink, WriteCounts())) | {
        "epochs": result.epochs,
        "last epoch": result.last_epoch,
        "history complete": result.history_complete,
        "caught up": result.caught_up,
        "ended by": result.stop_reason,
        "ledger id": result.pipeline,
    }
    if result.rejected:
        metadata["rows rejected"] = sum(result.rejected.values())
    rows, seconds = metadata.get("rows_written", 0), sum(one.seconds for one in result.phases.values())
    metadata |= speed_metadata(rows, seconds)
    for phase, figures in result.phases.items():
        metadata[f"{phase} rows"] = figures.rows
        metadata[f"{phase} seconds"] = round(figures.seconds, 3)
    return metadata


def counts_metadata(counts: WriteCounts) -> dict[str, Any]:
    """Return the acknowledged row counts. Leave out counts that the sink does not know."""
    values = {
        "rows_written": counts.rows,
        "inserted": counts.inserted,
        "updated": counts.updated,
        "deleted": counts.deleted,
    }
    return {name: value for name, value in values.items() if value is not None}


def speed_metadata(rows: int, seconds: float) -> dict[str, Any]:
    """Return the time of the work and the rows per second. Dagster plots numbers over time."""
    return {
        "duration_seconds": round(seconds, 3),
        "rows_per_second": round(rows / seconds, 1) if seconds else 0.0,
    }


def target_metadata(checks: Mapping[str, CheckResult]) -> dict[str, Any]:
    """Return the row count of the target, if the check counted it."""
    rows = checks["row_count_matches"].numbers.get("rows") if "row_count_matches" in checks else None
    return {} if rows is None else {"dagster/row_count": rows}


def check_result(check: CheckResult, key: dg.AssetKey, advice: str = "") -> dg.AssetCheckResult:
    """Return the result for a step's own check. `advice` is what a person can do, as Markdown.

    A check that does not apply passes, with the reason and `applies: false`. Dagster has no third result, and
    a warning would ask for an action.
    """
    instructions = {"what to do": dg.MetadataValue.md(advice)} if advice else {}
    return dg.AssetCheckResult(
        passed=check.passed is not False,
        asset_key=key,
        check_name=check.name,
        severity=dg.AssetCheckSeverity.WARN if check.severity == "warning" else dg.AssetCheckSeverity.ERROR,
        description=check.message,
        metadata=check_metadata(check) | instructions,
    )


def log_check(
    context: Any,
    check: CheckResult,
    key: dg.AssetKey,
    *,
    partition: str | None = None,
    advice: str = "",
) -> None:
    """Log a check result as a separate event, for one partition or outside the step that declares the check.

    `context` is that of an op or an asset. Both accept check evaluations, although their annotations do not
    show it.
    """
    result = check_result(check, key, advice)
    context.log_event(
        dg.AssetCheckEvaluation(
            asset_key=key,
            check_name=check.name,
            passed=result.passed,
            severity=result.severity,
            description=result.description,
            metadata=result.metadata,
            blocking=check.severity == "error",
            partition=partition,
        )
    )


def check_metadata(check: CheckResult) -> dict[str, Any]:
    """Return the check's numbers without those that are None, which Dagster would show as missing numbers.

    Sample rows are a table.
    """
    numbers = {name: value for name, value in check.numbers.items() if value is not None}
    if samples := numbers.pop("samples", ()):
        records = [
            dg.TableRecord({column: "NULL" if value is None else str(value) for column, value in row.items()})
            for row in samples
        ]
        schema = dg.TableSchema(columns=[dg.TableColumn(column) for column in samples[0]])
        numbers["samples"] = dg.MetadataValue.table(records, schema)
    return {"applies": check.passed is not None} | numbers

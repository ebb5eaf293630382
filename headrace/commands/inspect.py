"""`headrace status`, `audit` and `explain`: commands that only read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from headrace.connectors.ledger.factory import open_ledger
from headrace.console import format_count, print_json, stdout_console
from headrace.jobs.explain.formats import Format, render
from headrace.jobs.run.events import CheckResult
from headrace.pipeline.config.settings import load_settings
from headrace.pipeline.file.loader import load_pipeline
from headrace.pipeline.model.checks import BUILT_IN_CHECKS
from headrace.pipeline.model.error_outputs import error_sinks, rejected_rows
from headrace.pipeline.protocol.epochs import Json, largest_row_count
from headrace.pipeline.protocol.ledger.model import EpochRow, PipelineState, RefreshRequest

_FAILURES_SHOWN = 20
ErrorSinks = Mapping[str, Mapping[str, str]]
"""By the hash of a stored pipeline: its sinks that read rejected rows, with their sources."""


def status(path: Path | None, *, as_json: bool, epochs: int) -> None:
    """Print the state of all pipelines, or of the pipeline in a file, from the ledger."""
    ledger = open_ledger(load_settings())
    try:
        name = load_pipeline(path).name if path else None
        lanes = [lane for lane in ledger.lanes() if name in (None, lane.name)]
        refreshes = {lane.name: ledger.pending_refreshes(lane.name, lane.lane) for lane in lanes}
        last = {
            lane.name: list(ledger.epochs(lane.name, lane.lane, first=max(1, lane.committed - epochs + 1)))
            for lane in lanes
        }
        errors = {
            digest: error_sinks(
                {name: sink["from"] for name, sink in ledger.compiled(digest)["sinks"].items()}
            )
            for digest in {row.plan.pipeline_hash for rows in last.values() for row in rows}
        }
    finally:
        ledger.close()
    if as_json:
        print_json([_pipeline_json(lane, last[lane.name], errors, refreshes[lane.name]) for lane in lanes])
        return
    console = stdout_console()
    if not lanes:
        console.print(
            f"{name} has not been started yet."
            if name
            else "Nothing has been started yet: the ledger is empty."
        )
    for lane in lanes:
        _show_pipeline(console, lane, last[lane.name], errors, refreshes[lane.name])


def _count_rejected(row: EpochRow, errors: ErrorSinks) -> int | None:
    """Return the rejected rows of an epoch, or None if no sink takes any."""
    sinks = errors.get(row.plan.pipeline_hash)
    rows = {name: count.rows for name, count in row.counts.items()}
    return sum(rejected_rows(sinks, rows).values()) if sinks else None


def _pipeline_json(
    lane: PipelineState, epochs: list[EpochRow], errors: ErrorSinks, refreshes: list[RefreshRequest]
) -> Json:
    return {
        "name": lane.name,
        "pipeline": lane.pipeline,
        "lane": lane.lane,
        "committed": lane.committed,
        "generation": lane.generation,
        "open_epoch": lane.open_plan.number if lane.open_plan else None,
        "position": dict(lane.position),
        "holder": lane.holder,
        "progress": lane.progress,
        "request": asdict(lane.request) if lane.request else None,
        "refreshes": [asdict(request) for request in refreshes],
        "sinks": {
            name: {"state": sink.state, "since_epoch": sink.epoch} for name, sink in lane.sinks.items()
        },
        "epochs": [
            {
                "number": row.plan.number,
                "phase": row.plan.phase,
                "window": row.plan.window,
                "planned_at": row.plan.planned_at,
                "committed_at": row.committed_at,
                "rows": {sink: counts.rows for sink, counts in row.counts.items()},
                "rejected": _count_rejected(row, errors),
                "attempts": row.attempts,
                "error": row.error,
            }
            for row in epochs
        ],
    }


def _show_pipeline(
    console: Console,
    lane: PipelineState,
    epochs: list[EpochRow],
    errors: ErrorSinks,
    refreshes: list[RefreshRequest],
) -> None:
    owner = f"run by {_format_owner(lane.holder)}" if lane.holder else "not running"
    console.print(f"{lane.name} ({lane.pipeline}): epoch {lane.committed} committed, {owner}")
    if lane.request and lane.request.is_pause:
        console.print(f"  paused {lane.request}", markup=False, soft_wrap=True)
    elif lane.request and lane.request.generation == lane.generation:
        console.print(f"  stop requested {lane.request}", markup=False, soft_wrap=True)
    for request in refreshes:
        console.print(f"  refresh of {request.describe()}", markup=False, soft_wrap=True)
    if lane.open_plan:
        console.print(f"  epoch {lane.open_plan.number} is open: the next run finishes it as planned")
    progress = ", ".join(
        f"{key} {value}" for key, value in lane.progress.items() if value not in (None, "", {}, [])
    )
    if lane.holder and progress:  # the last progress of a run that ended is out of date
        console.print(f"  {progress}")
    for name, sink in lane.sinks.items():
        console.print(f"  sink {name}: {sink.state} since epoch {sink.epoch}")
    if epochs:
        console.print(_epoch_table(epochs, errors))
    for row in epochs:
        if row.error:
            console.print(f"  epoch {row.plan.number}, attempt {row.attempts}: {row.error}", style="yellow")


def _format_owner(holder: Json) -> str:
    return f"{holder.get('launched_by', 'a run')} on {holder.get('host', '?')}, pid {holder.get('pid', '?')}"


def _epoch_table(epochs: list[EpochRow], errors: ErrorSinks) -> Table:
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    has_errors = any(errors.values())
    for name in ("epoch", "rows", *(("rejected",) if has_errors else ())):
        table.add_column(name, justify="right")
    for name in ("phase", "partition", "committed"):
        table.add_column(name)
    for row in epochs:
        rows = largest_row_count(row.counts)
        at = row.committed_at.isoformat(sep=" ", timespec="seconds") if row.committed_at else "open"
        table.add_row(
            str(row.plan.number),
            format_count(rows),
            *((format_count(_count_rejected(row, errors) or 0),) if has_errors else ()),
            str(row.plan.phase).replace("_", " "),
            row.plan.window or "",
            at,
        )
    return table


def audit(
    path: Path,
    *,
    as_json: bool,
    all_epochs: bool = False,
    content: bool = False,
    rows: int | None = None,
    seconds: float | None = None,
    full: bool = False,
) -> None:
    """Compare the sinks with the ledger, with `content` also with the sources.

    Exit with code 1 if a check fails.
    """
    file = load_pipeline(path)
    settings = load_settings()
    from headrace.jobs.checks.audit import ContentAuditOptions
    from headrace.jobs.checks.audit import audit as run_audit  # imports Spark, which takes a second

    options = ContentAuditOptions(rows, full, seconds=seconds) if content else None
    results = run_audit(file, settings, all_epochs=all_epochs, content=options)
    if as_json:
        print_json(
            [
                {
                    "name": r.name,
                    "sink": r.sink,
                    "passed": r.passed,
                    "severity": r.severity,
                    "message": r.message,
                    "numbers": r.numbers,
                }
                for r in results
            ]
        )
    else:
        show_checks(stdout_console(), results)
        show_repairs(stdout_console(), path, results)
    if any(result.is_error for result in results):
        raise typer.Exit(1)


def show_checks(console: Console, results: list[CheckResult]) -> None:
    """Print one paragraph per check: result, sink, message, and the numbers of a failed check."""
    labels = {True: ("ok  ", "green"), False: ("FAIL", "bold red"), None: ("n/a ", "dim")}
    for result in results:
        is_warning = result.passed is False and not result.is_error
        label, style = ("WARN", "yellow") if is_warning else labels[result.passed]
        console.print(f"  [{style}]{label}[/] {result.name} of {result.sink}")
        console.print(f"       {result.message}", markup=False)
        if result.passed is False:
            samples = result.numbers.get("samples", ())
            for key, value in list(result.numbers.items())[:_FAILURES_SHOWN]:
                if key != "samples":
                    console.print(f"       {key}: {value}", markup=False)
            for row in samples:
                values = ", ".join(f"{column}={value}" for column, value in row.items())
                console.print(f"       row: {values}", markup=False)


def show_repairs(console: Console, path: Path, results: list[CheckResult]) -> None:
    """Print the commands that repair what the failed checks found, per sink.

    Rows that a declared check rejects are the rows of the sources, so no command repairs them.
    """
    failed: dict[str, set[str]] = {}
    for result in results:
        if result.passed is False and result.name in BUILT_IN_CHECKS:
            failed.setdefault(result.sink, set()).add(result.name)
    for sink, names in failed.items():
        if names & {"row_count_matches", "content_matches"}:
            lines = [
                f"headrace replay {path} --sink {sink} --from 1  writes its rows again",
                f"headrace accept-target {path} --sink {sink}  accepts the rows as they are",
            ]
        else:
            lines = [f"headrace run {path}  finishes an open epoch, or names the repair"]
        lines.append(f"headrace reset {path}  starts over with a new snapshot")
        console.print(f"  To repair {sink}, choose one:", markup=False)
        for line in lines:
            console.print(f"    {line}", markup=False, soft_wrap=True)


def explain(
    path: Path, form: Format, *, lineage: bool, splits: bool, spark_plan: bool, offline: bool
) -> None:
    """Print what a run of the file would do, and its guarantees. Standard output has only the document."""
    file = load_pipeline(path)
    settings = load_settings()
    from headrace.jobs.explain.build import (
        explain as run_explain,
    )  # imports pyarrow and sqlglot, which takes a moment

    document = render(
        run_explain(file, settings, offline=offline, splits=splits, spark_plan=spark_plan),
        form,
        lineage=lineage,
    )
    stdout_console().print(document, markup=False, emoji=False, soft_wrap=True)

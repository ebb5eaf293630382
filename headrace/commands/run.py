"""`headrace run`: one run in the foreground, with progress. A signal stops it cleanly."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import typer

from headrace import logging_setup
from headrace.commands.progress import progress_screen
from headrace.console import (
    format_count,
    format_duration,
    format_rate,
    show_warning,
    stderr_console,
    stdout_console,
)
from headrace.jobs.run.events import RunResult, Until
from headrace.pipeline.config.settings import load_settings
from headrace.pipeline.errors import UserError
from headrace.pipeline.file.loader import PipelineFile, load_pipeline
from headrace.pipeline.protocol.partitions import window_keys
from headrace.shutdown import GracefulShutdown

log = logging.getLogger(__name__)

_STOP_REASONS = {"completed": "", "signal": "stopped by a signal, ", "max_run_time": "max_run_time reached, "}


def run_file(path: Path, until: Until | None, *, job_mode: bool, partitions: Sequence[str]) -> None:
    """Run a pipeline until `until` is reached or a signal arrives.

    A run that fails because it was stopped (its JVM can receive the same signal) has abandoned an epoch. That
    is safe and not an error. Raise HeadraceError from the run, and typer.BadParameter for options that
    exclude each other.
    """
    file = load_pipeline(path)
    chosen = _choose_until(file, until, job_mode=job_mode, partitions=partitions)
    settings = load_settings()
    for warning in file.warnings:
        show_warning(warning)
    logging_setup.set_log_format(settings.log_format)
    from headrace.jobs.run.runner import run  # imports Spark, which takes a second

    with (
        progress_screen(stderr_console(), file.name) as listener,
        GracefulShutdown(listener.on_stop_signal) as stopper,
    ):
        try:
            result = stopper.run(
                lambda: run(
                    file,
                    settings,
                    until=chosen,
                    partitions=partitions or None,
                    listener=listener,
                    stop=stopper.event,
                    launched_by="cli",
                )
            )
        except Exception as error:
            if not stopper.event.is_set():
                raise
            log.warning("stop=asked epoch=given-up error=%s", type(error).__name__)
            listener.on_epoch_abandoned()
            return
    show_result(result)


def _choose_until(
    file: PipelineFile, until: Until | None, *, job_mode: bool, partitions: Sequence[str]
) -> Until:
    if job_mode and until not in (None, Until.HISTORY):
        msg = f"--job-mode stops after history; --until {until} does not"
        raise typer.BadParameter(msg)
    if partitions and until not in (None, Until.HISTORY):
        msg = f"--partition loads only history; --until {until} does not"
        raise typer.BadParameter(msg)
    if partitions:
        _check_partitions(file, partitions)
    if job_mode or partitions or (until is None and file.model.job_mode):
        return Until.HISTORY
    return until or Until.FOREVER


def _check_partitions(file: PipelineFile, partitions: Sequence[str]) -> None:
    if file.model.partitions is None:
        msg = "the pipeline has no `partitions` to choose from"
        raise UserError(msg, hint="Remove --partition, or add `partitions` to the file.", place=file.place())
    known = window_keys(file.model.partitions)
    if unknown := [name for name in partitions if name not in known]:
        msg = f"unknown partition: {', '.join(unknown)}"
        hint = f"Partitions: {known[0]} to {known[-1]}, one per {file.model.partitions.every}."
        raise UserError(msg, hint=hint, place=file.place("partitions"))


def show_result(result: RunResult) -> None:
    """Print what the run did in a few lines."""
    console = stdout_console()
    reason, state = _STOP_REASONS[result.stop_reason], _describe_state(result)
    if not result.epochs:
        console.print(f"{result.name}: {reason}nothing to do. {state}")
        return
    rows = sum(figures.rows for figures in result.phases.values())
    seconds = sum(figures.seconds for figures in result.phases.values())
    epochs = (
        f"epochs {result.first_epoch} to {result.last_epoch}"
        if result.epochs > 1
        else f"epoch {result.last_epoch}"
    )
    console.print(
        f"{result.name}: {reason}{epochs}, {format_count(rows)} rows in {format_duration(seconds)}. {state}"
    )
    for phase, figures in result.phases.items():
        name = str(phase).replace("_", " ")
        rate = format_rate(figures.rows, figures.seconds)
        console.print(
            f"  {name:<12} {format_count(figures.rows):>12} rows  {rate:>15}  {figures.epochs:>5} epochs"
        )
    for sink, counts in result.counts.items():
        changes = ", ".join(
            f"{format_count(number)} {what}"
            for what, number in (
                ("inserted", counts.inserted),
                ("updated", counts.updated),
                ("deleted", counts.deleted),
            )
            if number is not None
        )
        console.print(
            f"  {sink}: {format_count(counts.rows)} rows written{f' ({changes})' if changes else ''}"
        )


def _describe_state(result: RunResult) -> str:
    if not result.history_complete:
        return "History is not complete."
    return "History complete, stream caught up." if result.caught_up else "History complete."

"""`headrace run`: one run in the foreground, with progress, that a signal ends cleanly."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import typer

from headrace import logging_setup
from headrace.commands.progress import progress_screen
from headrace.console import count, err, out, rate, show_warning, span
from headrace.jobs.run.events import RunResult, Until
from headrace.pipeline.config.settings import load_settings
from headrace.pipeline.errors import UserError
from headrace.pipeline.file.loader import PipelineFile, load_pipeline
from headrace.pipeline.protocol.partitions import window_keys
from headrace.shutdown import Stopper

log = logging.getLogger(__name__)

_STOP_REASONS = {"completed": "", "signal": "stopped by a signal, ", "max_run_time": "max_run_time reached, "}


def run_file(path: Path, until: Until | None, *, job_mode: bool, partitions: Sequence[str]) -> None:
    """Runs a pipeline until `until` holds or a signal comes.

    A run that fails because it was stopped (its JVM may have been sent the same signal) has given up an epoch, which is safe, and
    is no error. Raises HeadraceError for what the run raises, and typer.BadParameter for options that do not go together.
    """
    file = load_pipeline(path)
    chosen = _until(file, until, job_mode=job_mode, partitions=partitions)
    settings = load_settings()
    for warning in file.warnings:
        show_warning(warning)
    logging_setup.use_format(settings.log_format)
    from headrace.jobs.run.runner import run  # Spark, which takes a second to import

    with progress_screen(err(), file.name) as listener, Stopper(listener.asked_to_stop) as stopper:
        try:
            result = stopper.call(
                lambda: run(
                    file, settings, until=chosen, partitions=partitions or None, listener=listener, stop=stopper.event, launched_by="cli"
                )
            )
        except Exception as error:
            if not stopper.event.is_set():
                raise
            log.warning("stop=asked epoch=given-up error=%s", type(error).__name__)
            listener.gave_up()
            return
    show_result(result)


def _until(file: PipelineFile, until: Until | None, *, job_mode: bool, partitions: Sequence[str]) -> Until:
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
    """What the run did, in a few lines on standard output."""
    console = out()
    if not result.epochs:
        console.print(f"{result.name}: {_STOP_REASONS[result.stop_reason]}nothing to do. {_stand(result)}")
        return
    rows = sum(figures.rows for figures in result.phases.values())
    seconds = sum(figures.seconds for figures in result.phases.values())
    epochs = f"epochs {result.first_epoch} to {result.last_epoch}" if result.epochs > 1 else f"epoch {result.last_epoch}"
    console.print(f"{result.name}: {_STOP_REASONS[result.stop_reason]}{epochs}, {count(rows)} rows in {span(seconds)}. {_stand(result)}")
    for phase, figures in result.phases.items():
        name = str(phase).replace("_", " ")
        console.print(f"  {name:<12} {count(figures.rows):>12} rows  {rate(figures.rows, figures.seconds):>15}  {figures.epochs:>5} epochs")
    for sink, counts in result.counts.items():
        changes = ", ".join(
            f"{count(number)} {what}"
            for what, number in (("inserted", counts.inserted), ("updated", counts.updated), ("deleted", counts.deleted))
            if number is not None
        )
        console.print(f"  {sink}: {count(counts.rows)} rows written{f' ({changes})' if changes else ''}")


def _stand(result: RunResult) -> str:
    if not result.history_complete:
        return "History is not complete."
    return "History complete, stream caught up." if result.caught_up else "History complete."

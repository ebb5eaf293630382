"""`headrace run`: one or several pipelines in the foreground, with progress. A signal stops them cleanly."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from headrace import logging_setup
from headrace.commands.progress import ProgressScreen, progress_screen
from headrace.console import (
    format_count,
    format_duration,
    format_rate,
    show_failure,
    show_warning,
    stderr_console,
    stdout_console,
)
from headrace.jobs.run.events import RunResult, Until
from headrace.pipeline.config.settings import Settings, load_settings
from headrace.pipeline.errors import HeadraceError, UserError
from headrace.pipeline.file.discovery import find_pipeline_files
from headrace.pipeline.file.loader import PipelineFile, load_pipeline
from headrace.pipeline.file.partitions import select_partitions
from headrace.shutdown import GracefulShutdown

log = logging.getLogger(__name__)

_STOP_REASONS = {
    "completed": "",
    "signal": "stopped by a signal, ",
    "max_run_time": "max_run_time reached, ",
    "stop": "stopped by a request, ",
    "pause": "paused, ",
}


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of the command. `until` is None without the option."""

    until: Until | None = None
    job_mode: bool = False
    partitions: tuple[str, ...] = ()
    refresh: bool = False


def run(paths: Sequence[Path], options: RunOptions) -> None:
    """Run pipelines until `until` is reached, a signal arrives, or the ledger has a request to stop.

    Raise HeadraceError from the run of a single pipeline, typer.BadParameter for options that exclude each
    other, and typer.Exit with code 1 after a group in which a pipeline failed.
    """
    if len(paths) == 1 and not paths[0].is_dir():
        _run_file(paths[0], options)
        return
    if options.partitions or options.refresh:
        option = "--partition" if options.partitions else "--refresh"
        msg = f"{option} needs one pipeline file"
        raise typer.BadParameter(msg)
    files = find_pipeline_files(paths)
    if not files:
        msg = f"no pipeline file in {', '.join(map(str, paths))}"
        raise UserError(msg, hint="Pipeline files end with .yaml or .yml.")
    _run_group(files, options)


def _run_file(path: Path, options: RunOptions) -> None:
    """Run one pipeline."""
    file = load_pipeline(path)
    until = _choose_until(options)
    if options.partitions:
        _check_partitions(file, options.partitions)
    settings = _prepare_console([file])
    from headrace.jobs.run.early_session import spark_in_background

    with spark_in_background([file], settings):
        _run_loaded(file, settings, until, options)


def _run_loaded(file: PipelineFile, settings: Settings, until: Until, options: RunOptions) -> None:
    """Run one pipeline whose file is valid.

    A run that fails because it was stopped (its JVM can receive the same signal) has abandoned an epoch. That
    is safe and not an error.
    """
    from headrace.commands.engine_start import start_engine_on_commit
    from headrace.commands.refresh import run_or_queue
    from headrace.jobs.run import runner  # imports Spark, which takes a second

    with (
        progress_screen(stderr_console(), file.name) as listener,
        GracefulShutdown(listener.on_stop_signal) as stopper,
    ):

        def run_here(refresh: bool) -> RunResult:
            return runner.run(
                file,
                settings,
                until=until,
                partitions=options.partitions or None,
                refresh=refresh,
                listener=start_engine_on_commit(settings, [file], listener),
                stop=stopper.event,
                launched_by="cli",
            )

        def work() -> RunResult | None:
            if not options.refresh:
                return run_here(False)
            return run_or_queue(file, settings, options.partitions, run_here, stopper.event)

        try:
            result = stopper.run(work)
        except Exception as error:
            if not stopper.event.is_set():
                raise
            log.warning("event=epoch_abandoned_at_stop error=%s", type(error).__name__)
            listener.on_epoch_abandoned()
            return
    if result is not None:
        show_result(result)


def _run_group(paths: Sequence[Path], options: RunOptions) -> None:
    """Run several pipelines in this process."""
    files = _load_files(paths)
    until = _choose_until(options)
    settings = _prepare_console(files)
    from headrace.jobs.run.early_session import spark_in_background

    with spark_in_background(files, settings):
        _run_loaded_group(files, settings, until)


def _run_loaded_group(files: Sequence[PipelineFile], settings: Settings, until: Until) -> None:
    """Run pipelines whose files are valid. Print the result or the error of each when it ends."""
    from headrace.commands.engine_start import start_engine_on_commit
    from headrace.jobs.run.group import GroupMember, run_group

    console = stderr_console()
    screens = {file.name: ProgressScreen(console, file.name, None) for file in files}
    console.print(f"{len(files)} pipelines: {', '.join(screens)}")

    def on_signal(signal_name: str) -> None:
        console.print(f"{signal_name}: every pipeline ends after its epoch in flight (25 s at most)")

    def on_end(member: GroupMember, outcome: RunResult | Exception) -> None:
        if isinstance(outcome, RunResult):
            show_result(outcome)
        elif stopper.event.is_set():
            log.warning("event=epoch_abandoned_at_stop error=%s", type(outcome).__name__)
            screens[member.file.name].on_epoch_abandoned()
        else:
            console.print(f"{member.file.name}: failed; the other pipelines go on", style="yellow")
            show_failure(outcome)

    with GracefulShutdown(on_signal) as stopper:
        failed = stopper.run(
            lambda: run_group(
                [
                    GroupMember(file, start_engine_on_commit(settings, files, screens[file.name]))
                    for file in files
                ],
                settings,
                until=until,
                stop=stopper.event,
                on_end=on_end,
            )
        )
    if failed and not stopper.event.is_set():
        raise typer.Exit(1)


def _load_files(paths: Sequence[Path]) -> list[PipelineFile]:
    """Load pipeline files. Raise typer.Exit after the errors of all wrong files were printed."""
    files, wrong = [], 0
    for path in paths:
        try:
            files.append(load_pipeline(path))
        except HeadraceError as error:
            show_failure(error)
            wrong += 1
    if wrong:
        stderr_console().print(f"{wrong} of {len(paths)} files are wrong. No pipeline was started.")
        raise typer.Exit(1)
    return files


def _prepare_console(files: Sequence[PipelineFile]) -> Settings:
    """Print the warnings of files, and set the log format. Return the settings."""
    settings = load_settings()
    for file in files:
        for warning in file.warnings:
            show_warning(warning)
    logging_setup.set_log_format(settings.log_format)
    return settings


def _choose_until(options: RunOptions) -> Until:
    """Return when a run ends. `job_mode` in a file means HISTORY for that file."""
    until = options.until
    if options.job_mode and until not in (None, Until.HISTORY):
        msg = f"--job-mode stops after history; --until {until} does not"
        raise typer.BadParameter(msg)
    if options.partitions and until not in (None, Until.HISTORY):
        msg = f"--partition loads only history; --until {until} does not"
        raise typer.BadParameter(msg)
    if options.job_mode or options.partitions:
        return Until.HISTORY
    return until or Until.FOREVER


def _check_partitions(file: PipelineFile, partitions: Sequence[str]) -> None:
    if file.model.partitions is None:
        msg = "the pipeline has no `partitions` to choose from"
        raise UserError(msg, hint="Remove --partition, or add `partitions` to the file.", place=file.place())
    select_partitions(file, partitions)


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
    for source, rows in result.rejected.items():
        console.print(f"  {source}: {format_count(rows)} rows rejected")


def _describe_state(result: RunResult) -> str:
    if not result.history_complete:
        return "History is not complete."
    return "History complete, stream caught up." if result.caught_up else "History complete."

"""`headrace replay` and `adopt`: two ways on when a sink and the ledger disagree."""

from __future__ import annotations

from pathlib import Path

from headrace import logs
from headrace.commands.progress import progress_screen
from headrace.pipeline.file import load_pipeline
from headrace.pipeline.settings import load_settings
from headrace.processes import Stopper
from headrace.screen import count, err, out


def replay(path: Path, sink: str, from_epoch: int | None, *, recompute: bool = False) -> None:
    """Writes the epochs from `from_epoch` on to one sink again, as they were planned. The other sinks are not touched."""
    file = load_pipeline(path)
    settings = load_settings()
    logs.use_format(settings.log_format)
    from headrace.jobs.replay import replay as work  # Spark, which takes a second to import

    with progress_screen(err(), file.name) as listener, Stopper(listener.asked_to_stop) as stopper:
        result = stopper.call(
            lambda: work(file, settings, sink=sink, from_epoch=from_epoch, recompute=recompute, listener=listener, stop=stopper.event),
        )
    if not result.epochs:
        out().print(f"{file.name}: nothing to write again, {sink} holds epoch {result.last_epoch} already")
        return
    counts = result.counts[sink]
    out().print(f"{file.name}: epochs {result.first_epoch} to {result.last_epoch} written to {sink} again, {count(counts.rows)} rows")


def adopt(path: Path, sink: str) -> None:
    """Takes a sink's target as it stands for what the ledger says it holds; nothing is written again."""
    file = load_pipeline(path)
    settings = load_settings()
    logs.use_format(settings.log_format)
    from headrace.jobs.replay import adopt as work  # Spark, which takes a second to import

    with Stopper() as stopper:
        stopper.call(lambda: work(file, settings, sink=sink))
    out().print(f"{file.name}: {sink} adopted as it stands; the next epoch goes on from here")


def rebuild(path: Path) -> None:
    """Makes a lost ledger anew from the records that the sinks hold."""
    file = load_pipeline(path)
    settings = load_settings()
    logs.use_format(settings.log_format)
    from headrace.jobs.replay import rebuild as work  # Spark, which takes a second to import

    with Stopper() as stopper:
        uuid = stopper.call(lambda: work(file, settings))
    out().print(f"{file.name}: ledger rebuilt from the sinks' records, pipeline {uuid}")

"""`headrace replay` and `adopt`: two ways on when a sink and the ledger disagree."""

from __future__ import annotations

from pathlib import Path

from headrace.commands.progress import progress_screen
from headrace.pipeline.errors import UserError
from headrace.pipeline.file import PipelineFile, load_pipeline
from headrace.pipeline.settings import load_settings
from headrace.processes import Stopper
from headrace.screen import count, err, out


def replay(path: Path, sink: str, from_epoch: int) -> None:
    """Writes the epochs from `from_epoch` on to one sink again, as they were planned. The other sinks are not touched."""
    file = _with_sink(path, sink)
    settings = load_settings()
    from headrace.jobs.replay import replay as run_replay  # Spark, which takes a second to import

    with progress_screen(err(), file.name) as listener, Stopper(listener.asked_to_stop) as stopper:
        result = stopper.call(lambda: run_replay(file, settings, sink=sink, from_epoch=from_epoch, listener=listener))
    counts = result.counts.get(sink)
    out().print(f"{file.name}: {sink} replayed, epochs {from_epoch} to {result.last_epoch}, {count(counts.rows if counts else 0)} rows")


def adopt(path: Path, sink: str) -> None:
    """Takes a sink's target as it stands for what the ledger says it holds; nothing is written again."""
    file = _with_sink(path, sink)
    settings = load_settings()
    from headrace.jobs.replay import adopt as run_adopt  # Spark, which takes a second to import

    with Stopper() as stopper:
        stopper.call(lambda: run_adopt(file, settings, sink=sink))
    out().print(f"{file.name}: {sink} adopted as it stands; the next epoch goes on from here")


def _with_sink(path: Path, sink: str) -> PipelineFile:
    file = load_pipeline(path)
    if sink not in file.model.sinks:
        msg = f"there is no sink `{sink}`"
        raise UserError(msg, hint=f"There are: {', '.join(file.model.sinks)}.", place=file.place("sinks"))
    return file

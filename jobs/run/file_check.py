"""Compares a pipeline file with the state of its pipeline before anything changes."""

from __future__ import annotations

from headrace.pipeline.errors import InternalError, PipelineFileError
from headrace.pipeline.file.changes import FileChanges, file_changes
from headrace.pipeline.file.loader import PipelineFile
from headrace.pipeline.protocol.epochs import Json
from headrace.pipeline.protocol.ledger import Ledger, PipelineState


def check_file(file: PipelineFile, state: PipelineState, ledger: Ledger) -> FileChanges:
    """Return the changes that take effect.

    Raise PipelineFileError for changes that a pipeline cannot follow.
    """
    changes = file_changes(file, state.position, _former(state, ledger), ledger.content)
    if changes.refused:
        raise PipelineFileError(changes.refused)
    return changes


def _former(state: PipelineState, ledger: Ledger) -> Json | None:
    """Return the compiled pipeline of the last committed epoch.

    Returns None before the first epoch, or if the ledger was rebuilt.
    """
    if state.pipeline_hash is None:
        return None
    try:
        return ledger.compiled(state.pipeline_hash)
    except InternalError:
        return None

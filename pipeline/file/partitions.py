"""Choose partitions of a pipeline's history by their keys."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.pipeline.errors import UserError
from headrace.pipeline.file.loader import PipelineFile
from headrace.pipeline.model.partitions import (
    IntegerPartitionsConfig,
    TimePartitionsConfig,
    ValuePartitionsConfig,
)
from headrace.pipeline.protocol import positions
from headrace.pipeline.protocol.partitions import describe_keys, is_history_open

_MOST_LISTED = 20


def select_partitions(file: PipelineFile, keys: Sequence[str] | None) -> list[str]:
    """Return these partitions of history in their order, or all if `keys` is None.

    Raise UserError for one that the history does not have.
    """
    every = positions.windows_of(file.model)
    if keys is None:
        return every
    if unknown := [key for key in keys if key not in every]:
        raise unknown_partition_error(file, unknown[0])
    return [key for key in every if key in keys]


def unknown_partition_error(file: PipelineFile, key: str) -> UserError:
    """Return the error for a key that no partition has. It lists the partitions of the history."""
    msg = f"`{key}` is not a partition of this pipeline's history"
    return UserError(msg, hint=_describe_partitions(file), place=file.place("partitions"))


def _describe_partitions(file: PipelineFile) -> str:
    match file.model.partitions:
        case None:
            return "The file has no `partitions`."
        case ValuePartitionsConfig(values=values):
            more = f", and {len(values) - _MOST_LISTED} more" if len(values) > _MOST_LISTED else ""
            return f"Partitions: {', '.join(values[:_MOST_LISTED])}{more}."
        case IntegerPartitionsConfig(every=every):
            length = f"{every} numbers" if every > 1 else "number"
        case TimePartitionsConfig(every=every):
            length = every
    listed = f"Partitions: {describe_keys(positions.windows_of(file.model))}, one per {length}."
    if is_history_open(file.model.partitions):
        return f"{listed} Later ones are added when they have passed."
    if any(positions.is_unbounded(source) for source in file.model.sources.values()):
        return f"{listed} Later ones belong to the stream."
    return listed

"""Snapshots of a pipeline: created when it is first opened, kept for replays, released on request."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from headrace.jobs.sources.pipeline_source import PipelineSource
from headrace.jobs.sources.uncovered_rows import check_windows
from headrace.pipeline.errors import HeadraceError
from headrace.pipeline.model import graph
from headrace.pipeline.model.nodes import PipelineModel
from headrace.pipeline.protocol import positions
from headrace.pipeline.protocol.epochs import Json, Position
from headrace.pipeline.protocol.ledger import Lease, Ledger
from headrace.pipeline.protocol.ledger.reader import normalize_position
from headrace.pipeline.protocol.source_identity import source_identity

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def snapshot_owner(pipeline: str) -> str:
    """Return the prefix of a pipeline's snapshot names, made of its UUID."""
    return pipeline.replace("-", "")[:12]


def create_token(pipeline: str, generation: int) -> str:
    """Return a new name for snapshots. It has their owner and generation, by which they are swept."""
    return f"{snapshot_owner(pipeline)}_{generation}_{uuid4().hex[:6]}"


def open_sources(
    sources: Mapping[str, PipelineSource], spark: SparkSession, token: str, model: PipelineModel
) -> Position:
    """Return the position of a new pipeline. If a source cannot be opened, no snapshot stays.

    `token` is new for each attempt: a snapshot of an earlier attempt may lack rows before the current handoff
    position.
    """
    opened: dict[str, Json] = {}
    noted = positions.snapshot_end(model.partitions)
    try:
        for index, (name, source) in enumerate(sources.items()):
            opened[name] = source.create_initial_position(
                spark, f"{token}_{index}", graph.appending_sinks(model, name)
            )
            if model.partitions is not None:
                check_windows(source, spark, opened[name], model.partitions)
            if "history" in opened[name]:
                opened[name]["history"] |= noted
    except HeadraceError:
        with contextlib.suppress(HeadraceError):  # the next start sweeps what stays
            release_snapshots(sources, opened)
        raise
    return opened


def renew_sources(
    sources: Mapping[str, PipelineSource],
    spark: SparkSession,
    token: str,
    model: PipelineModel,
    position: Position,
    ledger: Ledger,
    refresh: Sequence[str] = (),
) -> Position:
    """Return the position with new snapshots of all histories. If one cannot be created, none stays.

    The partitions of `refresh` are read again from them.
    """
    renewed = dict(position)
    noted = positions.snapshot_end(model.partitions)
    created: dict[str, Json] = {}
    try:
        for index, (name, source) in enumerate(sources.items()):
            if not source.bounded:
                continue
            handles = [
                part.create_snapshot(spark, f"{token}_{index}_{rank}").handle
                for rank, part in enumerate(source.bounded)
            ]
            ledger.store_content(handles)
            renewed[name] = created[name] = positions.renew_snapshots(position[name], handles, noted)
            if refresh:
                renewed[name] = positions.start_refresh(model, renewed[name], refresh)
            if model.partitions is not None:
                check_windows(source, spark, renewed[name], model.partitions)
    except HeadraceError:
        with contextlib.suppress(HeadraceError):  # the next renewal sweeps what stays
            release_snapshots(sources, created)
        raise
    return renewed


def keep_opening(ledger: Ledger, node: Any, opened: Json) -> Json:
    """Return the first position of a source. It refers to large parts that the ledger stores once."""
    opened = normalize_position(opened)
    refers: Json = {"source": ledger.store_content(source_identity(node))}
    if "pins" in opened:
        ledger.store_content(opened["pins"])
        refers["pins"] = positions.placed_pins(opened["pins"])
    return opened | refers


def drop_stale_snapshots(sources: Mapping[str, PipelineSource], lease: Lease, position: Position) -> None:
    """Drop snapshots that `position` does not refer to, made under this lease or an earlier one."""
    keep = [
        handle
        for name, place in position.items()
        if name in sources and "history" in place
        for handle in sources[name].snapshot_handles(place)
    ]
    for source in sources.values():
        source.drop_stale_snapshots(snapshot_owner(lease.pipeline), lease.generation, keep)


def release_snapshots(sources: Mapping[str, PipelineSource], position: Position) -> None:
    """Drop the snapshots that a position refers to. Call it under the lease. A second call does nothing.

    A replay of history is refused afterwards.
    """
    for name, place in position.items():
        if name in sources and ("pins" in place or "history" in place):
            sources[name].release_snapshot(place)

"""The stream of a hybrid source since its handoff: the rows that a refresh of history must not replace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.jobs.sources.pipeline_source import PipelineSource
from headrace.jobs.sources.source_batch import SourceBatch
from headrace.pipeline.errors import GuaranteeError, RetentionError
from headrace.pipeline.protocol import positions
from headrace.pipeline.protocol.epochs import Json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_RESET = "Start over with a new snapshot: headrace reset FILE."


def check_messages_since_handoff(source: PipelineSource, position: Json) -> None:
    """Raise RetentionError or GuaranteeError if the topic may lack messages that the stream has read."""
    start = _handoff_start(position)
    if source.unbounded is None or start is None:
        return
    if source.unbounded.is_compacted():
        msg = (
            "the topic is compacted, so it may lack deletes that the stream has read, and a refresh would"
            " bring their rows back"
        )
        raise GuaranteeError(msg, hint=_RESET, node=source.name)
    earliest = positions.offsets(source.unbounded.earliest_offsets())
    begin, here = positions.offsets(start), positions.offsets(position["stream"])
    if lost := [part for part, at in begin.items() if at < min(earliest.get(part, 0), here[part])]:
        msg = (
            f"the topic no longer has all messages of partition {', '.join(lost)} after the handoff position,"
            " so the keys that the stream has changed are unknown"
        )
        raise RetentionError(msg, hint=_RESET, node=source.name)


def read_since_handoff(source: PipelineSource, spark: SparkSession, position: Json) -> SourceBatch | None:
    """Return all rows that the stream has read up to `position`. None if it has read none."""
    start = _handoff_start(position)
    if source.unbounded is None or start is None:
        return None
    return source.read_stream(spark, {**position, "stream": start}, position)


def _handoff_start(position: Json) -> Json | None:
    """Return the handoff position of a stream that has read messages since. Later partitions start at 0."""
    if "stream" not in position or "fence" not in position:
        return None
    fence, stream = positions.offsets(position["fence"]), position["stream"]
    start = {**stream, "offsets": {part: fence.get(part, 0) for part in positions.offsets(stream)}}
    return start if positions.is_before(start, stream) else None

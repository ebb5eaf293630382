"""A source of a pipeline: bounded phases, then perhaps a stream, and the handoff filter between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from headrace.connectors import registry
from headrace.connectors.filters import quote_identifier
from headrace.connectors.lazy_session import defer_frame
from headrace.connectors.source_base import BoundedSource, Snapshot, SplitReader
from headrace.connectors.spark_types import arrow_schema
from headrace.connectors.stream_base import ReadLimits, UnboundedSource
from headrace.jobs.sources.casts import cast_column
from headrace.jobs.sources.cursor import after_cursor, history_by_cursor
from headrace.jobs.sources.handoff import Handoff
from headrace.jobs.sources.history_columns import check_history_columns
from headrace.jobs.sources.source_batch import SourceBatch, read_in_driver, separate_rows
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import HeadraceError, RetentionError, SinkStateError
from headrace.pipeline.model.error_outputs import errors_output
from headrace.pipeline.model.hybrid import HybridSourceConfig
from headrace.pipeline.protocol import positions
from headrace.pipeline.protocol.epochs import Json
from headrace.pipeline.protocol.partitions import HistoryPartition
from headrace.pipeline.protocol.table_offsets import HandoffFilter
from headrace.pipeline.sql.system_columns import OP, ORDINALS_PER_NODE, POS
from headrace.pipeline.types.int256 import storage_schema

if TYPE_CHECKING:
    import threading

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def stream_node(node: Any) -> Any:
    """Return the unbounded part of a source as a node with the source's key; None if there is none."""
    if node.type != "hybrid":
        return node if positions.is_unbounded(node) else None
    return node.unbounded_source.node().model_copy(update={"primary_key": node.primary_key})


class PipelineSource:
    """One source node. Creating it opens nothing; `close` closes what was opened."""

    def __init__(self, name: str, node: Any, settings: Settings, index: int) -> None:
        self.name = name
        self.node = node
        self.contents: Callable[[str], Any] = lambda _: None
        """Returns what the ledger stores under a reference, or None."""
        self.filter_table: Callable[[pa.Table], pa.Table | None] = lambda _: None
        """Returns the stream's rows that pass its filter, or None to have Spark compute it."""
        self._errors = errors_output(name, node)
        self._pins: dict[str, list[Json]] = {}
        endless = positions.is_unbounded(node)
        phases = (
            [part.node() for part in node.bounded_sources]
            if node.type == "hybrid"
            else []
            if endless
            else [node]
        )
        self.bounded: list[BoundedSource] = [
            registry.bounded_source(name, part, settings, index * ORDINALS_PER_NODE + rank)
            for rank, part in enumerate(phases)
        ]
        stream = stream_node(node)
        self.unbounded: UnboundedSource | None = (
            registry.unbounded_source(name, stream, settings, (index + 1) * ORDINALS_PER_NODE - 1)
            if stream is not None
            else None
        )
        self.handoff: Handoff | None = None
        if isinstance(node, HybridSourceConfig) and self.unbounded is not None:
            self.handoff = Handoff(name, node, self.bounded, self.unbounded)

    def watch_stop(self, stop: threading.Event) -> None:
        """Take the event that says that the run must end. See `BoundedSource.watch_stop`."""
        for part in self.bounded:
            part.watch_stop(stop)

    def schema(self, spark: SparkSession) -> pa.Schema:
        """Return the payload schema.

        A hybrid source has its stream's columns and types; history is cast to them.
        """
        result = self.payload([part.schema(spark) for part in self.bounded])
        assert result is not None  # noqa: S101  all of its phases are known, and a run resolves its stream
        return result

    def payload(self, phases: Sequence[pa.Schema | None]) -> pa.Schema | None:
        """Return the payload schema for the given schemas of the bounded phases.

        None is the schema of a phase that is unknown. The result is None if the payload depends on such a
        phase, or on a stream that is not resolved.
        """
        if self.unbounded is None:
            return phases[0]
        if not self.unbounded.is_resolved:
            return None
        schema = self.unbounded.schema()
        for part, have in zip(self.bounded, phases, strict=True):
            if have is not None:
                self.check_history_columns(part, have)
        return schema

    def check_history_columns(self, part: BoundedSource, schema: pa.Schema) -> None:
        """Raise SchemaError if `schema`, that of a bounded phase, does not fit the stream."""
        assert self.unbounded is not None  # noqa: S101
        cursor = self.node.cursor if isinstance(self.node, HybridSourceConfig) else None
        check_history_columns(
            part, schema, self.unbounded.schema(), cursor=cursor.column if cursor else None, node=self.name
        )

    def create_initial_position(self, spark: SparkSession, token: str, appends: Sequence[str] = ()) -> Json:
        """Return the position before the first epoch. Create the history snapshots under `token`.

        If the rows have offsets, the stream starts at the first message that the snapshot lacks. Otherwise it
        starts at a handoff position from before the snapshot, so that history has everything below it.
        `appends` are the sinks without a key that take each row once. If this raises, no snapshot stays.
        """
        if not self.bounded:
            assert self.unbounded is not None  # noqa: S101  a node has one or the other
            return {"stream": self.unbounded.initial_offsets()}
        fence, cursor = self.handoff.position_before_snapshot() if self.handoff else (None, None)
        snapshots: list[Snapshot] = []
        try:
            for rank, part in enumerate(self.bounded):
                snapshots.append(part.create_snapshot(spark, f"{token}_{rank}"))
            if self.handoff is not None and self.handoff.exact is not None:
                fence = self.handoff.position_from_snapshot(spark, snapshots[-1], appends)
            position: Json = {
                "pins": [snapshot.handle for snapshot in snapshots],
                "fence": fence,
                "cursor": cursor,
                "history": positions.no_history(),
            }
            return position if cursor is None else position | self._overlap(spark, snapshots)
        except HeadraceError:
            with suppress(HeadraceError):  # the next start sweeps what stays
                for part, snapshot in zip(self.bounded, snapshots, strict=False):
                    part.release_snapshot(snapshot)
            raise

    def _overlap(self, spark: SparkSession, snapshots: Sequence[Snapshot]) -> Json:
        """Return the end of the stream right after the snapshot: later messages cannot be in the snapshot.

        Also returns whether history has rows whose cursor is NULL. Empty if a snapshot of history is not
        stable.
        """
        assert self.unbounded is not None  # noqa: S101
        if not all(snapshot.is_stable for snapshot in snapshots):
            return {}
        nulls = any(
            part.has_nulls(spark, snapshot, self.node.cursor.column)
            for part, snapshot in zip(self.bounded, snapshots, strict=True)
        )
        return {"overlap": {"end": self.unbounded.end_offsets(), "nulls": nulls}}

    def handoff_filter(self, position: Json) -> HandoffFilter | None:
        """Return the handoff filter, or None if history does not carry the stream's offsets."""
        return self.handoff.handoff_filter(position.get("fence")) if self.handoff else None

    def splits(
        self, spark: SparkSession, position: Json, phase: int, window: HistoryPartition | None
    ) -> list[Json]:
        """Return the splits of one phase in one partition."""
        cut = self.handoff_filter(position) if phase == len(self.bounded) - 1 else None
        return list(self.bounded[phase].splits(spark, self._snapshot(position, phase), window, cut))

    def preview_splits(self, spark: SparkSession) -> Callable[[int, HistoryPartition | None], list[Json]]:
        """Return a function that lists the current splits of history by phase and partition.

        Creates no snapshot.
        """
        seen = [part.describe_snapshot(spark) for part in self.bounded]
        exact = self.handoff is not None and self.handoff.exact is not None
        cut = (
            self.handoff.handoff_filter(self.handoff.position_from_snapshot(spark, seen[-1]))
            if exact and self.handoff
            else None
        )

        def pieces(phase: int, window: HistoryPartition | None) -> list[Json]:
            end = cut if phase == len(self.bounded) - 1 else None
            return list(self.bounded[phase].splits(spark, seen[phase], window, end))

        return pieces

    def fetch(
        self,
        position: Json,
        phase: int,
        splits: Sequence[Json],
        query: str | None,
        key: Sequence[str] = (),
        *,
        last: bool = False,
    ) -> SplitReader | None:
        """Return the reader with which tasks bulk-copy these splits, or None.

        Rows with the same `key` keep their order. With `last`, only the last row of each key is read.
        """
        result: Any = self.bounded[phase].create_split_reader(
            self._snapshot(position, phase), splits, query, key
        )
        return replace(result, last_by=tuple(key)) if last and result is not None else result

    def snapshot_handles(self, position: Json) -> list[Json]:
        """Return the handles of the history snapshots.

        Raise SinkStateError if the ledger no longer has them.
        """
        have = position.get("pins")
        if isinstance(have, list):
            return have
        ref = positions.pins_ref(position)
        if ref not in self._pins:
            result = self.contents(ref)
            if result is None:
                msg = (
                    "the handles of the pinned history are lost: the ledger does not keep what the"
                    " position refers to"
                )
                raise SinkStateError(
                    msg, hint="Start over with a new snapshot: headrace reset FILE.", node=self.name
                )
            self._pins[ref] = result
        return self._pins[ref]

    def _snapshot(self, position: Json, phase: int) -> Snapshot:
        handle = self.snapshot_handles(position)[phase]
        return Snapshot(handle, is_stable=bool(handle.get("pinned", True)))

    def read_history(
        self,
        spark: SparkSession,
        position: Json,
        phase: int,
        splits: Sequence[Json],
        schema: pa.Schema,
        *,
        in_driver: bool = False,
    ) -> SourceBatch:
        """Return the rows of these splits, cast to the source's columns.

        With `in_driver`, read them without Spark if the source can, and if they need no cast.
        """

        def create() -> DataFrame:
            frame = self.bounded[phase].read(spark, self._snapshot(position, phase), splits, schema.names)
            if cursor := position.get("cursor"):
                frame = frame.where(history_by_cursor(self.node.cursor.column, cursor))
            return self._cast(frame, schema)

        size = sum(split["bytes"] for split in splits) if all("bytes" in split for split in splits) else None
        rows = sum(split.get("rows", 0) for split in splits)
        if in_driver and not position.get("cursor"):
            table = self.bounded[phase].read_table(self._snapshot(position, phase), splits, schema.names)
            if table is not None and all(
                table.field(one.name).type == one.type for one in storage_schema(schema)
            ):
                return replace(read_in_driver(table, schema, spark), rows=rows, size=size)
        return SourceBatch(defer_frame(spark, create, schema), rows, size)

    def _cast(self, frame: DataFrame, schema: pa.Schema) -> DataFrame:
        have = arrow_schema(cast("StructType", frame.select(*map(quote_identifier, schema.names)).schema))
        return frame.select(
            *[
                cast_column(field.name, have.field(field.name).type, field.type, self.name)
                for field in schema
            ],
            OP,
            POS,
        )

    def read_stream(
        self,
        spark: SparkSession,
        start: Json,
        end: Json,
        appends: Sequence[str] = (),
        most: int = 256 << 20,
        epoch: int | None = None,
    ) -> SourceBatch:
        """Return the stream's rows between two positions, without those that history has already.

        `most` limits the size estimate; see `UnboundedSource.estimate_bytes`. Rejected rows are returned for
        the epoch with the number `epoch`. Raise DataError if they are too many.
        """
        assert self.unbounded is not None  # noqa: S101
        result = self._read_stream(spark, start["stream"], end["stream"], epoch)
        frame, is_local = result.frame, result.is_local
        overlap = start.get("overlap") or {"end": end.get("catch_up"), "nulls": True}
        if (cursor := start.get("cursor")) and positions.is_before(start["stream"], overlap["end"]):
            column = self.node.cursor.column
            frame = after_cursor(frame, column, cursor, overlap, node=self.name, exact=bool(appends))
            is_local = False
        size = self.unbounded.estimate_bytes(start["stream"], end["stream"], most)
        rows = positions.offset_lag(start["stream"], end["stream"])
        # A cursor leaves rows out of the frame that the table still has.
        table = result.table if frame is result.frame else None
        return replace(result, frame=frame, rows=rows, size=size, table=table, is_local=is_local)

    def _read_stream(self, spark: SparkSession, start: Json, end: Json, epoch: int | None) -> SourceBatch:
        """Return the rows that pass the node's filter, and the rejected ones if there is an epoch."""
        assert self.unbounded is not None  # noqa: S101
        stream, schema = self.unbounded, self.unbounded.schema()
        if self._errors is not None and epoch is not None:
            read = stream.read_with_errors(spark, start, end)
            result = separate_rows(read, schema, self._errors, epoch, spark)
            if result.table is not None and (passed := self.filter_table(result.table)) is not None:
                return replace(read_in_driver(passed, schema, spark), rejected=result.rejected)
        else:
            if (table := stream.read_table(spark, start, end)) is None:
                return SourceBatch(stream.read(spark, start, end), None)
            if (passed := self.filter_table(table)) is not None:
                return read_in_driver(passed, schema, spark)
            result = read_in_driver(table, schema, spark)
        frame = stream.filter_rows(result.frame)
        # A filter leaves rows out of the frame that the table still has.
        return result if frame is result.frame else replace(result, frame=frame, table=None)

    def stream_start(self, position: Json) -> Json:
        """Return the position with its stream started at the handoff position.

        `catch_up` in it is the stream's current end, which `catching up` is measured against.
        """
        if "stream" in position:
            if self.unbounded is not None:
                self.unbounded.resume(position["stream"])
            return dict(position)
        assert self.unbounded is not None  # noqa: S101
        stream = self.unbounded.ordered_start(position["fence"])
        return dict(position) | {
            "stream": stream,
            "began": position["fence"],
            "catch_up": self.unbounded.end_offsets(),
        }

    def next_end_offsets(self, position: Json, limits: ReadLimits) -> Json:
        """Return the position that one stream epoch after `position` may reach."""
        assert self.unbounded is not None  # noqa: S101
        start = position["stream"]
        end = dict(position) | {"stream": self.unbounded.next_end_offsets(start, limits)}
        overlap = (position.get("catch_up"), position.get("overlap", {}).get("end"))
        within = end["stream"] == start or any(positions.is_before(start, passed) for passed in overlap)
        return end if within else positions.without_overlap(end)

    def check_retention(self, position: Json) -> None:
        """Raise RetentionError if the topic has already dropped rows after the handoff position."""
        fence = position.get("fence")
        if fence is None or self.unbounded is None:
            return
        earliest = positions.offsets(self.unbounded.earliest_offsets())
        lost = {
            part: (offset, earliest[part])
            for part, offset in positions.offsets(fence).items()
            if earliest.get(part, 0) > offset
        }
        if lost:
            lost_offsets = ", ".join(
                f"partition {part}: fence {at}, earliest {first}" for part, (at, first) in lost.items()
            )
            msg = f"the topic's retention has passed the fence: {lost_offsets}"
            hint = (
                "History and stream both lack the rows between. Lengthen retention.ms. `headrace reset"
                " FILE` starts over with a new snapshot."
            )
            raise RetentionError(msg, hint=hint, node=self.name)

    def drop_stale_snapshots(self, owner: str, generation: int, keep: Sequence[Json]) -> None:
        """Drop snapshots of this pipeline that no position refers to.

        See `BoundedSource.drop_stale_snapshots`.
        """
        for part in self.bounded:
            part.drop_stale_snapshots(owner, generation, keep)

    def release_snapshot(self, position: Json) -> None:
        """Drop the snapshots that `position` refers to. History cannot be read or replayed afterwards."""
        for phase, part in enumerate(self.bounded):
            part.release_snapshot(self._snapshot(position, phase))

    def close(self) -> None:
        """Close the connections."""
        for part in (*self.bounded, *([self.unbounded] if self.unbounded else [])):
            part.close()


def create_pipeline_sources(sources: Mapping[str, Any], settings: Settings) -> dict[str, PipelineSource]:
    """Return the sources of a pipeline file, in its order."""
    return {
        name: PipelineSource(name, node, settings, index)
        for index, (name, node) in enumerate(sources.items())
    }

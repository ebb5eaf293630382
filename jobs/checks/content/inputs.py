"""The rows of a source up to a position, read in other splits than those of the epochs.

History is split again, over whole partitions. The stream is read in one range, without its filters: a row
that a filter drops still ends the previous row. The columns `TIER` and `WINDOW` order what `_gs_pos` does
not: topic rows before the handoff position, history, stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.connectors.lazy_session import ensure_started
from headrace.connectors.source_base import Snapshot
from headrace.connectors.spark_types import row_columns, spark_schema
from headrace.jobs.checks.content.scope import AuditScope
from headrace.jobs.sources.backfill import splits_by_phase
from headrace.jobs.sources.pipeline_source import PipelineSource, create_pipeline_sources, stream_node
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import HeadraceError
from headrace.pipeline.model.nodes import PipelineModel
from headrace.pipeline.protocol import positions
from headrace.pipeline.protocol.epochs import Json
from headrace.pipeline.protocol.partitions import HistoryPartition, is_history_open
from headrace.pipeline.sql.system_columns import OP, POS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TIER, WINDOW = "_hr_tier", "_hr_window"
BEFORE, HISTORY, STREAM, RENEWED = 0, 1, 2, 3
"""`RENEWED` is history of the present snapshot, after partitions that were loaded from an earlier one."""
_SIZED = 256 << 20
"""The size of a range of messages matters up to so many bytes."""


@dataclass(frozen=True, slots=True)
class SourcePiece:
    """Some rows of a source, with what orders them. They are read when they are used.

    `read_table` returns them as Arrow, or None if only Spark reads them.
    """

    read: Callable[[], DataFrame]
    read_table: Callable[[], pa.Table | None]
    schema: pa.Schema
    tier: int
    window: int = 0

    def create_frame(self) -> DataFrame:
        """Return the rows in Spark: the payload, the system columns, `TIER` and `WINDOW`."""
        from pyspark.sql import functions as F  # noqa: N812

        frame = ensure_started(self.read())
        payload = [
            F.col(f"`{one.name}`").cast(one.dataType).alias(one.name) for one in spark_schema(self.schema)
        ]
        return frame.select(*payload, OP, POS, F.lit(self.tier).alias(TIER), F.lit(self.window).alias(WINDOW))

    def find_local_rows(self) -> pa.Table | None:
        """Return the rows of `create_frame` as Arrow, or None if only Spark has them."""
        columns, rows = row_columns(self.schema), self.read_table()
        if rows is None or any(rows.field(one.name).type != one.type for one in columns):
            return None
        rows = rows.select(columns.names)
        for name, value in ((TIER, self.tier), (WINDOW, self.window)):
            rows = rows.append_column(name, pa.repeat(pa.scalar(value, pa.int32()), rows.num_rows))
        return rows


@dataclass(slots=True)
class SourceRows:
    """Rows of one source.

    `complete`: every row that can decide a key is among them. Else only keys with a row of the stream, or of
    renewed history, are decided.
    """

    name: str
    pieces: list[SourcePiece] = field(default_factory=list)
    rows: int = 0
    size: int = 0
    """Bytes of the rows, about, as far as the source knows."""
    complete: bool = True
    renewed: bool = False
    """Whether earlier partitions were loaded from former snapshots of this history."""
    limits: list[str] = field(default_factory=list)

    def find_local_rows(self) -> pa.Table | None:
        """Return all rows as Arrow, or None if only Spark has some of them."""
        result = []
        for piece in self.pieces:
            if (rows := piece.find_local_rows()) is None:
                return None
            result.append(rows)
        return pa.concat_tables(result) if result else None

    def miss(self, why: str) -> None:
        """Note rows that are not among these."""
        self.complete = False
        self.limits.append(f"{self.name}: {why}")


def create_unfiltered_sources(
    model: PipelineModel, settings: Settings, contents: Callable[[str], Any], *, keyed: bool
) -> dict[str, PipelineSource]:
    """Return the sources of the model.

    For a keyed sink, streams come without the filters that `stream_filter` returns. `contents` returns what
    the ledger stores under a reference.
    """
    nodes: dict[str, Any] = {}
    sources: dict[str, Any] = {**model.sources}
    for name, node in sources.items():
        nodes[name] = node
        if keyed and getattr(node, "unbounded_source", None) is not None:
            nodes[name] = node.model_copy(
                update={"unbounded_source": node.unbounded_source.model_copy(update={"filter": None})}
            )
        elif keyed and node.is_unbounded and hasattr(node, "filter"):
            nodes[name] = node.model_copy(update={"filter": None})
    result = create_pipeline_sources(nodes, settings)
    for source in result.values():
        source.contents = contents
    return result


def stream_filter(node: Any) -> str | None:
    """Return the filter that applies to the stream rows of a source, or None."""
    return (
        getattr(getattr(node, "unbounded_source", None) or node, "filter", None)
        if positions.is_unbounded(node)
        else None
    )


class SourceRowsReader:
    """Reads sources for one scope. `budget` bounds the rows; None: no bound."""

    def __init__(
        self,
        spark: SparkSession,
        model: PipelineModel,
        sources: dict[str, PipelineSource],
        scope: AuditScope,
        *,
        keyed: bool,
        budget: int | None,
    ) -> None:
        self._spark = spark
        self._model = model
        self._sources = sources
        self._scope = scope
        self._keyed = keyed
        self._left = budget

    def read(self, name: str, schema: pa.Schema) -> SourceRows:
        """Return the rows of one source. The stream is read first, because its newest rows decide most."""
        source_rows = SourceRows(name)
        source, end = (
            self._sources[name],
            positions.with_overlap(self._scope.last.end[name], self._scope.first.start.get(name, {})),
        )
        if source.unbounded is not None and "stream" in end:
            self._stream(source_rows, source, end, schema)
        if source.bounded:
            try:
                self._history(source_rows, source, end, schema)
            except HeadraceError as error:
                source_rows.miss(f"history cannot be read again: {error.message}")
        return source_rows

    # --- stream

    def _stream(self, source_rows: SourceRows, source: PipelineSource, end: Json, schema: pa.Schema) -> None:
        assert source.unbounded is not None  # noqa: S101
        start = self._stream_start(source, end)
        earliest = source.unbounded.readable_offsets(end["stream"])
        known, ends = positions.offsets(earliest), positions.offsets(end["stream"])
        begin = {part: positions.offsets(start).get(part, known.get(part, 0)) for part in ends}
        readable = {part: min(max(at, known.get(part, at)), ends[part]) for part, at in begin.items()}
        if readable != begin:
            source_rows.miss("the topic no longer has the first rows of the stream")
        if self._left is not None and (total := _distance(readable, ends)) > self._left:
            source_rows.miss(f"only the newest {self._left:,} of {total:,} offsets of the stream were read")
            share = self._left // max(1, len(ends))
            readable = {part: max(at, ends[part] - share) for part, at in readable.items()}
        self._take(source_rows, _distance(readable, ends))
        end_position = dict(end) | {"stream": {**end["stream"], "offsets": readable}}
        source_rows.size += (
            source.unbounded.estimate_bytes(end_position["stream"], end["stream"], _SIZED) or 0
        )
        unbegun = "stream" not in self._scope.first.start[source.name]
        if (
            unbegun
            and not self._keyed
            and end_position.get("cursor")
            and not end_position.keys() & {"overlap", "catch_up"}
        ):
            source_rows.miss("it is unknown where the overlap of history and stream ends")
        if self._keyed:
            piece = self._read_messages(source, end_position["stream"], end["stream"], schema, STREAM)
        else:
            reading = source.read_stream(self._spark, end_position, end)
            piece = SourcePiece(lambda: reading.frame, lambda: reading.table, schema, STREAM)
        source_rows.pieces.append(piece)
        if self._keyed and source_rows.complete and _covers_topic(source, self._model):
            before = {part: known.get(part, 0) for part in begin}
            if self._left is None or _distance(before, begin) <= self._left:
                self._take(source_rows, _distance(before, begin))
                first, last = ({**end["stream"], "offsets": offsets} for offsets in (before, begin))
                source_rows.pieces.append(self._read_messages(source, first, last, schema, BEFORE))

    def _read_messages(
        self, source: PipelineSource, start: Json, end: Json, schema: pa.Schema, tier: int
    ) -> SourcePiece:
        """Return the good rows of the stream between two positions."""
        assert source.unbounded is not None  # noqa: S101
        stream = source.unbounded
        rejects = getattr(stream_node(source.node), "on_error", "fail") != "fail"
        return SourcePiece(
            lambda: stream.read(self._spark, start, end),
            lambda: None if rejects else stream.read_table(self._spark, start, end),
            schema,
            tier,
        )

    def _stream_start(self, source: PipelineSource, end: Json) -> Json:
        first = dict(self._scope.first.start[source.name])
        if "stream" in first:
            return first["stream"]
        return end.get("began") or end.get("fence") or end["stream"]

    # --- history

    def _history(self, source_rows: SourceRows, source: PipelineSource, end: Json, schema: pa.Schema) -> None:
        # In a refresh the rows of a stream stay, so they are later than renewed history.
        source_rows.renewed = "renewed" in end["history"] and source.unbounded is None
        if "renewed" in end["history"]:
            source_rows.miss(
                "partitions that were loaded from an earlier snapshot of history are not compared"
            )
        if self._is_too_much(
            source_rows, [splits for _, _, splits in self._splits_of_epochs(source, end)]
        ):  # without asking a large source for its splits
            return
        pieces = self._pieces(source, end)
        total = _rows_in(splits for _, _, splits in pieces)
        if self._is_too_much(source_rows, [splits for _, _, splits in pieces]):
            return
        self._take(source_rows, total)
        source_rows.size += sum(split.get("bytes", 0) for _, _, splits in pieces for split in splits)
        for window, phase, splits in pieces:
            if splits:
                tier = RENEWED if source_rows.renewed else HISTORY
                readers = self._readers_of(source, end, phase, splits, schema)
                source_rows.pieces.append(SourcePiece(*readers, schema, tier, window))

    def _is_too_much(self, source_rows: SourceRows, splits: Sequence[Sequence[Json]]) -> bool:
        """Whether splits have more rows than the sample may read, which is noted."""
        rows = _rows_in(splits)
        if self._left is None or rows <= self._left:
            return False
        source_rows.miss(f"history has {rows:,} rows, more than the sample may read")
        return True

    def _readers_of(
        self, source: PipelineSource, end: Json, phase: int, splits: Sequence[Json], schema: pa.Schema
    ) -> tuple[Callable[[], DataFrame], Callable[[], pa.Table | None]]:
        """Return what reads splits of history as a frame, and as Arrow."""
        if not self._keyed or _has_other_topics(source):
            read = partial(source.read_history, self._spark, end, phase, splits, schema)
            return lambda: read().frame, lambda: read(in_driver=True).table
        handle = source.snapshot_handles(end)[phase]
        snapshot = Snapshot(handle, bool(handle.get("pinned", True)))
        bounded = source.bounded[phase]
        return (
            lambda: bounded.read(self._spark, snapshot, splits, schema.names),
            lambda: bounded.read_table(snapshot, splits, schema.names),
        )

    def _pieces(self, source: PipelineSource, end: Json) -> list[tuple[int, int, list[Json]]]:
        """Yield (window, phase, splits): whole windows if none is partly read, else the parts of epochs."""
        keys = positions.windows_of(self._model)
        if self._scope.first.number > 1 or not self._is_whole(end, keys):
            return self._splits_of_epochs(source, end)
        return [
            (place, phase, self._splits(source, end, phase, positions.history_partition(self._model, key)))
            for phase in range(len(source.bounded))
            for place, key in enumerate(keys)
            if positions.is_from_snapshot(self._model, end, key)
        ]

    def _is_whole(self, end: Json, keys: Sequence[str]) -> bool:
        """Return whether each partition is complete, or with an open end, not begun."""
        if is_history_open(self._model.partitions):
            return not positions.partly_read({"": end})
        return all(positions.is_partition_done(self._model, end, key) for key in keys)

    def _splits_of_epochs(self, source: PipelineSource, end: Json) -> list[tuple[int, int, list[Json]]]:
        """Yield (window, phase, splits) as the epochs had them, without those of earlier snapshots."""
        keys = positions.windows_of(self._model)
        snapshots = positions.pins_ref(end)
        return [
            (keys.index(plan.window or "") if (plan.window or "") in keys else 0, phase, list(splits))
            for plan in self._scope.plans
            if positions.pins_ref(plan.start[source.name]) == snapshots
            for phase, splits in splits_by_phase(plan.splits, source.name).items()
        ]

    def _splits(
        self, source: PipelineSource, end: Json, phase: int, window: HistoryPartition | None
    ) -> list[Json]:
        """Return the splits of a phase, for a keyed sink without the handoff filter.

        Rows of the stream are later rows of the same keys. Rows of other topics are not in the stream, and
        only the filter knows that they come first. Snapshots of a refresh have rows that the stream has not
        read yet.
        """
        snapshots = positions.pins_ref(end)
        replaced = any(positions.pins_ref(plan.start[source.name]) != snapshots for plan in self._scope.plans)
        if not self._keyed or _has_other_topics(source) or replaced:
            return source.splits(self._spark, end, phase, window)
        handle = source.snapshot_handles(end)[phase]
        return list(
            source.bounded[phase].splits(
                self._spark, Snapshot(handle, bool(handle.get("pinned", True))), window, None
            )
        )

    def _take(self, source_rows: SourceRows, rows: int) -> None:
        source_rows.rows += rows
        if self._left is not None:
            self._left = max(0, self._left - rows)


def _has_other_topics(source: PipelineSource) -> bool:
    """Return whether the history table may have rows of other topics than the stream's."""
    table = getattr(source.node, "offset_table", None)
    return table is not None and table.topic_column is not None


def _covers_topic(source: PipelineSource, model: PipelineModel) -> bool:
    """Return whether history must have all messages before the handoff position: no filter drops any."""
    node: Any = source.node
    parts = getattr(node, "bounded_sources", ())
    whole = not model.partitions and not any(
        getattr(part, "filter", None) or getattr(part, "start_at", None) for part in parts
    )
    return bool(getattr(node, "offset_table", None)) and whole


def _rows_in(pieces: Iterable[Sequence[Json]]) -> int:
    return sum(split.get("rows", 0) for splits in pieces for split in splits)


def _distance(first: dict[str, int], second: dict[str, int]) -> int:
    return sum(max(0, offset - first.get(part, 0)) for part, offset in second.items())

"""Bases of sources that plugins write on: Arrow batches of a piece, read by Spark's tasks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from headrace.connectors.filters import EVERYTHING, apply_scope, position_column, quote_identifier, scope_of
from headrace.connectors.plugins.pickling import PickledPlugin, contract_error
from headrace.connectors.source_base import BoundedSource, Snapshot
from headrace.connectors.spark_types import spark_schema
from headrace.connectors.stream_base import ReadLimits, UnboundedSource
from headrace.pipeline.model.capabilities import SourceCapabilities
from headrace.pipeline.plugins.runtime import PluginContext
from headrace.pipeline.protocol import positions
from headrace.pipeline.protocol.epochs import Json
from headrace.pipeline.protocol.partitions import HistoryPartition
from headrace.pipeline.protocol.table_offsets import HandoffFilter
from headrace.pipeline.sql.system_columns import OP, POS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GUESSED_ROWS = 10_000
"""Rows of a piece that does not say how many it has."""
_PART, _OFF = "_headrace_part", "_headrace_off"


class ArrowSource(BoundedSource):
    """A source that ends, in pieces: JSON maps, each read by one task as Arrow batches.

    `batches` runs in Spark's workers: the object must be picklable. A piece must give the same rows in the
    same order whenever it is read; where the system cannot promise that, say
    `SourceCapabilities(bounded=True, pinned=False)`, which is the default.
    """

    capabilities: ClassVar[SourceCapabilities] = SourceCapabilities(bounded=True, without_spark=True)

    def __init__(self, context: PluginContext) -> None:
        """Store the context without opening a connection."""
        self.context = context
        self.options = context.options

    @abstractmethod
    def columns(self) -> pa.Schema:
        """Return the payload's columns."""

    @abstractmethod
    def list_splits(self) -> Sequence[Json]:
        """Return the splits to read, in a stable order. Called once, at the first start.

        `rows` in a split is its approximate number of rows.
        """

    @abstractmethod
    def batches(self, split: Json) -> Iterator[pa.RecordBatch]:
        """Return the rows of a split.

        With a column `_gs_op` rows are inserts (i), updates (u) and deletes (d), else all are inserts.
        """

    def schema(self, spark: SparkSession) -> pa.Schema:
        """See `BoundedSource.schema`."""
        del spark
        return self.columns()

    def create_snapshot(self, spark: SparkSession, token: str) -> Snapshot:
        """Return the current splits. The ledger stores them, so they are listed only once."""
        del spark, token
        pieces = list(self.list_splits())
        if not all(isinstance(piece, dict) for piece in pieces):
            raise contract_error(
                self.context.found, "`list_splits` returned an item that is not a dict", self.context.name
            )
        return Snapshot(
            {"pinned": self.capabilities.stable_snapshot, "pieces": pieces},
            is_stable=self.capabilities.stable_snapshot,
        )

    def describe_snapshot(self, spark: SparkSession) -> Snapshot:
        """Return the same snapshot as `create_snapshot`, which creates nothing."""
        return self.create_snapshot(spark, "")

    def splits(
        self,
        spark: SparkSession,
        snapshot: Snapshot,
        window: HistoryPartition | None,
        cut: HandoffFilter | None,
    ) -> Sequence[Json]:
        """Return one split per item of `list_splits`."""
        del spark
        return [
            {
                "id": f"{'' if window is None else window.key + '/'}{at:05d}",
                "at": at,
                "rows": piece.get("rows", GUESSED_ROWS),
            }
            | {"scope": scope_of(window, cut)}
            for at, piece in enumerate(snapshot.handle["pieces"])
        ]

    def read(
        self,
        spark: SparkSession,
        snapshot: Snapshot,
        splits: Sequence[Json],
        columns: Sequence[str] | None = None,
    ) -> DataFrame:
        """Return the rows. The position of a row is the index of its split and its number there."""
        from pyspark.sql import functions as F  # noqa: N812

        pieces = snapshot.handle["pieces"]
        tasks = [(split["at"], 0, _OF_SPLIT, {"split": pieces[split["at"]]}) for split in splits]
        scope = splits[0]["scope"] if splits else EVERYTHING
        schema = self.columns()
        frame = _read(spark, PickledPlugin(self, self.context.found, self.context.name), schema, tasks)
        frame = apply_scope(frame, scope, self.context.name, self.context.name)
        place = position_column(self.context.ordinal, scope, F.col(_PART), F.col(_OFF))
        return frame.select(*map(quote_identifier, columns or schema.names), OP, place.alias(POS))


class ArrowStream(UnboundedSource):
    """A source that never ends: partitions named by whole numbers, each a log with an offset per row.

    The offsets [start, end) of a partition must give the same rows, at most one per offset, whenever they are
    read. `batches` runs in Spark's workers: the object must be picklable.
    """

    capabilities: ClassVar[SourceCapabilities] = SourceCapabilities(bounded=False, job_mode=False)

    def __init__(self, context: PluginContext) -> None:
        """Store the context without opening a connection."""
        self.context = context
        self.options = context.options

    @abstractmethod
    def columns(self) -> pa.Schema:
        """Return the payload's columns."""

    @abstractmethod
    def partition_ends(self) -> Mapping[str, int]:
        """Return the offset after the current last row per partition."""

    @abstractmethod
    def batches(self, partition: str, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Return the rows of [start, end) in their order.

        With a column `_gs_op` they are inserts (i), updates (u) and deletes (d), else all are inserts.
        """

    def partition_starts(self) -> Mapping[str, int]:
        """Return the offset of the first available row per partition; 0 for missing partitions.

        A stream without history starts there.
        """
        return {}

    def schema(self) -> pa.Schema:
        """See `UnboundedSource.schema`."""
        return self.columns()

    def initial_offsets(self) -> Json:
        """Return the first available rows' position."""
        return self.earliest_offsets()

    def earliest_offsets(self) -> Json:
        """See `UnboundedSource.earliest_offsets`."""
        starts = self.partition_starts()
        return {"offsets": {part: starts.get(part, 0) for part in self._ends()}}

    def end_offsets(self) -> Json:
        """See `UnboundedSource.end_offsets`."""
        return {"offsets": self._ends()}

    def _ends(self) -> dict[str, int]:
        result = dict(self.partition_ends())
        if wrong := [
            part for part in result if not (isinstance(part, str) and part.isascii() and part.isdigit())
        ]:
            what = f"`partition_ends` named the partition {wrong[0]!r}"
            raise contract_error(
                self.context.found, what, self.context.name, 'Partitions are whole numbers as text: "0", "1".'
            )
        return result

    def next_end_offsets(self, after: Json, limits: ReadLimits) -> Json:
        """Return the furthest end that `limits` allow; partitions share them."""
        offsets, ends = positions.offsets(after), self._ends()
        waiting = {
            part: end - offsets.get(part, 0) for part, end in ends.items() if end > offsets.get(part, 0)
        }
        share = max(1, limits.rows // max(1, len(waiting)))
        result = {
            part: offsets.get(part, 0) + min(rows, share, limits.per_partition or rows)
            for part, rows in waiting.items()
        }
        return {"offsets": {**offsets, **result}}

    def backlog(self, at: Json) -> int | None:
        """See `UnboundedSource.backlog`."""
        return positions.offset_lag(at, self.end_offsets())

    def read(self, spark: SparkSession, start: Json, end: Json) -> DataFrame:
        """Return the rows, each with its partition and offset as the position.

        If there are fewer rows than offsets, the rows get the first offsets.
        """
        from pyspark.sql import functions as F  # noqa: N812

        first, last = positions.offsets(start), positions.offsets(end)
        ranges = [
            (part, first.get(part, 0), to) for part, to in sorted(last.items()) if to > first.get(part, 0)
        ]
        tasks = [
            (int(part), begin, _OF_RANGE, {"partition": part, "start": begin, "end": to})
            for part, begin, to in ranges
        ]
        frame = _read(
            spark, PickledPlugin(self, self.context.found, self.context.name), self.columns(), tasks
        )
        place = position_column(self.context.ordinal, EVERYTHING, F.col(_PART), F.col(_OFF))
        return frame.select(*map(quote_identifier, self.columns().names), OP, place.alias(POS))


_OF_SPLIT, _OF_RANGE = "split", "range"
_Task = tuple[int, int, str, Json]
"""`_gs_pos.part`, the first `off`, what `batches` returns, and with which arguments."""


def _read(
    spark: SparkSession, shipped: PickledPlugin, schema: pa.Schema, tasks: Sequence[_Task]
) -> DataFrame:
    """Return the payload with `_gs_op`, part and offset of every row."""
    hidden = pa.schema([pa.field(OP, pa.string()), pa.field(_PART, pa.int32()), pa.field(_OFF, pa.int64())])
    wanted = spark_schema(pa.schema([*schema, *hidden]))
    return spark.range(0, len(tasks), 1, max(len(tasks), 1)).mapInArrow(
        _work(shipped, schema, tuple(tasks)), wanted
    )


def _work(
    shipped: PickledPlugin, schema: pa.Schema, tasks: Sequence[_Task]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(places: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        worker: Any = shipped.open()
        for batch in places:
            for at in batch.column(0).to_pylist():
                part, first, kind, request = tasks[at]
                seen = 0
                for made in shipped.checked_batches(
                    "`batches`", lambda request=request: worker.batches(**request)
                ):
                    yield _add_position(shipped, made, schema, part, first + seen)
                    seen += made.num_rows
                    if kind == _OF_RANGE and seen > request["end"] - request["start"]:
                        start, end = request["start"], request["end"]
                        shipped.refuse(
                            f"`batches` gave more than {end - start} rows for the offsets {start} to {end} of"
                            f" partition {part}",
                            "At most one row has an offset.",
                        )

    return run


def _add_position(
    shipped: PickledPlugin, batch: pa.RecordBatch, schema: pa.Schema, part: int, first: int
) -> pa.RecordBatch:
    """Return a batch in the announced columns, with operation and position."""
    rows = batch.num_rows
    if OP in batch.schema.names:
        operations = batch.column(OP)
        if operations.type != pa.string() or set(operations.unique().to_pylist()) - {"i", "u", "d"}:
            shipped.refuse("`batches` gave an operation other than i, u and d in `_gs_op`")
        batch = batch.drop_columns([OP])
    else:
        operations = pa.array(["i"] * rows, pa.string())
    payload = shipped.fit_batch("`batches`", batch, schema)
    places = [pa.array([part] * rows, pa.int32()), pa.array(range(first, first + rows), pa.int64())]
    return pa.RecordBatch.from_arrays(
        [*payload.columns, operations, *places],
        schema=pa.schema(
            [*schema, pa.field(OP, pa.string()), pa.field(_PART, pa.int32()), pa.field(_OFF, pa.int64())]
        ),
    )

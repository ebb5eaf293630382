"""A source as the lane sees it: bounded phases in order, then perhaps a stream, and the cut between them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from headrace.connectors import registry
from headrace.connectors.base import OP, POS, BoundedSource, Cut, Limits, Snapshot, SplitFetch, UnboundedSource, Window
from headrace.connectors.spark_types import spark_schema
from headrace.pipeline import positions
from headrace.pipeline.errors import RetentionError, SchemaError
from headrace.pipeline.nodes import HybridSource
from headrace.pipeline.records import Json
from headrace.pipeline.settings import Settings
from headrace.pipeline.types import spark_type

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

DEFAULT_LAG = timedelta(hours=1)
_RANKS = 10  # of `_gs_pos.source` per node: bounded phases count up from 0, the stream is the last


@dataclass(frozen=True, slots=True)
class Reading:
    """What one epoch reads of one source. `rows` is an upper bound where one is known."""

    frame: DataFrame
    rows: int | None


class LaneSource:
    """One source node of a lane. Making it opens nothing; `close` lets go of what was opened."""

    def __init__(self, name: str, node: Any, settings: Settings, index: int) -> None:
        self.name = name
        self.node = node
        endless = positions.has_stream(node)
        phases = [part.node() for part in node.bounded_sources] if node.type == "hybrid" else [] if endless else [node]
        self.bounded: list[BoundedSource] = [
            registry.bounded_source(name, part, settings, index * _RANKS + rank) for rank, part in enumerate(phases)
        ]
        stream = node.unbounded_source.node() if node.type == "hybrid" else node if endless else None
        self.unbounded: UnboundedSource | None = (
            registry.unbounded_source(name, stream, settings, index * _RANKS + _RANKS - 1) if stream is not None else None
        )

    def schema(self, spark: SparkSession) -> pa.Schema:
        """The payload. A hybrid source has its stream's columns and types; its history is cast to them."""
        found = self.payload([part.schema(spark) for part in self.bounded])
        assert found is not None  # noqa: S101  all of its phases are known
        return found

    def payload(self, phases: Sequence[pa.Schema | None]) -> pa.Schema | None:
        """The same, for what the bounded phases have; None stands for one that could not be asked, or for a payload that it leaves open."""
        if self.unbounded is None:
            return phases[0]
        found = self.unbounded.schema()
        for part, have in zip(self.bounded, phases, strict=True):
            if have is not None:
                self.covers(part, have)
        return found

    def covers(self, part: BoundedSource, schema: pa.Schema) -> None:
        """Raises SchemaError where a bounded phase, which has `schema`, lacks columns of the stream."""
        assert self.unbounded is not None  # noqa: S101
        have, wanted = schema.names, self.unbounded.schema().names
        if missing := [column for column in wanted if column not in have]:
            told = part.describe()
            msg = f"history `{told.get('table_name') or told['location']}` lacks the columns {', '.join(missing)} of the stream"
            hint = f"History has: {', '.join(have)}. Add them there, or remove them from `schema`."
            raise SchemaError(msg, hint=hint, node=self.name)

    def opening(self, spark: SparkSession, token: str) -> Json:
        """The position before the first epoch: the fence first, then the pins, so that history holds all that the fence says."""
        if not self.bounded:
            assert self.unbounded is not None  # noqa: S101  a node has one or the other
            return {"stream": self.unbounded.initial()}
        fence, cursor = self._fence() if isinstance(self.node, HybridSource) and self.unbounded else (None, None)
        pins = [part.pin(spark, f"{token}_{rank}").handle for rank, part in enumerate(self.bounded)]
        return {"pins": pins, "fence": fence, "cursor": cursor, "windows": {}}

    def _fence(self) -> tuple[Json, str | None]:
        """The stream's first position, by what history is known to hold, never by 'latest' (a table lags its topic)."""
        node, stream = self.node, self.unbounded
        assert stream is not None  # noqa: S101
        if node.offset_table is not None:
            held = self.bounded[-1].fence(node.offset_table, node.unbounded_source.topic)
            earliest = stream.earliest()
            wanted = {part: held.get(part, offset) for part, offset in positions.offsets(earliest).items()}
            return earliest | {"offsets": wanted}, None
        now = datetime.now(UTC)
        since = now - (node.history_lag or DEFAULT_LAG)
        if node.cursor is None:
            return stream.fence_at(_millis(since)), None
        settled = now - node.cursor.settle
        return stream.fence_at(_millis(min(since, settled))), settled.isoformat()

    def cut(self, position: Json) -> Cut | None:
        """How history ends where the stream begins, if it carries its offsets."""
        table = getattr(self.node, "offset_table", None)
        fence = position.get("fence")
        if table is None or fence is None or table.table_name not in (None, self.node.bounded_sources[-1].table_name):
            return None
        return Cut(table.partition_column, table.offset_column, positions.offsets(fence))

    def splits(self, spark: SparkSession, position: Json, phase: int, window: Window | None) -> list[Json]:
        """The pieces of one phase inside one window."""
        cut = self.cut(position) if phase == len(self.bounded) - 1 else None
        return list(self.bounded[phase].splits(spark, self._snapshot(position, phase), window, cut))

    def foresee(self, spark: SparkSession) -> Callable[[int, Window | None], list[Json]]:
        """What tells the pieces that history would be cut into if it were opened now, by phase and window. Pins nothing."""
        fence = self._fence()[0] if getattr(self.node, "offset_table", None) is not None else None
        cut = self.cut({"fence": fence})
        seen = [part.look(spark) for part in self.bounded]

        def pieces(phase: int, window: Window | None) -> list[Json]:
            return list(self.bounded[phase].splits(spark, seen[phase], window, cut if phase == len(self.bounded) - 1 else None))

        return pieces

    def fetch(self, position: Json, phase: int, splits: Sequence[Json], query: str | None) -> SplitFetch | None:
        """What tasks read these splits with on the direct path."""
        return self.bounded[phase].direct(self._snapshot(position, phase), splits, query)

    def _snapshot(self, position: Json, phase: int) -> Snapshot:
        handle = position["pins"][phase]
        return Snapshot(handle, pinned=bool(handle.get("pinned", True)))

    def read_history(self, spark: SparkSession, position: Json, phase: int, splits: Sequence[Json], schema: pa.Schema) -> Reading:
        """The rows of these splits, cast to the source's columns."""
        frame = self.bounded[phase].read(spark, self._snapshot(position, phase), splits, schema.names)
        if cursor := position.get("cursor"):
            frame = frame.where(f"`{self.node.cursor.column}` <= timestamp'{cursor}'")
        return Reading(_cast(frame, schema), sum(split.get("rows", 0) for split in splits))

    def read_stream(self, spark: SparkSession, start: Json, end: Json) -> Reading:
        """The stream's rows between two positions of this source, without what history holds already."""
        assert self.unbounded is not None  # noqa: S101
        frame = self.unbounded.read(spark, start["stream"], end["stream"])
        if (cursor := start.get("cursor")) and positions.behind(start["stream"], end.get("catch_up")):
            frame = _behind_cursor(frame, self.node.cursor.column, cursor, positions.offsets(end["catch_up"]))
        return Reading(frame, positions.distance(start["stream"], end["stream"]))

    def stream_start(self, position: Json) -> Json:
        """The position with its stream begun: at the fence, with the end of now as what `catching up` is measured against."""
        if "stream" in position:
            return dict(position)
        assert self.unbounded is not None  # noqa: S101
        return dict(position) | {"stream": position["fence"], "began": position["fence"], "catch_up": self.unbounded.end()}

    def latest(self, position: Json, limits: Limits) -> Json:
        """The position that one stream epoch after `position` may reach."""
        assert self.unbounded is not None  # noqa: S101
        return dict(position) | {"stream": self.unbounded.latest(position["stream"], limits)}

    def check_retention(self, position: Json) -> None:
        """Raises RetentionError when the topic has already lost rows behind the fence."""
        fence = position.get("fence")
        if fence is None or self.unbounded is None:
            return
        earliest = positions.offsets(self.unbounded.earliest())
        lost = {part: (offset, earliest[part]) for part, offset in positions.offsets(fence).items() if earliest.get(part, 0) > offset}
        if lost:
            said = ", ".join(f"partition {part}: fence {at}, earliest {first}" for part, (at, first) in lost.items())
            msg = f"the topic's retention has passed the fence: {said}"
            raise RetentionError(
                msg, hint="Rows between are in neither. Lengthen retention.ms, then start over with a newer history.", node=self.name
            )

    def unpin(self, position: Json) -> None:
        """Gives back what `opening` pinned."""
        for phase, part in enumerate(self.bounded):
            part.unpin(self._snapshot(position, phase))

    def close(self) -> None:
        """Lets go of connections."""
        for part in (*self.bounded, *([self.unbounded] if self.unbounded else [])):
            part.close()


def _millis(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


def _cast(frame: DataFrame, schema: pa.Schema) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    wanted = spark_schema(schema)
    return frame.select(*[F.col(f"`{field.name}`").cast(field.dataType).alias(field.name) for field in wanted], OP, POS)


def _behind_cursor(frame: DataFrame, column: str, cursor: str, overlap_end: Mapping[str, int]) -> DataFrame:
    """Drops rows of the overlap that history holds: at or below the cursor, before the end that the stream had at the handoff."""
    from pyspark.sql import functions as F  # noqa: N812

    ends = F.from_json(F.lit(json.dumps(overlap_end)), "map<string,bigint>")
    inside = F.col(f"{POS}.off") < F.coalesce(F.element_at(ends, F.col(f"{POS}.part").cast("string")), F.lit(0))
    return frame.where(~(inside & (F.col(f"`{column}`") <= F.lit(cursor).cast("timestamp"))))


def spoken_columns(sources: Mapping[str, LaneSource]) -> dict[str, dict[str, str]]:
    """What the file itself says of the sources' columns: Spark SQL types, empty ones where it lists names only; nothing where neither."""
    found: dict[str, dict[str, str]] = {}
    for name, source in sources.items():
        payload = source.payload([None] * len(source.bounded))
        listed: dict[str, str] = dict.fromkeys(getattr(source.node, "columns", ()), "")
        found[name] = listed if payload is None else {column.name: spark_type(column.type) for column in payload}
    return {name: columns for name, columns in found.items() if columns}


def lane_sources(sources: Mapping[str, Any], settings: Settings) -> dict[str, LaneSource]:
    """The sources of a pipeline file, in its order."""
    return {name: LaneSource(name, node, settings, index) for index, (name, node) in enumerate(sources.items())}

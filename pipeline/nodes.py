"""The nodes of a pipeline file. Keys follow Streamling's topology files; keys of our own stand beside theirs."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, PositiveInt, model_validator

from headrace.pipeline.case_nodes import CaseNode
from headrace.pipeline.durations import parse_duration, spell_duration
from headrace.pipeline.errors import UserError
from headrace.pipeline.strict import Columns, Strict
from headrace.pipeline.telemetry import Telemetry


def _duration(value: object) -> object:
    if isinstance(value, int | float) and value < 0:
        msg = f"`{value}` is not a duration; write a number and a unit, such as 500ms or 1h 30m"
        raise ValueError(msg)
    if not isinstance(value, str):
        return value
    try:
        return parse_duration(value)
    except UserError as error:
        msg = f"{error.message}; {error.hint[:1].lower()}{error.hint[1:].rstrip('.')}"
        raise ValueError(msg) from error


Duration = Annotated[timedelta, BeforeValidator(_duration), PlainSerializer(spell_duration, when_used="json")]


class Node(Strict):
    """What all nodes share."""

    primary_key: Columns = Field(
        default=(), description="Key columns, as a list or as text with commas; inherited from upstream if not given."
    )
    telemetry: Telemetry | None = Field(default=None, description="Labels and event time; checked, and not sent anywhere yet.")


WITHOUT_EFFECT = {
    "sources": frozenset({"telemetry", "parallelism", "batch_flush_interval"}),
    "transforms": frozenset({"telemetry", "parallelism"}),
    "sinks": frozenset({"telemetry", "parallelism", "batch_size", "batch_flush_interval", "deduplicate"}),
}
"""Keys that change no row, by the part of the file: a change of one is no change of the pipeline."""

_PARALLELISM = "Taken for Streamling's files; Spark divides the work by its own settings (`spark.master`)."
_FLUSH = "Taken for Streamling's files; `epoch` says how large epochs are and how often they come."


class OffsetTable(Strict):
    """Where history says which Kafka offsets it holds."""

    topic_name: str | None = Field(default=None, description="The topic as the table spells it; the stream's topic if not given.")
    table_name: str | None = Field(default=None, description="The table; the history table itself if not given, which makes the cut exact.")
    topic_column: str | None = Field(default=None, description="Column with the topic; needed where the table holds several topics.")
    partition_column: str = Field(default="_kafka_partition", description="Column with the topic partition.")
    offset_column: str = Field(default="_kafka_offset", description="Column with the offset.")


class ClickHouseSource(Node):
    """A ClickHouse table, read once: pinned by CLONE AS, split by its sorting key."""

    type: Literal["clickhouse"] = "clickhouse"
    table_name: str = Field(description="`table` or `database.table`.")
    columns: Columns = Field(default=(), description="Columns to read; all if not given.")
    filter: str | None = Field(default=None, description="A predicate in ClickHouse's own SQL.")
    start_at: str | None = Field(default=None, description="Lowest value of the first sorting key column, inclusive.")
    snapshot: Literal["clone", "none"] = Field(
        default="clone", description="`clone` pins the table by hard links; `none` needs no rights but cannot hold still."
    )
    split_rows: PositiveInt = Field(default=250_000, description="Rows per split, about.")


class IcebergSource(Node):
    """An Iceberg table of a hadoop catalog, read once at a pinned snapshot."""

    type: Literal["iceberg"] = "iceberg"
    table_name: str = Field(description="`namespace.table`.")
    warehouse: str | None = Field(default=None, description="The hadoop catalog's folder; from the settings if not given.")
    columns: Columns = ()
    filter: str | None = Field(default=None, description="A predicate in Spark SQL.")
    snapshot_id: int | None = Field(default=None, description="The snapshot to read; the newest at the first start if not given.")


class KafkaSource(Node):
    """A Kafka topic with one JSON object per message."""

    type: Literal["kafka"] = "kafka"
    topic: str
    data_format: Literal["json"] = Field(default="json", description="Only json so far.")
    schema_: dict[str, str] = Field(default_factory=dict, alias="schema", description="Column names and types, such as `id: int64`.")
    starting_offsets: str = Field(default="earliest", description="earliest, latest, or epoch milliseconds as text.")
    include_metadata: bool = Field(default=False, description="Adds __kafka_partition, __kafka_offset and __kafka_timestamp.")
    filter: str | None = Field(default=None, description="A predicate in Spark SQL over all columns.")
    batch_size: PositiveInt | None = Field(default=None, description="Upper bound of rows in one stream epoch from this source.")
    batch_flush_interval: Duration | None = Field(default=None, description=_FLUSH)
    parallelism: PositiveInt | None = Field(default=None, description=_PARALLELISM)

    @model_validator(mode="after")
    def _schema_is_needed(self) -> KafkaSource:
        if not self.schema_:
            msg = (
                "`schema` is required when data_format is json; add columns and their types, such as `id: int64`;"
                " Avro, which Streamling means here, is not available yet"
            )
            raise ValueError(msg)
        return self


class HybridBounded(Strict):
    """One bounded phase of a hybrid source."""

    source_type: Literal["clickhouse", "iceberg"]
    table_name: str
    columns: Columns = ()
    filter: str | None = None
    start_at: str | None = None
    snapshot: Literal["clone", "none"] = "clone"
    split_rows: PositiveInt = 250_000
    warehouse: str | None = None
    snapshot_id: int | None = None

    def node(self) -> ClickHouseSource | IcebergSource:
        """The same phase as a source node of its own."""
        given = self.model_dump(exclude={"source_type"})
        kind = ClickHouseSource if self.source_type == "clickhouse" else IcebergSource
        return kind(**{key: value for key, value in given.items() if key in kind.model_fields})


class HybridUnbounded(Strict):
    """The unbounded phase of a hybrid source."""

    source_type: Literal["kafka"]
    topic: str
    data_format: Literal["json"] = "json"
    schema_: dict[str, str] = Field(default_factory=dict, alias="schema")
    filter: str | None = None
    batch_size: PositiveInt | None = None
    include_metadata: bool = False

    def node(self) -> KafkaSource:
        """The same phase as a source node of its own."""
        return KafkaSource.model_validate(self.model_dump(exclude={"source_type"}, by_alias=True))


class Cursor(Strict):
    """How appending sinks tell history from stream inside the overlap: by a time column and its settle time."""

    column: str
    settle: Duration


class HybridSource(Node):
    """Bounded phases in order, then one unbounded phase, with an exact handoff."""

    type: Literal["hybrid"] = "hybrid"
    bounded_sources: Annotated[tuple[HybridBounded, ...], Field(min_length=1)]
    unbounded_source: HybridUnbounded
    offset_table: OffsetTable | None = Field(default=None, description="Exact fence: the offsets that history holds.")
    history_lag: Duration | None = Field(
        default=None, description="Fence by time: how far history may lag its topic. 1h at keyed sinks if not given."
    )
    cursor: Cursor | None = None


class SqlTransform(Node):
    """A projection, a filter or a union in Spark SQL."""

    type: Literal["sql"] = "sql"
    sql: str
    parallelism: PositiveInt | None = Field(default=None, description=_PARALLELISM)


class SinkNode(Node):
    """What all sinks share."""

    from_: str = Field(alias="from", description="The node whose rows are written.")
    delivery: Literal["exactly_once", "at_least_once"] | None = Field(
        default=None, description="Exactly once if not given; a weaker guarantee must be asked for."
    )
    batch_size: PositiveInt | None = Field(default=None, description=_FLUSH)
    batch_flush_interval: Duration | None = Field(default=None, description=_FLUSH)
    parallelism: PositiveInt | None = Field(default=None, description=_PARALLELISM)
    deduplicate: bool = Field(default=True, description="Taken for Streamling's files; the last row of a key always wins.")


UpdateOp = Literal[">", ">=", "<", "<=", "=", "!=", "<>"]


class PostgresSink(SinkNode):
    """A Postgres table, created if missing: upserts and deletes by key, or appends without one."""

    type: Literal["postgres"] = "postgres"
    schema_: str = Field(default="public", alias="schema")
    table: str
    on_conflict: Literal["update", "nothing"] = "update"
    update_where: dict[str, UpdateOp] = Field(
        default_factory=dict, description="`{column: op}`: update only where EXCLUDED.column op t.column."
    )
    driver_rows: PositiveInt = Field(default=20_000, description="Epochs up to this size go out by one connection of the driver.")


class DeltaSink(SinkNode):
    """A Delta table at a path: MERGE by key, or append without one."""

    type: Literal["delta"] = "delta"
    path: str


class PrintSink(SinkNode):
    """Rows on standard error, for looking at."""

    type: Literal["print"] = "print"
    sample_every: PositiveInt = 1


class BlackholeSink(SinkNode):
    """Rows are computed and thrown away."""

    type: Literal["blackhole"] = "blackhole"


SourceNode = Annotated[HybridSource | ClickHouseSource | IcebergSource | KafkaSource, Field(discriminator="type")]
TransformNode = Annotated[SqlTransform, Field(discriminator="type")]
AnySink = Annotated[PostgresSink | DeltaSink | PrintSink | BlackholeSink, Field(discriminator="type")]


def _day(value: object) -> object:
    if isinstance(value, datetime):
        return value.date()
    if not isinstance(value, str):
        return value
    try:
        return date.fromisoformat(f"{value}-01" if len(value) == len("2013-01") else value)
    except ValueError:
        msg = f"`{value}` is no day and no month; write one such as 2013-01-31 or 2013-01"
        raise ValueError(msg) from None


Day = Annotated[date, BeforeValidator(_day)]


class Partitions(Strict):
    """History in windows of time, each a partition in Dagster."""

    column: str = Field(description="A date or timestamp column of the history.")
    every: Literal["day", "month"] = "month"
    start: Day = Field(description="First day of the first partition.")
    end: Day = Field(description="Day behind the last partition that Dagster shows.")
    history_end: Day | None = Field(default=None, description="Day behind the last partition that history fills; `end` if not given.")

    @model_validator(mode="after")
    def _in_order(self) -> Partitions:
        if self.start >= self.end:
            msg = f"`start` {self.start} must be before `end` {self.end}"
            raise ValueError(msg)
        if self.history_end and not self.start < self.history_end <= self.end:
            msg = f"`history_end` {self.history_end} must be after `start` {self.start} and not behind `end` {self.end}"
            raise ValueError(msg)
        if self.every == "month" and any(day.day != 1 for day in (self.start, self.end, self.history_end or self.end)):
            msg = "monthly partitions start and end on the first day of a month"
            raise ValueError(msg)
        return self


class EpochOptions(Strict):
    """How large epochs are and how often they come."""

    rows: PositiveInt = Field(default=100_000, description="Upper bound of rows in a stream epoch.")
    history_rows: PositiveInt = Field(default=1_000_000, description="Rows in a history epoch, about.")
    interval: Duration = Field(default=timedelta(seconds=5), description="Pause between stream epochs; 0s: as fast as it can.")
    max_attempts: PositiveInt = Field(default=3, description="Equal failures of one epoch before the lane is blocked.")


class StreamOptions(Strict):
    """How Dagster runs the stream."""

    mode: Literal["continuous", "triggered"] = "continuous"
    lifetime: Duration = Field(
        default=timedelta(hours=6), description="A continuous run ends at an epoch's border after this and is started again."
    )


class Schedule(Strict):
    """When Dagster materializes the pipeline by itself."""

    cron: str
    timezone: str = "UTC"


VERSION = 1
"""Of the file's format: what this release writes, and the only one so far."""


class PipelineModel(Strict):
    """A whole pipeline file."""

    version: Literal[1] = 1
    name: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_-]*$")
    sources: dict[str, SourceNode]
    transforms: dict[str, TransformNode] = Field(default_factory=dict)
    sinks: Annotated[dict[str, AnySink], Field(min_length=1)]
    partitions: Partitions | None = None
    schedule: Schedule | None = None
    job_mode: bool = False
    epoch: EpochOptions = EpochOptions()
    stream: StreamOptions = StreamOptions()
    tests: dict[str, CaseNode] = Field(default_factory=dict, description="Tests by name; `headrace test` runs them.")

    def nodes(self) -> dict[str, Any]:
        """All nodes by name."""
        return {**self.sources, **self.transforms, **self.sinks}

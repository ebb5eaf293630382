"""The nodes of a pipeline file. Keys follow Streamling's topology files; Headrace adds keys of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PositiveInt,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from headrace.pipeline.compat import streamling
from headrace.pipeline.model.base import FLUSH, PARALLELISM, VERSION_COLUMN, NodeConfig
from headrace.pipeline.model.plugins import PluginNodeConfig, with_plugins
from headrace.pipeline.model.run_options import Duration, EpochOptions, PartitionsConfig, Schedule, StreamOptions
from headrace.pipeline.model.strict import Columns, Strict
from headrace.pipeline.model.testcases import CaseConfig
from headrace.pipeline.model.transforms import TransformConfig
from headrace.pipeline.sql.system_columns import ORDINALS_PER_NODE

WITHOUT_EFFECT = {
    "sources": frozenset({"parallelism", "batch_flush_interval"}),
    "transforms": frozenset({"parallelism", "batch_flush_interval"}),
    "sinks": frozenset({"parallelism", "batch_size", "batch_flush_interval", "deduplicate"}),
}
"""Keys that are taken and do nothing, by the part of the file."""
WITHOUT_ROWS = frozenset({"telemetry"})
"""Keys of all nodes that change no row, as those above: a change of one is no change of the pipeline."""

_WITH_EFFECT = {"handler": frozenset({"parallelism"})}


def without_effect(part: str, kind: str = "") -> frozenset[str]:
    """Keys that do nothing at nodes of a part of the file, for those of one type without what it makes use of."""
    return WITHOUT_EFFECT.get(part, frozenset()) - _WITH_EFFECT.get(kind, frozenset())


class OffsetTable(Strict):
    """Where history says which Kafka offsets it holds."""

    topic_name: str | None = Field(
        default=None, description="The topic as the table spells it; the stream's topic if not given. Used with `topic_column`."
    )
    table_name: str | None = Field(
        default=None, description="The table; the last history table itself if not given, which makes the cut exact."
    )
    topic_column: str | None = Field(
        default=None, description="Column with the topic, where the table holds several topics; if not given, all rows are of this one."
    )
    partition_column: str = Field(default="_kafka_partition", description="Column with the topic partition, a whole number or null.")
    offset_column: str = Field(
        default="_kafka_offset", description="Column with the offset, a whole number or null: rows without one are history's."
    )
    allow_missing: bool = Field(
        default=False,
        description="Whether to start although neither the table nor the topic has the messages between the table's last offset and the"
        " topic's first one. Set it if they were deletes or transaction markers.",
    )


class ClickHouseSourceConfig(NodeConfig):
    """A ClickHouse table, read once: pinned by CLONE AS, split by its sorting key."""

    type: Literal["clickhouse"] = "clickhouse"
    table_name: str = Field(description="`table` of the connection's own database, or `database.table`.")
    columns: Columns = Field(default=(), description="Columns to read; all if not given.")
    filter: str | None = Field(default=None, description="Only rows for which this holds: a predicate in ClickHouse's own SQL.")
    start_at: str | None = Field(
        default=None, description="Lowest value of the first sorting key column that is read, inclusive; from the beginning if not given."
    )
    snapshot: Literal["clone", "none"] = Field(
        default="clone", description="`clone` pins the table by hard links; `none` needs no rights beyond SELECT but does not hold still."
    )
    split_rows: PositiveInt = Field(default=250_000, description="Rows per split, about. A split is what one task reads at a time.")


class IcebergSourceConfig(NodeConfig):
    """An Iceberg table of a hadoop catalog, read once at a pinned snapshot."""

    type: Literal["iceberg"] = "iceberg"
    table_name: str = Field(description="`namespace.table`.")
    warehouse: str | None = Field(
        default=None, description="The hadoop catalog's folder or URI; `iceberg.warehouse` of the settings if not given."
    )
    columns: Columns = Field(default=(), description="Columns to read; all if not given.")
    filter: str | None = Field(default=None, description="Only rows for which this holds: a predicate in Spark SQL.")
    snapshot_id: int | None = Field(default=None, description="The snapshot to read; the newest at the first start if not given.")


_FORMATS = {"ndjson": "json", "jsonl": "json"}


def _format(value: object) -> object:
    return _FORMATS.get(value, value) if isinstance(value, str) else value


def _mode(value: object) -> object:
    """Accept `bounded` and `{type: bounded}`. Raise ValueError for other modes."""
    if not isinstance(value, dict) or value == {"type": "bounded"}:
        return "bounded" if isinstance(value, dict) else value
    instead = streamling.VALUES["mode", "continuous"]
    msg = f"only `bounded` is available yet; {instead[:1].lower()}{instead[1:].rstrip('.')}"
    raise ValueError(msg)


FileFormat = Annotated[Literal["parquet", "csv", "json"], BeforeValidator(_format)]


class FileSourceConfig(NodeConfig):
    """Files of one format, read once: pinned by size and time of change, split by file or parquet row group."""

    type: Literal["file"] = "file"
    path: str = Field(description="A file, a folder that is read with all below it, or a pattern such as /data/*.csv; local.")
    format: FileFormat = Field(description="parquet, csv, or json with one object per line (also ndjson, jsonl).")
    mode: Annotated[Literal["bounded"], BeforeValidator(_mode)] = Field(
        description="`bounded`: the files that are there at the first start. Files that come later are not watched for yet."
    )
    schema_: dict[str, str] = Field(
        default_factory=dict, alias="schema", description="Column names and types; needed for csv and json, a check for parquet."
    )
    columns: Columns = Field(default=(), description="Columns to read; all if not given.")
    filter: str | None = Field(default=None, description="A predicate in Spark SQL.")
    header: bool = Field(default=True, description="csv: whether the first line of each file names its columns.")
    delimiter: str = Field(default=",", description="csv: one character.")
    null_value: str = Field(default="", description="csv: the unquoted field that means null.")
    parallelism: PositiveInt | None = Field(default=None, description=PARALLELISM)


class KafkaSourceConfig(NodeConfig):
    """A Kafka topic with one JSON object per message."""

    type: Literal["kafka"] = "kafka"
    topic: str = Field(description="The topic's name.")
    data_format: Literal["json"] = Field(default="json", description="How a message is encoded.")
    schema_: dict[str, str] = Field(
        default_factory=dict,
        alias="schema",
        description="Columns and their types, such as `id: int64`; needed with json. Other keys of a message are ignored, missing ones are null.",
    )
    starting_offsets: str = Field(
        default="earliest",
        description="Where the stream begins at the first start: `earliest`, `latest`, or milliseconds since 1970 as text: at the first message"
        " of that time or later.",
    )
    include_metadata: bool = Field(
        default=False,
        description="Adds the columns `__kafka_partition` (int32), `__kafka_offset` (int64) and `__kafka_timestamp` (timestamp).",
    )
    filter: str | None = Field(
        default=None, description="Only rows for which this holds: a predicate in Spark SQL over all columns of `schema`."
    )
    batch_size: PositiveInt | None = Field(
        default=None, description="At most this many messages of this source in one epoch; its share of `epoch.stream_rows` if not given."
    )
    batch_flush_interval: Duration | None = Field(default=None, description=FLUSH)
    parallelism: PositiveInt | None = Field(default=None, description=PARALLELISM)

    @model_validator(mode="after")
    def _schema_is_needed(self) -> KafkaSourceConfig:
        if not self.schema_:
            msg = (
                "`schema` is required when data_format is json; add columns and their types, such as `id: int64`;"
                " Avro, which Streamling means here, is not available yet"
            )
            raise ValueError(msg)
        return self


class BoundedPhaseConfig(Strict):
    """One bounded phase of a hybrid source: the keys of a source of that type. Columns are matched to the stream's by name."""

    source_type: Literal["clickhouse", "iceberg", "file"] = Field(description="What the phase reads.")
    table_name: str = Field(
        default="", validate_default=True, description="clickhouse: `table` or `database.table`; iceberg: `namespace.table`."
    )
    columns: Columns = Field(default=(), description="Columns to read; all if not given.")
    filter: str | None = Field(
        default=None, description="Only rows for which this holds: a predicate in ClickHouse's own SQL, for the others in Spark SQL."
    )
    start_at: str | None = Field(default=None, description="clickhouse only: lowest value of the first sorting key column, inclusive.")
    snapshot: Literal["clone", "none"] = Field(default="clone", description="clickhouse only: `clone` pins the table, `none` does not.")
    split_rows: PositiveInt = Field(
        default=250_000, description="clickhouse only: rows per split, about; fewer where they hold more than 32 MiB."
    )
    warehouse: str | None = Field(
        default=None, description="iceberg only: the hadoop catalog's folder or URI; from the settings if not given."
    )
    snapshot_id: int | None = Field(
        default=None, description="iceberg only: the snapshot to read; the newest at the first start if not given."
    )
    path: str = Field(
        default="", validate_default=True, description="file only: a file, a folder with all below it, or a pattern such as /data/*.csv."
    )
    format: FileFormat | None = Field(
        default=None, validate_default=True, description="file only: parquet, csv, or json (one object per line)."
    )
    schema_: dict[str, str] = Field(
        default_factory=dict, alias="schema", description="file only: column names and types; needed for csv and json."
    )
    header: bool = Field(default=True, description="file only, csv: whether the first line of each file names its columns.")
    delimiter: str = Field(default=",", description="file only, csv: one character between two fields.")
    null_value: str = Field(default="", description="file only, csv: the unquoted field that means null.")

    @field_validator("table_name", "path", "format")
    @classmethod
    def _needed(cls, value: object, info: ValidationInfo) -> object:
        """Refuse a table without a name, and files without a path or format."""
        kind = info.data.get("source_type")
        if not value and kind and (info.field_name == "table_name") is (kind != "file"):
            raise PydanticCustomError("missing", "Field required")  # noqa: EM101  pydantic's own kind and words
        return value

    def node(self) -> ClickHouseSourceConfig | IcebergSourceConfig | FileSourceConfig:
        """Return the same phase as a source node of its own."""
        given = self.model_dump(exclude={"source_type"}) | {"mode": "bounded"}
        kinds: dict[str, Any] = {"clickhouse": ClickHouseSourceConfig, "iceberg": IcebergSourceConfig, "file": FileSourceConfig}
        kind = kinds[self.source_type]
        return kind(**{key: value for key, value in given.items() if key in kind.model_fields})


class UnboundedPhaseConfig(Strict):
    """The unbounded phase of a hybrid source. Its columns are the node's columns: history is cast to them."""

    source_type: Literal["kafka"] = Field(description="What the phase reads.")
    topic: str = Field(description="The topic's name.")
    data_format: Literal["json"] = Field(default="json", description="How a message is encoded.")
    schema_: dict[str, str] = Field(
        default_factory=dict, alias="schema", description="Columns and their types, such as `id: int64`; history must have all of them."
    )
    filter: str | None = Field(default=None, description="Only rows for which this holds: a predicate in Spark SQL over all columns.")
    batch_size: PositiveInt | None = Field(
        default=None, description="At most this many messages in one epoch; the source's share of `epoch.stream_rows` if not given."
    )
    include_metadata: bool = Field(
        default=False, description="Adds `__kafka_partition`, `__kafka_offset` and `__kafka_timestamp`; history must have them too."
    )

    def node(self) -> KafkaSourceConfig:
        """Return the same phase as a source node of its own."""
        return KafkaSourceConfig.model_validate(self.model_dump(exclude={"source_type"}, by_alias=True))


class Cursor(Strict):
    """How appending sinks tell history from stream inside the overlap: by a timestamp column and its allowed lateness."""

    column: str = Field(description="A timestamp column that history and stream both have.")
    allowed_lateness: Duration = Field(description="Maximum delay between the timestamp of a row and its arrival in the history.")


class HybridSourceConfig(NodeConfig):
    """Bounded phases in order, then one unbounded phase, with an exact handoff."""

    type: Literal["hybrid"] = "hybrid"
    bounded_sources: Annotated[tuple[BoundedPhaseConfig, ...], Field(min_length=1, max_length=ORDINALS_PER_NODE - 1)] = Field(
        description="History: read to its end, in this order."
    )
    unbounded_source: UnboundedPhaseConfig = Field(description="The stream that goes on where history ends.")
    offset_table: OffsetTable | None = Field(
        default=None,
        description="Exact fence: the table that says which offsets history holds. `{}` takes the history table and its defaults.",
    )
    handoff_lag: Duration | None = Field(
        default=None, description="Fence by time, without `offset_table`: how far history may lag its topic. 1h if not given."
    )
    cursor: Cursor | None = Field(
        default=None, description="With `handoff_lag`, for sinks without a key: tells history from stream inside the overlap."
    )


class SinkConfig(NodeConfig):
    """What all sinks share."""

    from_: str = Field(alias="from", description="The node whose rows are written.")
    delivery: Literal["exactly_once", "at_least_once"] | None = Field(
        default=None,
        description="What the sink can keep if not given. A weaker guarantee than exactly once must be asked for, where the file needs one.",
    )
    share: bool = Field(
        default=False,
        description="Lets another pipeline write the same target, if its sink sets this too. Checks that count rows do not apply then.",
    )
    batch_size: PositiveInt | None = Field(default=None, description=FLUSH)
    batch_flush_interval: Duration | None = Field(default=None, description=FLUSH)
    parallelism: PositiveInt | None = Field(default=None, description=PARALLELISM)
    deduplicate: bool = Field(default=True, description="Taken for Streamling's files; the last row of a key always wins.")


class KeyedSinkConfig(SinkConfig):
    """What sinks share that keep one row for each key."""

    version_column: str | None = Field(default=None, description=VERSION_COLUMN)


UpdateOp = Literal[">", ">=", "<", "<=", "=", "!=", "<>"]


class PostgresSinkConfig(KeyedSinkConfig):
    """A Postgres table, created if missing: upserts and deletes by key, or appends without one."""

    type: Literal["postgres"] = "postgres"
    schema_: str = Field(default="public", alias="schema", description="The table's schema; made if it is missing.")
    table: str = Field(description="The table's name; made from the rows' columns if it is missing, never altered.")
    on_conflict: Literal["update", "nothing"] = Field(
        default="update", description="With a key: `update` lets the last row of a key win, `nothing` the first one."
    )
    update_where: dict[str, UpdateOp] = Field(
        default_factory=dict,
        description="`{column: op}`: update only where EXCLUDED.column op t.column, for all of them. Not given: always.",
    )
    max_driver_rows: PositiveInt = Field(
        default=20_000, description="Epochs of up to this many rows go out by one connection of the driver, larger ones by Spark's tasks."
    )


class DeltaSinkConfig(KeyedSinkConfig):
    """A Delta table at a path: MERGE by key, or append without one."""

    type: Literal["delta"] = "delta"
    path: str = Field(description="A folder or a URI that Spark can write; the table is made if it is missing.")


class IcebergSinkConfig(KeyedSinkConfig):
    """A table of a hadoop catalog, created if missing: upserts and deletes by key, or appends without one."""

    type: Literal["iceberg"] = "iceberg"
    table_name: str = Field(description="`namespace.table`.")
    warehouse: str | None = Field(default=None, description="The hadoop catalog's folder; from the settings if not given.")


class PrintSinkConfig(SinkConfig):
    """Rows on standard error, for looking at."""

    type: Literal["print"] = "print"
    sample_every: PositiveInt = Field(default=1, description="Shows every Nth row; 1: all of them.")


class BlackholeSinkConfig(SinkConfig):
    """Rows are computed and thrown away."""

    type: Literal["blackhole"] = "blackhole"


SourceConfig = Annotated[
    HybridSourceConfig | ClickHouseSourceConfig | IcebergSourceConfig | FileSourceConfig | KafkaSourceConfig, Field(discriminator="type")
]
AnySinkConfig = Annotated[
    PostgresSinkConfig | DeltaSinkConfig | IcebergSinkConfig | PrintSinkConfig | BlackholeSinkConfig, Field(discriminator="type")
]

if TYPE_CHECKING:
    # Built-in nodes, which their `type` narrows. Plugin nodes have any text as `type`; isinstance recognizes them.
    _Source = SourceConfig
    _Transform = TransformConfig
    _Sink = AnySinkConfig
else:
    _Source, _Transform, _Sink = (
        with_plugins(union, part) for part, union in (("sources", SourceConfig), ("transforms", TransformConfig), ("sinks", AnySinkConfig))
    )


VERSION = 1
"""Of the file's format: what this release writes, and the only one so far."""


class PipelineModel(Strict):
    """A whole pipeline file."""

    version: Literal[1] = Field(default=1, description="The version of the format.")
    name: str = Field(
        pattern=r"^[A-Za-z_][A-Za-z0-9_-]*$",
        description="Letters, digits, `_` and `-`; the file's own name if not given. Another name is another pipeline.",
    )
    sources: dict[str, _Source] = Field(description="What is read: node names and nodes. At least one.")
    transforms: dict[str, _Transform] = Field(default_factory=dict, description="What is done to rows on their way; may be left out.")
    sinks: Annotated[dict[str, _Sink], Field(min_length=1)] = Field(description="What is written: node names and nodes. At least one.")
    partitions: PartitionsConfig | None = Field(default=None, description="Divides history into days or months; one piece if not given.")
    schedule: Schedule | None = Field(default=None, description="When Dagster runs the pipeline by itself; only on demand if not given.")
    job_mode: bool = Field(default=False, description="Ends after history and never reads a stream.")
    epoch: EpochOptions = Field(default=EpochOptions(), description="How large epochs are and how often they come.")
    stream: StreamOptions = Field(default=StreamOptions(), description="How Dagster runs the stream.")
    tests: dict[str, CaseConfig] = Field(default_factory=dict, description="Tests by name; `headrace test` runs them.")

    @model_validator(mode="after")
    def _plugins_know_their_pipeline(self) -> PipelineModel:
        for node in self.nodes().values():
            if isinstance(node, PluginNodeConfig):
                node.belongs_to(self.name)
        return self

    def nodes(self) -> dict[str, Any]:
        """Return all nodes by name."""
        return {**self.sources, **self.transforms, **self.sinks}

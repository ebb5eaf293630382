"""The `kafka` source and sink of a pipeline file."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, ClassVar, Literal

from pydantic import Field, PositiveInt

from headrace.pipeline.model.base import FLUSH, PARALLELISM
from headrace.pipeline.model.run_options import Duration
from headrace.pipeline.model.sinks import SinkConfig
from headrace.pipeline.model.sources import SourceConfig
from headrace.pipeline.model.strict import Strict


class SchemaIdOverride(Strict):
    """A schema id of messages, and the id to read them with."""

    from_: PositiveInt = Field(alias="from", description="The id in the messages.")
    to: PositiveInt = Field(description="The id of the schema that they were written with.")


MessageEncoding = Literal["json", "avro", "protobuf", "json_schema", "text", "bytes"]
PLAIN_FORMATS = ("text", "bytes")
"""Formats whose columns are the key and the value of a message."""


class KafkaSourceConfig(SourceConfig):
    """A Kafka topic. A message is JSON, Avro or Protobuf in Confluent's frame, a text, or bytes."""

    identity_keys: ClassVar[frozenset[str]] = frozenset({"topic", "starting_offsets"})
    metric_labels: ClassVar[tuple[str, ...]] = ("topic", "partition")
    phase_constants: ClassVar[Mapping[str, Any]] = {
        "starting_offsets": "earliest",
        "batch_flush_interval": None,
        "parallelism": None,
    }
    error_columns: ClassVar[Mapping[str, str]] = {
        "__kafka_topic": "string",
        "__kafka_partition": "int32",
        "__kafka_offset": "int64",
        "__kafka_timestamp": "timestamp",
        "__kafka_key": "binary",
        "__kafka_value": "binary",
    }
    error_key: ClassVar[tuple[str, ...]] = ("__kafka_topic", "__kafka_partition", "__kafka_offset")

    type: Literal["kafka"] = "kafka"
    topic: str = Field(description="The topic's name.")
    data_format: MessageEncoding | None = Field(
        default=None,
        description="How a message is encoded. Defaults to `json` with a `schema`, and to `avro` without."
        " `json_schema` is JSON with a schema of the registry. `text` and `bytes` give the columns `key` and"
        " `value` as they are.",
    )
    schema_: dict[str, str] = Field(
        default_factory=dict,
        alias="schema",
        description="Columns and their types, such as `id: int64`; needed with json. Other keys of a"
        " message are ignored, missing ones are null.",
    )
    reader_schema: str | None = Field(
        default=None,
        description="With avro or json_schema: the schema with the columns, as JSON. With protobuf: a"
        " `.proto` file, or a FileDescriptorSet in Base64. Defaults to the schema of `reader_schema_id`.",
    )
    reader_schema_id: PositiveInt | None = Field(
        default=None,
        description="With a registry: the id of the schema with the columns. Defaults to that of the topic's"
        " latest schema of values when a run starts.",
    )
    message_type: str | None = Field(
        default=None,
        description="With protobuf: the full name of the message with the columns. Defaults to the first"
        " one of the schema.",
    )
    validate_writer_schema_ordering: bool = Field(
        default=True,
        description="With a registry: ends a run before it reads messages with a newer schema, whose columns"
        " the next run has. Without effect if the file sets the reader schema.",
    )
    schema_id_overrides: tuple[SchemaIdOverride, ...] = Field(
        default=(),
        description="With avro or protobuf: schemas to read messages with, in place of those that they name.",
    )
    skip_schema_resolution: bool = Field(
        default=False,
        description="With avro: reads fields only by name and type. Missing ones are NULL, not the default.",
    )
    skip_schema_resolution_for_reader_schema_ids: tuple[PositiveInt, ...] = Field(
        default=(), description="The ids of reader schemas for which `skip_schema_resolution` holds."
    )
    tombstone: Literal["error", "delete"] = Field(
        default="error",
        description="What a message without payload is: an error, or the delete of the row whose key columns"
        " are in the message's key, in the format of the payload.",
    )
    on_error: Literal["fail", "dead_letter"] = Field(
        default="fail",
        description="What happens with a message that cannot be decoded: it fails the epoch, or it goes to"
        " the sinks with `from: <source>.errors`.",
    )
    max_error_rate: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="With `on_error: dead_letter`: the largest fraction of rejected messages in an epoch of"
        " at least 100 messages. More fail the epoch before anything is written.",
    )
    starting_offsets: str = Field(
        default="earliest",
        description="Where the stream begins at the first start: `earliest`, `latest`, or milliseconds"
        " since 1970 as text: at the first message"
        " of that time or later.",
    )
    include_metadata: bool = Field(
        default=False,
        description="Adds the columns `__kafka_partition` (int32), `__kafka_offset` (int64) and"
        " `__kafka_timestamp` (timestamp).",
    )
    filter: str | None = Field(
        default=None,
        description="Only rows for which this holds: a predicate in Spark SQL over all columns.",
    )
    batch_size: PositiveInt | None = Field(
        default=None,
        description="Maximum number of messages of this source in one epoch. Defaults to its share of"
        " `epoch.stream_rows`.",
    )
    batch_flush_interval: Duration | None = Field(default=None, description=FLUSH)
    parallelism: PositiveInt | None = Field(default=None, description=PARALLELISM)

    @property
    def format(self) -> MessageEncoding:
        """How a message is encoded."""
        return self.data_format or ("json" if self.schema_ else "avro")

    @property
    def has_late_key(self) -> bool:
        """Whether the key may be in the `doc` of the reader schema."""
        is_late = self.reader_schema is None or "primaryKeys" in self.reader_schema
        return self.format == "avro" and not self.primary_key and is_late

    @property
    def tombstone_key(self) -> tuple[str, ...]:
        """The columns that the key of a message without payload must have. Empty: it is an error."""
        return self.primary_key if self.tombstone == "delete" else ()


class KafkaSinkConfig(SinkConfig):
    """A Kafka topic, created if missing: one message for each change, in one transaction per epoch."""

    target_keys: ClassVar[tuple[str, ...]] = ("topic",)
    upserts_by_key: ClassVar[bool] = True
    metric_labels: ClassVar[tuple[str, ...]] = ("topic",)
    keys_with_effect: ClassVar[frozenset[str]] = frozenset({"deduplicate"})

    type: Literal["kafka"] = "kafka"
    topic: str = Field(description="The topic's name.")
    data_format: Literal["json", "avro"] = Field(
        default="json",
        description="How a message is encoded. With avro, the schemas are registered as `<topic>-value` and"
        " `<topic>-key` in the registry of `kafka_sink`.",
    )
    tombstones: bool = Field(
        default=False,
        description="Whether a delete is a message without a value, which ends its key in a compacted topic."
        " By default it has the row as its value. Needs a key.",
    )
    deduplicate: bool = Field(
        default=False,
        description="Whether only the last change of a key in an epoch is written. By default all changes"
        " are.",
    )
    topic_partitions: PositiveInt = Field(default=4, description="Partitions of a topic that is created.")
    replication_factor: PositiveInt | None = Field(
        default=None, description="Replicas of a topic that is created. Defaults to that of the brokers."
    )
    cleanup_policy: Literal["compact", "delete", "compact,delete"] | None = Field(
        default=None,
        description="`cleanup.policy` of a topic that is created. Defaults to `compact` with a key and to"
        " `delete` without one.",
    )
    retention: Duration | None = Field(
        default=None,
        description="How long a topic that is created keeps its messages with `delete`. Defaults to forever.",
    )
    compression: Literal["lz4", "gzip", "zstd", "snappy", "none"] = Field(
        default="lz4", description="Compression of the messages."
    )
    message_max_bytes: PositiveInt | None = Field(
        default=None,
        description="Size of the largest message, also for a topic that is created. Defaults to about 1 MB.",
    )
    transaction_timeout: Duration = Field(
        default=timedelta(minutes=5),
        description="How long one epoch may take to be sent. The brokers end a longer transaction, and one"
        " of a run that died, after this time. At most `transaction.max.timeout.ms` of the brokers.",
    )

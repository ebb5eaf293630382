"""The `kafka` source of a pipeline file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, PositiveInt, model_validator

from headrace.pipeline.model.base import FLUSH, PARALLELISM
from headrace.pipeline.model.run_options import Duration
from headrace.pipeline.model.sources import SourceConfig


class KafkaSourceConfig(SourceConfig):
    """A Kafka topic with one JSON object per message."""

    identity_keys: ClassVar[frozenset[str]] = frozenset({"topic", "data_format", "starting_offsets"})
    metric_labels: ClassVar[tuple[str, ...]] = ("topic", "partition")
    phase_constants: ClassVar[Mapping[str, Any]] = {
        "starting_offsets": "earliest",
        "batch_flush_interval": None,
        "parallelism": None,
    }

    type: Literal["kafka"] = "kafka"
    topic: str = Field(description="The topic's name.")
    data_format: Literal["json"] = Field(default="json", description="How a message is encoded.")
    schema_: dict[str, str] = Field(
        default_factory=dict,
        alias="schema",
        description="Columns and their types, such as `id: int64`; needed with json. Other keys of a"
        " message are ignored, missing ones are null.",
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
        description="Only rows for which this holds: a predicate in Spark SQL over all columns of `schema`.",
    )
    batch_size: PositiveInt | None = Field(
        default=None,
        description="Maximum number of messages of this source in one epoch. Defaults to its share of"
        " `epoch.stream_rows`.",
    )
    batch_flush_interval: Duration | None = Field(default=None, description=FLUSH)
    parallelism: PositiveInt | None = Field(default=None, description=PARALLELISM)

    @model_validator(mode="after")
    def _schema_is_needed(self) -> KafkaSourceConfig:
        if not self.schema_:
            msg = (
                "`schema` is required when data_format is json; add columns and their types, such as `id:"
                " int64`;"
                " Avro, which Streamling means here, is not available yet"
            )
            raise ValueError(msg)
        return self

"""What source nodes share, and what a type of source answers about its nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from headrace.pipeline.model.base import NodeConfig
from headrace.pipeline.model.capabilities import SourceCapabilities
from headrace.pipeline.model.connectors import source_entries
from headrace.pipeline.model.strict import Strict


class SourceConfig(NodeConfig):
    """What all built-in sources share.

    The class variables are the answers of a type; no list of types has them.
    """

    identity_keys: ClassVar[frozenset[str]] = frozenset()
    """Keys that are fixed once a pipeline has its first position.

    All other keys take effect from the next epoch.
    """
    metric_labels: ClassVar[tuple[str, ...]] = ()
    """Labels that the metrics of a node carry by themselves."""
    phase_constants: ClassVar[Mapping[str, Any]] = {}
    """Keys that a phase of a hybrid source cannot set, with their values there."""
    declares_columns: ClassVar[bool] = False
    """Whether `schema` has all columns of the rows."""
    filter_dialect: ClassVar[Literal["clickhouse", "postgres", "spark"]] = "spark"
    """Whose SQL the key `filter` is."""

    error_columns: ClassVar[Mapping[str, str]] = {}
    """The columns of a rejected row, with their types: where it came from, and the original."""
    error_key: ClassVar[tuple[str, ...]] = ()
    """Those of the columns that identify a row."""

    @property
    def capabilities(self) -> SourceCapabilities:
        """What the connector's source can do."""
        return source_entries()[str(getattr(self, "type", ""))].capabilities

    @property
    def has_late_key(self) -> bool:
        """Whether the key may come from another system, at the start of a run."""
        return False

    @property
    def is_unbounded(self) -> bool:
        """Whether it is a stream."""
        return not self.capabilities.bounded


class OffsetTable(Strict):
    """Where history says which Kafka offsets it holds."""

    topic_name: str | None = Field(
        default=None,
        description="Name of the topic in the table. Defaults to the topic of the stream. Used with"
        " `topic_column`.",
    )
    table_name: str | None = Field(
        default=None,
        description="The table. Defaults to the last history table, which makes the handoff exact.",
    )
    topic_column: str | None = Field(
        default=None,
        description="Column with the topic, if the table has several topics. By default all rows are of"
        " this topic.",
    )
    partition_column: str = Field(
        default="_kafka_partition", description="Column with the topic partition, a whole number or null."
    )
    offset_column: str = Field(
        default="_kafka_offset",
        description="Column with the offset, a whole number or null: rows without one are history's.",
    )
    allow_missing: bool = Field(
        default=False,
        description="Whether to start although neither the table nor the topic has the messages between the"
        " table's last offset and the"
        " topic's first one. Set it if they were deletes or transaction markers.",
    )

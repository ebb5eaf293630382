"""Messages with one JSON object each: their columns, and their rows by Spark or in the driver."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.connectors.dead_letters import ERROR
from headrace.connectors.kafka.arrow_decoder import ArrowMessageDecoder
from headrace.connectors.kafka.config import KafkaSourceConfig
from headrace.connectors.kafka.json_decoder import JsonMessageDecoder
from headrace.connectors.kafka.json_schema import JSON_SCHEMA, declared_json_columns, declared_types
from headrace.connectors.kafka.message_batch import MessageBatch
from headrace.connectors.kafka.registry_client import SchemaRegistryClient
from headrace.connectors.local_relation import collect_arrow, frame_of_table
from headrace.pipeline.config.sections import KafkaConnection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DRIVER_ROWS = 10_000
"""Spark's tasks decode larger batches faster than Spark in the driver."""


class JsonMessages:
    """Converts the messages of one node."""

    def __init__(self, name: str, node: KafkaSourceConfig, connection: KafkaConnection, ordinal: int) -> None:
        self._name = name
        has_registry = node.format == "json_schema"
        self._client = SchemaRegistryClient(name, connection, JSON_SCHEMA) if has_registry else None
        self._node = node
        self._ordinal = ordinal
        self._decoder: tuple[object, JsonMessageDecoder] | None = None

    @property
    def columns(self) -> pa.Schema:
        """The columns of the schema in its order, then the metadata columns if requested."""
        return declared_json_columns(self._name, self._node)

    @cached_property
    def _declared(self) -> Mapping[str, str]:
        return declared_types(self._name, self._node)

    @property
    def driver_rows(self) -> int:
        """Messages that `decode_batch` can take: none if it does not read the types of the columns."""
        return sys.maxsize if self._arrow.is_supported else 0

    @cached_property
    def _arrow(self) -> ArrowMessageDecoder:
        return ArrowMessageDecoder(self._declared, self._ordinal, metadata=self._node.include_metadata)

    def check_order(self) -> None:
        """See `SchemaRegistryClient.check_latest`. Columns in the file never change."""
        if self._client is not None and self._node.validate_writer_schema_ordering:
            self._client.check_latest(self._node.topic, self._node.reader_schema_id)

    def decode(self, messages: DataFrame, *, is_first: bool = False) -> DataFrame:
        """Return the rows of messages, lazily."""
        del is_first
        return self._decoder_of(messages).decode(messages)

    def decode_batch(self, spark: SparkSession | None, batch: MessageBatch, topic: str) -> pa.Table | None:
        """Return the rows of messages that are in the driver, or None if Spark must decode them.

        With dead letters, Spark decodes them in the driver if one is broken, or looks so.
        """
        found = self._arrow.decode(batch)
        if not self._has_dead_letters:
            return found
        key = {name.lower() for name in self._node.primary_key}
        if found is not None and not any(
            found[name].null_count for name in found.column_names if name.lower() in key
        ):
            return found.append_column(ERROR, pa.nulls(len(batch)))
        if spark is None or len(batch) > _DRIVER_ROWS:
            return None
        messages = frame_of_table(spark, batch.as_table(topic))
        return collect_arrow(self._decoder_of(messages).decode(messages, in_driver=True))

    @property
    def _has_dead_letters(self) -> bool:
        return self._node.on_error == "dead_letter"

    def _decoder_of(self, messages: DataFrame) -> JsonMessageDecoder:
        context = messages.sparkSession.sparkContext
        if self._decoder is None or self._decoder[0] is not context:
            found = JsonMessageDecoder(
                self._name,
                self._declared,
                self._ordinal,
                metadata=self._node.include_metadata,
                tombstone_key=self._node.tombstone_key,
                dead_letters=self._has_dead_letters,
                key=self._node.primary_key,
            )
            self._decoder = context, found
        return self._decoder[1]

    def close(self) -> None:
        """Close the connections to the registry."""
        if self._client is not None:
            self._client.close()

"""Messages with one JSON object each: their columns, and their rows by Spark or in the driver."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.connectors.kafka.arrow_decoder import ArrowMessageDecoder
from headrace.connectors.kafka.config import KafkaSourceConfig
from headrace.connectors.kafka.decoded_rows import accept_rows
from headrace.connectors.kafka.json_decoder import JsonMessageDecoder
from headrace.connectors.kafka.json_schema import JSON_SCHEMA, declared_json_columns, declared_types
from headrace.connectors.kafka.message_batch import MessageBatch
from headrace.connectors.kafka.message_schemas import MessageSchemas
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
        self._schemas = MessageSchemas(name, node, connection, JSON_SCHEMA) if has_registry else None
        self._node = node
        self._ordinal = ordinal
        self._decoder: tuple[object, JsonMessageDecoder] | None = None

    @cached_property
    def columns(self) -> pa.Schema:
        """The columns of the schema in its order, then the metadata columns if requested."""
        return declared_json_columns(self._name, self._node)

    @cached_property
    def _declared_types(self) -> Mapping[str, str]:
        return declared_types(self._name, self._node)

    @property
    def driver_rows(self) -> int:
        """Messages that `decode_batch` can take: none if it does not read the types of the columns."""
        return sys.maxsize if self._arrow.is_supported else 0

    @cached_property
    def _arrow(self) -> ArrowMessageDecoder:
        return ArrowMessageDecoder(self._declared_types, self._ordinal, metadata=self._node.include_metadata)

    def check_order(self) -> None:
        """See `MessageSchemas.check_order`. Columns in the file never change."""
        if self._schemas is not None:
            self._schemas.check_order()

    def decode(self, messages: DataFrame, *, is_first: bool = False) -> DataFrame:
        """Return the rows of messages, lazily."""
        del is_first
        return self._decoder_of(messages).decode(messages)

    def decode_batch(self, spark: SparkSession | None, batch: MessageBatch, topic: str) -> pa.Table | None:
        """Return the rows of messages that are in the driver, or None if Spark must decode them.

        With dead letters, Spark decodes them in the driver if one is broken, or looks so.
        """
        result = self._arrow.decode(batch)
        rows = None if result is None else accept_rows(result, self._node)
        if rows is not None or not self._has_dead_letters or spark is None or len(batch) > _DRIVER_ROWS:
            return rows
        messages = frame_of_table(spark, batch.as_table(topic))
        return collect_arrow(self._decoder_of(messages).decode(messages, in_driver=True))

    @property
    def _has_dead_letters(self) -> bool:
        return self._node.on_error == "dead_letter"

    def _decoder_of(self, messages: DataFrame) -> JsonMessageDecoder:
        context = messages.sparkSession.sparkContext
        if self._decoder is None or self._decoder[0] is not context:
            result = JsonMessageDecoder(
                self._name,
                self._declared_types,
                self._ordinal,
                metadata=self._node.include_metadata,
                tombstone_key=self._node.tombstone_key,
                dead_letters=self._has_dead_letters,
                key=self._node.primary_key,
            )
            self._decoder = context, result
        return self._decoder[1]

    def close(self) -> None:
        """Close the connections to the registry."""
        if self._schemas is not None:
            self._schemas.close()

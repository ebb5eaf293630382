"""Messages as they are: the columns `key` and `value`, as text or as bytes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.connectors.kafka.config import KafkaSourceConfig
from headrace.connectors.kafka.decoded_rows import complete_batch
from headrace.connectors.kafka.message_batch import MessageBatch
from headrace.connectors.kafka.message_columns import (
    OF_MESSAGE,
    PLACE,
    REASON,
    TOMBSTONE,
    keep_columns,
    message_columns,
    rejection,
    require_payload,
    with_metadata,
)
from headrace.connectors.row_errors import RowCheck, RowConditions

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

KEY, VALUE = "key", "value"


def plain_schema(name: str, node: Any) -> pa.Schema:
    """Return the columns of a node with `data_format: text` or `bytes`. `key` is NULL without a key."""
    kind = pa.string() if node.format == "text" else pa.binary()
    return with_metadata(pa.schema([(KEY, kind), (VALUE, kind)]), name, metadata=node.include_metadata)


class PlainMessages:
    """Converts the messages of one node. A text must be UTF-8."""

    def __init__(self, name: str, node: KafkaSourceConfig, ordinal: int) -> None:
        self._name = name
        self._node = node
        self._ordinal = ordinal
        self.driver_rows = sys.maxsize
        """The driver takes any batch: it parses nothing."""

    @property
    def columns(self) -> pa.Schema:
        """`key`, `value`, and the metadata columns if requested."""
        return plain_schema(self._name, self._node)

    def check_order(self) -> None:
        """Do nothing: the columns never change."""

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def decode(self, messages: DataFrame, *, is_first: bool = False) -> DataFrame:
        """Return the rows of messages, lazily."""
        from pyspark.sql import functions as F  # noqa: N812

        del is_first
        rejects = self._node.on_error == "dead_letter"
        checks, final = (RowConditions(self._name, collect=rejects) for _ in range(2))
        required = self._checks(checks)
        # Each row has its partition, so every message is checked, also if no sink reads its value.
        partition = F.col("partition")
        kept = [
            (F.col(PLACE[0]), PLACE[0]),
            (partition if rejects else checks.guard(partition, *required), "partition"),
            *((F.col(name), name) for name in ("offset", "timestamp", "headers")),
            (F.col(VALUE).isNull(), TOMBSTONE),
        ]
        originals = keep_columns((KEY, VALUE)) if rejects else []
        reason = [checks.reason().alias(REASON)] if rejects else []
        columns = [checks.guard(self._read(name), *required).alias(name) for name in (KEY, VALUE)]
        rows = messages.select(
            *[column.alias(OF_MESSAGE + name) for column, name in kept], *originals, *reason, *columns
        )
        node = self._node
        system = message_columns(
            final, self._ordinal, node.tombstone_key, metadata=node.include_metadata, own_operation=False
        )
        if rejects:
            system.append(rejection(final, node.primary_key, (KEY, VALUE)))
        return rows.select(KEY, VALUE, *system)

    def decode_batch(self, spark: SparkSession | None, batch: MessageBatch, topic: str) -> pa.Table | None:
        """Return the rows of messages that are in the driver, or None if Spark must decide about one."""
        del spark, topic
        keys = batch.keys or [None] * len(batch)
        result = {KEY: pa.array(keys, pa.binary()), VALUE: pa.array(batch.values, pa.binary())}
        if self._node.format == "text":
            try:
                result = {name: column.cast(pa.string()) for name, column in result.items()}
            except pa.ArrowInvalid:  # it is not UTF-8
                return None
        return complete_batch(result, batch, self._node, self._ordinal)

    def _read(self, name: str) -> Column:
        from pyspark.sql import functions as F  # noqa: N812

        return F.col(name).cast("string") if self._node.format == "text" else F.col(name)

    def _checks(self, checks: RowConditions) -> list[RowCheck]:
        """Return the checks of a message."""
        from pyspark.sql import functions as F  # noqa: N812

        where = {name: F.col(name) for name in PLACE}
        required = []
        if not self._node.tombstone_key:
            required.append(require_payload(checks, F.col(VALUE).isNotNull(), where))
        for name in (KEY, VALUE) if self._node.format == "text" else ():
            is_text = F.col(name).isNull() | F.is_valid_utf8(F.col(name).cast("string"))
            hint = "Correct the message's producer, or set `data_format: bytes`."
            required.append(checks.require(is_text, f"the {name} is not UTF-8", hint, **where))
        return required

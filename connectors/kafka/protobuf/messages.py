"""Messages in Protobuf: the schemas of a range, and its rows by Arrow, in the driver or in Spark's tasks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute

from headrace.connectors.kafka.config import KafkaSourceConfig
from headrace.connectors.kafka.decoded_rows import complete_batch
from headrace.connectors.kafka.message_batch import MessageBatch
from headrace.connectors.kafka.message_columns import (
    METADATA,
    OF_MESSAGE,
    PLACE,
    REASON,
    TOMBSTONE,
    message_columns,
    place_columns,
    rejection,
    require_payload,
)
from headrace.connectors.kafka.message_schemas import MessageSchemas
from headrace.connectors.kafka.protobuf.batch_decoder import ProtobufBatchDecoder
from headrace.connectors.kafka.protobuf.frames import UnknownSchemaError
from headrace.connectors.kafka.protobuf.reader_schema import protobuf_columns
from headrace.connectors.kafka.protobuf.resolution import resolve_keys, resolve_values
from headrace.connectors.kafka.protobuf.schema import PROTOBUF, ProtobufType
from headrace.connectors.kafka.schema_frames import (
    OTHER_SCHEMA,
    find_frames,
    read_frames,
    spell_payload,
)
from headrace.connectors.row_errors import RowConditions, task_error
from headrace.connectors.spark_types import arrow_schema, spark_schema
from headrace.pipeline.config.sections import KafkaConnection
from headrace.pipeline.errors import InternalError, TransientError
from headrace.pipeline.sql.system_columns import OP

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pc: Any = pyarrow.compute
"""Its functions are made at import, so type checkers do not see them."""
_SHOWN = OF_MESSAGE + "shown"
"""The first bytes of a message that is rejected."""
_HINT = "Correct the message's producer, or the schemas in the registry; see `schema_id_overrides`."


class ProtobufMessages:
    """Converts the messages of one node. Its reader schema is resolved, see `resolve_protobuf`."""

    def __init__(self, name: str, node: KafkaSourceConfig, connection: KafkaConnection, ordinal: int) -> None:
        self._name = name
        self._node = node
        self._ordinal = ordinal
        self._schemas = MessageSchemas(name, node, connection, PROTOBUF)
        self.driver_rows = sys.maxsize
        """The driver takes any batch: Arrow decodes it."""
        self._frames: set[tuple[bytes, bool]] = set()
        """The frames of messages that Spark has read, see `read_frames`."""

    @cached_property
    def _message(self) -> ProtobufType:
        return self._schemas.reader.find_message(self._node.message_type)

    @cached_property
    def columns(self) -> pa.Schema:
        """The payload as Arrow, and the metadata columns if requested."""
        return protobuf_columns(self._name, self._node, self._schemas.reader)

    @cached_property
    def _payload(self) -> pa.Schema:
        """The columns of the message, also the operation."""
        metadata = {name for name, _ in METADATA} if self._node.include_metadata else set()
        fields = [field for field in self.columns if field.name not in metadata]
        return pa.schema([*fields, *([pa.field(OP, pa.string())] if self._has_operation else [])])

    @property
    def _has_operation(self) -> bool:
        return any(one.name == OP for one in self._message.fields)

    @property
    def _has_dead_letters(self) -> bool:
        return self._node.on_error == "dead_letter"

    def check_order(self) -> None:
        """See `MessageSchemas.check_order`."""
        self._schemas.check_order()

    def close(self) -> None:
        """Close the connections to the registry."""
        self._schemas.close()

    def decode_batch(self, spark: SparkSession | None, batch: MessageBatch, topic: str) -> pa.Table | None:
        """Return the rows of messages that are in the driver, or None if Spark must decide about one."""
        del spark, topic
        values = pa.array(batch.values, pa.binary())
        if values.null_count and not self._node.tombstone_key:
            return None
        keys = pa.array(batch.keys or [None] * len(batch), pa.binary())
        of_keys = keys.filter(values.is_null())
        result, reasons = self._decoder(find_frames(values), find_frames(of_keys)).decode(values, keys)
        if reasons.null_count < len(reasons):
            return None
        payload = dict(zip(result.column_names, result.columns, strict=True))
        return complete_batch(payload, batch, self._node, self._ordinal)

    def decode(self, messages: DataFrame, *, is_first: bool = False) -> DataFrame:
        """Return the rows of messages, lazily.

        A job reads the schema ids of the messages before. With `is_first`, the ids of earlier ranges are
        used, and a message with another one raises TransientError.
        """
        if not is_first or not self._frames:
            self._frames |= read_frames(messages, of_keys=bool(self._node.tombstone_key))
            is_first = False
        decoder = self._decoder(
            (frame for frame, of_key in self._frames if not of_key),
            (frame for frame, of_key in self._frames if of_key),
        )
        carried = [*PLACE, "timestamp", "headers", *(("key", "value") if self._has_dead_letters else ())]
        result = self._decode_in_tasks(messages, decoder, carried, may_retry=is_first)
        return self._check_rows(result, carried)

    def _decode_in_tasks(
        self, messages: DataFrame, decoder: ProtobufBatchDecoder, carried: list[str], *, may_retry: bool
    ) -> DataFrame:
        """Return the payload, the `carried` columns, and why a message is rejected."""
        from pyspark.sql.types import BooleanType, StringType, StructField, StructType

        payload = spark_schema(self._payload)
        own = [StructField(OF_MESSAGE + TOMBSTONE, BooleanType())]
        own += [StructField(REASON, StringType()), StructField(_SHOWN, StringType())]
        kept = [StructField(OF_MESSAGE + name, messages.schema[name].dataType) for name in carried]
        wire = arrow_schema(payload)
        work = _work(decoder, carried, wire, self._name, may_retry=may_retry)
        return messages.mapInArrow(work, StructType([*payload.fields, *kept, *own]))

    def _check_rows(self, frame: DataFrame, carried: list[str]) -> DataFrame:
        """Return the rows of decoded messages: good ones, or with dead letters all of them."""
        from pyspark.sql import functions as F  # noqa: N812

        node, rejects = self._node, self._has_dead_letters
        checks, final = (RowConditions(self._name, collect=rejects) for _ in range(2))
        where = place_columns()
        required = []
        if not node.tombstone_key:
            required.append(require_payload(checks, ~F.col(OF_MESSAGE + TOMBSTONE), where))
        is_good = F.col(REASON).isNull()
        required.append(checks.require(is_good, F.col(REASON), _HINT, **where, payload=F.col(_SHOWN)))
        partition = OF_MESSAGE + "partition"
        kept = [F.col(OF_MESSAGE + name) for name in (*carried, TOMBSTONE) if OF_MESSAGE + name != partition]
        # Each row has its partition, so every message is checked, also if no sink reads its payload.
        kept.append(
            (F.col(partition) if rejects else checks.guard(F.col(partition), *required)).alias(partition)
        )
        if rejects:
            kept.append(checks.reason().alias(REASON))
        payload = [F.col(name) for name in self._payload.names]
        rows = frame.select(*payload, *kept)
        system = message_columns(
            final,
            self._ordinal,
            node.tombstone_key,
            metadata=node.include_metadata,
            own_operation=self._has_operation,
        )
        if rejects:
            system.append(rejection(final, node.primary_key, self._payload.names))
        return rows.select(*(F.col(name) for name in self._payload.names if name != OP), *system)

    def _decoder(self, frames: Iterable[bytes], of_keys: Iterable[bytes]) -> ProtobufBatchDecoder:
        names = {name.lower() for name in self._node.tombstone_key}
        key = pa.schema([field for field in self._payload if field.name.lower() in names])
        return ProtobufBatchDecoder(
            self._payload,
            self._schemas.resolve(frames, lambda writer: resolve_values(writer, self._message)),
            self._schemas.resolve(of_keys, lambda writer: resolve_keys(writer, key), of_keys=True),
        )


def _work(
    decoder: ProtobufBatchDecoder, carried: list[str], wire: pa.Schema, node: str, *, may_retry: bool
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the work of a Spark task. `wire` has the columns of the payload as Spark takes them."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            values, keys = batch.column("value"), batch.column("key")
            try:
                table, reasons = decoder.decode(values, keys)
            except UnknownSchemaError as error:
                if may_retry:
                    raise task_error(TransientError(OTHER_SCHEMA, node=node)) from None
                msg = f"a message has schema {error}, which was not read before"
                raise task_error(InternalError(msg, node=node)) from None
            shown: list[str | None] = [None] * len(batch)
            for at in pc.indices_nonzero(reasons.is_valid()).to_pylist():
                shown[at] = spell_payload((values[at].as_py() or keys[at].as_py()) or b"")
            columns = {name: table[name].cast(wire.field(name).type).combine_chunks() for name in wire.names}
            columns |= {OF_MESSAGE + name: batch.column(name) for name in carried}
            columns |= {OF_MESSAGE + TOMBSTONE: values.is_null()}
            yield pa.RecordBatch.from_pydict(
                columns | {REASON: reasons, _SHOWN: pa.array(shown, pa.string())}
            )

    return run

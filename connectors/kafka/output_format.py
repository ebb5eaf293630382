"""The formats of the messages that a sink writes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.connectors.kafka.encoder import JsonMessageEncoder, MessageEncoder
from headrace.connectors.kafka.json_decoder import arrives_as
from headrace.pipeline.errors import SchemaError

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.connectors.kafka.config import KafkaSinkConfig
    from headrace.pipeline.config.sections import KafkaCluster


class OutputFormat(ABC):
    """The format of the messages of one sink. Creating one opens no connection.

    A sink calls `check`, then `register` once before its first epoch, then `create_encoder` for each epoch.
    """

    def __init__(self, sink: str, node: KafkaSinkConfig, connection: KafkaCluster) -> None:
        self._sink = sink
        self._node = node
        self._connection = connection

    @abstractmethod
    def check(self, schema: pa.Schema, key: Sequence[str]) -> None:
        """Raise SchemaError for columns that messages cannot name or carry. `key` are the key columns.

        Raise TransientError if a server that the format needs does not answer. This changes nothing.
        """

    @abstractmethod
    def register(self, schema: pa.Schema, key: Sequence[str]) -> None:
        """Store what readers of the messages need. Storing it again changes nothing."""

    @abstractmethod
    def create_encoder(self, schema: pa.Schema, key: Sequence[str]) -> MessageEncoder:
        """Return the encoder of rows with these columns."""

    @abstractmethod
    def close(self) -> None:
        """Close the connections."""


class JsonFormat(OutputFormat):
    """One JSON object for each key and each value."""

    def check(self, schema: pa.Schema, key: Sequence[str]) -> None:
        """See `OutputFormat.check`."""
        del key
        for field in schema:
            if arrives_as(field.type) is None:
                msg = f"column `{field.name}`: JSON messages cannot carry {field.type}"
                raise SchemaError(msg, hint="Convert it in a transform.", node=self._sink)

    def register(self, schema: pa.Schema, key: Sequence[str]) -> None:
        """Do nothing: an object names its columns itself."""

    def create_encoder(self, schema: pa.Schema, key: Sequence[str]) -> MessageEncoder:
        """See `OutputFormat.create_encoder`."""
        del key
        node = self._node
        return JsonMessageEncoder(
            self._sink, schema, tombstones=node.tombstones, deduplicate=node.deduplicate
        )

    def close(self) -> None:
        """Do nothing: there are no connections."""

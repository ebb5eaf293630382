"""The schemas of a node's messages in a registry: the reader schema, and those that messages name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Generic, TypeVar

from headrace.connectors.kafka.config import KafkaSourceConfig
from headrace.connectors.kafka.reader_schema import parse_reader_schema
from headrace.connectors.kafka.registry_client import Schema, SchemaLanguage, SchemaRegistryClient
from headrace.connectors.kafka.schema_frames import schema_ids
from headrace.pipeline.config.sections import KafkaConnection
from headrace.pipeline.errors import InternalError, SchemaError

Resolved = TypeVar("Resolved")


class MessageSchemas(Generic[Schema]):
    """Reads the schemas of one node. The connection opens at the first request; threads may share it."""

    def __init__(
        self,
        name: str,
        node: KafkaSourceConfig,
        connection: KafkaConnection,
        language: SchemaLanguage[Schema],
    ) -> None:
        self._name = name
        self._node = node
        self._language = language
        self._client = SchemaRegistryClient(name, connection, language)
        self._overrides = {one.from_: one.to for one in node.schema_id_overrides}

    @cached_property
    def reader(self) -> Schema:
        """The schema with the columns. The node must be resolved."""
        if self._node.reader_schema is None:
            msg = "the reader schema is not resolved"
            raise InternalError(msg, node=self._name)
        return parse_reader_schema(self._name, self._node.reader_schema, self._language)

    def check_order(self) -> None:
        """See `SchemaRegistryClient.check_latest`. Do nothing if the node reads any order."""
        if self._node.validate_writer_schema_ordering:
            self._client.check_latest(self._node.topic, self._node.reader_schema_id)

    def resolve(
        self, frames: Iterable[bytes], resolve: Callable[[Schema], Resolved], *, of_keys: bool = False
    ) -> dict[bytes, Resolved | str]:
        """Return what `resolve` returns for the schema of each frame, or why it cannot be read.

        Bytes that are no frame have no entry. `resolve` may raise SchemaError. Raise DataError for more
        schemas than a range can have, and TransientError if the registry does not answer.
        """
        ids = schema_ids(frames, self._node.topic, self._name, self._language.title)
        return {frame: self._resolve_id(ids[frame], resolve, of_keys=of_keys) for frame in ids}

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _resolve_id(
        self, schema_id: int, resolve: Callable[[Schema], Resolved], *, of_keys: bool
    ) -> Resolved | str:
        wanted = schema_id if of_keys else self._overrides.get(schema_id, schema_id)
        is_reader = wanted == self._node.reader_schema_id and not of_keys
        try:
            writer = self.reader if is_reader else self._client.find_schema(wanted)
            if writer is None:
                return f"schema {wanted} is not in the schema registry {self._client.url}"
            return resolve(writer)
        except SchemaError as error:
            return f"schema {wanted} cannot be read with the reader schema: {error.message}"

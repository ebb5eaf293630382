"""Checks of how the messages of a stream are encoded, and of the keys that belong to one encoding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from headrace.pipeline.errors import FileLocation, UserError

PlaceOf = Callable[..., FileLocation]

_REGISTERED = ("avro", "protobuf", "json_schema")
"""Encodings whose schemas are in a registry."""
_KEYS_OF = {
    "reader_schema": _REGISTERED,
    "reader_schema_id": _REGISTERED,
    "validate_writer_schema_ordering": _REGISTERED,
    "schema_id_overrides": ("avro", "protobuf"),
    "message_type": ("protobuf",),
    "skip_schema_resolution": ("avro",),
    "skip_schema_resolution_for_reader_schema_ids": ("avro",),
}
"""Keys that belong to some encodings."""


def check_encoding(
    name: str, stream: Any, key: Sequence[str], path: Sequence[str | int], place: PlaceOf
) -> Iterator[UserError]:
    """Yield the mistakes of the stream at `path`. `key` is the primary key of its node."""
    encoding = stream.data_format or ("json" if stream.schema_ else "avro")
    if encoding == "json" and not stream.schema_:
        hint = "Add `schema:` with the columns and their types, such as `id: int64`."
        msg = "`schema` is required when data_format is json"
        yield UserError(msg, hint=hint, node=name, place=place(*path))
    if encoding != "json" and stream.schema_:
        hint = (
            "Remove it: the columns are those of the schema in the registry, or of `reader_schema`."
            if encoding in _REGISTERED
            else "Remove it: the columns are `key` and `value`."
        )
        msg = "`schema` is only supported with data_format: json"
        yield UserError(msg, hint=hint, node=name, place=place(*path, "schema"))
    for option, encodings in _KEYS_OF.items():
        if option in stream.model_fields_set and encoding not in encodings:
            hint = "Remove it, or change data_format."
            msg = f"`{option}` has no effect with data_format: {encoding}"
            yield UserError(msg, hint=hint, node=name, place=place(*path, option))
    ids = [one.from_ for one in stream.schema_id_overrides]
    if twice := next((one for one in ids if ids.count(one) > 1), None):
        msg = f"`schema_id_overrides` has `from: {twice}` more than once"
        place_of_list = place(*path, "schema_id_overrides")
        yield UserError(msg, hint="Keep one of them.", node=name, place=place_of_list)
    if stream.tombstone == "delete" and encoding in ("text", "bytes") and [*key] != ["key"]:
        msg = f"`tombstone: delete` with data_format: {encoding} needs the key of the message"
        yield UserError(msg, hint="Set `primary_key: key`.", node=name, place=place(*path, "tombstone"))
    if stream.tombstone == "delete" and encoding in ("json", "json_schema", "protobuf") and not key:
        msg = "`tombstone: delete` needs a key: the columns that a message's key has"
        yield UserError(msg, hint="Set `primary_key`.", node=name, place=place(*path, "tombstone"))

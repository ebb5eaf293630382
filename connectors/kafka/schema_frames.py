"""The frame of a schema registry before a payload: a 0, and the id of its schema in 4 bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute

from headrace.connectors.kafka.message_columns import FRAME_BYTES
from headrace.pipeline.errors import DataError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pc: Any = pyarrow.compute
"""Its functions are made at import, so type checkers do not see them."""
MOST_SCHEMAS = 1_000
"""Of one range. More are no schema ids, but other bytes."""
OTHER_SCHEMA = "a message has another schema than those before, so the schemas of the epoch are read first"
"""Why an epoch is decoded once more, see `MessageFormat.decode`."""
SHOWN_BYTES = 100
"""Bytes of a payload that an error shows."""


def frame_of(schema_id: int) -> bytes:
    """Return the frame of messages with a schema id."""
    return b"\0" + schema_id.to_bytes(FRAME_BYTES - 1, "big")


def schema_id_of(frame: bytes) -> int | None:
    """Return the schema id of a message's first bytes, or None if they are no frame."""
    return int.from_bytes(frame[1:], "big") if len(frame) == FRAME_BYTES and frame[0] == 0 else None


def schema_ids(frames: Iterable[bytes], topic: str, node: str, title: str) -> dict[bytes, int]:
    """Return the schema id of each frame, in order. Bytes that are no frame have none.

    Raise DataError for more schemas than a range can have. `title` is the language of the schemas.
    """
    result = {frame: schema_id for frame in set(frames) if (schema_id := schema_id_of(frame)) is not None}
    if len(result) > MOST_SCHEMAS:
        msg = f"messages of topic `{topic}` have more than {MOST_SCHEMAS:,} schema ids"
        raise DataError(msg, hint=f"Are they {title} in the frame of a schema registry?", node=node)
    return dict(sorted(result.items()))


def find_frames(values: pa.Array) -> list[bytes]:
    """Return the distinct first bytes of the values that are not NULL."""
    heads = pc.binary_slice(values, 0, FRAME_BYTES).unique().to_pylist()
    return [head for head in heads if head is not None]


def read_frames(messages: DataFrame, *, of_keys: bool) -> set[tuple[bytes, bool]]:
    """Return the frames of the messages, and whether they are of the key of a tombstone. A Spark job.

    Without `of_keys`, tombstones have no frame.
    """
    from pyspark.sql import functions as F  # noqa: N812

    is_tombstone = F.col("value").isNull()
    body = F.coalesce("value", "key") if of_keys else F.col("value")
    frame = F.substring(body, 1, FRAME_BYTES)
    frames = (
        messages.where(F.substring(body, 1, 1) == F.lit(bytearray(1)))
        .select(frame.alias("frame"), is_tombstone.alias("of_key"))
        .distinct()
        .limit(2 * MOST_SCHEMAS + 1)
        .collect()
    )
    return {(bytes(row.frame), row.of_key) for row in frames}


def spell_payload(payload: bytes) -> str:
    """Return the first bytes of a payload for errors."""
    return "0x" + payload[:SHOWN_BYTES].hex().upper()

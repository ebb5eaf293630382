"""The columns that every message has, whatever its format: metadata, operation, position."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.connectors import dead_letters
from headrace.connectors.filters import quote_identifier
from headrace.connectors.kafka.config import KafkaSourceConfig
from headrace.connectors.row_errors import RowCheck, RowConditions
from headrace.pipeline.errors import SchemaError
from headrace.pipeline.sql.system_columns import OP, POS

if TYPE_CHECKING:
    from pyspark.sql import Column

PARTITION, OFFSET, TIMESTAMP = "__kafka_partition", "__kafka_offset", "__kafka_timestamp"
METADATA = ((PARTITION, pa.int32()), (OFFSET, pa.int64()), (TIMESTAMP, pa.timestamp("us", tz="UTC")))
OP_HEADER = "dbz.op"
OPERATIONS = {"r": "i", "c": "i", "i": "i", "u": "u", "d": "d"}
OF_MESSAGE = "_headrace_"
"""The prefix of a message's own columns, because the payload may have columns of their names."""
REASON = OF_MESSAGE + "reason"
"""Why a message is rejected, or NULL."""
PLACE = ("topic", "partition", "offset")
FRAME_BYTES = 5
"""Bytes before a payload with a schema of a registry: 0, and its id as a big-endian number."""
_ALL = 2**31 - 1
TOMBSTONE = "tombstone"
"""Whether the message has no payload."""


def with_metadata(payload: pa.Schema, node: str, *, metadata: bool) -> pa.Schema:
    """Return the columns with those of the message. Raise SchemaError for a reserved name."""
    taken = {POS, *(name for name, _ in METADATA if metadata)} & set(payload.names)
    if taken:
        msg = f"the schema names {', '.join(sorted(taken))}, which Headrace adds by itself"
        raise SchemaError(msg, hint="Leave it out of the schema.", node=node)
    fields = [field for field in payload if field.name != OP]
    return pa.schema(fields + [pa.field(name, kind) for name, kind in METADATA if metadata])


def payload_after_frame(value: Column) -> Column:
    """Return the bytes after the frame of a schema registry."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.substring(value, FRAME_BYTES + 1, _ALL)


def without_frame(value: Column) -> Column:
    """Return the payload without the frame of a schema registry. No JSON begins with its first byte, a 0."""
    from pyspark.sql import functions as F  # noqa: N812

    is_framed = F.substring(value, 1, 1) == F.lit(bytearray(1))
    return F.when(is_framed, payload_after_frame(value)).otherwise(value)


def place_columns() -> dict[str, Column]:
    """Return topic, partition and offset of a row, for errors."""
    from pyspark.sql import functions as F  # noqa: N812

    return {name: F.col(OF_MESSAGE + name) for name in PLACE}


def keep_columns(names: Iterable[str]) -> list[Column]:
    """Return a message's columns under the names that do not clash with the payload."""
    from pyspark.sql import functions as F  # noqa: N812

    return [F.col(name).alias(OF_MESSAGE + name) for name in names]


def message_columns(
    checks: RowConditions, ordinal: int, key: Sequence[str], *, metadata: bool, own_operation: bool
) -> list[Column]:
    """Return the optional metadata, `_gs_op` and `_gs_pos`.

    `own_operation`: the payload has the operation. `key` are the columns that a tombstone must have.
    """
    from pyspark.sql import functions as F  # noqa: N812

    pos = F.struct(
        F.lit(ordinal).cast("int").alias("source"),
        F.col(OF_MESSAGE + "partition").alias("part"),
        F.col(OF_MESSAGE + "offset").alias("off"),
        F.lit(0).cast("bigint").alias("sub"),
    )
    extra = [
        F.col(OF_MESSAGE + name).alias(to)
        for name, to in (("partition", PARTITION), ("offset", OFFSET), ("timestamp", TIMESTAMP))
        if metadata
    ]
    return [*extra, _operation(checks, key, own=own_operation).alias(OP), pos.alias(POS)]


def require_payload(checks: RowConditions, has_payload: Column, where: Mapping[str, Column]) -> RowCheck:
    """Add the check that a message has a payload."""
    hint = (
        "Set `tombstone: delete`, if the message's key has the key columns. Or let the producer send the key"
        " columns and the header dbz.op=d for a delete."
    )
    return checks.require(has_payload, "the message has no payload (a tombstone)", hint, **where)


def rejection(checks: RowConditions, key: Sequence[str], columns: Iterable[str]) -> Column:
    """Return the column `dead_letters.ERROR`: NULL, or the message and the reason why it is rejected.

    The reason is in `REASON`, or else one of `checks`, or that one of the `columns` is in `key` and NULL.
    """
    from pyspark.sql import functions as F  # noqa: N812

    wanted = {name.lower() for name in key}
    for name in columns:
        if name.lower() in wanted:
            is_there = F.col(quote_identifier(name)).isNotNull()
            what, hint = f"the key column `{name}` is NULL", "Correct the message's producer."
            checks.require(is_there, what, hint, **place_columns())
    reason = F.coalesce(F.col(REASON), checks.reason())
    # It may quote any text of the message. Not every sink takes a NUL.
    reason = F.translate(F.make_valid_utf8(reason), "\0", "\ufffd")
    value = F.when(~F.col(OF_MESSAGE + TOMBSTONE), F.col(OF_MESSAGE + "value"))
    original = [*(F.col(OF_MESSAGE + name) for name in (*PLACE, "timestamp", "key")), value]
    named = zip(original, KafkaSourceConfig.error_columns, strict=True)
    result = F.struct(reason.alias(dead_letters.REASON), *[column.alias(name) for column, name in named])
    return F.when(reason.isNotNull(), result).alias(dead_letters.ERROR)


def _operation(checks: RowConditions, key: Sequence[str], *, own: bool) -> Column:
    """Return i, u or d, from the payload if it has `_gs_op`, else from the header.

    A missing operation means i. A tombstone means d: its key columns come from the message's key.
    """
    from pyspark.sql import functions as F  # noqa: N812

    headers = F.col(OF_MESSAGE + "headers")
    header = F.element_at(F.filter(headers, lambda h: h["key"] == OP_HEADER), -1)["value"].cast("string")
    has_header = headers.isNotNull() & F.exists(headers, lambda h: h["key"] == OP_HEADER)
    text = F.col(OP) if own else F.when(has_header, F.coalesce(header, F.lit("")))
    known = F.lower(text)
    what = F.concat(
        F.lit(f"{'column `' + OP + '`' if own else 'header ' + OP_HEADER} says `"), text, F.lit("`")
    )
    result = F.when(text.isNull(), F.lit("i"))
    for name, operation in OPERATIONS.items():
        result = result.when(known == name, F.lit(operation))
    tombstone = F.col(OF_MESSAGE + TOMBSTONE) if key else F.lit(False)
    hint = "Known: r, c (insert), u (update), d (delete); without the header a message is an insert."
    is_known = text.isNull() | known.isin(*OPERATIONS)
    operation = checks.guard(result, checks.require(tombstone | is_known, what, hint, **place_columns()))
    if not key:
        return operation
    missing = F.lit(False)
    for name in key:
        missing = missing | F.col(quote_identifier(name)).isNull()
    names = ", ".join(f"`{name}`" for name in key)
    what = f"the message has no payload (a tombstone), and its key lacks {names}"
    hint = "Let the producer send the key in the format of the payload, or a payload with dbz.op=d."
    whole = checks.require(~(tombstone & missing), what, hint, **place_columns())
    return F.when(tombstone, checks.guard(F.lit("d"), whole)).otherwise(operation)

"""Converts Kafka messages in Confluent's frame to rows: a 0, the schema's id in 4 bytes, the Avro payload.

Spark reads the payload, with one branch for each schema id of the range. Every message is checked as a whole,
also where only some of its columns are used. A message that does not fit fails the task with its topic,
partition and offset; a message whose schema has no branch is an error too, and never NULL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.connectors.avro.resolution import END, LAST, VALUE, SchemaPair, resolve_schemas
from headrace.connectors.avro.schema import AvroType
from headrace.connectors.avro.values import ValueConverter, any_of, column_of, has_broken_text
from headrace.connectors.filters import quote_identifier
from headrace.connectors.kafka.message_columns import (
    FRAME_BYTES,
    OF_MESSAGE,
    PLACE,
    REASON,
    TOMBSTONE,
    keep_columns,
    message_columns,
    payload_after_frame,
    place_columns,
    rejection,
    require_payload,
)
from headrace.connectors.kafka.schema_frames import OTHER_SCHEMA, SHOWN_BYTES
from headrace.connectors.row_errors import RowConditions
from headrace.pipeline.sql.system_columns import OP

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_FRAME, _BODY, _DECODED = "_hr_frame", "_hr_body", "_hr_avro"

Branches = Mapping[bytes, SchemaPair | str]
"""By the frame of a message: how its payload is read, or why it cannot be."""


class AvroMessageDecoder:
    """Convert `messages` of Spark's Kafka reader to payload, optional metadata, `_gs_op` and `_gs_pos`.

    `reader` is the record with the columns. `tombstone_key`: the columns that the key of a message without
    payload must have; () refuses it. `dead_letters`: a broken message fails no task; its row has the reason
    and the message in `dead_letters.ERROR`. Then a message must have the columns of `key`.
    """

    def __init__(
        self,
        node: str,
        reader: AvroType,
        ordinal: int,
        *,
        metadata: bool,
        tombstone_key: Sequence[str] = (),
        dead_letters: bool = False,
        key: Sequence[str] = (),
    ) -> None:
        self._node = node
        self._dead_letters = dead_letters
        self._required = tuple(key)
        self._reader = reader
        self._ordinal = ordinal
        self._metadata = metadata
        self._key = tuple(tombstone_key)
        self._cached: object = None
        self._steps: list[list[Column]] = []
        """The expressions of the last branches. Building them costs more than a small epoch."""

    def decode(
        self,
        messages: DataFrame,
        values: Branches,
        keys: Branches,
        *,
        in_driver: bool = False,
        may_retry: bool = False,
    ) -> DataFrame:
        """Return the decoded rows, lazily.

        `values` and `keys` have a branch for every frame of the messages' payloads, and of the keys of
        tombstones. With `in_driver`, the plan is one that Spark computes over local rows without a job. With
        `may_retry`, a frame without a branch raises TransientError.
        """
        cached = messages.sparkSession.sparkContext, dict(values), dict(keys), in_driver, may_retry
        if self._cached != cached:
            self._cached = cached
            self._steps = self._build(values, keys, in_driver=in_driver, may_retry=may_retry)
        for step in self._steps:
            messages = messages.select(*step)
        return messages

    def _build(
        self, values: Branches, keys: Branches, *, in_driver: bool, may_retry: bool
    ) -> list[list[Column]]:
        """Return the columns of the steps: frame, from_avro, checks, conversions, rows."""
        from pyspark.sql import functions as F  # noqa: N812

        body = F.coalesce("value", "key") if self._key else F.col("value")
        carried = (*PLACE, "timestamp", "headers", *(("key", "value") if self._dead_letters else ()))
        kept = (*carried, TOMBSTONE)
        framed = [
            *[F.col(name) for name in carried],
            F.col("value").isNull().alias(TOMBSTONE),
            F.substring(body, 1, FRAME_BYTES).alias(_FRAME),
            body.alias(_BODY),
        ]
        read, whole, values_, last = (RowConditions(self._node, collect=self._dead_letters) for _ in range(4))
        decoded = self._decode_record(read, values, keys, may_retry=may_retry).alias(_DECODED)
        checked = self._check_record(whole).alias(_DECODED)
        convert = ValueConverter(values_, place_columns()).convert
        columns = [
            convert(column_of(one.name, _DECODED), one.type, one.name).alias(one.name)
            for one in self._reader.fields
        ]
        payload = [F.col(quote_identifier(one.name)) for one in self._reader.fields if one.name != OP]
        own = self._reader.find_field(OP) is not None
        final = message_columns(last, self._ordinal, self._key, metadata=self._metadata, own_operation=own)
        message = [F.col(OF_MESSAGE + name) for name in kept]
        rows = [checked]
        if self._dead_letters:
            earlier = F.col(REASON)
            rows.append(F.coalesce(earlier, whole.reason()).alias(REASON))
            columns.append(F.coalesce(earlier, values_.reason()).alias(REASON))
            final.append(rejection(last, self._required, [one.name for one in self._reader.fields]))
        # `inline` stops the optimizer: a filter on a column would otherwise move below it and decode every
        # message twice. Spark does not compute it over local rows.
        rows = rows if in_driver else [F.inline(F.array(F.struct(*rows)))]
        first = [*keep_columns(kept), F.col(_FRAME), F.col(_BODY), decoded]
        if self._dead_letters:
            first.append(read.reason().alias(REASON))
        return [framed, first, [*message, *rows], [*message, *columns], [*payload, *final]]

    def _decode_record(
        self, checks: RowConditions, values: Branches, keys: Branches, *, may_retry: bool
    ) -> Column:
        """Return the record that from_avro reads, with `LAST`; NULL for a payload that it cannot read."""
        from pyspark.sql import functions as F  # noqa: N812

        where = {name: F.col(name) for name in PLACE}
        tombstone, shown = F.col(TOMBSTONE), _spell_payload(F.col(_BODY))
        has_payload = require_payload(checks, F.col(_BODY).isNotNull(), where)
        is_framed = (F.length(_FRAME) == FRAME_BYTES) & (F.substring(_FRAME, 1, 1) == F.lit(bytearray(1)))
        part = F.when(tombstone, "key").otherwise("payload")
        what = F.concat(F.lit("the "), part, F.lit(" does not begin with a 0 and the id of a schema"))
        hint = "Avro needs the frame of a schema registry. Messages in JSON need `data_format: json`."
        required = [has_payload, checks.require(is_framed, what, hint, **where, payload=shown)]
        # Gives the expression its type, also if no message can be read.
        result = F.when(F.lit(False), _from_avro(resolve_schemas(self._reader, self._reader)))
        known = F.lit(False)
        groups = [(tombstone, keys), (~tombstone, values)] if self._key else [(None, values)]
        for group, branches in groups:
            for frame, branch in branches.items():
                is_frame = F.col(_FRAME) == F.lit(bytearray(frame))
                condition = is_frame if group is None else group & is_frame
                known = known | condition
                if isinstance(branch, str):
                    hint = "Correct the message's producer, or the schemas in the registry; see"
                    hint += " `schema_id_overrides`."
                    required.append(checks.require(~condition, branch, hint, **where, payload=shown))
                else:
                    result = result.when(condition, _from_avro(branch))
        if may_retry:
            required.append(checks.require_or_retry(known, OTHER_SCHEMA))
        else:
            what = F.concat(F.lit("the message has no branch for the frame "), F.hex(_FRAME))
            required.append(checks.require(known, what, "Please report this.", **where))
        return checks.guard(result, *required)

    def _check_record(self, checks: RowConditions) -> Column:
        """Return the record of a message, or an error. The columns of the message have their final names."""
        from pyspark.sql import functions as F  # noqa: N812

        where, shown = place_columns(), {"payload": _spell_payload(F.col(_BODY))}
        schema_id = F.conv(F.hex(F.substring(_FRAME, 2, FRAME_BYTES)), 16, 10)
        what = F.concat(
            F.lit("the payload does not fit its schema "), schema_id, F.lit(" with the reader schema")
        )
        hint, record = "Correct the message's producer.", column_of(VALUE, _DECODED)
        fits = F.coalesce(column_of(LAST, _DECODED) == F.lit(bytearray(END)), F.lit(False))
        required = [
            checks.require(fits, what, hint, **where, **shown),
            require_payload(checks, record.isNotNull(), where),
        ]
        bad = any_of([one for one in [has_broken_text(record, self._reader)] if one is not None])
        if bad is not None:
            required.append(checks.require(~bad, "a text is not UTF-8", hint, **where))
        return checks.guard(record, *required)


def _from_avro(branch: SchemaPair) -> Column:
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.avro.functions import from_avro

    options = {
        "mode": "PERMISSIVE",
        "avroSchema": branch.reader,
        # Proleptic Gregorian days, as Avro has them. By default Spark refuses old ones.
        "datetimeRebaseMode": "CORRECTED",
    }
    rest = payload_after_frame(F.col(_BODY))
    return from_avro(F.concat(rest, F.lit(bytearray(END))), branch.writer, options)


def _spell_payload(payload: Column) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.concat(F.lit("0x"), F.hex(F.substring(payload, 1, SHOWN_BYTES)))

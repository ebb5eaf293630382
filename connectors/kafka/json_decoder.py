"""Converts Kafka messages to rows: JSON by the node's `schema`, operation by a header, order by the offset.

Every message is checked as a whole, also where only some of its columns are used: a broken one fails the task
that meets it and is named by topic, partition and offset. Keys that `schema` does not name are ignored; a
missing key is null. The frame of a schema registry (JSON Schema) may come before the object.

Numbers: decimals may come as numbers or as text and are taken exactly; more digits after the point than the
scale has are refused up to 37 digits and rounded half up at 38, where Spark has no room to see them. Integers
out of range are refused. Times and dates are ISO 8601 text (without a zone: UTC); binary is hexadecimal text.
An object or an array in a `string` column stays as JSON text, its numbers with up to 38 digits. Half a
surrogate pair is no text and is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import types as kinds

from headrace.connectors.kafka.message_columns import (
    OF_MESSAGE,
    PLACE,
    REASON,
    TOMBSTONE,
    keep_columns,
    message_columns,
    place_columns,
    rejection,
    require_payload,
    with_metadata,
    without_frame,
)
from headrace.connectors.row_errors import RowConditions
from headrace.pipeline.errors import SchemaError
from headrace.pipeline.sql.system_columns import OP
from headrace.pipeline.types.arrow import parse_type, spark_type
from headrace.pipeline.types.int256 import MINUS_NOTHING, SPARK_DIGITS, SPELLED, WideInteger, is_wide, pattern

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_HALF = (
    r"(?<!\\)(?:\\\\)*\\u[dD](?:[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    r"|[c-fC-F][0-9a-fA-F]{2}(?<!\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}))"
)
"""An escaped surrogate without its other half; escaped backslashes before it count for themselves."""
_ISO_DATE = 10  # characters
_ROW = OF_MESSAGE + "row"

_WIDER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20),
    pa.float16(): pa.float32(),
}
_READ_AS = {pa.int8(): "smallint", pa.uint64(): f"decimal({SPARK_DIGITS},{SPARK_DIGITS - 20})"}
_RANGES = {
    pa.int8(): (-(2**7), 2**7 - 1),
    pa.uint8(): (0, 2**8 - 1),
    pa.uint16(): (0, 2**16 - 1),
    pa.uint32(): (0, 2**32 - 1),
    pa.uint64(): (0, 2**64 - 1),
}


def payload_schema(node: str, declared: Mapping[str, str], *, metadata: bool) -> pa.Schema:
    """Return the columns with Spark's types, in the file's order.

    Unsigned and half types become one size wider; times become strings. Raise SchemaError for a type that
    JSON cannot represent or for a reserved name.
    """
    columns = pa.schema([pa.field(name, _as_spark(node, name, text)) for name, text in declared.items()])
    return with_metadata(columns, node, metadata=metadata)


def _as_spark(node: str, name: str, text: str) -> pa.DataType:
    try:
        kind = parse_type(text)
    except SchemaError as error:
        msg = f"column `{name}`: {error.message}"
        raise SchemaError(
            msg,
            hint="Declare lists and objects as string: they stay JSON text, which a transform parses.",
            node=node,
        ) from None
    if (result := arrives_as(kind)) is None:
        msg = f"column `{name}`: JSON messages cannot carry {text}"
        raise SchemaError(msg, hint="Declare it as string and convert it in a transform.", node=node)
    return result


def arrives_as(kind: pa.DataType) -> pa.DataType | None:
    """Return the Arrow type that a declared type has in Spark; None if JSON messages cannot represent it."""
    if kinds.is_duration(kind) or kinds.is_interval(kind):
        return None
    if is_wide(kind):
        return kind
    if kinds.is_decimal(kind):
        return pa.decimal128(kind.precision, kind.scale)
    if kinds.is_date(kind):
        return pa.date32()
    return pa.string() if kinds.is_time(kind) else _WIDER.get(kind, kind)


class JsonMessageDecoder:
    """Convert `messages` of Spark's Kafka reader to payload, optional metadata, `_gs_op` and `_gs_pos`.

    Building the expressions costs more than a small epoch, so they are built once; they belong to the Spark
    context of that moment.
    """

    def __init__(
        self,
        node: str,
        declared: Mapping[str, str],
        ordinal: int,
        *,
        metadata: bool,
        tombstone_key: Sequence[str] = (),
        dead_letters: bool = False,
        key: Sequence[str] = (),
    ) -> None:
        """`tombstone_key`: the columns that the key of a message without payload must have; () refuses it.

        `dead_letters`: a broken message fails no task; its row has the reason and the message in `ERROR`.
        Then a message must have the columns of `key`.
        """
        from pyspark.sql import functions as F  # noqa: N812

        value = F.coalesce("value", "key") if tombstone_key else F.col("value")
        carried = (*PLACE, "timestamp", "headers", *(("key",) if dead_letters else ()))
        kept = (*carried, TOMBSTONE, "text", *(("value",) if dead_letters else ()))
        messages = [
            *[F.col(name) for name in carried],
            F.col("value").isNull().alias(TOMBSTONE),
            value.alias("value"),
            *parse_columns(without_frame(value), declared),
        ]
        checks = RowConditions(node, collect=dead_letters)
        row = guard_record(checks, declared, {name: F.col(name) for name in PLACE})
        final = RowConditions(node, collect=dead_letters)
        columns = {name: parse_type(text) for name, text in declared.items() if name != OP}
        payload = [_final(final, name, kind, declared[name]) for name, kind in columns.items()]
        own = OP in declared
        system = message_columns(final, ordinal, tombstone_key, metadata=metadata, own_operation=own)
        # `inline` stops the optimizer: a filter on a column would otherwise move below it and parse every
        # message twice. Spark does not compute it over local rows.
        if dead_letters:
            split = [checks.reason().alias(REASON), row.alias(_ROW)]
            self._rows = [F.inline(F.array(F.struct(*split)))]
            self._rows_in_driver = split
            self._unpacked = [*[F.col(OF_MESSAGE + name) for name in kept], F.col(REASON), F.col(f"{_ROW}.*")]
            system.append(rejection(final, key, columns))
        else:
            self._rows = self._rows_in_driver = [F.inline(F.array(row))]
            self._unpacked = [F.col("*")]
        self._messages, self._kept, self._final = messages, keep_columns(kept), [*payload, *system]

    def decode(self, messages: DataFrame, *, in_driver: bool = False) -> DataFrame:
        """Return the decoded rows, lazily.

        With `in_driver` and `dead_letters`, the plan is one that Spark computes over local rows without a
        job.
        """
        rows = self._rows_in_driver if in_driver else self._rows
        steps = (self._messages, [*self._kept, *rows], self._unpacked, self._final)
        for step in steps:
            messages = messages.select(*step)
        return messages


def parse_columns(value: Column, declared: Mapping[str, str]) -> list[Column]:
    """Return the columns that `checked` reads.

    `text` has the bytes of one JSON object as a string; `json` has the object parsed by the declared types.
    """
    from pyspark.sql import functions as F  # noqa: N812

    fields = ", ".join(
        f"{_quote_name(name)}: {_read_as(parse_type(kind))}" for name, kind in declared.items()
    )
    text = value.cast("string")
    options = {"columnNameOfCorruptRecord": "bad", "allowSingleQuotes": "false"}
    return [
        text.alias("text"),
        F.from_json(_wrap_text(text), f"v struct<{fields}>, e int, bad string", options).alias("json"),
    ]


def _wrap_text(text: Column) -> Column:
    """Return the text in an object, which makes everything after its own object a syntax error.

    Without it, Spark reads the first value and ignores the rest.
    """
    from pyspark.sql import functions as F  # noqa: N812

    return F.concat(F.lit('{"v":'), text, F.lit(',"e":1}'))


def guard_record(
    checks: RowConditions,
    declared: Mapping[str, str],
    where: Mapping[str, Column],
    what: str = "message",
    remedy: str = "Correct the message's producer",
) -> Column:
    """Return the row of `value`, `text` and `json` (from `parsed`) as a struct, guarded by `checks`.

    Errors have `where`, and call the row `what`.
    """
    from pyspark.sql import functions as F  # noqa: N812

    shown = {
        "payload": F.substring("text", 1, 2000),
        "columns": F.lit(json.dumps({name: kind.lower() for name, kind in declared.items()})),
    }
    problem = f"the {what} does not fit `schema`"
    good = F.col("json.bad").isNull() & F.col("json.v").isNotNull() & F.col("json.e").isNotNull()
    whole = [
        require_payload(checks, F.col("value").isNotNull(), where),
        checks.require(
            F.is_valid_utf8("text"), "the payload is not UTF-8", "It must be JSON in UTF-8.", **where
        ),
        checks.require(
            good,
            F.concat(F.lit(problem), _describe_misfit(declared)) if checks.collect else problem,
            f"{remedy}, or `schema`.",
            **where,
            **shown,
        ),
        checks.require(
            ~_has_half_surrogate(),
            "the payload holds half a character: a \\u escape of one surrogate",
            f"{remedy}.",
            **where,
        ),
    ]
    columns = [
        _value(checks, name, parse_type(kind), kind, where, remedy).alias(name)
        for name, kind in declared.items()
    ]
    return checks.guard(F.struct(*columns), *whole)


def _describe_misfit(declared: Mapping[str, str]) -> Column:
    """Return why `text` does not fit, with a colon before it: the first column that does not, if one is it.

    `row_errors` finds the same in Python for the one message that fails an epoch.
    """
    from pyspark.sql import functions as F  # noqa: N812

    result = F.when(F.try_parse_json(_wrap_text(F.col("text"))).isNull(), ": it is not valid JSON").when(
        ~F.schema_of_variant(F.try_parse_json("text")).startswith("OBJECT"), ": it is not an object"
    )
    for name, kind in declared.items():
        one, read = _quote_name(name), _read_as(parse_type(kind))
        raw = F.from_json("text", f"{one} string")[name]
        fits = F.from_json("text", f"{one} {read}")[name].isNotNull()
        result = result.when(
            raw.isNotNull() & ~fits,
            F.concat(F.lit(f": column `{name}` is {kind}, found `"), F.substring(raw, 1, 100), F.lit("`")),
        )
    return result.otherwise("")


def _has_half_surrogate() -> Column:
    """Return whether the text escapes half of a surrogate pair, which Spark would replace by `?`.

    Most texts escape nothing, so a substring test comes first.
    """
    from pyspark.sql import functions as F  # noqa: N812

    text = F.col("text")
    return (text.contains("\\ud") | text.contains("\\uD")) & text.rlike(_HALF)


def _final(checks: RowConditions, name: str, kind: pa.DataType, declared: str) -> Column:
    """Return one column of the rows from the checked struct."""
    from pyspark.sql import functions as F  # noqa: N812

    if is_wide(kind):
        return _wide(checks, name, kind, declared)
    return exact_text(name) if kinds.is_string(kind) else F.col(_quote_name(name))


def _wide(checks: RowConditions, name: str, kind: pa.DataType, declared: str) -> Column:
    """Return a 256-bit integer or big decimal as the string of its digits.

    A number with a decimal point may be a JSON number if it fits a Spark decimal, else it must be a string.
    """
    from pyspark.sql import functions as F  # noqa: N812

    text = exact_text(name)
    good = text.rlike(pattern(kind))
    variant = F.from_json(OF_MESSAGE + "text", f"{_quote_name(name)} variant")[name]
    good = good & (~text.contains(".") | (F.schema_of_variant(variant) != "DOUBLE"))
    if isinstance(kind, WideInteger):
        negative, value = text.startswith("-"), F.regexp_extract(text, r"^-?0*(\d*)", 1)
        room = len(str(kind.highest))
        limit = F.when(negative, F.lit(str(-kind.lowest).rjust(room, "0"))).otherwise(
            F.lit(str(kind.highest))
        )
        good = good & (F.length(value) <= room) & (F.lpad(value, room, "0") <= limit)
    hint = (
        f"Send its digits, as text if there are more than {SPARK_DIGITS}; or correct the type of"
        f" `{name}` in `schema`."
    )
    digits = F.regexp_replace(
        text, SPELLED, "$1$2$3"
    )  # one string per number, because keys are compared as strings
    plain = F.when(digits == MINUS_NOTHING, "0").otherwise(digits)
    fits = checks.require(text.isNull() | good, _cannot_hold(name, declared, text), hint, **place_columns())
    return checks.guard(plain, fits).alias(name)


def _cannot_hold(name: str, declared: str, text: Column) -> Column:
    """Return the message for a value that the type of its column cannot hold."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.concat(
        F.lit(f"column `{name}` is {declared}, which cannot hold `"), F.substring(text, 1, 100), F.lit("`")
    )


def _read_as(kind: pa.DataType) -> str:
    """Return the type for from_json: wider if Spark would overflow or round, string if it would guess."""
    if is_wide(kind):
        return "string"
    if kinds.is_decimal(kind):
        return f"decimal({SPARK_DIGITS},{SPARK_DIGITS - (kind.precision - kind.scale)})"
    if kinds.is_timestamp(kind) or kinds.is_date(kind) or kinds.is_binary(kind):
        return "string"
    return _READ_AS.get(kind, spark_type(kind))


def _value(
    checks: RowConditions,
    name: str,
    kind: pa.DataType,
    declared: str,
    where: Mapping[str, Column],
    remedy: str,
) -> Column:
    """Return one column of the row, checked and in its final type."""
    from pyspark.sql import functions as F  # noqa: N812

    raw = F.col(f"json.v.{_quote_name(name)}")
    if is_wide(kind):
        return raw
    if kind in _RANGES:
        low, high = _RANGES[kind]
        good = raw.between(F.lit(str(low)).cast("decimal(20,0)"), F.lit(str(high)).cast("decimal(20,0)"))
        good = good & (raw == F.floor(raw)) if kind == pa.uint64() else good
        final = raw.cast(spark_type(kind))
    elif kinds.is_decimal(kind):
        final = raw.try_cast(spark_type(kind))
        good = final.isNotNull() & (final == raw)
    elif kinds.is_timestamp(kind) or kinds.is_date(kind):
        final = raw.try_cast(spark_type(kind))
        # Spark would also accept `12:30` (today), `2024`, and a date with a time after it, dropping the time.
        length = F.length(raw) == _ISO_DATE if kinds.is_date(kind) else F.length(raw) >= _ISO_DATE
        good = final.isNotNull() & length & (F.substring(raw, 5, 1) == "-") & (F.substring(raw, 8, 1) == "-")
    elif kinds.is_binary(kind):
        final = F.try_to_binary(raw, F.lit("hex"))
        good = final.isNotNull()
    else:
        return raw
    fits = checks.require(
        raw.isNull() | good,
        _cannot_hold(name, declared, raw.cast("string")),
        f"{remedy}, or the type of `{name}` in `schema`.",
        **where,
    )
    return checks.guard(final, fits)


def exact_text(name: str) -> Column:
    """Return a string with the message's digits.

    Spark converts numbers inside an object, or in place of a string, through a double. Only strings that may
    contain such a number are parsed again.
    """
    from pyspark.sql import functions as F  # noqa: N812

    there = F.col(_quote_name(name))
    suspect = (there.startswith("{") | there.startswith("[") | there.between("-", ":")) & there.contains(".")
    again = F.from_json(OF_MESSAGE + "text", f"{_quote_name(name)} variant")[name].cast("string")
    return F.when(suspect, F.coalesce(again, there)).otherwise(there).alias(name)


def _quote_name(name: str) -> str:
    escaped = name.replace("`", "``")
    return f"`{escaped}`"

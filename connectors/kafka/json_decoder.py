"""Converts Kafka messages to rows: JSON by the node's `schema`, operation by a header, order by the offset.

Every message is checked as a whole, also where only some of its columns are used: a broken one fails the task
that meets it and is named by topic, partition and offset. Keys that `schema` does not name are ignored; a
missing key is null.

Numbers: decimals may come as numbers or as text and are taken exactly; more digits after the point than the
scale has are refused up to 37 digits and rounded half up at 38, where Spark has no room to see them. Integers
out of range are refused. Times and dates are ISO 8601 text (without a zone: UTC); binary is hexadecimal text.
An object or an array in a `string` column stays as JSON text, its numbers with up to 38 digits. Half a
surrogate pair is no text and is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import types as kinds

from headrace.connectors.row_errors import row_error
from headrace.pipeline.errors import SchemaError
from headrace.pipeline.sql.system_columns import OP, POS
from headrace.pipeline.types.arrow import parse_type, spark_type
from headrace.pipeline.types.int256 import MINUS_NOTHING, SPARK_DIGITS, SPELLED, WideInteger, is_wide, pattern

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PARTITION, OFFSET, TIMESTAMP = "__kafka_partition", "__kafka_offset", "__kafka_timestamp"
METADATA = ((PARTITION, pa.int32()), (OFFSET, pa.int64()), (TIMESTAMP, pa.timestamp("us", tz="UTC")))
OP_HEADER = "dbz.op"
_OF_MESSAGE = "_headrace_"
OPERATIONS = {"r": "i", "c": "i", "i": "i", "u": "u", "d": "d"}
_HALF = (
    r"(?<!\\)(?:\\\\)*\\u[dD](?:[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    r"|[c-fC-F][0-9a-fA-F]{2}(?<!\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}))"
)
"""An escaped surrogate without its other half; escaped backslashes before it count for themselves."""
_ISO_DATE = 10  # characters

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
    taken = {POS, *(name for name, _ in METADATA if metadata)} & set(declared)
    if taken:
        msg = f"`schema` names {', '.join(sorted(taken))}, which Headrace adds by itself"
        raise SchemaError(msg, hint="Leave it out of `schema`.", node=node)
    fields = [pa.field(name, _as_spark(node, name, text)) for name, text in declared.items() if name != OP]
    return pa.schema(fields + [pa.field(name, kind) for name, kind in METADATA if metadata])


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
    if (found := arrives_as(kind)) is None:
        msg = f"column `{name}`: JSON messages cannot carry {text}"
        raise SchemaError(msg, hint="Declare it as string and convert it in a transform.", node=node)
    return found


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

    def __init__(self, node: str, declared: Mapping[str, str], ordinal: int, *, metadata: bool) -> None:
        from pyspark.sql import functions as F  # noqa: N812

        columns = {name: parse_type(text) for name, text in declared.items()}
        where = {"topic": F.col("topic"), "partition": F.col("partition"), "offset": F.col("offset")}
        message = [F.col(name) for name in ("topic", "partition", "offset", "timestamp", "headers", "value")]
        self._parsed = [*message, *parsed(F.col("value"), declared)]
        # Renamed, because the payload may have columns of these names.
        kept = [
            F.col(name).alias(_OF_MESSAGE + name)
            for name in ("topic", "partition", "offset", "timestamp", "headers", "text")
        ]
        # `inline` stops the optimizer: a filter on a column would otherwise move below it and parse every
        # message twice.
        self._checked = [*kept, F.inline(F.array(checked(node, declared, where)))]
        pos = F.struct(
            F.lit(ordinal).cast("int").alias("source"),
            F.col(_OF_MESSAGE + "partition").alias("part"),
            F.col(_OF_MESSAGE + "offset").alias("off"),
            F.lit(0).cast("bigint").alias("sub"),
        )
        extra = [
            F.col(_OF_MESSAGE + name).alias(to)
            for name, to in (("partition", PARTITION), ("offset", OFFSET), ("timestamp", TIMESTAMP))
            if metadata
        ]
        place = {name: F.col(_OF_MESSAGE + name) for name in where}
        payload = [
            _final(node, name, kind, declared[name], place) for name, kind in columns.items() if name != OP
        ]
        self._final = [
            *payload,
            *extra,
            _operation(node, place, own=OP in declared).alias(OP),
            pos.alias(POS),
        ]

    def decode(self, messages: DataFrame) -> DataFrame:
        """Return the decoded rows, lazily."""
        return messages.select(*self._parsed).select(*self._checked).select(*self._final)


def parsed(value: Column, declared: Mapping[str, str]) -> list[Column]:
    """Return the columns that `checked` reads.

    `text` has the bytes of one JSON object as a string; `json` has the object parsed by the declared types.
    """
    from pyspark.sql import functions as F  # noqa: N812

    fields = ", ".join(f"{_quoted(name)}: {_read_as(parse_type(kind))}" for name, kind in declared.items())
    text = value.cast("string")
    # The wrapping makes everything after the object a syntax error. Without it, Spark reads the first value
    # and ignores the rest.
    wrapped = F.concat(F.lit('{"v":'), text, F.lit(',"e":1}'))
    options = {"columnNameOfCorruptRecord": "bad", "allowSingleQuotes": "false"}
    return [
        text.alias("text"),
        F.from_json(wrapped, f"v struct<{fields}>, e int, bad string", options).alias("json"),
    ]


def checked(
    node: str,
    declared: Mapping[str, str],
    where: Mapping[str, Column],
    what: str = "message",
    remedy: str = "Correct the message's producer",
) -> Column:
    """Return the row of `value`, `text` and `json` (from `parsed`) as a struct, or an error with `where`.

    The error calls the row `what`.
    """
    from pyspark.sql import functions as F  # noqa: N812

    values = {name: parse_type(kind) for name, kind in declared.items()}
    row = F.struct(
        *[
            _value(node, name, kind, declared[name], where, remedy).alias(name)
            for name, kind in values.items()
        ]
    )
    shown = {
        "payload": F.substring("text", 1, 2000),
        "columns": F.lit(json.dumps({name: kind.lower() for name, kind in declared.items()})),
    }
    tombstone = row_error(
        node,
        "the message has no payload (a tombstone)",
        "Let the producer send a JSON object with the key columns and the header dbz.op=d for a delete.",
        **where,
    )
    broken = row_error(node, f"the {what} does not fit `schema`", f"{remedy}, or `schema`.", **where, **shown)
    encoding = row_error(node, "the payload is not UTF-8", "It must be JSON in UTF-8.", **where)
    halved = row_error(
        node, "the payload holds half a character: a \\u escape of one surrogate", f"{remedy}.", **where
    )
    bad = F.col("json.bad").isNotNull() | F.col("json.v").isNull() | F.col("json.e").isNull()
    return (
        F.when(F.col("value").isNull(), tombstone)
        .when(~F.is_valid_utf8("text"), encoding)
        .when(bad, broken)
        .when(_halved(), halved)
        .otherwise(row)
    )


def _halved() -> Column:
    """Return whether the text escapes half of a surrogate pair, which Spark would replace by `?`.

    Most texts escape nothing, so a substring test comes first.
    """
    from pyspark.sql import functions as F  # noqa: N812

    text = F.col("text")
    return (text.contains("\\ud") | text.contains("\\uD")) & text.rlike(_HALF)


def _final(node: str, name: str, kind: pa.DataType, declared: str, where: Mapping[str, Column]) -> Column:
    """Return one column of the rows from the checked struct."""
    from pyspark.sql import functions as F  # noqa: N812

    if is_wide(kind):
        return _wide(node, name, kind, declared, where)
    return exact_text(name) if kinds.is_string(kind) else F.col(_quoted(name))


def _wide(node: str, name: str, kind: pa.DataType, declared: str, where: Mapping[str, Column]) -> Column:
    """Return a 256-bit integer or big decimal as the string of its digits.

    A number with a decimal point may be a JSON number if it fits a Spark decimal, else it must be a string.
    """
    from pyspark.sql import functions as F  # noqa: N812

    text = exact_text(name)
    good = text.rlike(pattern(kind))
    parsed = F.from_json(_OF_MESSAGE + "text", f"{_quoted(name)} variant")[name]
    good = good & (~text.contains(".") | (F.schema_of_variant(parsed) != "DOUBLE"))
    if isinstance(kind, WideInteger):
        negative, value = text.startswith("-"), F.regexp_extract(text, r"^-?0*(\d*)", 1)
        room = len(str(kind.highest))
        limit = F.when(negative, F.lit(str(-kind.lowest).rjust(room, "0"))).otherwise(
            F.lit(str(kind.highest))
        )
        good = good & (F.length(value) <= room) & (F.lpad(value, room, "0") <= limit)
    what = F.concat(
        F.lit(f"column `{name}` is {declared}, which cannot hold `"), F.substring(text, 1, 100), F.lit("`")
    )
    hint = (
        f"Send its digits, as text if there are more than {SPARK_DIGITS}; or correct the type of"
        f" `{name}` in `schema`."
    )
    said = F.regexp_replace(
        text, SPELLED, "$1$2$3"
    )  # one string per number, because keys are compared as strings
    plain = F.when(said == MINUS_NOTHING, "0").otherwise(said)
    return F.when(text.isNull() | good, plain).otherwise(row_error(node, what, hint, **where)).alias(name)


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
    node: str, name: str, kind: pa.DataType, declared: str, where: Mapping[str, Column], remedy: str
) -> Column:
    """Return one column of the row, checked and in its final type."""
    from pyspark.sql import functions as F  # noqa: N812

    raw = F.col(f"json.v.{_quoted(name)}")
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
    what = F.concat(
        F.lit(f"column `{name}` is {declared}, which cannot hold `"),
        F.substring(raw.cast("string"), 1, 100),
        F.lit("`"),
    )
    refused = row_error(node, what, f"{remedy}, or the type of `{name}` in `schema`.", **where)
    return F.when(raw.isNull() | good, final).otherwise(refused)


def exact_text(name: str) -> Column:
    """Return a string with the message's digits.

    Spark converts numbers inside an object, or in place of a string, through a double. Only strings that may
    contain such a number are parsed again.
    """
    from pyspark.sql import functions as F  # noqa: N812

    there = F.col(_quoted(name))
    suspect = (there.startswith("{") | there.startswith("[") | there.between("-", ":")) & there.contains(".")
    again = F.from_json(_OF_MESSAGE + "text", f"{_quoted(name)} variant")[name].cast("string")
    return F.when(suspect, F.coalesce(again, there)).otherwise(there).alias(name)


def _operation(node: str, where: Mapping[str, Column], *, own: bool) -> Column:
    """Return i, u or d, from the payload if `schema` names `_gs_op`, else from the header.

    A missing operation means i.
    """
    from pyspark.sql import functions as F  # noqa: N812

    headers = F.col(_OF_MESSAGE + "headers")
    header = F.element_at(F.filter(headers, lambda h: h["key"] == OP_HEADER), -1)["value"].cast("string")
    has_header = headers.isNotNull() & F.exists(headers, lambda h: h["key"] == OP_HEADER)
    said = F.col(OP) if own else F.when(has_header, F.coalesce(header, F.lit("")))
    known = F.lower(said)
    what = F.concat(
        F.lit(f"{'column `' + OP + '`' if own else 'header ' + OP_HEADER} says `"), said, F.lit("`")
    )
    found = F.when(said.isNull(), F.lit("i"))
    for name, operation in OPERATIONS.items():
        found = found.when(known == name, F.lit(operation))
    hint = "Known: r, c (insert), u (update), d (delete); without the header a message is an insert."
    return found.otherwise(row_error(node, what, hint, **where))


def _quoted(name: str) -> str:
    escaped = name.replace("`", "``")
    return f"`{escaped}`"

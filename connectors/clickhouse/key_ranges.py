"""Splits of a ClickHouse table: disjoint ranges of its sorting key that together hold every row.

A split is plain JSON: what it asks for is kept as values, and `where` turns it into SQL with bound
parameters. Values of keys are kept as text that is the same everywhere: strings in hex (they may be any
bytes), times in UTC.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.connectors.clickhouse.types import UnsupportedTypeError, parse, quote
from headrace.pipeline.protocol.epochs import Json

_INTEGERS = frozenset(f"{sign}Int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64, 128, 256))
_PLAIN = _INTEGERS | {
    "Decimal",
    "Date",
    "Date32",
    "DateTime",
    "DateTime64",
    "String",
    "FixedString",
    "UUID",
    "IPv4",
    "IPv6",
    "Bool",
}
_FLOATS = frozenset({"Float32", "Float64", "BFloat16"})
_ENUMS = frozenset({"Enum8", "Enum16"})
_HEX = frozenset({"String", "FixedString"})
_TIMES = frozenset({"DateTime", "DateTime64"})
INSERTED = "toUInt64OrZero(splitByChar('_', _part)[2])"
"""SQL for the insert that a row came with, or the first one of a merged part.

A part is named <partition>_<first>_<last>_<level>. As text, the tenth insert would be before the second.
"""
_DESC = re.compile(r"\s+(?:DESC|ASC)\s*$", re.IGNORECASE)


def base_of(kind: str) -> str:
    """Return a type's name without its arguments and without Nullable and LowCardinality."""
    return parse(kind).base_type or kind


@dataclass(frozen=True, slots=True)
class SortingKeyColumn:
    """One expression of the sorting key, in the server's own spelling, with its type."""

    expression: str
    kind: str
    loose: bool = False
    """May be NULL or NaN: such rows have no place in an order and get a split of their own."""

    @property
    def base(self) -> str:
        """The type's name without its arguments."""
        return base_of(self.kind)

    def to_json(self) -> Json:
        """Return the column as JSON for a split."""
        return {"expression": self.expression, "kind": self.kind, "loose": self.loose}

    def text(self) -> str:
        """Return SQL that converts the key's value to a string for `SqlParameters.value`."""
        if self.base in _HEX:
            return f"hex({self.expression})"
        if self.base in _TIMES:
            return f"toString(toTimeZone({self.expression}, 'UTC'))"
        return f"toString({self.expression})"

    def unplaced_condition(self) -> str:
        """Return SQL that is true if the key is NULL or NaN."""
        return (
            f"(isNull({self.expression}) OR ifNull(isNaN({self.expression}), 0))"
            if self.base in _FLOATS
            else f"isNull({self.expression})"
        )


@dataclass(slots=True)
class SqlParameters:
    """Collects bound values while SQL is put together."""

    parameters: dict[str, Any] = field(default_factory=dict)

    def bind(self, value: Any, kind: str) -> str:
        """Bind `value` and return its placeholder."""
        name = f"p{len(self.parameters)}"
        self.parameters[name] = value
        return f"{{{name}:{kind}}}"

    def value(self, text: str, kind: str) -> str:
        """Return SQL of the type `kind` for a value that `SortingKeyColumn.text` converted to a string."""
        base, parameter = base_of(kind), self.bind(text, "String")
        if base in _HEX:
            parameter = f"unhex({parameter})"
        return f"CAST({parameter} AS {_in_utc(kind) if base in _TIMES else kind})"

    def literal(self, text: str, kind: str) -> str:
        """Return SQL of the type `kind` for a value from a user. Times without a zone are UTC."""
        parsed: Any = parse(kind)
        parameter = self.bind(text, "String")
        if parsed.base_type in _TIMES:
            return f"parseDateTime64BestEffort({parameter}, {getattr(parsed, 'scale', 0)}, 'UTC')"
        return f"CAST({parameter} AS {kind})"


def _in_utc(kind: str) -> str:
    parsed: Any = parse(kind)
    return "DateTime('UTC')" if parsed.base_type == "DateTime" else f"DateTime64({parsed.scale}, 'UTC')"


def expressions(sorting_key: str) -> tuple[str, ...]:
    """Return the expressions of system.tables.sorting_key, without their directions.

    'toDate(a, b), `c,d` DESC' gives two.
    """
    result, depth, start, quoted = [], 0, 0, ""
    at = 0
    while at < len(sorting_key):
        char = sorting_key[at]
        if quoted:
            if char == "\\":
                at += 1
            elif char == quoted:
                quoted = ""
        elif char in "`'\"":
            quoted = char
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif char == "," and depth == 0:
            result.append(sorting_key[start:at])
            start = at + 1
        at += 1
    result.append(sorting_key[start:])
    return tuple(_DESC.sub("", one).strip() for one in result if one.strip())


def usable(keys: Sequence[tuple[str, str]]) -> tuple[SortingKeyColumn, ...]:
    """Return the leading keys that can form ranges, from (expression, type) pairs.

    A first key that may be NULL or NaN is used alone. A later key of that sort ends the list, as does a type
    whose order is lost as a string.
    """
    result: list[SortingKeyColumn] = []
    for expression, spelled in keys:
        try:
            parsed = parse(spelled)
        except UnsupportedTypeError:
            break
        base = parsed.base_type
        loose = parsed.nullable or base in _FLOATS
        if base not in _PLAIN | _FLOATS | _ENUMS or (loose and result):
            break
        result.append(SortingKeyColumn(expression, _bare(spelled), loose))
        if loose:
            break
    return tuple(result)


def _bare(spelled: str) -> str:
    """Return the type without LowCardinality and Nullable."""
    for wrapper in ("LowCardinality(", "Nullable("):
        if spelled.startswith(wrapper):
            spelled = spelled[len(wrapper) : -1]
    return spelled


def after(keys: Sequence[Json], low: Sequence[str], bound: SqlParameters) -> str:
    """Return SQL for `keys >= low` in the order of the key.

    It uses AND and OR, because the server does not prune by a comparison of tuples.
    """
    terms, equal = [], ""
    for place, (key, text) in enumerate(zip(keys, low, strict=True)):
        value = bound.value(text, key["kind"])
        last = place == len(low) - 1
        terms.append(f"{equal}{key['expression']} {'>=' if last else '>'} {value}")
        equal += f"{key['expression']} = {value} AND "
    if len(terms) == 1:
        return terms[0]
    first = f"{keys[0]['expression']} >= {bound.value(low[0], keys[0]['kind'])}"
    return f"({first} AND (({') OR ('.join(terms)})))"


def before(keys: Sequence[Json], high: Sequence[str], bound: SqlParameters) -> str:
    """Return SQL for `keys < high` in the order of the key."""
    terms, equal = [], ""
    for key, text in zip(keys, high, strict=True):
        value = bound.value(text, key["kind"])
        terms.append(f"{equal}{key['expression']} < {value}")
        equal += f"{key['expression']} = {value} AND "
    if len(terms) == 1:
        return terms[0]
    first = f"{keys[0]['expression']} <= {bound.value(high[0], keys[0]['kind'])}"
    return f"({first} AND (({') OR ('.join(terms)})))"


def in_range(part: Mapping[str, Any], bound: SqlParameters) -> str:
    """Return SQL for the rows of one split by its key range; `part` has keys, low, high and unplaced."""
    keys = part["keys"]
    if part["unplaced"]:
        return SortingKeyColumn(**keys[0]).unplaced_condition()
    result = []
    if keys and keys[0]["loose"]:
        result.append(f"NOT {SortingKeyColumn(**keys[0]).unplaced_condition()}")
    if part["low"] is not None:
        result.append(after(keys, part["low"], bound))
    if part["high"] is not None:
        result.append(before(keys, part["high"], bound))
    return " AND ".join(result) or "1"


def has_topic_offset_sql(cut: Mapping[str, Any], bound: SqlParameters) -> str:
    """Return SQL for the rows with partition and offset of the handoff filter's topic; never NULL."""
    placed = f"isNotNull({quote(cut['partition_column'])}) AND isNotNull({quote(cut['offset_column'])})"
    if "topic_column" not in cut:
        return f"({placed})"
    return (
        f"({placed} AND ifNull(toString({quote(cut['topic_column'])}) ="
        f" {bound.bind(cut['topic'], 'String')}, 0))"
    )


def in_scope(common: Mapping[str, Any], bound: SqlParameters) -> str:
    """Return SQL for the conditions of all splits: the partition, `start_at` and the handoff filter.

    The stream reads a partition without a handoff position from its beginning, so history leaves it out.
    """
    result = []
    if window := common["window"]:
        column, first = quote(window["column"]), bound.literal(window["start"], window["kind"])
        if window["start"] == window["end"]:
            result.append(f"{column} = {first}")
        else:
            result.append(f"{column} >= {first}")
            result.append(f"{column} < {bound.literal(window['end'], window['kind'])}")
    if start := common["start"]:
        result.append(f"{start['expression']} >= {bound.literal(start['at'], start['kind'])}")
    if cut := common["cut"]:
        partition, offset = quote(cut["partition_column"]), quote(cut["offset_column"])
        names = bound.bind([int(name) for name in cut["fence"]], "Array(Int64)")
        fences = bound.bind(list(cut["fence"].values()), "Array(Int64)")
        fence = f"arrayElement({fences}, indexOf({names}, assumeNotNull(toInt64({partition}))))"
        result.append(f"(NOT {has_topic_offset_sql(cut, bound)} OR toInt64({offset}) < {fence})")
    return " AND ".join(result) or "1"


def by_offset(cut: Mapping[str, Any], bound: SqlParameters) -> list[str]:
    """Return SQL that orders rows by topic partition and offset, as `_gs_pos` does.

    Rows without a position in the topic come first.
    """
    placed = has_topic_offset_sql(cut, bound)
    return [
        f"if({placed}, toInt64(ifNull({quote(cut[name])}, -1)), -1)"
        for name in ("partition_column", "offset_column")
    ]

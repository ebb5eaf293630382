"""Read-only SQL over the table of a sink, for the checks that a file declares."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from headrace.pipeline.protocol.epochs import CommitRecord

Dialect = Literal["spark", "postgres", "clickhouse"]


class ColumnKind(StrEnum):
    """What a check can do with a column."""

    INTEGER = "integer"
    DECIMAL = "decimal"
    FLOAT = "float"
    DATE = "date"
    TIMESTAMP = "timestamp"
    LOCAL_TIMESTAMP = "timestamp without time zone"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class QueryColumn:
    """A column of a target: its type as the system spells it, and what a check can do with it."""

    type: str
    kind: ColumnKind


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The column names and the rows of a result, in the driver."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


@dataclass(frozen=True, slots=True)
class TargetQuery:
    """SQL over one snapshot of a target, except in ClickHouse, which has none.

    `table` is the table in SQL, with everything that readers of the target need, such as FINAL. `fetch` runs
    one SELECT. It raises TargetError or TransientError, or an error of Spark.
    """

    dialect: Dialect
    table: str
    columns: Mapping[str, QueryColumn]
    fetch: Callable[[str], QueryResult]
    record: CommitRecord | None
    """The commit record of the same snapshot."""
    is_shared: bool = False
    """Whether other pipelines write the target too."""
    close: Callable[[], None] = lambda: None

    def quote(self, name: str) -> str:
        """Return a column's name as SQL."""
        if self.dialect == "postgres":
            return '"' + name.replace('"', '""') + '"'
        if self.dialect == "clickhouse":
            name = name.replace("\\", "\\\\")
        return "`" + name.replace("`", "``") + "`"


_POSTGRES = {
    "smallint": ColumnKind.INTEGER,
    "integer": ColumnKind.INTEGER,
    "bigint": ColumnKind.INTEGER,
    "numeric": ColumnKind.DECIMAL,
    "real": ColumnKind.FLOAT,
    "double precision": ColumnKind.FLOAT,
    "date": ColumnKind.DATE,
    "timestamp with time zone": ColumnKind.TIMESTAMP,
    "timestamp without time zone": ColumnKind.LOCAL_TIMESTAMP,
}
_SPARK = {
    "tinyint": ColumnKind.INTEGER,
    "smallint": ColumnKind.INTEGER,
    "int": ColumnKind.INTEGER,
    "bigint": ColumnKind.INTEGER,
    "decimal": ColumnKind.DECIMAL,
    "float": ColumnKind.FLOAT,
    "double": ColumnKind.FLOAT,
    "date": ColumnKind.DATE,
    "timestamp": ColumnKind.TIMESTAMP,
    "timestamp_ntz": ColumnKind.LOCAL_TIMESTAMP,
}
_CLICKHOUSE = (
    (r"U?Int\d+", ColumnKind.INTEGER),
    (r"Decimal\d*\(.*\)", ColumnKind.DECIMAL),
    (r"Float\d+", ColumnKind.FLOAT),
    (r"Date|Date32", ColumnKind.DATE),
    (r"DateTime(64)?(\(.*\))?", ColumnKind.TIMESTAMP),
)


def to_query_column(dialect: Dialect, type_name: str) -> QueryColumn:
    """Return the column of a type as its system spells it."""
    if dialect == "clickhouse":
        inner = re.sub(r"^(?:LowCardinality\(|Nullable\()+(.*?)\)+$", r"\1", type_name)
        inner += ")" * (inner.count("(") - inner.count(")"))
        kind = next((kind for text, kind in _CLICKHOUSE if re.fullmatch(text, inner)), ColumnKind.OTHER)
        return QueryColumn(type_name, kind)
    plain = " ".join(re.sub(r"\([^)]*\)", " ", type_name).split())
    kinds = _POSTGRES if dialect == "postgres" else _SPARK
    return QueryColumn(type_name, kinds.get(plain, ColumnKind.OTHER))

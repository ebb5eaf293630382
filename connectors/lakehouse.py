"""Whether a table of files can store the rows of a sink."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.connectors.filters import quote_identifier
from headrace.connectors.schema_evolution import log_added_columns
from headrace.pipeline.errors import TargetError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType, StructType

_WIDENS = {"tinyint": 1, "smallint": 2, "int": 3, "bigint": 4}


def find_schema_mismatches(
    table: StructType, wanted: Mapping[str, DataType], key: tuple[str, ...]
) -> list[str]:
    """Return messages for everything that keeps a table from taking rows with the `wanted` columns."""
    have = {field.name.lower(): field for field in table}
    wrong: list[str] = []
    for name, rows in wanted.items():
        field = have.get(name.lower())
        if field is None:
            wrong.append(f"column {quote_identifier(name)} ({rows.simpleString()}) is missing")
        elif not holds_every_value(field.dataType, rows):
            wrong.append(
                f"column {quote_identifier(name)} is {field.dataType.simpleString()}, the rows have"
                f" {rows.simpleString()}"
            )
    brought = {name.lower() for name in wanted}
    wrong += [
        f"column {quote_identifier(field.name)} is NOT NULL and no row has a value for it"
        for field in table
        if not field.nullable and field.name.lower() not in brought
    ]
    return wrong + [
        f"key column {quote_identifier(name)} is not among the rows' columns"
        for name in key
        if name.lower() not in brought
    ]


def fit_columns(
    read_columns: Callable[[], StructType],
    schema: pa.Schema,
    key: tuple[str, ...],
    type_of: Callable[[pa.DataType], DataType],
    find_new: Callable[[Iterable[str]], list[pa.Field]],
    add_columns: Callable[[Sequence[pa.Field]], None] | None,
) -> list[str]:
    """Return messages for everything that keeps a table from taking rows of a schema.

    `type_of` returns the type of a column of the table. `add_columns` adds the columns of `find_new` first.
    Without it they may be missing.
    """
    columns = read_columns()
    new = find_new(columns.names)
    if new and add_columns is not None:
        add_columns(new)
        columns = read_columns()
    wanted = {
        field.name: type_of(field.type) for field in schema if add_columns is not None or field not in new
    }
    return find_schema_mismatches(columns, wanted, key)


def add_columns(
    session: SparkSession,
    sink: str,
    table: str,
    type_of: Callable[[pa.DataType], str],
    columns: Sequence[pa.Field],
) -> None:
    """Add columns to a table of files, by its quoted name. `type_of` returns their types as DDL.

    No file is rewritten. A concurrent process may do the same: the check of the columns that follows decides.
    Raise TargetError for names that the table refuses.
    """
    from pyspark.errors import PySparkException

    declared = ", ".join(f"{quote_identifier(field.name)} {type_of(field.type)}" for field in columns)
    try:
        session.sql(f"ALTER TABLE {table} ADD COLUMNS ({declared})")
    except PySparkException as error:
        if "ALREADY_EXISTS" in (error.getCondition() or ""):
            return
        msg = f"cannot add columns ({declared}) to {table}: {str(error).splitlines()[0]}"
        hint = "Add them by hand (ALTER TABLE), or rename them in a transform."
        raise TargetError(msg, hint=hint, node=sink) from error
    log_added_columns(sink, table, columns)


def holds_every_value(table: DataType, rows: DataType) -> bool:
    """Return whether a table's type can store every value of the rows' type."""
    from pyspark.sql import types as T  # noqa: N812

    if table == rows or table.simpleString() == rows.simpleString():
        return True
    mine, its = _WIDENS.get(rows.simpleString()), _WIDENS.get(table.simpleString())
    if mine and its:
        return mine <= its
    if isinstance(table, T.DecimalType) and isinstance(rows, T.DecimalType):
        return table.scale >= rows.scale and table.precision - table.scale >= rows.precision - rows.scale
    return isinstance(table, T.DoubleType) and isinstance(rows, T.FloatType)

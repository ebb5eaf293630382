"""The given rows of a test, cast strictly to types, as the input of an epoch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from headrace.connectors.kafka.json_decoder import payload_schema
from headrace.connectors.kafka.message_format import declared_columns
from headrace.connectors.local_relation import frame_of_table
from headrace.connectors.spark_types import POS_ARROW, arrow_schema, spark_schema
from headrace.jobs.dynamic_tables.base import DynamicTableBackend, ValueLookup, texts
from headrace.jobs.dynamic_tables.broadcast import BroadcastLookup, ValueSegment
from headrace.jobs.sources.pipeline_source import stream_node
from headrace.jobs.testing.formatting import plain
from headrace.pipeline.errors import DataError, PipelineFileError, UserError
from headrace.pipeline.model import graph
from headrace.pipeline.protocol.epochs import EpochPlan
from headrace.pipeline.sql.system_columns import HIDDEN, OP, POS
from headrace.pipeline.suggestions import suggest_closest
from headrace.pipeline.testcases.loader import Case
from headrace.pipeline.testcases.rows import Rows
from headrace.pipeline.testcases.values import fit, infer
from headrace.pipeline.types.arrow import spark_type
from headrace.pipeline.types.int256 import is_wide, plain_digits, storage_schema
from headrace.pipeline.yaml.reader import shorten

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class InputTable(DynamicTableBackend):
    """A dynamic table of a test: the given values, then those that its SQL adds. It is stored nowhere."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        self.values: dict[str, None] = dict.fromkeys(values)

    def prepare(self) -> None:
        """See `DynamicTableBackend`."""

    def fill(self, plan: EpochPlan, values: pa.Array) -> None:
        """See `DynamicTableBackend`."""
        del plan
        self.values |= dict.fromkeys(values.to_pylist())

    def lookup(self, plan: EpochPlan) -> ValueLookup:
        """See `DynamicTableBackend`."""
        del plan
        return BroadcastLookup((), ValueSegment(texts(list(self.values))))


def stream_of(source: Any) -> Any:
    """Return the topic of a source node, which declares its columns.

    None for tables and files, whose columns only the server or the files know.
    """
    stream = stream_node(source)
    return stream if hasattr(stream, "data_format") else None


def file_schema(name: str, source: Any) -> pa.Schema | None:
    """Return the columns of a source that the pipeline file declares, or None."""
    stream = stream_of(source)
    return declared_columns(name, stream) if stream is not None else None


def declared_schema(case: Case, name: str, rows: Rows) -> pa.Schema:
    """Return the columns of a given node that only the test declares, by its `schema` or by the rows.

    Raises PipelineFileError if the rows of one column have incompatible types.
    """
    declared = case.node.given[name].schema_
    if declared is not None:
        return payload_schema(name, declared, metadata=False)
    if rows.schema is not None:
        return _as_spark(pa.schema([field for field in rows.schema if field.name != OP]))
    fields, problems = [], []
    for column in rows.columns:
        kind = infer(record.get(column) for record in rows.records)
        if kind is None:
            msg = (
                f"test `{case.name}`: the type of column `{column}` cannot be inferred: its values are of"
                " several types"
            )
            hint = f"Add `schema: {{{column}: string}}`, or another type, next to the rows."
            problems.append(UserError(msg, hint=hint, node=name, place=rows.start))
        elif column != OP:
            fields.append(pa.field(column, kind))
    if problems:
        raise PipelineFileError(problems)
    if not fields:
        msg = f"test `{case.name}`: no columns are known of `{name}`"
        raise PipelineFileError(
            [
                UserError(
                    msg, hint="Add `schema:` with its columns next to the rows.", node=name, place=rows.start
                )
            ]
        )
    return pa.schema(fields)


def _as_spark(schema: pa.Schema) -> pa.Schema:
    """Return the columns of a Parquet file in types that Spark has.

    Unsigned integers widen, times become strings.
    """
    from pyspark.sql.types import StructType

    columns = ", ".join(f"`{field.name.replace('`', '``')}` {spark_type(field.type)}" for field in schema)
    return arrow_schema(cast("StructType", StructType.fromDDL(columns)))


def build_input_table(case: Case, name: str, rows: Rows, schema: pa.Schema, ordinal: int) -> pa.Table:
    """Return the rows with operation and position. `ordinal` is the index of the source in `_gs_pos`.

    Raises PipelineFileError for columns that the node does not have. Raises DataError with all values that do
    not fit.
    """
    check_columns(case, name, rows, [*schema.names, OP])
    cells, wrong = cast_rows(rows, schema)
    operations = [record.get(OP) or "i" for record in rows.records]
    check_operations(case, name, rows)
    if wrong:
        reasons = [
            f"row {row + 1}, column `{column}`: {reason} ({rows.place(row, column)})"
            for row, column, reason in wrong
        ]
        raise DataError(
            f"test `{case.name}`: " + "\n".join(reasons),
            node=name,
            place=rows.place(wrong[0][0], wrong[0][1]),
        )
    places = [{"source": ordinal, "part": 0, "off": index, "sub": 0} for index in range(len(cells))]
    arrays = [
        pa.array([to_row_value(row[field.name], field.type) for row in cells], kind.type)
        for field, kind in zip(schema, storage_schema(schema), strict=True)
    ]
    hidden = [pa.array(operations, pa.string()), pa.array(places, POS_ARROW)]
    return pa.table(
        [*arrays, *hidden],
        schema=pa.schema([*storage_schema(schema), pa.field(OP, pa.string()), pa.field(POS, POS_ARROW)]),
    )


def to_row_value(value: Any, kind: pa.DataType) -> Any:
    """Return a value as rows store it. Numbers that are too large for Spark are strings of digits."""
    return plain_digits(plain(value)) if is_wide(kind) and value is not None else value


def check_computable(case: Case, known: Mapping[str, Any]) -> None:
    """Raise PipelineFileError for expected nodes that depend on a source whose columns are unknown."""
    problems = []
    for name in case.node.expect:
        if name not in known:
            lacking = [
                source for source in graph.upstream_sources(case.file.model, name) if source not in known
            ]
            msg = (
                f"test `{case.name}`: `{name}` reads {', '.join(lacking)}, whose columns only a server knows"
            )
            hint = f"Give `{lacking[0]}` rows, or `rows: []` and `schema:`."
            problems.append(UserError(msg, hint=hint, place=case.place("expect", name)))
    if problems:
        raise PipelineFileError(problems)


def cast_rows(rows: Rows, schema: pa.Schema) -> tuple[list[dict[str, Any]], list[tuple[int, str, str]]]:
    """Return the rows in the types of `schema`, with null for missing columns.

    Also returns (row, column, reason) for every value that does not fit.
    """
    wrong: list[tuple[int, str, str]] = []

    def cell(index: int, column: str, value: Any, kind: pa.DataType) -> Any:
        try:
            return fit(value, kind)
        except ValueError as error:
            wrong.append((index, column, str(error)))
            return None

    cast = [
        {field.name: cell(index, field.name, record.get(field.name), field.type) for field in schema}
        for index, record in enumerate(rows.records)
    ]
    return cast, wrong


def check_columns(case: Case, name: str, rows: Rows, known: list[str]) -> None:
    """Raise PipelineFileError for every unknown column of the rows, at its first row."""
    problems = []
    for column in rows.columns:
        if column not in known:
            first = next((index for index, record in enumerate(rows.records) if column in record), 0)
            msg = (
                f"test `{case.name}`: `{name}` has no column"
                f" `{shorten(column)}`{suggest_closest(column, known)}"
            )
            problems.append(
                UserError(msg, hint=f"Columns: {', '.join(known)}.", place=rows.place(first, column))
            )
    if problems:
        raise PipelineFileError(problems)


def check_operations(case: Case, name: str, rows: Rows) -> None:
    """Raise PipelineFileError for operations other than i, u and d in files of rows.

    Those in the test itself were checked when it was loaded.
    """
    problems = [
        UserError(
            f"test `{case.name}`: row {index + 1} of `{name}`: `{OP}` cannot be `{shorten(record[OP])}`",
            hint="Allowed: i, u, d.",
            place=rows.place(index, OP),
        )
        for index, record in enumerate(rows.records)
        if (record.get(OP) or "i") not in ("i", "u", "d")
    ]
    if problems:
        raise PipelineFileError(problems)


def frame_of(spark: SparkSession, table: pa.Table, payload: pa.Schema) -> DataFrame:
    """Return the table as a frame with Spark's types, as the planner analyses them."""
    hidden = [table.schema.field(name) for name in HIDDEN]
    return frame_of_table(spark, table, spark_schema(pa.schema([*payload, *hidden])))

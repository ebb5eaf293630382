"""The rows of files as Spark has them: what tasks read, converted to the columns of the source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.connectors.arrow_partition import UnknownBoundError, find_partition
from headrace.connectors.avro.resolution import END, LAST, VALUE, resolve_blocks
from headrace.connectors.avro.schema import AvroType, parse_record
from headrace.connectors.avro.values import ValueConverter, column_of, has_broken_text
from headrace.connectors.dead_letters import ERROR, REASON
from headrace.connectors.files import reader, text_values
from headrace.connectors.files.arrow_rows import ArrowRowReader, explain_unsupported
from headrace.connectors.files.avro_file import read_header
from headrace.connectors.files.config import FileSourceConfig
from headrace.connectors.files.formats import BLOCK, LINE, TEXT_COLUMN, UNREADABLE, TextOptions
from headrace.connectors.files.listing import MISSING, File, changed_file_error
from headrace.connectors.files.reader import FOLDER, GROUP, OFF, PART, PLACE, FileRange, FileScan
from headrace.connectors.files.schema import FileSchema
from headrace.connectors.files.storage import FileStorage
from headrace.connectors.filters import quote_identifier
from headrace.connectors.kafka.json_decoder import exact_text, guard_record, parse_columns
from headrace.connectors.row_errors import RowConditions
from headrace.connectors.spark_types import spark_schema
from headrace.pipeline.protocol.epochs import Json

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_DECODED, _PLACE, _ROW = "_headrace_avro", "_headrace_place", "_headrace_row"
_REASON, _VALUE = "_headrace_reason", "_headrace_value"
_HINT = "Correct the file."

Tasks = Sequence[Sequence[FileRange]]


@dataclass(frozen=True, slots=True)
class FileDecoder:
    """Converts the rows of one node's files."""

    node: FileSourceConfig
    storage: FileStorage
    name: str

    def rows(self, spark: SparkSession, shape: FileSchema, tasks: Tasks, needed: Sequence[str]) -> DataFrame:
        """Return the needed columns in their types, with PART, GROUP and OFF."""
        if self.node.format != "avro":
            return self._convert_columns(
                reader.read(spark, self.scan(shape, needed), tasks), shape, tasks, needed
            )
        frames = [
            self._convert_columns(
                self._decode_blocks(spark, shape, pieces, needed, schema), shape, pieces, needed
            )
            for schema, pieces in self._by_schema(tasks).items()
        ]
        if not frames:
            columns = [shape.payload.field(name) for name in needed]
            return spark.createDataFrame([], spark_schema(pa.schema([*columns, *PLACE])))
        return reduce(lambda one, other: one.unionByName(other), frames)

    def _by_schema(self, tasks: Tasks) -> Mapping[str, Tasks]:
        """Return the pieces of each task by the schema that their files were written with."""
        files = dict.fromkeys(piece.file for task in tasks for piece in task)
        schemas = {file: self._writer_schema(file) for file in files}
        result: dict[str, list[list[FileRange]]] = {}
        for task in tasks:
            for schema in dict.fromkeys(schemas[piece.file] for piece in task):
                pieces = [piece for piece in task if schemas[piece.file] == schema]
                result.setdefault(schema, []).append(pieces)
        return result

    def _decode_blocks(
        self, spark: SparkSession, shape: FileSchema, tasks: Tasks, needed: Sequence[str], schema: str
    ) -> DataFrame:
        """Return the rows of Avro blocks that were written with a schema."""
        from pyspark.sql import functions as F  # noqa: N812

        written, scan = parse_record(schema), self.scan(shape, needed)
        # Starts the session, before columns are used.
        frame = reader.read(spark, scan, tasks)
        fields = [one for one in written.fields if one.name in needed]
        record = replace(written, fields=tuple(fields or written.fields[:1]))
        hidden = [*(f"{FOLDER}{at}" for at in range(len(scan.folders))), PART, GROUP]
        where = {"file": reader.path_of(tasks), "row": reader.row_of(tasks)}
        checks, rows = RowConditions(self.name), column_of(VALUE, _DECODED)
        fits = F.coalesce(column_of(LAST, _DECODED) == F.lit(bytearray(END)), F.lit(False)) & rows.isNotNull()
        what = "the block that begins here does not fit the schema of its file"
        required = [checks.require(fits, what, _HINT, **where)]
        if (broken := has_broken_text(rows, AvroType("array", items=record))) is not None:
            what = "the block that begins here has a text that is not UTF-8"
            required.append(checks.require(~broken, what, _HINT, **where))
        frame = frame.select(*hidden, OFF, _read_array(record, written).alias(_DECODED))
        frame = frame.select(*hidden, OFF, F.posexplode(checks.guard(rows, *required)).alias(_PLACE, _ROW))
        frame = frame.select(*hidden, (F.col(OFF) + F.col(_PLACE)).alias(OFF), _ROW)
        convert = ValueConverter(RowConditions(self.name), where, _HINT).convert
        types = {field.name: field.dataType for field in spark_schema(shape.inner)}
        columns = [
            convert(column_of(one.name, _ROW), one.type, one.name).cast(types[one.name]).alias(one.name)
            for one in fields
        ]
        return frame.select(*hidden, OFF, *columns)

    def scan(self, shape: FileSchema, needed: Sequence[str]) -> FileScan:
        """Return the scan of the needed columns."""
        kind, node = self.node.format, self.node
        inner = [field for field in shape.inner if field.name in needed]
        if not inner and kind == "csv":
            inner = [shape.inner.field(0)]  # Arrow reads all columns if none is requested
        if kind in ("json", "text", "avro"):
            inner = [pa.field(BLOCK if kind == "avro" else LINE, pa.binary())]
        elif kind == "csv":
            inner = [pa.field(field.name, pa.string()) for field in inner]
        return FileScan(
            node=self.name,
            format=kind,
            columns=pa.schema(inner),
            folders=tuple(name for name in shape.folders if name in needed),
            text=TextOptions(tuple(shape.inner.names), node.header, node.delimiter, node.null_value),
            storage=self.storage,
        )

    def arrow_rows(self, shape: FileSchema, names: Sequence[str], scope: Json) -> ArrowRowReader | None:
        """Return what reads the rows of a scope without Spark, or None if only Spark can."""
        declared = {name: self.node.schema_[name] for name in shape.inner.names if name in self.node.schema_}
        if self.node.filter or explain_unsupported(self.node.format, declared, shape.folders):
            return None
        try:
            partition = find_partition(scope, shape.payload)
        except UnknownBoundError:
            return None
        needed = {*names, *([partition.column] if partition else [])}
        return ArrowRowReader(
            scan=self.scan(shape, [name for name in shape.payload.names if name in needed]),
            payload=shape.payload,
            names=tuple(names),
            declared=declared,
            folders={name: shape.payload.field(name).type for name in shape.folders if name in needed},
            partition=partition,
        )

    def rows_with_errors(
        self, spark: SparkSession, shape: FileSchema, tasks: Tasks, key: Sequence[str]
    ) -> DataFrame:
        """Return all columns with OFF and `dead_letters.ERROR`, of csv, json and text files.

        A row is rejected if a value does not fit, or if a column of `key` is NULL.
        """
        from pyspark.sql import functions as F  # noqa: N812

        names = shape.payload.names
        frame = reader.read(spark, self.scan(shape, names), tasks)
        frame = self._convert_columns(frame, shape, tasks, names, with_errors=True)
        checks, wanted = RowConditions(self.name, collect=True), {name.lower() for name in key}
        for name in names:
            if name.lower() in wanted:
                is_there = F.col(quote_identifier(name)).isNotNull()
                checks.require(is_there, f"the key column `{name}` is NULL", _HINT)
        reason = F.coalesce(F.col(_REASON), checks.reason())
        # It may quote any text of the file. Not every sink takes a NUL.
        reason = F.translate(F.make_valid_utf8(reason), "\0", "\ufffd")
        original = [reader.path_of(tasks), reader.row_of(tasks), F.col(_VALUE)]
        named = zip(original, FileSourceConfig.error_columns, strict=True)
        result = F.struct(reason.alias(REASON), *[column.alias(name) for column, name in named])
        error = F.when(reason.isNotNull(), result).alias(ERROR)
        return frame.select(*map(quote_identifier, names), OFF, error)

    def _convert_columns(
        self,
        frame: DataFrame,
        shape: FileSchema,
        tasks: Tasks,
        needed: Sequence[str],
        *,
        with_errors: bool = False,
    ) -> DataFrame:
        """Return the columns of files and folders in their types.

        A value that does not fit fails the task. `with_errors`, it is NULL, with a reason and the original.
        """
        from pyspark.sql import functions as F  # noqa: N812

        kind, scan = self.node.format, self.scan(shape, needed)
        inner = [field for field in shape.inner if field.name in needed]
        where = {"file": reader.path_of(tasks), "row" if kind in _RECORDS else "line": reader.row_of(tasks)}
        hidden = [*(f"{FOLDER}{at}" for at in range(len(scan.folders))), PART, GROUP, OFF]
        checks = RowConditions(self.name, collect=with_errors)
        original = F.col(LINE)
        if kind == "json":
            frame, columns = self._objects(frame, shape, hidden, where, checks)
        elif kind == "csv":
            declared = self.node.schema_
            columns = [
                text_values.value(checks, field.name, field.name, declared[field.name], where)
                for field in inner
            ]
            fields = F.struct(*[quote_identifier(field.name) for field in inner])
            original = F.to_json(fields, {"ignoreNullFields": "false"}).cast("binary")
        elif kind == "text":
            columns = [_text(checks, where) for _ in inner]
        else:
            columns = [F.col(quote_identifier(field.name)) for field in inner]
        columns += [
            text_values.value(checks, f"{FOLDER}{at}", name, shape.folders[name], {"file": where["file"]})
            for at, name in enumerate(scan.folders)
        ]
        if not with_errors:
            return frame.select(*columns, PART, GROUP, OFF)
        reason = F.coalesce(F.col(_REASON), checks.reason()) if kind == "json" else checks.reason()
        return frame.select(*columns, PART, GROUP, OFF, reason.alias(_REASON), original.alias(_VALUE))

    def _objects(
        self,
        frame: DataFrame,
        shape: FileSchema,
        hidden: Sequence[str],
        where: Mapping[str, Column],
        checks: RowConditions,
    ) -> tuple[DataFrame, list[Column]]:
        """Return the objects of JSON lines, each checked as a whole. Blank lines are skipped.

        The rules are those of `kafka.json_decoder`. If `checks` are collected, a row has its reason.
        """
        from pyspark.sql import functions as F  # noqa: N812

        declared = {name: self.node.schema_[name] for name in shape.inner.names}
        value = F.col(LINE)
        kept = [*hidden, *([LINE] if checks.collect else [])]
        lines = frame.where(F.trim(value.cast("string")) != "").select(
            *kept, value.alias("value"), *parse_columns(value, declared)
        )
        of_object = RowConditions(self.name, collect=checks.collect)
        row = guard_record(of_object, declared, where, "line", "Correct the file")
        text = F.col("text").alias("_headrace_text")
        if checks.collect:
            split = F.struct(of_object.reason().alias(_REASON), row.alias(_ROW))
            result = lines.select(*kept, text, F.inline(F.array(split)))
            result = result.select(*kept, "_headrace_text", _REASON, f"{_ROW}.*")
        else:
            result = lines.select(*kept, text, F.inline(F.array(row)))
        return result, [
            exact_text(field.name) if pa.types.is_string(field.type) else F.col(quote_identifier(field.name))
            for field in shape.inner
        ]

    def _writer_schema(self, file: File) -> str:
        """Return the schema in the header of an Avro file."""
        try:
            with self.storage.open(file) as opened:
                return read_header(opened.stream).schema
        except FileNotFoundError:
            raise changed_file_error(file.path, MISSING, self.name) from None
        except UNREADABLE as error:
            raise reader.unreadable(file.path, "avro", error, self.name) from error


_RECORDS = ("csv", "parquet", "orc", "avro")
"""Formats whose rows are not lines."""


def _text(checks: RowConditions, where: Mapping[str, Column]) -> Column:
    """Return the line of a text file as text."""
    from pyspark.sql import functions as F  # noqa: N812

    text = F.col(LINE).cast("string")
    is_text = checks.require(F.is_valid_utf8(text), "the line is not UTF-8", _HINT, **where)
    return checks.guard(text, is_text).alias(TEXT_COLUMN)


def _read_array(record: AvroType, written: AvroType) -> Column:
    """Return the records of a block, followed by `END`. It is NULL for bytes that do not fit."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.avro.functions import from_avro

    pair = resolve_blocks(written, record)
    options = {"mode": "PERMISSIVE", "avroSchema": pair.reader, "datetimeRebaseMode": "CORRECTED"}
    return from_avro(F.concat(F.col(BLOCK), F.lit(bytearray(END))), pair.writer, options)

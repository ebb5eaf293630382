"""The columns of files: from the files, or from the node's schema (csv, json), and from partition folders."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import types as kinds

from headrace.connectors.files import reader
from headrace.connectors.files.config import FileSourceConfig
from headrace.connectors.files.formats import format_reader
from headrace.connectors.files.listing import File
from headrace.connectors.files.storage import FileStorage
from headrace.connectors.filters import check_columns
from headrace.pipeline.errors import SchemaError
from headrace.pipeline.sql.system_columns import HIDDEN
from headrace.pipeline.types.arrow import parse_type, spark_type
from headrace.pipeline.types.int256 import is_wide

_WIDER = (pa.int8(), pa.int16(), pa.int32(), pa.int64())


@dataclass(frozen=True, slots=True)
class FileSchema:
    """`inner` are the columns in the files, with Spark's types; `folders` the types of partition folders."""

    inner: pa.Schema
    folders: dict[str, str]

    @property
    def payload(self) -> pa.Schema:
        """All columns, with those of the folders last."""
        return pa.schema(
            [*self.inner, *[pa.field(name, plain(parse_type(kind))) for name, kind in self.folders.items()]]
        )

    def pack(self) -> str:
        """Return `inner` as a string for a handle."""
        return base64.b64encode(zlib.compress(self.inner.serialize().to_pybytes(), 9)).decode()


def narrow_schema(shape: FileSchema, wanted: Sequence[str], path: str, node: str) -> pa.Schema:
    """Return the wanted columns, or all. Raise SchemaError for one that the files lack."""
    check_columns(shape.payload.names, wanted, path, node)
    return pa.schema([shape.payload.field(name) for name in wanted or shape.payload.names])


def declared_schema(node: FileSourceConfig, name: str, folders: Collection[str] = ()) -> FileSchema:
    """Return the columns of `schema`. Those in `folders` are the columns of partition folders."""
    own = {column: kind for column, kind in node.schema_.items() if column in folders}
    shape = FileSchema(_declared_schema(node, own, name), {})
    _check_names(shape, name)
    return FileSchema(pa.schema([field for field in shape.inner if field.name not in own]), own)


def unpack(text: str) -> pa.Schema:
    """Restore the schema from the result of `FileSchema.pack`."""
    return pa.ipc.read_schema(pa.py_buffer(zlib.decompress(base64.b64decode(text))))


def shape_of(
    node: FileSourceConfig,
    storage: FileStorage,
    files: Sequence[File],
    name: str,
    inner: pa.Schema | None = None,
) -> FileSchema:
    """Return the columns of these files; `inner` is passed if it is known already.

    Raise SchemaError for columns that cannot be read, and DataError for a file of another format.
    """
    folders = {column: node.schema_.get(column, "string") for column in files[0].partitions}
    has_columns = format_reader(node.format).has_columns
    if inner is None:
        result = _own(node, storage, files[0], name) if has_columns else _declared_schema(node, folders, name)
        inner = pa.schema([field for field in result if field.name not in folders])
    shape = FileSchema(inner, folders)
    _check_names(shape, name)
    if has_columns:
        _agrees(node, shape, files[0], name)
    return shape


def _check_names(shape: FileSchema, name: str) -> None:
    """Raise SchemaError for a column that is there twice, or has a name of Headrace's own."""
    seen: set[str] = set()
    for column in shape.payload.names:
        if column.lower() in HIDDEN or column.lower() in seen:
            msg = (
                f"`{column}` is a name that Headrace keeps for itself"
                if column.lower() in HIDDEN
                else f"column `{column}` is there twice"
            )
            raise SchemaError(
                msg, hint="Rename the column in the files, or where `schema` declares it.", node=name
            )
        seen.add(column.lower())


def _own(node: FileSourceConfig, storage: FileStorage, file: File, name: str) -> pa.Schema:
    """Return the columns of a file, in Spark's types."""
    result = reader.read_contents(storage, file, node.format, name).columns
    return pa.schema([pa.field(field.name, plain(field.type)) for field in result])


def _declared_schema(node: FileSourceConfig, folders: dict[str, str], name: str) -> pa.Schema:
    fields = []
    for column, kind in node.schema_.items():
        result = parse_type(kind)
        if kinds.is_duration(result) or kinds.is_interval(result) or is_wide(result):
            msg = f"column `{column}`: {node.format} files cannot carry {kind}"
            raise SchemaError(
                msg,
                hint="Declare it as string and convert it in a transform; numbers have up to 38 digits.",
                node=name,
            )
        fields.append(pa.field(column, plain(result)))
    if not set(node.schema_) - set(folders):
        msg = "`schema` names no column that is in the files themselves"
        raise SchemaError(msg, hint="Add the files' columns and their types, such as `id: int64`.", node=name)
    return pa.schema(fields)


def _agrees(node: FileSourceConfig, shape: FileSchema, file: File, name: str) -> None:
    """Raise SchemaError if `schema`, which is optional for files with columns, contradicts them."""
    for column, kind in node.schema_.items():
        wanted, result = (
            plain(parse_type(kind)),
            shape.payload.field(column).type if column in shape.payload.names else None,
        )
        if result != wanted:
            text = f"has no column `{column}`" if result is None else f"holds `{column}` as {result}"
            msg = f"`schema` declares `{column}: {kind}`, but `{file.path}` {text}"
            raise SchemaError(
                msg,
                hint=f"Correct `schema`, or leave it out. The file has: {', '.join(shape.payload.names)}.",
                node=name,
            )


def check_file(file: File, schema: pa.Schema, wanted: pa.Schema, name: str) -> None:
    """Raise SchemaError if a file lacks a column or has it in a type unlike the first file's."""
    for field in wanted:
        at = schema.get_field_index(field.name)
        result = plain(schema.field(at).type) if at >= 0 else None
        if result is None or not _fits(result, field.type):
            text = (
                f"lacks the column `{field.name}`"
                if result is None
                else f"holds `{field.name}` as {result}, not as {field.type}"
            )
            msg = f"`{file.path}` {text}, unlike the first file"
            raise SchemaError(
                msg,
                hint="List the columns that all files have under `columns`, or read the files in parts.",
                node=name,
            )


def _fits(kind: pa.DataType, wanted: pa.DataType) -> bool:
    if kind == wanted:
        return True
    if kind in _WIDER and wanted in _WIDER:
        return _WIDER.index(kind) < _WIDER.index(wanted)
    if kinds.is_decimal(kind) and kinds.is_decimal(wanted):
        return wanted.scale >= kind.scale and wanted.precision - wanted.scale >= kind.precision - kind.scale
    return kind == pa.float32() and wanted == pa.float64()


def plain(kind: pa.DataType) -> pa.DataType:
    """Return the type that Spark returns: unsigned types are wider, times and big decimals are strings.

    Python decides, so that a pipeline of files can start without a JVM.
    """
    from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
    from pyspark.sql.types import StructField, StructType

    result = from_arrow_type(_widen(kind), prefer_timestamp_ntz=True)
    return to_arrow_schema(StructType([StructField("c", result)])).field(0).type


_WIDER_IN_SPARK = {
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "DECIMAL(20,0)": pa.decimal128(20, 0),
    "FLOAT": pa.float32(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "STRING": pa.string(),
}
"""The types of `spark_type` for which Arrow has several spellings."""


def _widen(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.ExtensionType):
        kind = kind.storage_type
    if kinds.is_dictionary(kind):
        return _widen(kind.value_type)
    if kinds.is_struct(kind):
        return pa.struct([field.with_type(_widen(field.type)) for field in kind])
    if kinds.is_map(kind):
        return pa.map_(_widen(kind.key_type), _widen(kind.item_type))
    if kinds.is_nested(kind):
        return pa.list_(_widen(kind.value_type))
    return _WIDER_IN_SPARK.get(spark_type(kind), kind)

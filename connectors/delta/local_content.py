"""The rows of a local Delta table for the content check, read without Spark."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyarrow import types as kinds

from headrace.connectors.content import TargetContent
from headrace.connectors.delta.data_files import may_contain
from headrace.connectors.delta.local_snapshot import LocalSnapshot
from headrace.connectors.delta.split_reader import DeltaSplitReader
from headrace.connectors.lakehouse_rows import bounds_of
from headrace.connectors.local_rows import collect_rows
from headrace.connectors.spark_types import arrow_schema
from headrace.pipeline.protocol.epochs import CommitRecord
from headrace.pipeline.types.arrow import is_nested


def read_local_content(
    node: str,
    version: LocalSnapshot,
    record: CommitRecord,
    columns: Sequence[str],
    key: Sequence[str],
    *,
    is_whole: bool,
) -> TargetContent | None:
    """Return the rows of a version, or a lookup by `key` if it is not to be read as a whole.

    Return None if only Spark reads its files or finds its keys, or if the rows are too large for the driver.
    """
    every = arrow_schema(version.read_columns())
    names = {name.lower(): name for name in every.names}
    if any(name.lower() not in names for name in columns):
        return None
    schema = pa.schema([every.field(names[name.lower()]).with_name(name) for name in columns])
    reader = DeltaSplitReader(node, schema, splits=(), files=version.files)
    if any(is_nested(field.type) for field in schema) or not reader.is_readable():
        return None
    if not is_whole:
        if any(kinds.is_floating(schema.field(name).type) for name in key):  # zero and NaN have several forms
            return None
        return TargetContent(record, None, tuple(columns), lookup=lambda keys: _find_rows(reader, keys))
    rows = collect_rows(reader.read_all(), schema)
    return None if rows is None else TargetContent(record, None, tuple(columns), rows)


def _find_rows(reader: DeltaSplitReader, keys: pa.Table) -> pa.Table:
    """Return the rows of these keys. Files that have none of them by their statistics are not read."""
    wanted = keys.cast(pa.schema([reader.schema.field(name) for name in keys.column_names]))
    bounds = bounds_of(wanted, tuple(keys.column_names))
    result = [reader.schema.empty_table()]
    for file in reader.files.values():
        if all(may_contain(file.statistics, name, *ends) for name, ends in bounds.items()):
            result += [
                pa.Table.from_batches([batch]).join(wanted, keys.column_names, join_type="left semi")
                for batch in reader.read_file(file)
            ]
    return pa.concat_tables(result)

"""Writes stored results: each Spark task writes rows to a durable Parquet file."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.connectors.durable_files import sync_to_disk
from headrace.connectors.row_errors import task_error
from headrace.pipeline.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa

TASK_RESULT = "file string, rows bigint, bytes bigint"
"""The result of a task."""


@dataclass(frozen=True)
class StoreResultsTask:
    """The work of a Spark task: writes its rows to its own file, durably, before it returns. Picklable."""

    node: str
    folder: str
    root: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows and yield one row: file, rows, bytes.

        If a task runs twice, only the winner's row arrives, so only its file counts.
        """
        name = result_file_name()
        path = Path(self.folder) / name
        try:
            rows, size = write_parquet(batches, path)
            if rows:
                sync_to_disk(path)
        except OSError as error:
            raise task_error(storage_error(self.node, self.root, error)) from None
        yield describe_result(name, rows, size)


def result_file_name() -> str:
    """Return the name of the file that this task writes. Each attempt of a task has another one."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return (
        f"part-{context.partitionId():05}-{context.taskAttemptId()}.parquet"
        if context
        else f"part-{secrets.token_hex(8)}.parquet"
    )


def describe_result(name: str, rows: int, size: int) -> pa.RecordBatch:
    """Return the row that a task returns: file, rows, bytes."""
    import pyarrow as pa

    return pa.RecordBatch.from_arrays(
        [pa.array([name]), pa.array([rows]), pa.array([size])], names=["file", "rows", "bytes"]
    )


def write_parquet(batches: Iterable[pa.RecordBatch], path: Path) -> tuple[int, int]:
    """Write rows to a file, and return its rows and bytes. Without a row there is no file."""
    import pyarrow.parquet as pq

    rows, writer = 0, None
    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            if writer is None:
                path.parent.mkdir(parents=True, exist_ok=True)
                by_dictionary: Any = _exact_names(batch.schema)
                writer = pq.ParquetWriter(
                    path,
                    batch.schema,
                    compression="zstd",
                    write_statistics=False,
                    use_dictionary=by_dictionary,
                )
            writer.write_batch(batch)
            rows += batch.num_rows
    finally:
        if writer is not None:
            writer.close()
    return (rows, path.stat().st_size) if writer is not None else (0, 0)


def _exact_names(schema: pa.Schema) -> list[str]:
    """Return the columns that may be dictionary-encoded: strings and bytes.

    A filter over stored results can be pushed down to Parquet's reader, which skips files by their statistics
    and dictionaries. The reader takes -0.0 and 0.0 for different numbers and ignores NaN, which is the
    largest number in Spark.
    """
    from pyarrow import types as kinds

    return [field.name for field in schema if kinds.is_string(field.type) or kinds.is_binary(field.type)]


def storage_error(node: str, root: object, error: OSError) -> UserError:
    """Return the error for a folder or bucket that cannot store rows."""
    msg = f"results cannot be stored in {root}: {error.strerror or error}"
    hint = (
        "Make room or give rights there, or say another folder in the setting `staging.path`; then run"
        " it again."
    )
    return UserError(msg, hint=hint, node=node)

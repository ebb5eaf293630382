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
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        name = (
            f"part-{context.partitionId():05}-{context.taskAttemptId()}.parquet"
            if context
            else f"part-{secrets.token_hex(8)}.parquet"
        )
        try:
            rows, size = self._write(batches, Path(self.folder) / name)
        except OSError as error:
            raise task_error(storage_error(self.node, Path(self.root), error)) from None
        yield pa.RecordBatch.from_arrays(
            [pa.array([name]), pa.array([rows]), pa.array([size])], names=["file", "rows", "bytes"]
        )

    def _write(self, batches: Iterable[pa.RecordBatch], path: Path) -> tuple[int, int]:
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
        if writer is None:
            return 0, 0
        sync_to_disk(path)
        return rows, path.stat().st_size


def _exact_names(schema: pa.Schema) -> list[str]:
    """Return the columns that may be dictionary-encoded: strings and bytes.

    A filter over stored results can be pushed down to Parquet's reader, which skips files by their statistics
    and dictionaries. The reader takes -0.0 and 0.0 for different numbers and ignores NaN, which is the
    largest number in Spark.
    """
    from pyarrow import types as kinds

    return [field.name for field in schema if kinds.is_string(field.type) or kinds.is_binary(field.type)]


def storage_error(node: str, root: Path, error: OSError) -> UserError:
    """Return the error for a folder that cannot store rows."""
    msg = f"results cannot be stored in {root}: {error.strerror or error}"
    hint = (
        "Make room or give rights there, or say another folder in the setting `staging.path`; then run"
        " it again."
    )
    return UserError(msg, hint=hint, node=node)

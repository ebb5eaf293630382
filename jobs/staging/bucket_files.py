"""Files of stored results in an object store with Amazon's interface: `staging.path: s3://bucket/folder`."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath
from typing import TYPE_CHECKING, Any

from headrace.connectors.buckets import Bucket, first_line
from headrace.connectors.row_errors import task_error
from headrace.jobs.staging.task import describe_result, result_file_name, storage_error, write_parquet
from headrace.pipeline.errors import HeadraceError, TransientError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)


@contextmanager
def named_errors(bucket: Bucket, node: str = "") -> Iterator[None]:
    """Raise failures of the object store as errors that name its address."""
    from obstore import exceptions

    try:
        yield
    except HeadraceError:
        raise
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
        raise storage_error(node, bucket.url, OSError(first_line(error))) from None
    except exceptions.BaseError as error:
        msg = f"the object store of stored results, {bucket.url}, failed: {first_line(error)}"
        raise TransientError(msg, node=node) from None


class BucketFiles:
    """Files in a bucket. An object is durable and complete when its upload returns."""

    is_remote = True

    def __init__(self, bucket: Bucket) -> None:
        self.root: PurePath = PurePosixPath()
        self.address = bucket.url
        self._bucket = bucket

    def read_text(self, path: PurePath) -> str | None:
        """See `ResultFiles`."""
        import obstore

        with named_errors(self._bucket):
            try:
                return bytes(obstore.get(self._bucket.open(), str(path)).bytes()).decode()
            except FileNotFoundError:
                return None

    def size(self, path: PurePath) -> int | None:
        """See `ResultFiles`."""
        import obstore

        with named_errors(self._bucket):
            try:
                return obstore.head(self._bucket.open(), str(path))["size"]
            except FileNotFoundError:
                return None

    def create(self, path: PurePath, text: str) -> bool:
        """Put an object if there is none. The client repeats a request without an answer.

        So False can mean that an attempt of this call was first. Its text tells.
        """
        import obstore
        from obstore.exceptions import AlreadyExistsError

        with named_errors(self._bucket):
            try:
                obstore.put(self._bucket.open(), str(path), text.encode(), mode="create")
            except AlreadyExistsError:
                return self.read_text(path) == text
        return True

    def make_folder(self, path: PurePath) -> None:
        """Do nothing: a bucket has no folders."""

    def list_folders(self, path: PurePath) -> list[PurePath]:
        """See `ResultFiles`."""
        import obstore

        with named_errors(self._bucket):
            result = obstore.list_with_delimiter(self._bucket.open(), f"{path}/")
        return [PurePosixPath(name) for name in result["common_prefixes"]]

    def remove(self, path: PurePath) -> None:
        """See `ResultFiles`."""
        import obstore
        from obstore.exceptions import BaseError

        try:
            store = self._bucket.open()
            for page in obstore.list(store, f"{path}/"):
                obstore.delete(store, [one["path"] for one in page])
        except FileNotFoundError:
            return
        except BaseError as error:
            log.warning("event=stored_results_not_removed path=%s error=%s", path, first_line(error))

    def sync(self, path: PurePath, *, parents: bool = True) -> None:
        """Do nothing: an object is durable when its upload returns."""

    def write_task(self, node: str, path: PurePath) -> Any:
        """See `ResultFiles`."""
        return UploadResultsTask(node, str(path), self._bucket)

    def frame(self, spark: SparkSession, schema: StructType, paths: Sequence[PurePath]) -> DataFrame:
        """Return the rows of objects: each is read by one task."""
        read = DownloadResultsTask(tuple(map(str, paths)), self._bucket)
        return spark.range(0, len(paths), 1, len(paths)).mapInArrow(read, schema)


@dataclass(frozen=True)
class UploadResultsTask:
    """The work of a Spark task: uploads its rows as one object before it returns. Picklable."""

    node: str
    folder: str
    bucket: Bucket

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Upload the rows and yield one row: file, rows, bytes. See `StoreResultsTask`."""
        import obstore

        name = result_file_name()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            try:
                rows, size = write_parquet(batches, path)
                if rows:
                    with named_errors(self.bucket, self.node):
                        obstore.put(self.bucket.open(), f"{self.folder}/{name}", path)
            except OSError as error:
                raise task_error(storage_error(self.node, folder, error)) from None
            except HeadraceError as error:
                raise task_error(error) from None
        yield describe_result(name, rows, size)


@dataclass(frozen=True)
class DownloadResultsTask:
    """The work of a Spark task: yields the rows of the objects whose numbers it receives. Picklable."""

    paths: tuple[str, ...]
    bucket: Bucket

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of each object."""
        import obstore
        import pyarrow as pa
        import pyarrow.parquet as pq

        for batch in batches:
            for number in batch.column(0).to_pylist():
                try:
                    with named_errors(self.bucket):
                        content = obstore.get(self.bucket.open(), self.paths[number]).bytes()
                except HeadraceError as error:
                    raise task_error(error) from None
                yield from pq.ParquetFile(pa.BufferReader(pa.py_buffer(content))).iter_batches()

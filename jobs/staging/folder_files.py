"""Files of stored results in a folder that driver and workers share, and what a store of them must do."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Protocol

from headrace.connectors.durable_files import sync_to_disk
from headrace.connectors.files.locations import spark_pattern
from headrace.jobs.staging.task import StoreResultsTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)


class ResultFiles(Protocol):
    """A folder or a bucket with the files of stored results. Raises OSError, and TransientError."""

    root: PurePath
    address: str
    """The location in messages."""
    is_remote: bool
    """Whether each call is a request to a server."""

    def read_text(self, path: PurePath) -> str | None:
        """Return the text of a file, or None if it does not exist."""
        ...

    def size(self, path: PurePath) -> int | None:
        """Return the bytes of a file, or None if it does not exist."""
        ...

    def create(self, path: PurePath, text: str) -> bool:
        """Create a file with this text in one step. Return False, and change nothing, if it exists."""
        ...

    def make_folder(self, path: PurePath) -> None:
        """Create a folder for a task's files."""
        ...

    def list_folders(self, path: PurePath) -> list[PurePath]:
        """Return the folders in a folder. Empty if it does not exist."""
        ...

    def remove(self, path: PurePath) -> None:
        """Remove a folder and its files. What cannot be removed is logged and left."""
        ...

    def sync(self, path: PurePath, *, parents: bool = True) -> None:
        """Make the names in a folder durable, also those in its parents."""
        ...

    def write_task(self, node: str, path: PurePath) -> Any:
        """Return the function that a Spark task calls with its batches, see `StoreResultsTask`."""
        ...

    def frame(self, spark: SparkSession, schema: StructType, paths: Sequence[PurePath]) -> DataFrame:
        """Return the rows of files."""
        ...


class FolderFiles:
    """Files on a file system that driver and workers share."""

    is_remote = False

    def __init__(self, root: Path) -> None:
        self.root: PurePath = root
        self.address = str(root)

    def read_text(self, path: PurePath) -> str | None:
        """See `ResultFiles`."""
        try:
            return Path(path).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def size(self, path: PurePath) -> int | None:
        """See `ResultFiles`."""
        try:
            return Path(path).stat().st_size
        except FileNotFoundError:
            return None

    def create(self, path: PurePath, text: str) -> bool:
        """Write the text under another name, sync it, and link it: the first link wins."""
        written = Path(path).with_name(f".{secrets.token_hex(8)}.json")
        written.write_text(text, encoding="utf-8")
        sync_to_disk(written)
        try:
            os.link(written, path)
        except FileExistsError:
            return False
        finally:
            written.unlink()
        return True

    def make_folder(self, path: PurePath) -> None:
        """See `ResultFiles`."""
        Path(path).mkdir(parents=True)

    def list_folders(self, path: PurePath) -> list[PurePath]:
        """See `ResultFiles`."""
        return [one for one in Path(path).iterdir() if one.is_dir()] if Path(path).is_dir() else []

    def remove(self, path: PurePath) -> None:
        """See `ResultFiles`."""
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            return
        except OSError as error:
            log.warning("event=stored_results_not_removed path=%s error=%s", path, error.strerror)

    def sync(self, path: PurePath, *, parents: bool = True) -> None:
        """See `ResultFiles`."""
        # Up to the parent of `staging.path`: each of them may be new.
        for folder in (path, *(list(path.parents)[:5] if parents else ())):
            with suppress(PermissionError):  # a parent folder may belong to another user
                sync_to_disk(Path(folder))

    def write_task(self, node: str, path: PurePath) -> Any:
        """See `ResultFiles`."""
        return StoreResultsTask(node, str(path), self.address)

    def frame(self, spark: SparkSession, schema: StructType, paths: Sequence[PurePath]) -> DataFrame:
        """See `ResultFiles`."""
        return spark.read.schema(schema).parquet(*(spark_pattern(path) for path in paths))

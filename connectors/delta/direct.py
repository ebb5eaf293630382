"""Direct loads into a local Delta table: tasks write splits as data files, and one commit adds them.

Nothing is visible before the commit, and after a crash `vacuum` removes the files. A table with a key takes
files only if neither the table nor two of the files have a key of the epoch: statistics show that, or the
keys in the files. Any other epoch is merged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import stamina
from pyarrow import parquet

from headrace.connectors.arrow_batches import cast_batch
from headrace.connectors.delta.arrow_merge import align_columns, has_keys
from headrace.connectors.delta.arrow_writer import are_readable
from headrace.connectors.delta.data_files import DataFile, may_contain, write_data_file
from headrace.connectors.delta.deletion_vectors import UnknownVectorError
from headrace.connectors.keys import canonical
from headrace.connectors.lakehouse_rows import bounds_of, check_null_keys, last_of_sorted
from headrace.connectors.source_base import SplitReader
from headrace.connectors.split_tasks import run_split_tasks
from headrace.connectors.task_failures import TaskFailure, raise_task_failure
from headrace.connectors.transactional_sink import SinkCommit
from headrace.pipeline.errors import HeadraceError, TransientError
from headrace.pipeline.protocol.epochs import Json, WriteCounts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_TASK_TRIES = 3
Bounds = Mapping[str, tuple[Any, Any]]


class KeysMayExistError(Exception):
    """A file of the table, or two files of the epoch, may have a key: the rows must be merged."""


@dataclass(frozen=True, slots=True)
class DirectFiles:
    """Data files that no version of the table has yet. `bounds` are those of the key columns, by file.

    `key` are the table's names of the key columns.
    """

    folder: Path
    actions: list[Json]
    rows: int
    key: tuple[str, ...]
    bounds: Sequence[Bounds]
    keys_spread: bool
    """Whether two of the files may have a key."""

    def check_keys(self, files: Sequence[DataFile]) -> None:
        """Raise KeysMayExistError if a key of these files is, or may be, in two of them or in the table's."""
        candidates = [file for file in files if any(_may_share_keys(file, bounds) for bounds in self.bounds)]
        if candidates and not are_readable(candidates, self.rows):
            raise KeysMayExistError
        may_overlap = self.keys_spread and any(starmap(_overlap, combinations(self.bounds, 2)))
        if not candidates and not may_overlap:
            return
        keys = self._read_keys()
        if may_overlap and keys.group_by(list(self.key)).aggregate([]).num_rows < keys.num_rows:
            raise KeysMayExistError
        try:
            if candidates and has_keys(self.folder, candidates, keys):
                raise KeysMayExistError
        except UnknownVectorError as error:
            raise KeysMayExistError from error

    def _read_keys(self) -> pa.Table:
        tables = []
        for action in self.actions:
            # Not `read_table`, which takes folders of the path for columns.
            with parquet.ParquetFile(self.folder / action["add"]["path"]) as reader:
                tables.append(reader.read(columns=list(self.key)))
        return pa.concat_tables(tables)


def _may_share_keys(file: DataFile, bounds: Bounds) -> bool:
    return all(may_contain(file.statistics, name, *ends) for name, ends in bounds.items())


def _overlap(one: Bounds, other: Bounds) -> bool:
    """Return whether two files may have a key in common."""
    return all(low <= other[name][1] and other[name][0] <= high for name, (low, high) in one.items())


@dataclass(frozen=True, slots=True)
class FileTask:
    """Writes the rows of a split as a data file. `columns` are those of the table, `payload` of the rows."""

    node: str
    fetch: SplitReader
    payload: pa.Schema
    columns: pa.Schema
    folder: Path
    key: tuple[str, ...]

    def __call__(self, split: Json) -> Json:
        """Return the action of the file and its bounds, or the failure. An empty split has no file."""
        try:
            for attempt in stamina.retry_context(on=TransientError, attempts=_TASK_TRIES, timeout=60.0):
                with attempt:
                    return self._write(split)
        except HeadraceError as error:
            return {"add": None, "rows": 0, "bounds": {}, "failure": TaskFailure.of(error).to_json()}
        raise AssertionError  # the last attempt returns or raises

    def _write(self, split: Json) -> Json:
        batches = [cast_batch(batch, self.payload, self.node) for batch in self.fetch.fetch(split)]
        rows = pa.Table.from_batches(batches, self.payload)
        if self.key:
            check_null_keys(self.node, rows, self.key)
            # The batches are in reading order, and the last row of a key stays.
            rows = last_of_sorted(canonical(rows, self.key), self.key)
        bounds = bounds_of(rows, self.key)
        named = {name.lower(): name for name in self.columns.names}
        return {
            "add": write_data_file(self.folder, align_columns(rows, self.columns)) if rows.num_rows else None,
            "rows": rows.num_rows,
            "bounds": {named[name.lower()]: ends for name, ends in bounds.items()},
            "failure": None,
        }


@dataclass(frozen=True, slots=True)
class DirectFileLoad:
    """The driver's side of a direct load."""

    task: FileTask
    threads: int

    @classmethod
    def of(cls, task: FileTask, threads: int) -> DirectFileLoad | None:
        """Return a load, or None if Spark must write the rows.

        That is on a cluster, whose tasks do not see the driver's disk, and for columns that the table lacks.
        """
        names = {name.lower() for name in task.payload.names}
        same = names <= {name.lower() for name in task.columns.names}
        if not threads or not same:
            return None
        return cls(task, threads)

    def write(
        self,
        spark: SparkSession,
        advance: Callable[[Callable[[SinkCommit], SinkCommit]], WriteCounts],
        *,
        keys_spread: bool,
    ) -> WriteCounts | None:
        """Write the files and let `advance` commit them. Return None if the rows must be merged.

        `advance` calls its argument for each attempt, unless the table has the epoch already.
        """
        written: list[DirectFiles] = []

        def complete(change: SinkCommit) -> SinkCommit:
            if not written:
                written.append(self.run(spark, keys_spread=keys_spread))
            return replace(change, files=written[0])

        try:
            return advance(complete)
        except KeysMayExistError:
            self.discard(written[0])
            return None

    def run(self, spark: SparkSession, *, keys_spread: bool) -> DirectFiles:
        """Write the files of all splits. Raise the error of a task, after the files of others are removed."""
        splits = self.task.fetch.splits
        results = run_split_tasks(self.task, splits, spark, self.threads, in_turn=False) if splits else []
        written = [result for result in results if result["add"] is not None]
        named = {name.lower(): name for name in self.task.columns.names}
        files = DirectFiles(
            self.task.folder,
            [{"add": result["add"]} for result in written],
            sum(result["rows"] for result in written),
            tuple(named[name.lower()] for name in self.task.key),
            [result["bounds"] for result in written],
            keys_spread=bool(self.task.key) and keys_spread,
        )
        try:
            raise_task_failure(result["failure"] for result in results)
        except HeadraceError:
            self.discard(files)
            raise
        return files

    def discard(self, files: DirectFiles) -> None:
        """Remove files that are in no commit. One that stays is removed by `vacuum`."""
        for action in files.actions:
            try:
                (files.folder / action["add"]["path"]).unlink(missing_ok=True)
            except OSError as error:
                log.info("event=file_not_removed node=%s error=%s", self.task.node, error)

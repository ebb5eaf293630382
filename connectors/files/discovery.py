"""Finds new files of a stream: complete ones that it has not read, in the order of their times."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from headrace.connectors.files import listing
from headrace.connectors.files.config import FileSourceConfig
from headrace.connectors.files.formats import UNREADABLE, count_lines, format_reader
from headrace.connectors.files.listing import File
from headrace.connectors.files.reader import unreadable
from headrace.connectors.files.schema import FileSchema, check_file
from headrace.connectors.files.storage import FileStorage
from headrace.pipeline.errors import DataError, PipelineStateError

log = logging.getLogger(__name__)

_WRITTEN_WITHIN = 60.0
"""Seconds after the last change of a file during which a broken end means that it is still written to."""
_PROVE_COMPLETE = ("parquet", "orc")
"""Formats that are written from the beginning to a footer at the end."""


class FileDiscovery:
    """Lists the files of one node at most every `poll_interval`, and counts the rows of new ones once."""

    def __init__(
        self,
        name: str,
        node: FileSourceConfig,
        storage: FileStorage,
        shape_of: Callable[[File], FileSchema],
        clock: Callable[[], float],
    ) -> None:
        """`shape_of` returns the columns that a file must have. `clock` is that of the files, in seconds."""
        self._name, self._node, self._storage = name, node, storage
        self._shape_of, self._clock = shape_of, clock
        self._listed: list[File] = []
        self._listed_at = float("-inf")
        self._counted: dict[File, File] = {}
        """The files with row groups, by the files as they are listed."""
        self._seen: dict[File, float] = {}
        """When a file that was too young was first seen like this."""

    def new_files(self, known: Sequence[File]) -> list[File]:
        """Return the complete files that are not among `known`, with the rows of their row groups.

        Raise PipelineStateError for a known file that changed, and DataError or SchemaError for a new one
        that is broken or has other columns.
        """
        self._list()
        read = {file.path: file.version for file in known}
        for file in self._listed:
            if file.path in read and read[file.path] != file.version:
                raise _changed_file_error(file, self._name)
        fresh = [file for file in self._listed if file.path not in read and self._has_settled(file)]
        if not fresh:
            return []
        listing.check_list([*known, *fresh], self._node.path, self._name)
        with ThreadPoolExecutor(8) as pool:
            counted = list(pool.map(self._count, fresh))
        self._counted = {
            file: result for file, result in zip(fresh, counted, strict=True) if result is not None
        }
        return _in_order([file for file in counted if file is not None])

    def listed_paths(self) -> set[str]:
        """Return the paths of the last listing."""
        return {file.path for file in self._listed}

    def wait(self) -> None:
        """Wait until the files that exist now are old enough. Files that change meanwhile are left out."""
        self._listed_at = float("-inf")
        self._list()
        young = [file for file in self._listed if not self._has_settled(file)]
        if not young:
            return
        time.sleep(self._node.min_file_age.total_seconds())
        self._listed_at = float("-inf")
        self._list()

    def _list(self) -> None:
        now = time.monotonic()
        if now - self._listed_at < self._node.poll_interval.total_seconds():
            return
        self._listed = self._storage.list_files(self._node.path, self._name)
        self._listed_at = now
        self._seen = {file: self._seen.get(file, now) for file in self._listed}

    def _has_settled(self, file: File) -> bool:
        """Return whether nothing was written to a file for `min_file_age`.

        Its time may be that of another clock. So it also counts how long it has not changed here.
        """
        if self._storage.has_whole_files or self._node.format in _PROVE_COMPLETE:
            return True
        age = self._node.min_file_age.total_seconds()
        since = time.monotonic() - self._seen.get(file, time.monotonic())
        return since >= age or self._clock() - file.changed / 1e9 >= age

    def _count(self, file: File) -> File | None:
        """Return the file with the rows of its row groups, or None if it is not complete yet."""
        if file in self._counted:
            return self._counted[file]
        reader, kind = format_reader(self._node.format), self._node.format
        try:
            with self._storage.open(file) as opened:
                if reader.has_counts:
                    result = reader.contents(opened.stream)
                    groups, columns = result.groups or (), result.columns
                else:
                    groups, columns = (count_lines(opened.stream, file.path),), None
                if opened.change():
                    return None
        except FileNotFoundError:
            return None
        except UNREADABLE as error:
            if not self._storage.has_whole_files and self._clock() - file.changed / 1e9 < _WRITTEN_WITHIN:
                log.info("event=file_incomplete node=%s file=%s error=%s", self._name, file.path, error)
                return None
            raise self._broken(file, kind, error) from error
        if columns is not None:
            check_file(file, columns, self._shape_of(file).inner, self._name)
        return replace(file, groups=groups)

    def _broken(self, file: File, kind: str, error: Exception) -> DataError:
        result = unreadable(file.path, kind, error, self._name)
        hint = "Replace or remove the file. Files after it are read then."
        return DataError(result.message, hint=hint, node=self._name)


def _in_order(files: Sequence[File]) -> list[File]:
    """Return files in the order of their times, and of their names."""
    return sorted(files, key=lambda file: (file.changed, listing.natural_order(file.path)))


def _changed_file_error(file: File, node: str) -> PipelineStateError:
    msg = f"`{file.path}` changed after it was read"
    hint = (
        "Which of its rows are new is unknown. Put the file back as it was (size and time of"
        " change), and write new rows into a file with a new name. `headrace reset FILE` reads all files"
        " again."
    )
    return PipelineStateError(msg, hint=hint, node=node)

"""Where files are: lists them, opens them, and tells whether they are still what was listed."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import IO

from headrace.connectors.files import listing
from headrace.connectors.files.listing import File
from headrace.pipeline.errors import TransientError


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A file that is read. `change` returns how it differs from what was listed, or "" if it does not."""

    stream: IO[bytes]
    change: Callable[[], str]


class FileStorage(ABC):
    """A kind of storage. Picklable: tasks open files themselves."""

    has_whole_files: bool = False
    """Whether a file appears when it is complete."""

    @abstractmethod
    def list_files(self, path: str, node: str) -> list[File]:
        """Return the files of a path in the natural order of their names, or [] if there are none.

        Raise TargetError if the storage refuses, and TransientError if it does not answer.
        """

    @abstractmethod
    def check_path(self, path: str, node: str) -> None:
        """Raise TargetError if the folder that a path begins with does not exist."""

    @abstractmethod
    def open(self, file: File) -> AbstractContextManager[OpenFile]:
        """Open a file. Raise FileNotFoundError if it is missing, and OSError if it cannot be read."""

    @abstractmethod
    def check(self, files: Sequence[File], node: str) -> None:
        """Raise PipelineStateError for the first file that changed since it was listed."""


class LocalStorage(FileStorage):
    """Files of this host, which are the same on all hosts of Spark."""

    def list_files(self, path: str, node: str) -> list[File]:
        """See `FileStorage.list_files`."""
        return listing.list_local(path, node)

    def check_path(self, path: str, node: str) -> None:
        """See `FileStorage.check_path`."""
        if not os.path.exists(listing.fixed_folder(listing.local(path))):
            raise listing.no_files(path, node)

    @contextmanager
    def open(self, file: File) -> Iterator[OpenFile]:
        """See `FileStorage.open`. Arrow may close what it reads, so it gets a handle of its own."""
        with open(file.path, "rb") as kept, os.fdopen(os.dup(kept.fileno()), "rb") as stream:
            yield OpenFile(stream, lambda: listing.change(os.fstat(kept.fileno()), file))

    def check(self, files: Sequence[File], node: str) -> None:
        """See `FileStorage.check`."""
        for file in files:
            try:
                about = os.stat(file.path)
            except FileNotFoundError:
                raise listing.changed_file_error(file.path, listing.MISSING, node) from None
            except OSError as error:
                msg = f"`{file.path}` cannot be read: {error.strerror}"
                raise TransientError(msg, node=node) from None
            if what := listing.change(about, file):
                raise listing.changed_file_error(file.path, what, node)


def list_files(storage: FileStorage, path: str, node: str) -> list[File]:
    """Return the files of a path in the natural order of their names.

    Raise TargetError if there are none or too many, and SchemaError if their partition folders differ.
    """
    files = storage.list_files(path, node)
    if not files:
        raise listing.no_files(path, node)
    listing.check_list(files, path, node)
    return files

"""Files in a bucket: `s3://`, `gs://` and `abfss://`. An object appears when its upload is complete."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, cast

from headrace.connectors.buckets import Bucket, find_bucket, first_line
from headrace.connectors.files import listing
from headrace.connectors.files.listing import File
from headrace.connectors.files.storage import FileStorage, OpenFile
from headrace.pipeline.config.sections import BucketAccess
from headrace.pipeline.errors import TargetError, TransientError

_BUFFER_BYTES = 4 << 20
"""Read ahead of small reads. Larger reads are one request each."""
_LISTED_AT_ONCE = 1_000
_REFUSED = re.compile(r"status code: 40[134]\b")
"""In the message of a failed listing, which has no class of its own."""


@dataclass(frozen=True)
class BucketStorage(FileStorage):
    """The objects of one bucket. The pin of an object is its tag, which changes with its bytes."""

    bucket: Bucket
    has_whole_files = True

    def list_files(self, path: str, node: str) -> list[File]:
        """See `FileStorage.list_files`."""
        import obstore

        pattern = _split(path)[2]
        fixed = listing.fixed_folder(pattern)
        is_match = re.compile(f"{_expression(pattern)}(/.*)?").fullmatch if pattern else lambda _: True
        # A prefix is whole folders for this client, so an object is found by its folder.
        prefix = fixed if fixed != pattern else fixed.rpartition("/")[0]
        result = []
        try:
            with self._named_errors(node):
                for page in obstore.list(self.bucket.open(), prefix or None, chunk_size=_LISTED_AT_ONCE):
                    result += [self._file(one) for one in page if is_match(one["path"])]
        except FileNotFoundError as error:
            msg = f"{self.bucket.url} does not exist: {first_line(error)}"
            raise TargetError(msg, hint="Correct `path`.", node=node) from None
        below = len(f"{self.bucket.url}/{fixed}")
        shown = [file for file in result if not listing.is_hidden(file.path[below:].lstrip("/"))]
        return sorted(shown, key=lambda file: listing.natural_order(file.path))

    def check_path(self, path: str, node: str) -> None:
        """Do nothing: a bucket has no folders, and listing it shows that it exists."""

    @contextmanager
    def open(self, file: File) -> Iterator[OpenFile]:
        """See `FileStorage.open`. Every request asks for the object with the tag of the pin."""
        reader = _ObjectReader(self.bucket.open(), self._key(file), file)
        with self._named_errors(""), io.BufferedReader(reader, _BUFFER_BYTES) as stream:
            yield OpenFile(cast("IO[bytes]", stream), lambda: self._change(file))

    def check(self, files: Sequence[File], node: str) -> None:
        """See `FileStorage.check`."""
        from concurrent.futures import ThreadPoolExecutor

        with self._named_errors(node), ThreadPoolExecutor(16) as pool:
            for file, what in zip(files, pool.map(self._change, files), strict=True):
                if what:
                    raise listing.changed_file_error(file.path, what, node)

    def _change(self, file: File) -> str:
        import obstore

        try:
            result = self._file(cast("dict[str, Any]", obstore.head(self.bucket.open(), self._key(file))))
        except FileNotFoundError:
            return listing.MISSING
        if result.size != file.size:
            return f"it had {file.size} bytes and has {result.size}"
        return "it was written to" if result.version != file.version else ""

    def _key(self, file: File) -> str:
        return file.path[len(self.bucket.url) + 1 :]

    def _file(self, about: Any) -> File:
        changed = round(about["last_modified"].timestamp() * 1000) * 1_000_000
        tag = (about["e_tag"] or about["version"] or "").strip('"')
        return File(f"{self.bucket.url}/{about['path']}", about["size"], changed, tag=tag)

    @contextmanager
    def _named_errors(self, node: str) -> Iterator[None]:
        """Raise failures of the object store as errors that name its address."""
        from obstore import exceptions

        try:
            yield
        except exceptions.BaseError as error:
            reason = first_line(error)
            is_refused = isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError)
            if is_refused or _REFUSED.search(reason):
                msg = f"{self.bucket.url} refuses access, or does not exist: {reason}"
                hint = "Correct `path`, or set `file_source.s3` or the provider's variables to another key."
                raise TargetError(msg, hint=hint, node=node) from None
            msg = f"the object store of {self.bucket.url} failed: {reason}"
            raise TransientError(msg, node=node) from None


class _ObjectReader(io.RawIOBase):
    """The bytes of an object, each range by a request."""

    def __init__(self, store: Any, key: str, file: File) -> None:
        self._store, self._key, self._file = store, key, file
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        import obstore
        from obstore.exceptions import PreconditionError

        end = min(self._at + len(buffer), self._file.size)
        if end <= self._at:
            return 0
        options: Any = {"range": (self._at, end)}
        if self._file.tag:
            options["if_match"] = f'"{self._file.tag}"'
        try:
            result = memoryview(obstore.get(self._store, self._key, options=options).bytes())
        except PreconditionError:
            # The file is compared with the pin after an error, which names the change.
            msg = "it was written to"
            raise OSError(msg) from None
        buffer[: len(result)] = result
        self._at += len(result)
        return len(result)


def bucket_storage(path: str, access: BucketAccess) -> BucketStorage:
    """Return the storage of the bucket that a path begins with."""
    scheme, name, _ = _split(path)
    return BucketStorage(find_bucket(f"{'s3' if scheme == 's3a' else scheme}://{name}", access))


def _split(path: str) -> tuple[str, str, str]:
    """Return the scheme, the bucket and the rest of a path, which may be a pattern."""
    scheme, _, rest = path.partition("://")
    name, _, pattern = rest.partition("/")
    return scheme.lower(), name, pattern.strip("/")


def _expression(pattern: str) -> str:
    """Return a regular expression for a pattern. `*` stays within a folder, `**` does not."""
    result = ""
    for part in re.findall(r"\*\*/|\*\*|\*|\?|\[[^\]]*\]|[^*?\[]+|.", pattern):
        if part in _WILDCARDS:
            result += _WILDCARDS[part]
        elif part.startswith("[") and part.endswith("]"):
            result += "[^" + part[2:] if part[1:2] == "!" else part
        else:
            result += re.escape(part)
    return result


_WILDCARDS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}

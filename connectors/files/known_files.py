"""The files that a stream has read or is about to read, in their order, and what a position says of them.

The rows of all files together are one partition. Its offsets count the rows: a file has as many offsets as it
has rows at most. A position is {"offsets": {"0": next row}, "root": common folder, "files": packed list}.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from headrace.connectors.files.listing import File, pack_rows, unpack_rows
from headrace.connectors.files.reader import FileRange
from headrace.connectors.splitting import PACKED, SPLIT_BYTES, SPLIT_FILES, SPLIT_ROWS
from headrace.pipeline.protocol.epochs import Json

PARTITION = "0"
_MOST_KNOWN, _NEWEST = 2_000, 100
"""Files of a position that removed files stay in, and the newest ones that always stay."""


@dataclass(frozen=True, slots=True)
class KnownFile:
    """A file with its place in the stream. `start` is the offset of its first row."""

    file: File
    start: int

    @property
    def groups(self) -> tuple[int, ...]:
        """The rows of its row groups."""
        return self.file.groups or ()

    @property
    def end(self) -> int:
        """The offset after its last row."""
        return self.start + sum(self.groups)


def offset_of(position: Json) -> int:
    """Return the number of the next row."""
    return int(position["offsets"][PARTITION])


def position_at(offset: int, files: Sequence[KnownFile]) -> Json:
    """Return the position before a row of `files`, which has read the files that begin before it."""
    result: Json = {"offsets": {PARTITION: offset}}
    read = [one for one in files if one.start < offset]
    if not read:
        return result
    return result | pack_rows([one.file for one in read], [(one.start,) for one in read])


def files_of(position: Json) -> list[KnownFile]:
    """Return the files of a position, in their order."""
    if "files" not in position:
        return []
    return [KnownFile(file, start) for file, (start,) in unpack_rows(position)]


def append_files(known: Sequence[KnownFile], files: Sequence[File]) -> list[KnownFile]:
    """Return the known files followed by others, in this order."""
    at = known[-1].end if known else 0
    starts = accumulate((sum(file.groups or ()) for file in files), initial=at)
    return [*known, *(KnownFile(file, start) for file, start in zip(files, starts, strict=False))]


def end_of_epoch(files: Sequence[KnownFile], start: int, rows: int, size: int) -> int:
    """Return the offset that whole row groups from `start` reach within `rows` and `size` bytes.

    It is that of one row group at least, or `start` after the last row.
    """
    end, left = start, size
    for one in files:
        if one.end <= start:
            continue
        at = one.start
        for count in one.groups:
            at += count
            if at <= start:
                continue
            left -= PACKED * one.file.size * count // max(1, one.end - one.start)
            if end > start and (at - start > rows or left < 0):
                return end
            end = at
    return end


def drop_removed(files: Sequence[KnownFile], there: Collection[str]) -> list[KnownFile]:
    """Return the files without those that no longer exist, if they are many: each is in every position.

    The newest stay, because the next file begins after them.
    """
    if len(files) <= _MOST_KNOWN:
        return list(files)
    newest = len(files) - _NEWEST
    return [one for at, one in enumerate(files) if at >= newest or one.file.path in there]


def ranges_of(files: Sequence[KnownFile], start: int, end: int) -> list[FileRange]:
    """Return the row groups that have rows in [start, end)."""
    ranges = []
    for ordinal, one in enumerate(files):
        if one.end <= start or one.start >= end or one.end == one.start:
            continue
        ends = [one.start + behind for behind in accumulate(one.groups)]
        first = bisect_right(ends, start)
        last = bisect_right(ends, end - 1)
        ranges.append(FileRange(ordinal, one.file, first, min(last + 1, len(ends)), one.start))
    return ranges


def divide_ranges(ranges: Sequence[FileRange]) -> list[list[FileRange]]:
    """Return the ranges of tasks: each has about as many rows and bytes as a split of history."""
    tasks: list[list[FileRange]] = []
    rows = size = 0
    for piece in _groups_of(ranges):
        count = sum((piece.file.groups or ())[piece.first : piece.end])
        room = PACKED * piece.file.size * count // max(1, sum(piece.file.groups or ()))
        if (
            not tasks
            or rows + count > SPLIT_ROWS
            or size + room > SPLIT_BYTES
            or len(tasks[-1]) >= SPLIT_FILES
        ):
            tasks.append([])
            rows = size = 0
        last = tasks[-1][-1] if tasks[-1] else None
        if last is not None and (last.ordinal, last.end) == (piece.ordinal, piece.first):
            tasks[-1][-1] = replace(last, end=piece.end)
        else:
            tasks[-1].append(piece)
        rows, size = rows + count, size + room
    return tasks


def _groups_of(ranges: Sequence[FileRange]) -> Iterator[FileRange]:
    for piece in ranges:
        for group in range(piece.first, piece.end):
            yield replace(piece, first=group, end=group + 1)


def bytes_between(files: Sequence[KnownFile], start: int, end: int) -> int:
    """Estimate the bytes of the rows in [start, end)."""
    total = 0
    for one in files:
        rows = min(one.end, end) - max(one.start, start)
        if rows > 0:
            total += PACKED * one.file.size * rows // (one.end - one.start)
    return total

"""Which files a path means, what is pinned of them, and whether they still are what was pinned."""

from __future__ import annotations

import base64
import difflib
import glob
import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from headrace.connectors.splitting import PACKED
from headrace.pipeline.errors import PipelineStateError, SchemaError, TargetError
from headrace.pipeline.protocol.epochs import Json

MISSING = "it is missing"
MOST = 20_000
"""Files that one pin lists: its list stays in every position of the pipeline."""
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_PLAIN = frozenset({"", ".csv", ".json", ".jsonl", ".ndjson", ".txt", ".tsv"})
_PATTERN = re.compile(r"[*?\[]")
_DIGITS = re.compile(r"(\d+)")


@dataclass(frozen=True, slots=True)
class File:
    """One file as it was listed.

    `groups` are the rows of each row group; None for text, which is read whole. `tag` is that of an object in
    a bucket, which changes with its bytes.
    """

    path: str
    size: int
    changed: int
    groups: tuple[int, ...] | None = None
    tag: str = ""

    @property
    def version(self) -> tuple[int, int | str]:
        """What changes with the bytes of the file."""
        return self.size, self.tag or self.changed

    @property
    def partitions(self) -> dict[str, str | None]:
        """The values in the path's folder names (`dt=2025-01-01`), by column."""
        result: dict[str, str | None] = {}
        for folder in Path(self.path).parts[:-1]:
            name, equals, value = folder.partition("=")
            if name and equals:
                result[unquote(name)] = None if value == NO_VALUE else unquote(value)
        return result


def unpacked_size(file: File, group: int) -> int:
    """Estimate the bytes of a file's rows, or of one row group if the file has groups."""
    if file.groups is not None:
        return round(PACKED * file.size * file.groups[group] / max(1, sum(file.groups)))
    return (1 if Path(file.path).suffix.lower() in _PLAIN else PACKED) * file.size


def local(path: str) -> str:
    """Return the absolute path without `file://`."""
    return os.path.abspath(unquote(path.removeprefix("file://")) if path.startswith("file://") else path)


def describe_path(path: str) -> Json:
    """Return the type, asset key and path of a source."""
    place = path.removeprefix("file://")
    parts = [re.sub(r"[^\w.=-]+", "_", part) for part in place.split("/") if part not in ("", ".", "..")]
    return {"kind": "file", "asset_key": ["file", *parts], "location": path}


def list_local(path: str, node: str) -> list[File]:
    """Return the files of a path in the natural order of their names (`part-9` before `part-10`).

    Raise TargetError if one cannot be read.
    """
    place = local(path)
    matches = [place] if os.path.lexists(place) else _matching(place)
    # A file that two links lead to is one file: its rows count once.
    listed = {os.path.realpath(name): name for match in matches for name in _below(match, node)}
    return [_stat(name, node) for name in sorted(listed.values(), key=natural_order)]


def no_files(path: str, node: str) -> TargetError:
    """Return the error for a path without files."""
    place = local(path)
    near = [] if "://" in path else difflib.get_close_matches(place, _sibling_paths(place), n=2)
    advice = (
        f"Did you mean {' or '.join(near)}?"
        if near
        else "Set `path` to a file, a folder or a pattern such as /data/*.parquet."
    )
    msg = f"no files matching `{path}`"
    return TargetError(msg, hint=f"{advice} Files whose name begins with `_` or `.` do not count.", node=node)


def check_list(files: Sequence[File], path: str, node: str) -> None:
    """Raise TargetError for too many files, and SchemaError if they differ in their partition folders."""
    if len(files) > MOST:
        msg = f"`{path}` has {len(files)} files; {MOST} can be pinned at once"
        raise TargetError(
            msg, hint="Read it in parts by a narrower path, or put small files together.", node=node
        )
    names = set(files[0].partitions) if files else set()
    if odd := next((file for file in files if set(file.partitions) != names), None):
        msg = (
            f"`{odd.path}` has the partition folders {_join_names(odd.partitions)}, `{files[0].path}` has"
            f" {_join_names(names)}"
        )
        raise SchemaError(msg, hint="All files of one source need the same `name=value` folders.", node=node)


def fixed_folder(pattern: str) -> str:
    """Return the folder that a pattern begins with, or a path without a pattern itself."""
    parts = _PATTERN.split(pattern, maxsplit=1)
    return os.path.dirname(parts[0]) if len(parts) > 1 else pattern


def _matching(pattern: str) -> list[str]:
    fixed = os.path.dirname(_PATTERN.split(pattern, maxsplit=1)[0])
    return [
        name for name in glob.glob(pattern, recursive=True) if not is_hidden(os.path.relpath(name, fixed))
    ]


def is_hidden(path: str) -> bool:
    """Return whether a relative path has a part that begins with `_` or `.`."""
    return any(map(_is_hidden, Path(path).parts))


def _is_hidden(name: str) -> bool:
    return name.startswith((".", "_"))


def _join_names(names: Mapping[str, object] | set[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def natural_order(name: str) -> tuple[tuple[tuple[str, int], ...], str]:
    """Return the key that sorts names by their numbers: `part-9` before `part-10`."""
    parts = _DIGITS.split(name)
    pairs = tuple(
        (text, int(parts[at + 1]) if at + 1 < len(parts) else -1)
        for at, text in enumerate(parts)
        if at % 2 == 0
    )
    return pairs, name


def _sibling_paths(place: str) -> list[str]:
    folder = os.path.dirname(place)
    try:
        return [os.path.join(folder, name) for name in os.listdir(folder)]
    except OSError:
        return []


def _below(place: str, node: str) -> Iterator[str]:
    """Yield the file itself, or all files below a folder. Links are followed, each folder once."""

    def fail(error: OSError) -> None:
        msg = f"`{error.filename}` cannot be listed: {error.strerror}"
        raise TargetError(msg, hint="Let the user that runs Headrace read it.", node=node)

    if os.path.isfile(place):
        yield place
        return
    seen: set[tuple[int, int]] = set()
    for folder, folders, names in os.walk(place, onerror=fail, followlinks=True):
        about = os.stat(folder)
        if (about.st_dev, about.st_ino) in seen:
            folders.clear()
            continue
        seen.add((about.st_dev, about.st_ino))
        folders[:] = [name for name in folders if not _is_hidden(name)]
        yield from (os.path.join(folder, name) for name in names if not _is_hidden(name))


def _stat(name: str, node: str) -> File:
    try:
        about = os.stat(name)
    except OSError as error:
        msg = f"`{name}` cannot be read: {error.strerror}"
        raise TargetError(
            msg, hint="Remove it, or let the user that runs Headrace read it.", node=node
        ) from None
    return File(name, about.st_size, about.st_mtime_ns)


def pack(files: Sequence[File]) -> Json:
    """Return the list as a handle: the common folder, and the rest compressed.

    It is compressed because every position contains it.
    """
    packed = pack_rows(files, [()] * len(files))
    return packed | {"count": len(files), "bytes": sum(file.size for file in files)}


def unpack(handle: Json) -> list[File]:
    """Restore the files from the result of `pack`."""
    return [file for file, _ in unpack_rows(handle)]


def pack_rows(files: Sequence[File], more: Sequence[Sequence[int]]) -> Json:
    """Return the common folder of the files, and the rest compressed. `more` has numbers of each file."""
    root = _common_folder([file.path for file in files])
    rows = [
        [file.path[len(root) :].lstrip("/"), file.size, file.changed, file.groups, file.tag, *numbers]
        for file, numbers in zip(files, more, strict=True)
    ]
    packed = zlib.compress(json.dumps(rows, separators=(",", ":")).encode(), 9)
    return {"root": root, "files": base64.b64encode(packed).decode()}


def _common_folder(paths: Sequence[str]) -> str:
    """Return the folder that all paths are in. They may be those of a bucket."""
    first, last = min(paths), max(paths)
    equal = next((at for at, letter in enumerate(first) if letter != last[at : at + 1]), len(first))
    return os.path.dirname(first[:equal])


def unpack_rows(handle: Json) -> list[tuple[File, list[int]]]:
    """Restore the files and the numbers of each from the result of `pack_rows`."""
    rows = json.loads(zlib.decompress(base64.b64decode(handle["files"])))
    return [
        (
            File(os.path.join(handle["root"], name), size, changed, groups and tuple(groups), tag),
            numbers,
        )
        for name, size, changed, groups, tag, *numbers in rows
    ]


def change(about: os.stat_result, file: File) -> str:
    """Return how an open or named file changed since the snapshot was created; "" if it did not."""
    if about.st_size != file.size:
        return f"it had {file.size} bytes and has {about.st_size}"
    return "it was written to" if about.st_mtime_ns != file.changed else ""


def changed_file_error(path: str, what: str, node: str) -> PipelineStateError:
    """Return the error for a file that changed since the snapshot was created."""
    return PipelineStateError(f"`{path}` changed after it was pinned: {what}", hint=CHANGED, node=node)


CHANGED = (
    "The same rows cannot be read again. Put the file back as it was (size and time of change), or start"
    " over with a new snapshot:"
    " `headrace reset FILE`."
)


def append_group(pieces: list[list[object]], ordinal: int, path: str, group: int) -> None:
    """Add a row group to a split's ranges [ordinal, path, first group, end]; extend the last if adjacent."""
    if pieces and pieces[-1][0] == ordinal and pieces[-1][3] == group:
        pieces[-1][3] = group + 1
    else:
        pieces.append([ordinal, path, group, group + 1])

"""The folder of file sinks: generations, states and commits, changed only by atomic renames.

    PATH/headrace_commit=0000000007/…       rows of an epoch, and its commit record in `_headrace_commit`
    PATH/.headrace/<sink>/generation-<G>/   of the run that may write; a newer run renames it
        state.json                          the sink's claim, and its record if that is newer than its commits
        attempt-…, commit-…                 an epoch that is being written

A run reaches `state.json` and its commits only through the name of its generation. After the rename these
paths no longer exist, so a rename of an older run fails. A newer run then moves unfinished work away before
it reads the state, so a rename that was in progress has either happened or fails.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from headrace.pipeline.protocol.epochs import CommitRecord, Json, SinkKey

COMMIT = "headrace_commit"
"""Folders of commits are `headrace_commit=<number>`, a partition column for readers."""
HOME = ".headrace"
_MANIFEST = "_headrace_commit"
_STATE = "state.json"
_GENERATION, _ATTEMPT, _READY, _TRASH = "generation-", "attempt-", "commit-", "trash-"
_EXISTS = (errno.EEXIST, errno.ENOTEMPTY)


@dataclass(frozen=True, slots=True)
class FolderSinkState:
    """What the folder has of one sink besides its commits."""

    key: SinkKey
    share: bool = False
    claims: bool = False
    record: CommitRecord | None = None
    """The record of the sink, unless it has a commit with a number above `after`."""
    after: int = 0
    removed: int = 0
    """Commits up to this number are removed, or are being removed."""

    def to_json(self) -> Json:
        """Return the state as plain JSON values."""
        record = self.record and self.record.to_json()
        return asdict(replace(self, record=None)) | {"record": record}

    @classmethod
    def from_json(cls, data: Json) -> FolderSinkState:
        """Create a state from the output of `to_json`."""
        record = data["record"] and CommitRecord.from_json(data["record"])
        return cls(**data | {"key": SinkKey(**data["key"]), "record": record})


@dataclass(frozen=True, slots=True)
class CommitManifest:
    """What a commit has: its record, and name, rows and bytes of its files."""

    record: CommitRecord
    files: tuple[tuple[str, int, int], ...]


class SinkFolder:
    """The part of one sink in the folder of a target. It knows the run that may write by its generation."""

    def __init__(self, path: str, sink: str) -> None:
        """`sink` is the name below `.headrace`, see `folder_name`."""
        self._path = Path(path)
        self._home = self._path / HOME / sink

    def find_generation(self) -> int | None:
        """Return the newest generation, or None before the first."""
        for _ in range(10):  # A listing during a rename can miss both names.
            try:
                names = os.listdir(self._home)
            except (FileNotFoundError, NotADirectoryError):
                return None
            result = [int(name.removeprefix(_GENERATION)) for name in names if name.startswith(_GENERATION)]
            if result:
                return max(result)
        return None

    def raise_generation(self, expected: int | None, generation: int, key: SinkKey) -> bool:
        """Replace the generation `expected`, and end the work of older runs. Return False if it changed."""
        new = self._home.parent / f".{uuid.uuid4().hex}"
        try:
            if expected is None:
                inner = new / f"{_GENERATION}{generation}"
                inner.mkdir(parents=True)
                _write_json(inner / _STATE, FolderSinkState(key).to_json())
                _sync_folder(inner)
                new.rename(self._home)
            else:
                self._of(expected).rename(self._of(generation))
        except OSError as error:
            shutil.rmtree(new, ignore_errors=True)
            if error.errno in (errno.ENOENT, *_EXISTS):
                return False
            raise
        _sync_folder(self._home)
        self.discard_attempts(generation)
        return True

    def discard_attempts(self, generation: int) -> None:
        """Remove unfinished work and removed commits. Each is first moved away, so no rename finds a part."""
        state = self.read_state(generation)
        folder = self._of(generation)
        stale = [folder / name for name in os.listdir(folder) if name != _STATE]
        stale += [self.commit_folder(number) for number in self.commits() if number <= state.removed]
        for path in stale:
            try:
                path.rename(self._home / f"{_TRASH}{uuid.uuid4().hex}")
            except FileNotFoundError:
                continue
        for name in os.listdir(self._home):
            if name.startswith(_TRASH):
                trash = self._home / name
                shutil.rmtree(trash) if trash.is_dir() else trash.unlink()

    def read_state(self, generation: int) -> FolderSinkState:
        """Return the state of a generation. Raise FileNotFoundError if a newer run renamed it."""
        return FolderSinkState.from_json(json.loads((self._of(generation) / _STATE).read_bytes()))

    def write_state(self, generation: int, state: FolderSinkState) -> bool:
        """Replace the state in one step. Return False if the generation no longer exists."""
        folder = self._of(generation)
        new = folder / f"{uuid.uuid4().hex}.tmp"
        try:
            _write_json(new, state.to_json())
            new.rename(folder / _STATE)
            _sync_folder(folder)
        except FileNotFoundError:
            return False
        return True

    def begin_attempt(self, generation: int) -> Path | None:
        """Return a new folder for files, or None if the generation no longer exists."""
        folder = self._of(generation) / f"{_ATTEMPT}{uuid.uuid4().hex}"
        try:
            folder.mkdir()
        except FileNotFoundError:
            return None
        return folder

    def publish(
        self, generation: int, attempt: Path, files: Iterable[tuple[str, int, int]], record: CommitRecord
    ) -> int | None:
        """Make files of an attempt, and the record, the next commit in one step. Return its number.

        Files that are not listed are not moved: a task that still runs adds none. Return None if the
        generation no longer exists.
        """
        ready = self._of(generation) / f"{_READY}{uuid.uuid4().hex}"
        try:
            ready.mkdir()
            moved = [self._move(attempt, ready, number, *file) for number, file in enumerate(files)]
            _write_json(ready / _MANIFEST, {"record": record.to_json(), "files": moved})
            for folder, _, _ in os.walk(ready):
                _sync_folder(Path(folder))
            number = self.last_commit(generation) + 1
            while not self._rename_commit(ready, number):
                number += 1
        except FileNotFoundError:
            if self._of(generation).exists():
                raise
            return None
        _sync_folder(self._path)
        shutil.rmtree(attempt, ignore_errors=True)
        return number

    def _move(
        self, attempt: Path, ready: Path, number: int, name: str, rows: int, size: int
    ) -> Sequence[object]:
        """Move a file of an attempt. Return its entry in the manifest."""
        inner = Path(name)
        target = inner.with_name(f"part-{number:05}{''.join(inner.suffixes)}")
        (ready / target).parent.mkdir(parents=True, exist_ok=True)
        (attempt / inner).rename(ready / target)
        return [str(target), rows, size]

    def _rename_commit(self, ready: Path, number: int) -> bool:
        """Return False if another sink has the number."""
        try:
            ready.rename(self.commit_folder(number))
        except OSError as error:
            if error.errno in _EXISTS:
                return False
            raise
        return True

    def last_commit(self, generation: int) -> int:
        """Return the highest number that a commit has or had."""
        return max([self.read_state(generation).after, *self.commits()])

    def commits(self) -> list[int]:
        """Return the numbers of all commits in the folder, those of other sinks included."""
        names = os.listdir(self._path)
        return sorted(int(name.split("=")[1]) for name in names if is_commit(name))

    def commit_folder(self, number: int) -> Path:
        """Return the folder of a commit."""
        return self._path / f"{COMMIT}={number:010}"

    def read_manifest(self, number: int) -> CommitManifest:
        """Return the record and the files of a commit."""
        data = json.loads((self.commit_folder(number) / _MANIFEST).read_bytes())
        files = tuple((name, rows, size) for name, rows, size in data["files"])
        return CommitManifest(CommitRecord.from_json(data["record"]), files)

    def read_record(self, generation: int) -> CommitRecord | None:
        """Return the record of the sink: that of its newest commit, or the one in its state."""
        state = self.read_state(generation)
        for number in reversed(self.commits()):
            if number <= state.after:
                break
            if (record := self.read_manifest(number).record).key == state.key:
                return record
        return state.record

    def _of(self, generation: int) -> Path:
        return self._home / f"{_GENERATION}{generation}"


def is_commit(name: str) -> bool:
    """Return whether a name is that of a commit's folder."""
    return name.startswith(f"{COMMIT}=") and name.removeprefix(f"{COMMIT}=").isdigit()


def folder_name(key: SinkKey) -> str:
    """Return the name of a sink's folder below `.headrace`."""
    return hashlib.sha256(key.text.encode()).hexdigest()[:16]


def find_states(path: str) -> Iterator[tuple[SinkFolder, int, FolderSinkState]]:
    """Yield folder, generation and state of every sink that writes or wrote the target."""
    try:
        names = sorted(os.listdir(Path(path) / HOME))
    except FileNotFoundError:
        return
    for name in names:
        if name.startswith(".") or not (Path(path) / HOME / name).is_dir():
            continue
        folder = SinkFolder(path, name)
        for _ in range(10):
            generation = folder.find_generation()
            if generation is None:
                break
            try:
                yield folder, generation, folder.read_state(generation)
            except FileNotFoundError:  # Renamed by a newer run.
                continue
            break


def _write_json(path: Path, value: Json) -> None:
    with path.open("w", encoding="utf-8") as file:
        json.dump(value, file, separators=(",", ":"))
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    """Make the names in a folder survive a power failure."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

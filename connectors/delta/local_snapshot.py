"""The state of a Delta table on a local disk, read from its log without Spark.

The log is read as the Delta protocol describes it: a checkpoint, if there is one, and the commits after it.
Logs in other formats are left to Delta's own classes.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyarrow import parquet

from headrace.connectors.delta.commit_metadata import NO_TABLE, TableVersion
from headrace.connectors.delta.data_files import DataFile
from headrace.connectors.delta.table_log import TableSnapshot
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.protocol.epochs import Json

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_READ = ("protocol", "metaData", "add", "txn")
"""The actions of a checkpoint that make a version. Its `remove` actions are of files that are not in it."""
_UNUSED = ("commitInfo", "cdc", "domainMetadata")
_IGNORED = tuple(f'{{"{name}"' for name in _UNUSED)
"""The starts of actions that do not change the state. Another spelling of them is parsed."""
_COMMIT = re.compile(r"\d{20}\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")
_ACTIONS = 200_000
"""Actions in a checkpoint, above which the driver does not read it."""
NEUTRAL_FEATURES = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "clustering",
        "columnMapping",
        "deletionVectors",
        "domainMetadata",
        "generatedColumns",
        "identityColumns",
        "invariants",
        "rowTracking",
        "timestampNtz",
        "typeWidening",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
"""Table features that change neither the format of commits nor a commit without data files."""
_HIGHEST_PROTOCOL = (3, 7)
"""The versions of readers and writers in which a table lists its features."""


_OWN_LOG = ("spark.delta.logStore.", "spark.databricks.delta.properties.defaults.")
"""Options of a user for the log of tables, which only Delta's own classes follow."""


class UnsupportedLogError(Exception):
    """A log in a format that this module does not read."""


def local_folder(path: str) -> Path | None:
    """Return the folder of a table on a local disk, or None for another file system."""
    parts = urlsplit(path)
    if not parts.scheme:
        return Path(path)
    return Path(unquote(parts.path)) if parts.scheme == "file" and not parts.netloc else None


def find_local_table(path: str, settings: Settings) -> Path | None:
    """Return the folder of a table whose log this module may read, or None if it is left to Delta."""
    is_default = not any(name.startswith(_OWN_LOG) for name in settings.spark.conf)
    return local_folder(path) if is_default and settings.spark.master.startswith("local") else None


def absolute_path(path: str) -> str:
    """Return a local path as an absolute path without a scheme, because Delta takes no other."""
    folder = local_folder(path)
    return path if folder is None else os.path.abspath(folder)


def commit_path(folder: Path, version: int) -> Path:
    """Return the file of a commit."""
    return folder / "_delta_log" / f"{version:020d}.json"


@dataclass(frozen=True)
class LocalSnapshot(TableSnapshot):
    """One version of a local table: its actions in the form of the log."""

    folder: Path
    version: TableVersion = NO_TABLE
    metadata: Json = field(default_factory=dict)
    protocol: Json = field(default_factory=dict)
    files: Mapping[str, DataFile] = field(default_factory=dict)
    transactions: Mapping[str, int] = field(default_factory=dict)
    file_identity: tuple[int, int] | None = None
    """What tells the file of the newest commit from one that replaced it. None if it was not read."""

    def read_columns(self) -> StructType:
        """Return the columns."""
        from pyspark.sql.types import StructType

        return StructType.fromJson(self.columns)

    @cached_property
    def columns(self) -> Json:
        """The columns as the log describes them."""
        return json.loads(self.metadata["schemaString"])

    def read_properties(self) -> Mapping[str, str]:
        """Return the properties of the table; none without a table."""
        return self.metadata.get("configuration") or {}

    def read_transactions(self) -> Mapping[str, int]:
        """Return the versions of all transaction identifiers."""
        return self.transactions

    def read_files(self) -> list[DataFile]:
        """Return the data files."""
        return list(self.files.values())


def read_snapshot(before: LocalSnapshot) -> LocalSnapshot:
    """Return the newest version of the table of `before`. Only commits after `before` are read, if there are.

    Raise UnsupportedLogError for a log in another format.
    """
    try:
        # Else nothing was read yet, or the table was replaced.
        newest = _replay(before) if _has_newest_commit(before) else _read_from_start(before.folder)
        if newest is not before and newest.version.exists:
            _check_format(newest)
    except (KeyError, TypeError, ValueError) as error:
        raise UnsupportedLogError(str(error)) from error
    return newest


def read_version(folder: Path, number: int) -> LocalSnapshot:
    """Return one version of a table.

    Raise UnsupportedLogError if the log does not have it, or has another format.
    """
    try:
        snapshot = _read_from_start(folder, number)
        if snapshot.version.number != number:
            msg = f"the log has no version {number}"
            raise UnsupportedLogError(msg)
        _check_format(snapshot)
    except (KeyError, TypeError, ValueError) as error:
        raise UnsupportedLogError(str(error)) from error
    return snapshot


def _has_newest_commit(snapshot: LocalSnapshot) -> bool:
    """Return whether the file of the newest commit is the one that was read."""
    if snapshot.file_identity is None:
        return False
    try:
        return snapshot.file_identity == _identify(
            commit_path(snapshot.folder, snapshot.version.number).stat()
        )
    except (FileNotFoundError, NotADirectoryError):
        return False


def _read_from_start(folder: Path, most: int | None = None) -> LocalSnapshot:
    """Return the newest version, or version `most`, from a checkpoint and the commits after it."""
    try:
        names = sorted(entry.name for entry in (folder / "_delta_log").iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return LocalSnapshot(folder)
    names = [name for name in names if most is None or not name[:20].isdigit() or int(name[:20]) <= most]
    commits = [int(name[:20]) for name in names if _COMMIT.fullmatch(name)]
    checkpoints = [name for name in names if _CHECKPOINT.fullmatch(name)]
    if not any(name[:20].isdigit() for name in names):
        return LocalSnapshot(folder)
    start = _read_checkpoint(folder, checkpoints[-1]) if checkpoints else LocalSnapshot(folder)
    newest = _replay(start, most)
    if newest.version.number < max(commits, default=0) or not newest.version.exists:
        msg = f"commit {newest.version.number + 1} is missing"
        raise UnsupportedLogError(msg)
    return newest


def _replay(before: LocalSnapshot, most: int | None = None) -> LocalSnapshot:
    """Return the version after all commits that follow `before`, or after those up to version `most`."""
    number, state = before.version.number, _State(before)
    while number != most:
        path = commit_path(before.folder, number + 1)
        try:
            with path.open(encoding="utf-8") as file:
                state.file_identity = _identify(os.fstat(file.fileno()))
                # A text in the log can contain characters that `splitlines` takes for ends of lines.
                lines = file.read().split("\n")
        except (FileNotFoundError, NotADirectoryError):
            break
        state.apply(json.loads(line) for line in lines if line and not line.startswith(_IGNORED))
        number += 1
    return before if number == before.version.number else state.to_snapshot(before.folder, number)


class _State:
    """A version of a table while commits are applied to it."""

    def __init__(self, before: LocalSnapshot) -> None:
        self.metadata, self.protocol = before.metadata, before.protocol
        self.files, self.transactions = dict(before.files), dict(before.transactions)
        self.file_identity = before.file_identity
        self._folder = before.folder

    def apply(self, actions: Iterable[Json]) -> None:
        """Apply the actions of one commit or checkpoint.

        A changed deletion vector removes and adds one path, in any order.
        """
        added: dict[str, DataFile] = {}
        for action in actions:
            ((name, value),) = action.items()
            if name == "add":
                added[value["path"]] = DataFile(self._folder, value)
            elif name == "remove":
                self.files.pop(value["path"], None)
            elif name == "txn":
                self.transactions[value["appId"]] = value["version"]
            elif name == "metaData":
                self.metadata = value
            elif name == "protocol":
                self.protocol = value
            elif name not in _UNUSED:
                msg = f"the log has the action `{name}`"
                raise UnsupportedLogError(msg)
        self.files |= added

    def to_snapshot(self, folder: Path, number: int) -> LocalSnapshot:
        """Return the version with this number."""
        if "id" not in self.metadata or not self.protocol:
            msg = f"version {number} has no metadata or no protocol"
            raise UnsupportedLogError(msg)
        version = TableVersion(self.metadata["id"], number)
        return LocalSnapshot(
            folder,
            version,
            self.metadata,
            self.protocol,
            self.files,
            self.transactions,
            self.file_identity,
        )


def _read_checkpoint(folder: Path, name: str) -> LocalSnapshot:
    """Return the version of a checkpoint. The file of its commit may be gone from the log."""
    path, number = folder / "_delta_log" / name, int(name[:20])
    try:
        with parquet.ParquetFile(path) as reader:
            if reader.metadata.num_rows > _ACTIONS or "sidecar" in reader.schema_arrow.names:
                msg = f"the checkpoint has {reader.metadata.num_rows} actions, or other files"
                raise UnsupportedLogError(msg)
            rows = reader.read(columns=list(_select_columns(reader.schema_arrow))).to_pylist()
    except pa.ArrowException as error:
        raise UnsupportedLogError(str(error)) from error
    state = _State(LocalSnapshot(folder))
    state.apply(
        {name: _restore_json(value)} for row in rows for name, value in row.items() if value is not None
    )
    return state.to_snapshot(folder, number)


def _select_columns(schema: pa.Schema) -> Iterator[str]:
    """Yield the fields of a checkpoint's actions that the log has too.

    Fields such as `stats_parsed` repeat others in typed columns. Actions of later commits must not have them.
    """
    for name in _READ:
        if name in schema.names:
            for part in schema.field(name).type:
                if not part.name.endswith("_parsed"):
                    yield f"{name}.{part.name}"


def _restore_json(value: Any, key: str = "") -> Any:
    """Return an action of a checkpoint as the log has it. In Arrow, maps are lists of pairs."""
    if isinstance(value, dict):
        return {name: _restore_json(one, name) for name, one in value.items() if one is not None}
    return dict(value) if key in ("configuration", "options", "partitionValues", "tags") else value


def _check_format(snapshot: LocalSnapshot) -> None:
    """Raise UnsupportedLogError if a feature of the table may change the format of the log."""
    protocol = snapshot.protocol
    versions = protocol["minReaderVersion"], protocol["minWriterVersion"]
    features = {*protocol.get("readerFeatures", ()), *protocol.get("writerFeatures", ())}
    is_newer = any(version > most for version, most in zip(versions, _HIGHEST_PROTOCOL, strict=True))
    if is_newer or not features <= NEUTRAL_FEATURES:
        msg = f"the table has the protocol {versions} with {sorted(features)}"
        raise UnsupportedLogError(msg)


def _identify(status: os.stat_result) -> tuple[int, int]:
    return status.st_ino, status.st_mtime_ns

"""The log of a Delta table on a local disk, read and written without Spark.

A commit is a file that appears under its name at once, by a hard link, and only if the name is free. So of
two writers of one version, one fails and reads the table again.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.connectors.delta.commit_metadata import TableVersion
from headrace.connectors.delta.errors import explain
from headrace.connectors.delta.local_snapshot import (
    LocalSnapshot,
    UnsupportedLogError,
    commit_path,
    read_snapshot,
)
from headrace.connectors.delta.table_log import TableLog
from headrace.pipeline.errors import TransientError
from headrace.pipeline.protocol.epochs import Json, WriteCounts

log = logging.getLogger(__name__)

_ATTEMPTS = 5
_DEFAULT_INTERVAL = 10
"""Commits between two checkpoints, if the table does not say."""
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


class LocalTableLog(TableLog):
    """The log of the table in a folder. `write_checkpoint` is Delta's, and may start Spark."""

    def __init__(self, folder: Path, sink: str, write_checkpoint: Callable[[], None]) -> None:
        self._newest = LocalSnapshot(folder)
        self._sink = sink
        self._write_checkpoint = write_checkpoint
        self.folder = folder
        self.is_supported = True
        """False once the log turned out to need Delta's own classes."""

    def snapshot(self) -> LocalSnapshot:
        """Return the newest version.

        Raise TransientError if the log cannot be read, or not without Delta's own classes.
        """
        try:
            self._newest = read_snapshot(self._newest)
        except UnsupportedLogError as error:
            self.is_supported = False
            msg = f"the log of the Delta table `{self.folder}` needs Delta's own classes: {error}"
            raise TransientError(msg, hint="The next attempt uses them.", node=self._sink) from error
        except OSError as error:
            raise explain(error, str(self.folder), self._sink) from error
        return self._newest

    def read_commit(self, version: int) -> Json | None:
        """Return a commit's info, {} if it has none, or None if there is no such version (any more)."""
        try:
            with commit_path(self.folder, version).open(encoding="utf-8", newline="\n") as lines:
                for line in lines:  # usually the first line; there may be thousands of adds
                    if '"commitInfo"' in line[:20] and (action := json.loads(line)).keys() == {"commitInfo"}:
                        return action["commitInfo"]
        except (FileNotFoundError, NotADirectoryError):
            return None
        return {}

    def commit(self, since: TableVersion, app: str, txn: int, metadata: str) -> bool:
        """See `TableLog.commit`."""
        return self.commit_files(since, app, txn, metadata)

    def commit_files(
        self,
        since: TableVersion,
        app: str,
        txn: int,
        metadata: str,
        actions: Sequence[Json] = (),
        counts: WriteCounts | None = None,
        read_version: int | None = None,
    ) -> bool:
        """Commit a step as `commit` does, with actions on data files that change `counts` rows.

        `read_version` is the version that an upsert read; other commits only append. Return False, with
        nothing committed, also if the table is no longer at `read_version`.
        """
        step = {"txn": {"appId": app, "version": txn}}
        for _ in range(_ATTEMPTS):
            snapshot = self.snapshot()
            if read_version not in (None, snapshot.version.number):
                return False
            if self.is_overtaken(snapshot, app, txn, since):
                return False
            operation = "WRITE" if read_version is None else "MERGE"
            parameters = (
                {"mode": "Append", "partitionBy": "[]"}
                if read_version is None
                else {"matchedPredicates": "[]"}
            )
            info = _describe(snapshot, operation, parameters, metadata, counts)
            info["isBlindAppend"] = read_version is None
            if self._put(snapshot, [info, step, *actions]):
                return True
        return False

    def set_properties(self, values: Mapping[str, str | None]) -> None:
        """Set properties of the table. Remove those whose value is None."""
        names = json.dumps({name: value for name, value in values.items() if value is not None})
        operation = "UNSET TBLPROPERTIES" if None in values.values() else "SET TBLPROPERTIES"
        for _ in range(_ATTEMPTS):
            snapshot = self.snapshot()
            before = snapshot.read_properties()
            after = {name: value for name, value in {**before, **values}.items() if value is not None}
            if after == before:
                return
            action = {"metaData": {**snapshot.metadata, "configuration": after}}
            if self._put(snapshot, [_describe(snapshot, operation, {"properties": names}), action]):
                return
        msg = f"others write to the Delta table `{self.folder}` without pause"
        raise TransientError(msg, node=self._sink)

    def create(self, metadata: Json, protocol: Json) -> None:
        """Write the first version, unless there is one."""
        (self.folder / "_delta_log").mkdir(parents=True, exist_ok=True)
        empty = LocalSnapshot(self.folder)
        properties = json.dumps(metadata["configuration"])
        parameters = {
            "partitionBy": "[]",
            "description": None,
            "isManaged": "false",
            "properties": properties,
        }
        info = _describe(empty, "CREATE TABLE", parameters)
        self._put(empty, [info, {"metaData": metadata}, {"protocol": protocol}])

    def _put(self, snapshot: LocalSnapshot, actions: Sequence[Json]) -> bool:
        """Write the commit after a version. Return False if there is one already."""
        version = snapshot.version.number + 1
        path = commit_path(self.folder, version)
        info, *others = actions
        text = "".join(f"{json.dumps(action)}\n" for action in ({"commitInfo": info}, *others))
        temporary = path.with_name(f".{path.name}.{uuid.uuid4()}.tmp")
        try:
            temporary.write_text(text, encoding="utf-8")
            _rename_to_free_name(temporary, path)
        except FileExistsError:
            return False
        finally:
            temporary.unlink(missing_ok=True)
        interval = int(snapshot.read_properties().get("delta.checkpointInterval", _DEFAULT_INTERVAL))
        if version and version % interval == 0:
            self._checkpoint()
        return True

    def _checkpoint(self) -> None:
        """Write a checkpoint. The commit is done, so a failure only makes the next reader slower."""
        try:
            self._write_checkpoint()
        except Exception as error:  # noqa: BLE001  of the JVM, or a start of Spark that failed
            log.warning("event=checkpoint_failed node=%s table=%s error=%s", self._sink, self.folder, error)


def _rename_to_free_name(source: Path, target: Path) -> None:
    """Give a file another name. Raise FileExistsError if the name is taken.

    On a file system without hard links another process could take the name at the same moment. Delta's own
    classes have the same gap on every local disk.
    """
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if target.exists():
            raise FileExistsError(target) from error
        source.rename(target)


def _describe(
    snapshot: LocalSnapshot,
    operation: str,
    parameters: Mapping[str, Any],
    metadata: str | None = None,
    counts: WriteCounts | None = None,
) -> Json:
    """Return the info of a commit, which `DESCRIBE HISTORY` shows."""
    info: Json = {
        "timestamp": int(time.time() * 1000),
        "operation": operation,
        "operationParameters": parameters,
        "isolationLevel": "Serializable",
        "isBlindAppend": True,
        "operationMetrics": _metrics(counts) if counts is not None else {},
        "engineInfo": "Headrace",
        "txnId": str(uuid.uuid4()),
    }
    if snapshot.version.exists:
        info["readVersion"] = snapshot.version.number
    return info if metadata is None else {**info, "userMetadata": metadata}


def _metrics(counts: WriteCounts) -> dict[str, str]:
    """Return the counts as the metrics of a MERGE or of an append."""
    values = {
        "numSourceRows": counts.rows,
        "numTargetRowsCopied": 0,
        "numTargetRowsInserted": counts.inserted,
        "numTargetRowsUpdated": counts.updated,
        "numTargetRowsDeleted": counts.deleted,
        "numOutputRows": (counts.inserted or 0) + (counts.updated or 0),
    }
    return {name: str(value or 0) for name, value in values.items()}

"""The log of one Delta table, read through the JVM: versions, transaction ids, and the metadata of commits.

A sink's record lies in the user metadata of a commit, wrapped::

    {"headrace": 1, "app": "<uuid>/<lane>/<sink>", "txn": …, "derive": true, "record": {…} or null}

`txn` is the version of the transaction identifier `app` that the same commit sets: (generation << 32) + step.
It only grows, so Delta itself refuses what an older generation still writes, also after a lane was taken back
to an earlier epoch. `derive` says that the rows are not in `record` but in the commit's own metrics, which do
not exist yet when the record is written down.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from headrace.connectors.delta.log_replay import LogReplay, collect_transactions, local_folder
from headrace.connectors.java_classes import java_class
from headrace.pipeline.errors import InternalError
from headrace.pipeline.protocol.epochs import CommitRecord, Json, SinkKey, WriteCounts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FORMAT = 1
_GENERATION_BITS = 32


def first_step(generation: int) -> int:
    """Return the transaction version with which a generation fences older ones."""
    return generation << _GENERATION_BITS


@dataclass(frozen=True, slots=True)
class TableVersion:
    """A version of a table. A table that was dropped and created again has another identity."""

    identity: str
    number: int

    @property
    def exists(self) -> bool:
        """Whether there is a table."""
        return self.number >= 0


NO_TABLE = TableVersion("", -1)


@dataclass(frozen=True, slots=True)
class DeltaCommit:
    """What the table holds of a lane and sink: the newest of our commits.

    `record` is None where it only fenced.
    """

    version: int
    txn: int
    record: CommitRecord | None
    lost: str = ""
    """Why the log no longer has the record."""

    @property
    def generation(self) -> int:
        """The generation that made the commit."""
        return self.txn >> _GENERATION_BITS


def encode_commit_metadata(
    app: str, txn: int, record: CommitRecord | None, *, derive: bool = False, lost: str = ""
) -> str:
    """Return the user metadata of a commit. `lost` is why the log no longer has the sink's record."""
    found = {"headrace": _FORMAT, "app": app, "txn": txn, "derive": derive}
    found["record"] = record.to_json() if record is not None else None
    return json.dumps(found | ({"lost": lost} if lost else {}))


def decode_commit_metadata(version: int, info: Json, app: str | None) -> tuple[str, DeltaCommit] | None:
    """Return the application id and the commit, or None if it is not a commit of Headrace.

    With `app`, also return None for another sink's commit.
    """
    try:
        found = json.loads(info.get("userMetadata") or "null")
    except ValueError:
        return None
    if (
        not isinstance(found, dict)
        or "headrace" not in found
        or (app is not None and found.get("app") != app)
    ):
        return None
    if found["headrace"] != _FORMAT:
        msg = (
            f"version {version} of the Delta table holds a record of format {found['headrace']}, this"
            f" Headrace knows {_FORMAT}"
        )
        raise InternalError(msg, hint="Run the Headrace version that wrote it, or a newer one.")
    record = CommitRecord.from_json(found["record"]) if found["record"] is not None else None
    if record is not None and found["derive"]:
        counts = counted(info)
        record = replace(record, counts=counts, totals=record.totals + counts)
    return found["app"], DeltaCommit(version, found["txn"], record, found.get("lost", ""))


def counted(info: Json) -> WriteCounts:
    """Return the row counts of a commit from its own metrics, which cover the tasks whose files are in it."""
    metrics = {
        key: int(value) for key, value in info.get("operationMetrics", {}).items() if str(value).isdigit()
    }
    if info.get("operation") == "MERGE":
        inserted, updated, deleted = (
            metrics[f"numTargetRows{what}"] for what in ("Inserted", "Updated", "Deleted")
        )
        return WriteCounts(metrics["numSourceRows"], inserted, updated, deleted)
    return WriteCounts(metrics.get("numOutputRows", 0), metrics.get("numOutputRows", 0), 0, 0)


class TableLog:
    """Opened with a session; reads on every question unless it says otherwise."""

    def __init__(self, session: SparkSession, path: str) -> None:
        self._jvm: Any = session._jvm  # noqa: SLF001  pyspark has no other access to the log
        self._session: Any = session._jsparkSession  # noqa: SLF001
        self.path = path
        folder = local_folder(path)
        self.replay = LogReplay(folder) if folder is not None else None
        """The state of a local table, without jobs."""

    def _log(self) -> Any:
        return java_class(self._jvm, "org.apache.spark.sql.delta.DeltaLog").forTable(self._session, self.path)

    def snapshot(self) -> Any:
        """Return the newest snapshot as a JVM object."""
        log = self._log()
        return log.update(False, getattr(log, "update$default$2")(), getattr(log, "update$default$3")())

    def exists(self) -> bool:
        """Return whether there is a Delta table at the path."""
        return self.version(self.snapshot()).exists

    def log_retention(self, snapshot: Any) -> int:
        """Return how long the log keeps commits, in milliseconds."""
        return int(self._log().deltaRetentionMillis(snapshot.metadata()))

    def file_retention(self, snapshot: Any) -> int:
        """Return how long the files of older versions are kept, in milliseconds."""
        delta_log = java_class(self._jvm, "org.apache.spark.sql.delta.DeltaLog")
        return int(delta_log.tombstoneRetentionMillis(snapshot.metadata()))

    def transactions(self, snapshot: Any) -> dict[str, int]:
        """Return the versions of all transaction identifiers in a snapshot.

        Delta computes the state of a snapshot for this if the table is not local. The write that follows
        reuses the state. This session's configuration computes it in one job.
        """
        with self.activated():
            return self.replay.read_transactions(snapshot) if self.replay else collect_transactions(snapshot)

    @contextmanager
    def activated(self) -> Iterator[None]:
        """Make this log's session the active one of the thread: Delta takes configuration from that."""
        active = java_class(self._jvm, "org.apache.spark.sql.SparkSession")
        before = active.getActiveSession()
        active.setActiveSession(self._session)
        try:
            yield
        finally:
            if before.isDefined():
                active.setActiveSession(before.get())

    def start_transaction(self) -> Any:
        """Return a new transaction on the newest version as a JVM object."""
        return self._log().startTransaction()

    def identity(self, snapshot: Any) -> str:
        """Return the table's id, or "" without a table. A recreated table at the same path has another id."""
        return self.version(snapshot).identity

    def version(self, snapshot: Any) -> TableVersion:
        """Return the version of a snapshot; `NO_TABLE` without a table."""
        number = int(snapshot.version())
        return TableVersion(str(snapshot.metadata().id()), number) if number >= 0 else NO_TABLE

    def commits(self, newest: int, oldest: int = 0) -> Iterator[tuple[int, Json]]:
        """Yield (version, commit info) from the newest down, until the point where the log was cleaned up."""
        for version in range(newest, oldest - 1, -1):
            info = self.commit(version)
            if info is None:
                return
            yield version, info

    def commit(self, version: int) -> Json | None:
        """Return a commit's info, {} if it has none, or None if there is no such version (any more)."""
        from py4j.protocol import Py4JJavaError

        log = self._log()
        names = java_class(self._jvm, "org.apache.spark.sql.delta.util.FileNames")
        path = names.unsafeDeltaFile(log.logPath(), version)
        try:
            lines = log.store().readAsIterator(path, log.newDeltaHadoopConf())
        except Py4JJavaError as error:
            if "FileNotFoundException" in error.java_exception.getClass().getName():
                return None
            raise
        try:
            while lines.hasNext():  # usually the first line; there may be thousands of adds
                action = json.loads(lines.next())
                if "commitInfo" in action:
                    return action["commitInfo"]
        finally:
            lines.close()
        return {}

    def is_restored(self, newest: int, since: int) -> bool:
        """Return whether a commit after version `since` restored an earlier version."""
        return any(info.get("operation") == "RESTORE" for _, info in self.commits(newest, since + 1))

    def find(self, app: str, newest: int, oldest: int = 0) -> tuple[DeltaCommit | None, bool]:
        """Return our newest commit between two versions, and whether the table was restored after it.

        Commits whose rows a RESTORE removed do not count: the search goes on at the version that it restored,
        also below `oldest`. No commit is returned if the log does not have that version's number.
        """
        version, is_restored = newest, False
        while version >= oldest and (info := self.commit(version)) is not None:
            found = decode_commit_metadata(version, info, app)
            if found is not None:
                return found[1], is_restored
            version -= 1
            if info.get("operation") == "RESTORE":
                number = str(info.get("operationParameters", {}).get("version"))
                if not number.isdigit():
                    return None, True
                version, oldest, is_restored = int(number), 0, True
        return None, is_restored

    def find_conflicting_record(self, mine: SinkKey) -> CommitRecord | None:
        """Return the newest record of the same pipeline name, `lane` and sink under another UUID."""
        snapshot = self.snapshot()
        tail = f"/{mine.lane}/{mine.sink}"
        others = {app for app in self.transactions(snapshot) if app.endswith(tail) and app != mine.text}
        for version, info in self.commits(int(snapshot.version())) if others else ():
            found = decode_commit_metadata(version, info, None)
            if found is None or found[0] not in others or found[1].record is None:
                continue
            if found[1].record.key.name == mine.name:
                return found[1].record
        return None

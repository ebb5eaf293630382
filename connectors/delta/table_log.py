"""The log of one Delta table: the newest version, transaction identifiers, and the commits of sinks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from headrace.connectors.delta.commit_metadata import DeltaCommit, TableVersion, decode_commit_metadata
from headrace.pipeline.protocol.epochs import CommitRecord, Json, SinkKey

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from headrace.connectors.delta.data_files import DataFile


class TableSnapshot(ABC):
    """One version of a table."""

    version: TableVersion

    @abstractmethod
    def read_columns(self) -> StructType:
        """Return the columns."""

    @abstractmethod
    def read_properties(self) -> Mapping[str, str]:
        """Return the properties of the table; none without a table."""

    @abstractmethod
    def read_transactions(self) -> Mapping[str, int]:
        """Return the versions of all transaction identifiers."""

    @abstractmethod
    def read_files(self) -> list[DataFile]:
        """Return the data files."""


class TableLog(ABC):
    """Reads the log on every call unless it says otherwise."""

    @abstractmethod
    def snapshot(self) -> TableSnapshot:
        """Return the newest version."""

    @abstractmethod
    def read_commit(self, version: int) -> Json | None:
        """Return a commit's info, {} if it has none, or None if there is no such version (any more)."""

    @abstractmethod
    def commit(self, since: TableVersion, app: str, txn: int, metadata: str) -> bool:
        """Commit the step `txn` of `app` with user metadata, and no rows.

        `since` is the version at which the caller read the state of `app`. Return False, with nothing
        committed, if the table was replaced or restored or has a newer step of `app` since then.
        """

    @abstractmethod
    def set_properties(self, values: Mapping[str, str | None]) -> None:
        """Set properties of the table. Remove those whose value is None."""

    def is_overtaken(self, snapshot: TableSnapshot, app: str, txn: int, since: TableVersion) -> bool:
        """Return whether the state of `app` that the caller read at version `since` is void."""
        return (
            snapshot.version.identity != since.identity
            or snapshot.read_transactions().get(app, -1) >= txn
            or self.is_restored(snapshot.version.number, since.number)
        )

    def exists(self) -> bool:
        """Return whether there is a Delta table at the path."""
        return self.snapshot().version.exists

    def commits(self, newest: int, oldest: int = 0) -> Iterator[tuple[int, Json]]:
        """Yield (version, commit info) from the newest down, until the point where the log was cleaned up."""
        for version in range(newest, oldest - 1, -1):
            info = self.read_commit(version)
            if info is None:
                return
            yield version, info

    def is_restored(self, newest: int, since: int) -> bool:
        """Return whether a commit after version `since` restored an earlier version."""
        return any(info.get("operation") == "RESTORE" for _, info in self.commits(newest, since + 1))

    def find(self, app: str, newest: int, oldest: int = 0) -> tuple[DeltaCommit | None, bool]:
        """Return our newest commit between two versions, and whether the table was restored after it.

        Commits whose rows a RESTORE removed do not count: the search goes on at the version that it restored,
        also below `oldest`. No commit is returned if the log does not have that version's number.
        """
        version, is_restored = newest, False
        while version >= oldest and (info := self.read_commit(version)) is not None:
            commit_metadata = decode_commit_metadata(version, info, app)
            if commit_metadata is not None:
                return commit_metadata[1], is_restored
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
        others = {app for app in snapshot.read_transactions() if app.endswith(tail) and app != mine.text}
        for version, info in self.commits(snapshot.version.number) if others else ():
            commit_metadata = decode_commit_metadata(version, info, None)
            if (
                commit_metadata is None
                or commit_metadata[0] not in others
                or commit_metadata[1].record is None
            ):
                continue
            if commit_metadata[1].record.key.name == mine.name:
                return commit_metadata[1].record
        return None

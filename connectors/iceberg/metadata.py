"""The state of a sink in an Iceberg table, and the step that changes it: a compare-and-set of the metadata.

A sink's record is a property of the table, `headrace.<uuid>/<lane>/<sink>`, as JSON::

    {"headrace": 1, "generation": …, "snapshot": id of the snapshot that came with the record, "sequence": its
    number, "record": {…} or null}

Properties outlive the expiry of snapshots, and a rollback of the table: `snapshot` tells whether the rows are
still in it. Every change is a compare-and-set against the metadata that was read: Iceberg commits it only if
no other change was committed in between. It is not retried automatically. It also hands the removal of old
metadata from Iceberg to Headrace, see `metadata_files`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from headrace.connectors.iceberg.catalog import WarehouseTable
from headrace.connectors.iceberg.metadata_files import MetadataFiles
from headrace.connectors.java_classes import java_class
from headrace.pipeline.errors import InternalError
from headrace.pipeline.protocol.claims import Claim
from headrace.pipeline.protocol.epochs import CommitRecord, SinkKey

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PREFIX = "headrace."
MAIN = "main"
PRUNED = "headrace.prunes-metadata"
"""The property of a table whose old metadata Headrace removes."""
_DELETED_BY_ICEBERG = "write.metadata.delete-after-commit.enabled"
_VERSION = re.compile(r".*/v(\d+)\.[^/]*")
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class IcebergSinkState:
    """What the table holds of a lane and sink. `record` is None where it only fenced."""

    generation: int
    snapshot: int | None
    sequence: int
    record: CommitRecord | None
    share: bool = False
    """Whether the sink lets others write the table too."""

    def text(self) -> str:
        """Return the property's value."""
        result = self.record.to_json() if self.record is not None else None
        data = {
            "headrace": _FORMAT,
            "generation": self.generation,
            "snapshot": self.snapshot,
            "sequence": self.sequence,
            "record": result,
        }
        return json.dumps(data | ({"share": True} if self.share else {}))

    @classmethod
    def at(cls, snapshot: Any, generation: int, record: CommitRecord, *, share: bool) -> IcebergSinkState:
        """Return the state after a record was stored together with the rows of `snapshot`."""
        return cls(generation, int(snapshot.snapshotId()), int(snapshot.sequenceNumber()), record, share)

    @classmethod
    def of(cls, text: str) -> IcebergSinkState:
        """Restore the state from `text`. Raise InternalError for a format that this version does not know."""
        data = json.loads(text)
        if data.get("headrace") != _FORMAT:
            msg = (
                f"an Iceberg table holds a record of format {data.get('headrace')}, this Headrace knows"
                f" {_FORMAT}"
            )
            raise InternalError(msg, hint="Run the Headrace version that wrote it, or a newer one.")
        record = CommitRecord.from_json(data["record"]) if data["record"] is not None else None
        return cls(data["generation"], data["snapshot"], data["sequence"], record, bool(data.get("share")))


class IcebergMetadata:
    """The metadata of a table at one moment, and the way to the next one."""

    def __init__(self, spark: SparkSession, table: WarehouseTable, app: str, files: MetadataFiles) -> None:
        self._jvm: Any = spark._jvm  # noqa: SLF001  Iceberg's metadata has a Java interface only
        self.table: Any = table.load(spark)
        self._operations: Any = self.table.operations()
        self._base: Any = self._operations.current()
        self._app = app
        self._name = table.name
        self._files = files

    @property
    def number(self) -> int:
        """The number of this version of the metadata."""
        location = str(self._base.metadataFileLocation())
        if (match := _VERSION.fullmatch(location)) is None:
            msg = f"the metadata file {location} of the Iceberg table `{self._name}` has no version"
            raise InternalError(msg)
        return int(match[1])

    @property
    def version(self) -> int:
        """The table format's version."""
        return int(self._base.formatVersion())

    @property
    def newest(self) -> Any:
        """The newest snapshot of the main branch, or None if the table has no snapshot."""
        return self._base.currentSnapshot()

    @property
    def newest_id(self) -> int | None:
        """The id of the newest snapshot."""
        return int(self.newest.snapshotId()) if self.newest is not None else None

    def properties(self) -> Iterator[tuple[str, IcebergSinkState]]:
        """Yield all sinks with a state in this table, by application id."""
        for entry in self._base.properties().entrySet():
            name = str(entry.getKey())
            if name.startswith(PREFIX) and name.count("/") == 2:
                yield name.removeprefix(PREFIX), IcebergSinkState.of(str(entry.getValue()))

    def sink_state(self) -> IcebergSinkState | None:
        """Return this sink's state, even if the table was rolled back since."""
        text = self._base.properties().get(PREFIX + self._app)
        return IcebergSinkState.of(str(text)) if text is not None else None

    def claims(self) -> list[Claim]:
        """Return the claims of all sinks with a record."""
        return [
            Claim(stored.record.key, stored.share, stored.record.epoch)
            for _, stored in self.properties()
            if stored.record is not None
        ]

    def find_conflicting_record(self, mine: SinkKey) -> CommitRecord | None:
        """Return the record of the same pipeline name, `lane` and sink under another UUID."""
        for app, stored in self.properties():
            if (
                app.endswith(f"/{mine.lane}/{mine.sink}")
                and app != mine.text
                and stored.record is not None
                and stored.record.key.name == mine.name
            ):
                return stored.record
        return None

    def contains(self, state: IcebergSinkState) -> bool:
        """Return whether the newest snapshot contains the rows written with a record.

        A rollback removes the rows and keeps the record. If snapshots in between were expired, return True.
        """
        at = self.newest
        while at is not None and int(at.snapshotId()) != state.snapshot:
            parent = at.parentId()
            if int(at.sequenceNumber()) <= state.sequence or parent is None:
                return False
            at = self._base.snapshot(parent)
            if at is None:
                return True
        return at is not None

    def branch(self, name: str) -> Any:
        """Return the newest snapshot of a branch, or None if there is no such branch."""
        ref = self._base.ref(name)
        return self._base.snapshot(ref.snapshotId()) if ref is not None else None

    def branches(self, prefix: str) -> list[str]:
        """Return the names of branches that start with `prefix`."""
        return [str(name) for name in self._base.refs().keySet() if str(name).startswith(prefix)]

    def fence(self, apps: Collection[str]) -> bool:
        """Fence sinks with the generation after their own, and remove their records, in one commit.

        Return False, with nothing changed, if the table changed since this metadata was read.
        """
        fences = {
            app: replace(state, generation=state.generation + 1, record=None)
            for app, state in self.properties()
            if app in apps
        }
        return self.commit_if_unchanged(others=fences)

    def commit_if_unchanged(
        self,
        *,
        state: IcebergSinkState | None = None,
        main: int | None = None,
        begin: str = "",
        drop: tuple[str, ...] = (),
        others: Mapping[str, IcebergSinkState] | None = None,
        remove: Collection[str] = (),
    ) -> bool:
        """Commit this sink's state, main's snapshot, a new branch at main and dropped branches in one step.

        `others` is the new state of other sinks, by application id; `remove` names the sinks whose state is
        removed.
        Return False, with nothing changed, if the table changed since this metadata was read.
        """
        from py4j.protocol import Py4JJavaError

        builder = java_class(self._jvm, "org.apache.iceberg.TableMetadata").buildFrom(self._base)
        if main is not None and main != self.newest_id:
            builder.setBranchSnapshot(main, MAIN)
        values = java_class(self._jvm, "java.util.HashMap")()
        for app, one in {**(others or {}), **({self._app: state} if state is not None else {})}.items():
            values.put(PREFIX + app, one.text())
        if self._base.propertyAsBoolean(_DELETED_BY_ICEBERG, False):
            values.put(_DELETED_BY_ICEBERG, "false")
            values.put(PRUNED, "true")
        if values.size():
            builder.setProperties(values)
        if remove:
            gone = java_class(self._jvm, "java.util.HashSet")()
            for app in remove:
                gone.add(PREFIX + app)
            builder.removeProperties(gone)
        if begin:
            reference = java_class(self._jvm, "org.apache.iceberg.SnapshotRef")
            builder.setRef(begin, reference.branchBuilder(self.newest_id).build())
        for name in drop:
            builder.removeRef(name)
        try:
            if not self._files.is_newest(self.number):
                return False
            self._operations.commit(self._base, builder.build())
        except Py4JJavaError as error:
            if error.java_exception.getClass().getSimpleName() == "CommitFailedException":
                return False
            raise
        return True

    def prune(self) -> None:
        """Remove old versions of the metadata if that is due and Headrace's to do."""
        if str(self._base.properties().get(PRUNED)) == "true":
            self._files.prune(self.number)

    def start(self) -> None:
        """Give a table without a snapshot an empty one, because branches start at a snapshot."""
        self.table.newFastAppend().commit()

"""Versions of a Delta table, and the record of a sink in the metadata of a commit.

A sink's record lies in the user metadata of a commit, wrapped::

    {"headrace": 1, "app": "<uuid>/<lane>/<sink>", "txn": …, "derive": true, "record": {…} or null}

`txn` is the version of the transaction identifier `app` that the same commit sets: (generation << 32) + step.
It only grows, so Delta itself refuses what an older generation still writes, also after a lane was taken back
to an earlier epoch. `derive` says that the rows are not in `record` but in the commit's own metrics, which do
not exist yet when the record is written down.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from headrace.pipeline.errors import InternalError
from headrace.pipeline.protocol.epochs import CommitRecord, Json, WriteCounts

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
    result = {"headrace": _FORMAT, "app": app, "txn": txn, "derive": derive}
    result["record"] = record.to_json() if record is not None else None
    return json.dumps(result | ({"lost": lost} if lost else {}))


def decode_commit_metadata(version: int, info: Json, app: str | None) -> tuple[str, DeltaCommit] | None:
    """Return the application id and the commit, or None if it is not a commit of Headrace.

    With `app`, also return None for another sink's commit.
    """
    try:
        result = json.loads(info.get("userMetadata") or "null")
    except ValueError:
        return None
    if (
        not isinstance(result, dict)
        or "headrace" not in result
        or (app is not None and result.get("app") != app)
    ):
        return None
    if result["headrace"] != _FORMAT:
        msg = (
            f"version {version} of the Delta table holds a record of format {result['headrace']}, this"
            f" Headrace knows {_FORMAT}"
        )
        raise InternalError(msg, hint="Run the Headrace version that wrote it, or a newer one.")
    record = CommitRecord.from_json(result["record"]) if result["record"] is not None else None
    if record is not None and result["derive"]:
        counts = read_counts(info)
        record = replace(record, counts=counts, totals=record.totals + counts)
    return result["app"], DeltaCommit(version, result["txn"], record, result.get("lost", ""))


def read_counts(info: Json) -> WriteCounts:
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

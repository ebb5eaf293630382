"""The branches of one sink: snapshots without readers, on which Spark writes an epoch before it is published.

A branch that was not published belongs to a failed attempt and is dropped.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable

from headrace.connectors.iceberg.metadata import IcebergMetadata
from headrace.pipeline.protocol.epochs import SinkKey

log = logging.getLogger(__name__)

_ATTEMPTS = 5


class EpochBranches:
    """Begins and drops branches. `read` returns the newest metadata of the table."""

    def __init__(self, key: SinkKey, read: Callable[[], IcebergMetadata]) -> None:
        self._sink = key.sink
        self._prefix = f"headrace_{uuid.uuid5(uuid.NAMESPACE_OID, key.text).hex[:12]}_"
        self._read = read

    def begin(self, metadata: IcebergMetadata) -> str | None:
        """Begin a branch at the newest snapshot. Return None if the table changed since it was read."""
        branch = f"{self._prefix}{uuid.uuid4().hex[:8]}"
        return branch if metadata.commit_if_unchanged(begin=branch) else None

    def drop(self, branch: str) -> None:
        """Drop a branch that was not published. If this fails, the next `prepare` drops it."""
        try:
            self._drop(lambda metadata: [branch] if metadata.branch(branch) is not None else [])
        except Exception as error:  # noqa: BLE001  the error that led here is more useful
            log.debug("event=branch_not_dropped node=%s branch=%s error=%s", self._sink, branch, error)

    def drop_all(self) -> None:
        """Drop the branches of all attempts that were not published."""
        self._drop(lambda metadata: metadata.branches(self._prefix))

    def _drop(self, select: Callable[[IcebergMetadata], list[str]]) -> None:
        for _ in range(_ATTEMPTS):
            metadata = self._read()
            branches = tuple(select(metadata))
            if not branches or metadata.commit_if_unchanged(drop=branches):
                return

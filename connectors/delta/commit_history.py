"""The newest commit of one sink in the log of a Delta table."""

from __future__ import annotations

from dataclasses import replace

from headrace.connectors.delta.commit_metadata import NO_TABLE, DeltaCommit, TableVersion
from headrace.connectors.delta.table_log import TableLog
from headrace.connectors.fencing import check_generation
from headrace.connectors.transactional_sink import CommitKind, SinkCommit
from headrace.pipeline.errors import InternalError, SinkStateError


class CommitHistory:
    """Finds the newest commit of the sink with application id `app`, and reads each log entry once."""

    def __init__(self, log: TableLog, app: str, target: str) -> None:
        self._log = log
        self._app = app
        self._target = target
        self._last: tuple[TableVersion, DeltaCommit | None] = (NO_TABLE, None)

    def read_newest(self) -> tuple[TableVersion, DeltaCommit | None]:
        """Return the newest version of the table, and the newest commit of the sink up to it.

        Only log entries since the last call are read.
        """
        snapshot = self._log.snapshot()
        newest = snapshot.version
        before, commit_before = self._last
        if newest == before:
            return self._last
        continues = newest.identity == before.identity and newest.number > before.number
        commit, is_restored = self._log.find(self._app, newest.number, before.number + 1 if continues else 0)
        commit = commit or (commit_before if continues and not is_restored else None)
        step = snapshot.read_transactions().get(self._app)
        self._last = newest, self._at_step(commit, step, is_restored=is_restored)
        return self._last

    def _at_step(
        self, commit: DeltaCommit | None, txn: int | None, *, is_restored: bool
    ) -> DeltaCommit | None:
        """Return our newest commit with the newest step of this sink, which the snapshot has.

        The snapshot outlives the log, so it distinguishes a lost record from a new sink. It keeps the step if
        the table is restored to an earlier version.
        """
        if txn is None or (commit is not None and commit.txn == txn):
            return commit
        if is_restored:
            return replace(commit or DeltaCommit(-1, txn, None), txn=txn)
        lost = (
            f"{self._target} remembers step {txn} of this sink, but its log no longer has the record: it was"
            " cleaned up (delta.logRetentionDuration), or the table is a clone"
        )
        return DeltaCommit(-1, txn, None, lost)

    def read_back(self, txn: int, change: SinkCommit, sink: str) -> tuple[TableVersion, DeltaCommit]:
        """Return the table's version and the commit of step `txn`. Raise an error if Delta skipped it."""
        version, newest = self.read_newest()
        if newest is not None and newest.lost and change.kind is not CommitKind.FENCE:
            raise SinkStateError(newest.lost, node=sink)
        if newest is None or newest.txn != txn:
            check_generation(
                newest.generation if newest else None, change.generation, target=self._target, sink=sink
            )
            result = newest and newest.txn
            msg = f"Delta did not commit step {txn} to {self._target}; the newest one is {result}"
            raise InternalError(msg, node=sink)
        if change.plan is not None and (newest.record is None or newest.record.epoch != change.plan.number):
            msg = (
                f"the commit of epoch {change.plan.number} holds the record of epoch"
                f" {newest.record and newest.record.epoch}"
            )
            raise InternalError(msg, node=sink)
        return version, newest

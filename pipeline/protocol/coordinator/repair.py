"""Repairs of a pipeline: replay epochs into one sink, accept a target as it is, rebuild a ledger."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from headrace.pipeline.errors import FencedError, PipelineStateError, SinkStateError
from headrace.pipeline.protocol.coordinator.interventions import CoordinatorInterventions
from headrace.pipeline.protocol.coordinator.reconcile import (
    AGREES,
    ReconcileResult,
    ReconcileStatus,
    is_before_restart,
    reset_hint,
)
from headrace.pipeline.protocol.coordinator.sinks import OpenSinks, Pending
from headrace.pipeline.protocol.epochs import CommitRecord, Json, Position, WriteCounts, digest
from headrace.pipeline.protocol.ledger import EpochRow, Ledger, SinkRow
from headrace.pipeline.protocol.ledger.interventions import skipped_epochs
from headrace.pipeline.protocol.ledger.model import Restart


class CoordinatorRepairs(CoordinatorInterventions):
    """Replay and accept-target. A pipeline with sinks that disagree opens only if `repair` names them."""

    def replay(
        self,
        sink: str,
        write: Callable[[Pending], Mapping[str, WriteCounts]],
        first: int | None = None,
        check: Callable[[Pending], None] | None = None,
    ) -> range:
        """Write epochs again into one sink, by their stored plans, up to the last committed.

        Return their range. Without `first` the sink continues after the epoch that it has, or after its
        registration if its record is missing. With `first`, epochs from `first` on are written over existing
        rows. The ledger records that, then the sink's record is set back to `first` - 1. Writing over rows
        needs a sink with a primary key, or an empty target. The process may die at any point: the sink is
        then at a lower epoch than the ledger, and replay is offered again. If the stored file of an epoch did
        not have this sink yet, `Pending.compiled` is the current one.

        `check` is called with every epoch before anything changes. Its errors pass through. Raise
        SinkStateError when the ledger no longer has the epochs, or when they do not continue the record of
        the sink.
        """
        self.check()
        row, finding = self._replayable(sink)
        record_epoch = finding.record.epoch if finding.record is not None else None
        start = first if first is not None else row.epoch + 1 if record_epoch is None else record_epoch + 1
        if first is not None and first > self._state.committed:
            msg = f"epochs from {first} on are to be replayed, and the last one is {self._state.committed}"
            raise SinkStateError(msg, node=sink)
        overwrites = self._check_restart(sink, start, finding)
        rows = self._read_epochs(sink, start)
        if check is not None:
            for epoch in rows:
                check(self._again(sink, epoch))
        # A record of epoch 0 marks no rows. A first start with a second snapshot has another position,
        # and the sink takes that one.
        overtaken = record_epoch == 0 and finding.record is not None and not self._leads(finding.record)
        sets_back = record_epoch is None or start != record_epoch + 1 or overwrites or overtaken
        before = self._end_of(start - 1) if sets_back else None
        if sets_back and not overwrites:
            self._set_back(sink, row, start, record_epoch)
        elif not overwrites and finding.record is not None and finding.status is ReconcileStatus.OLDER:
            self._must_lead(sink, finding.record)
        joined = start - 1 if overwrites else min(row.epoch, start - 1)
        self.ledger.set_sink(
            self.lease, sink, "replaying", joined, {"first": start, "last": self._state.committed}
        )
        if before is not None:
            self._write_join(sink, start - 1, before)
        self._writing = True
        for epoch in rows:
            self.check()
            write(self._again(sink, epoch))
        self._writing = False
        # The target may have rows of the open epoch under a lost record. The state stays `replaying` until
        # the epoch is written again, so that the epoch is not dropped.
        state = "replaying" if sets_back and self._state.open_plan is not None else "joined"
        self.ledger.set_sink(self.lease, sink, state, joined, {"replayed": len(rows)})
        self._finish_repair(sink)
        return range(start, self._state.committed + 1)

    def _again(self, sink: str, epoch: EpochRow) -> Pending:
        body = self.ledger.compiled(epoch.plan.pipeline_hash) if sink in epoch.counts else self.compiled
        return Pending(epoch.plan, body, (sink,))

    def disagrees(self, sink: str) -> bool:
        """Return whether the sink's record disagrees with the ledger."""
        return any(one.sink == sink for one in self._problems())

    def accept_target(self, sink: str) -> None:
        """Accept the target's rows as correct for the last committed epoch.

        The sink registers again, with the current rows as its baseline. If its record agrees with the ledger,
        these are rows that another program changed. Raise an error if an epoch is open then, because the
        target may have a part of it. Also raise one if the sink has more than the ledger, because the ledger
        is then too old.
        """
        self.check()
        finding = self._findings.get(sink)
        if finding is None:
            msg = "it stores no commit record, there is nothing to accept"
            raise PipelineStateError(msg, node=sink)
        if finding.status in AGREES and self._state.open_plan is not None:
            msg = f"epoch {self._state.open_plan.number} is open, and the target may have a part of it"
            raise PipelineStateError(msg, hint="`headrace run` finishes it. Then try again.", node=sink)
        if finding.status is ReconcileStatus.NEWER:
            raise SinkStateError(finding.message, hint=finding.hint, node=sink)
        if (
            finding.status is ReconcileStatus.FOREIGN
            and not self._state.committed
            and not self.sinks[sink].is_idempotent
        ):
            msg = (
                f"{finding.message}; this ledger is at epoch 0, so all rows would be written to it a"
                " second time, and it has no key"
            )
            raise SinkStateError(msg, hint=finding.hint, node=sink)
        committed, ended = self._state.committed, self._state.ended
        data = {"adopted": finding.record and finding.record.to_json(), "why": str(finding.status)}
        if sink in self._newcomers():
            self._join(sink, committed, ended, data)
        else:
            # The row keeps its old epoch: if this process dies before the new record is written, the sink
            # disagrees as before.
            self.ledger.set_sink(self.lease, sink, "joined", self._state.sinks[sink].epoch, data)
            written = self._write_join(sink, committed, ended)
            self.ledger.set_sink(self.lease, sink, "joined", committed, {"baseline": written.baseline})
        self._finish_repair(sink)

    @classmethod
    def rebuild(
        cls,
        ledger: Ledger,
        name: str,
        lane: str,
        holder: Json,
        sinks: OpenSinks,
        compiled: Json,
        pipeline_hash: str,
        *,
        ttl: float = 15.0,
        commit_timeout: float = 30.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> str:
        """Rebuild a lost or older ledger from the records of the file's sinks. Return the pipeline's UUID.

        Every sink of the file that stores a record must have one. No process of the pipeline may be alive,
        because the ledger that would fence it is lost. Wait for commits in progress. Raise SinkStateError if
        the records do not lead to one state.
        """
        lease = ledger.acquire(name, lane, holder, ttl + commit_timeout)
        try:
            opened = sinks(lease.pipeline, compiled)
            try:
                if not all(handle.supports_fencing for handle in opened.values()):
                    sleep(commit_timeout)
                records = {
                    sink: handle.record() or handle.find_conflicting_record()
                    for sink, handle in opened.items()
                    if handle.stores_record
                }
            finally:
                for handle in opened.values():
                    handle.close()
            if missing := sorted(sink for sink, record in records.items() if record is None):
                msg = f"sink {', '.join(missing)} holds no record of pipeline '{name}'"
                hint = (
                    "Take it out of the file, rebuild, and put it back: it then joins from where the"
                    " lane stands."
                )
                raise SinkStateError(msg, hint=hint, node=missing[0])
            result = {sink: record for sink, record in records.items() if record is not None}
            lease = ledger.rebuild(lease, result, compiled, pipeline_hash)
        finally:
            # The lost ledger may have another owner, which is unknown.
            with suppress(FencedError):
                ledger.release(lease, clean=False)
        return lease.pipeline

    def _replayable(self, sink: str) -> tuple[SinkRow, ReconcileResult]:
        row, finding = self._state.sinks.get(sink), self._findings.get(sink)
        if row is not None and sink not in self.sinks and self._state.open_plan is not None:
            msg = (
                f"epoch {self._state.open_plan.number} is open, and an earlier version of the file"
                " planned it without this sink"
            )
            raise PipelineStateError(
                msg, hint=f"`headrace run {self._file}` finishes that epoch; then replay.", node=sink
            )
        if row is None or row.state not in ("joined", "replaying", "left") or sink not in self.sinks:
            msg = f"pipeline '{self.lease.name}' has no such sink that joined"
            raise PipelineStateError(
                msg, hint=f"It has {', '.join(sorted(self._state.sinks)) or 'none yet'}.", node=sink
            )
        if finding is None:
            self._reconcile_sinks()
            finding = self._findings[sink]
        if finding.status not in (
            ReconcileStatus.LEVEL,
            ReconcileStatus.AHEAD,
            ReconcileStatus.MISSING,
            ReconcileStatus.OLDER,
            ReconcileStatus.DIFFERENT,
        ):
            raise SinkStateError(finding.message, hint=finding.hint, node=sink)
        return row, finding

    def _read_epochs(self, sink: str, start: int) -> list[EpochRow]:
        """Return all committed epochs from `start` on. Raise SinkStateError if the ledger lacks one."""
        last = self._state.committed
        rows = list(self.ledger.epochs(self._state.name, self._state.lane, start, last))
        if start < 1 or [row.plan.number for row in rows] != list(range(start, last + 1)):
            kept = self._state.kept_from
            have = f"epochs {kept} to {last}" if kept <= last else "none"
            rolled = (
                f"; epochs before {kept} are rolled up (setting `ledger.keep_epochs`)"
                if 1 < kept <= last and start < kept
                else ""
            )
            msg = f"epochs {start} to {last} are to be replayed, and the ledger has {have}{rolled}"
            right = (
                f"If the target is right as it is, `headrace accept-target {self._file} --sink {sink}`"
                " takes it as the baseline."
            )
            raise SinkStateError(
                msg, hint=f"{right} Else {reset_hint(self._file)}" if start >= 1 else "", node=sink
            )
        return rows

    def _check_restart(self, sink: str, start: int, finding: ReconcileResult) -> bool:
        """Return whether the record is from before the last reset.

        The target then must be empty and starts after it. Raise SinkStateError if epochs from before the
        reset would be written, or if rows of them are still there.
        """
        again, record = self._find_restart(), finding.record
        if again is None:
            return False
        if start < again.first:
            msg = f"epochs before {again.first} are from before the last reset and cannot be replayed"
            hint = (
                f"Remove all rows of the target, then: headrace replay {self._file} --sink {sink} --from"
                f" {again.first}"
            )
            raise SinkStateError(msg, hint=hint, node=sink)
        if record is None or not is_before_restart(self._state, record):
            return False
        if start > again.first:
            msg = (
                f"the sink holds epoch {record.epoch}; a replay from {start} would leave out epochs"
                f" {again.first} to {start - 1}"
            )
            raise SinkStateError(msg, hint=f"Replay from {again.first}.", node=sink)
        counted = self.sinks[sink].read_row_count()
        if counted is None or counted[1] != 0:
            rows = "an unknown number of" if counted is None else str(counted[1])
            msg = f"its target holds {rows} rows from before the last reset"
            raise SinkStateError(msg, hint=finding.hint, node=sink)
        return True

    def _find_restart(self) -> Restart | None:
        return self.ledger.restart(self._state.name, self._state.lane)

    def _set_back(self, sink: str, row: SinkRow, start: int, record_epoch: int | None) -> None:
        """Raise SinkStateError if setting back the record would duplicate rows or leave rows out."""
        if record_epoch is not None and start > record_epoch + 1:
            msg = (
                f"the sink holds epoch {record_epoch}; a replay from {start} would leave out epochs"
                f" {record_epoch + 1} to {start - 1}"
            )
            raise SinkStateError(msg, hint=f"Replay from {record_epoch + 1}.", node=sink)
        if self.sinks[sink].is_idempotent:
            return
        counted = self.sinks[sink].read_row_count()
        if counted is None or counted[1] != 0 or start > row.epoch + 1:
            rows = "an unknown number of" if counted is None else str(counted[1])
            msg = (
                f"it has no key and its target holds {rows} rows, so epochs written again from {start} on"
                " would be there twice or not at all"
            )
            hint = f"Empty the target and replay from epoch {row.epoch + 1}, where the sink joined."
            if skipped_epochs(self.ledger.events(self._state.name, self._state.lane), sink):
                hint = (
                    f"An epoch was skipped at this sink. `headrace reset {self._file} --empty-targets`"
                    " starts over with empty targets."
                )
            raise SinkStateError(msg, hint=hint, node=sink)

    def _must_lead(self, sink: str, record: CommitRecord) -> None:
        """Raise SinkStateError unless the ledger's epochs lead to an older record.

        A replay after any other record would mix two contents.
        """
        if not self._leads(record):
            msg = f"the sink holds an epoch {record.epoch} that is not the ledger's"
            raise SinkStateError(msg, hint=f"Replay with a `--from` of {record.epoch} or lower.", node=sink)

    def _leads(self, record: CommitRecord) -> bool:
        stored = next(
            self.ledger.epochs(self._state.name, self._state.lane, record.epoch, record.epoch), None
        )
        return (
            record.end_digest == digest(self._end_of(record.epoch))
            if record.is_registration or stored is None
            else record.is_of(stored.plan)
        )

    def _end_of(self, number: int) -> Position:
        again = self._find_restart()
        if again is not None and number == again.first - 1:
            return again.start
        if number == self._state.committed:
            return self._state.ended
        for row in self.ledger.epochs(self._state.name, self._state.lane, number, number + 1):
            return row.plan.end if row.plan.number == number else row.plan.start
        msg = f"the ledger no longer knows where epoch {number} ended"
        raise SinkStateError(msg)

    def _finish_repair(self, sink: str) -> None:
        self._repair -= {sink}
        self._agreed = False
        self._reconcile_sinks()
        self._apply_sink_changes()
        self._doubtful = True

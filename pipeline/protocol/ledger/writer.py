"""The ledger over a store: leases by compare-and-set, planned and committed epochs, states of sinks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from headrace.pipeline.errors import InternalError, SinkStateError
from headrace.pipeline.protocol.epochs import (
    CommitRecord,
    EpochPlan,
    Json,
    Position,
    WriteCounts,
    content_ref,
)
from headrace.pipeline.protocol.ledger.interventions import LedgerInterventions
from headrace.pipeline.protocol.ledger.leases import ids_of, missing_row, next_generation
from headrace.pipeline.protocol.ledger.model import Lease
from headrace.pipeline.protocol.ledger.reader import dump, load_plan, normalize_position
from headrace.pipeline.protocol.ledger.recovery import RecoveredState, from_records
from headrace.pipeline.protocol.ledger.store import Tx

SINK_STATES = ("joining", "joined", "replaying", "left", "emptying")


class Ledger(LedgerInterventions):
    """The authoritative state of pipelines.

    Every change under a lease is a compare-and-set on its generation. Usable from several threads. A change
    raises FencedError once a newer generation has the lease. It raises TransientError when the store cannot
    be reached; then read `state` to learn whether the change was applied.
    """

    # --- epochs

    def store_content(self, value: Any) -> str:
        """Store a JSON value under its hash and return the hash, which positions refer to.

        This needs no lease, because a stored value never changes.
        """
        ref = content_ref(value)
        with self._store.write() as tx:
            tx.run(
                "insert into headrace_ledger_content values (:hash, :body) on conflict (hash) do nothing",
                hash=ref,
                body=dump(value),
            )
        return ref

    def begin(self, lease: Lease, initial: Callable[[], Position]) -> None:
        """Give a new or reset pipeline its first position. `initial` is called only then.

        A pipeline that never planned an epoch is new at every start. A first run that failed at a sink leaves
        no old handoff position and no old snapshot. Its sinks register again.
        """
        with self._store.read() as tx:
            if self._has_begun(tx, lease):
                return
        position = dump(normalize_position(initial()))
        with self._store.write() as tx:
            self._hold(tx, lease)
            tx.run(
                "update headrace_ledger_lane set position = :position, ended = :position where uuid = :uuid"
                " and lane = :lane",
                position=position,
                **ids_of(lease),
            )
            tx.run(
                "update headrace_ledger_sink set state = 'joining' where uuid = :uuid and lane = :lane and"
                " state in ('joined', 'replaying')",
                **ids_of(lease),
            )
            tx.run(
                "delete from headrace_ledger_event where uuid = :uuid and lane = :lane and kind = 'splits'",
                **ids_of(lease),
            )
            self._note(tx, lease, "began", {"position": json.loads(position)})

    def _has_begun(self, tx: Tx, lease: Lease) -> bool:
        row = tx.one(
            "select position, committed from headrace_ledger_lane where uuid = :uuid and lane = :lane",
            **ids_of(lease),
        )
        if row is None or row[0] is None:
            return False
        planned = tx.one(
            "select 1 from headrace_ledger_epoch where uuid = :uuid and lane = :lane limit 1", **ids_of(lease)
        )
        events = (
            "select 1 from headrace_ledger_event where uuid = :uuid and lane = :lane and kind in"
            " ('dropped', 'rebuilt') limit 1"
        )
        return row[1] > 0 or planned is not None or tx.one(events, **ids_of(lease)) is not None

    def plan(self, lease: Lease, plan: EpochPlan, compiled: Json) -> None:
        """Store an epoch before any sink is written.

        A plan is immutable: raise InternalError if another plan is open.
        """
        with self._store.write() as tx:
            committed, position = self._hold(tx, lease)
            self._insert_plan(tx, lease, plan, compiled, committed, position)

    def _insert_plan(
        self, tx: Tx, lease: Lease, plan: EpochPlan, compiled: Json, committed: int, position: Json
    ) -> None:
        text = dump(plan.to_json())
        if plan.number != committed + 1 or normalize_position(plan.start) != position:
            msg = (
                f"epoch {plan.number} from {dump(dict(plan.start))} does not follow on epoch {committed},"
                f" which ended at {dump(position)}"
            )
            raise InternalError(msg)
        opened = tx.one(
            "select plan from headrace_ledger_epoch where uuid = :uuid and lane = :lane and committed_at is"
            " null",
            **ids_of(lease),
        )
        if opened is not None:
            if load_plan(opened[0]) == load_plan(text):
                return
            msg = f"epoch {plan.number} is planned already, and differently"
            raise InternalError(msg)
        tx.run(
            "insert into headrace_ledger_compiled values (:hash, :body) on conflict (hash) do nothing",
            hash=plan.pipeline_hash,
            body=dump(compiled),
        )
        tx.run(
            "insert into headrace_ledger_epoch values (:uuid, :lane, :number, :phase, :time_window, :hash,"
            " :generation, null, '{}',"
            " 0, 0, null, 0, null, :plan)",
            number=plan.number,
            phase=str(plan.phase),
            time_window=plan.window,
            hash=plan.pipeline_hash,
            plan=text,
            generation=lease.generation,
            **ids_of(lease),
        )

    def commit(self, lease: Lease, number: int, counts: Mapping[str, WriteCounts]) -> None:
        """Record that every sink has the open epoch.

        Raise InternalError unless `number` is the open plan's.
        """
        with self._store.write() as tx:
            self._hold(tx, lease)
            plan = self._require_open_plan(tx, lease, number)
            self._close_epoch(tx, lease, plan, counts)

    def drop_plan(self, lease: Lease, number: int, why: str) -> None:
        """Delete the open epoch.

        The caller has made sure that no sink has it and that none can get it later.
        """
        with self._store.write() as tx:
            self._hold(tx, lease)
            plan = self._require_open_plan(tx, lease, number)
            tx.run(
                "delete from headrace_ledger_epoch where uuid = :uuid and lane = :lane and number = :number",
                number=number,
                **ids_of(lease),
            )
            self._note(tx, lease, "dropped", {"plan": plan.to_json(), "why": why})

    def record_failure(self, lease: Lease, number: int, node: str, error: str) -> int:
        """Record a failure of the open epoch.

        Return the number of equal failures in a row, across restarts.
        """
        text = f"{node}: {error}"
        with self._store.write() as tx:
            self._hold(tx, lease)
            self._require_open_plan(tx, lease, number)
            row = tx.one(
                "select repeats, error from headrace_ledger_epoch where uuid = :uuid and lane = :lane and"
                " number = :number",
                number=number,
                **ids_of(lease),
            )
            repeats, last = row or missing_row()
            repeats = (
                repeats + 1
                if last is not None and _error_fingerprint(last) == _error_fingerprint(text)
                else 1
            )
            tx.run(
                "update headrace_ledger_epoch set attempts = attempts + 1, repeats = :repeats, error = :error"
                " where uuid = :uuid and lane = :lane and number = :number",
                repeats=repeats,
                error=text,
                number=number,
                **ids_of(lease),
            )
        return repeats

    # --- sinks and events

    def set_sink(self, lease: Lease, sink: str, state: str, epoch: int, data: Json | None = None) -> None:
        """Record the state of a sink, one of `SINK_STATES`. `epoch` is the one after which it registered."""
        if state not in SINK_STATES:
            msg = f"a sink cannot be '{state}'"
            raise InternalError(msg)
        with self._store.write() as tx:
            self._hold(tx, lease)
            self._put_sink(tx, lease, sink, state, epoch)
            self._note(tx, lease, state, {"sink": sink, "epoch": epoch} | (data or {}))

    def event(self, lease: Lease, kind: str, data: Json) -> None:
        """Record an event of the pipeline."""
        with self._store.write() as tx:
            self._hold(tx, lease)
            self._note(tx, lease, kind, data)

    def rebuild(
        self, lease: Lease, records: Mapping[str, CommitRecord], compiled: Json, pipeline_hash: str
    ) -> Lease:
        """Rebuild the identity, epoch, position and sinks of a lost ledger from the sinks' records.

        Return the lease under the old identity. Its generation continues from the clock, above any that the
        lost ledger used. Raise SinkStateError if the records do not agree (see `recovery.from_records`) or
        if the ledger has the pipeline and is not older than the records.
        """
        result = from_records(lease.name, lease.lane, records, pipeline_hash)
        with self._store.write() as tx:
            self._hold(tx, lease)
            generation = next_generation(max(result.generation, lease.generation), tx.now)
            fresh = replace(lease, pipeline=result.pipeline, generation=generation, settled=False)
            self._rename(tx, lease, result)
            tx.run(
                "update headrace_ledger_lane set uuid = :to, generation = :generation, committed ="
                " :committed, position = :position,"
                " ended = :position, pipeline_hash = :hash, unsettled = 1 where uuid = :uuid and lane ="
                " :lane",
                to=result.pipeline,
                generation=generation,
                committed=result.committed,
                position=dump(normalize_position(result.position)),
                hash=result.pipeline_hash,
                **ids_of(lease),
            )
            tx.run(
                "update headrace_ledger_event set uuid = :to where uuid = :uuid and lane = :lane",
                to=result.pipeline,
                **ids_of(lease),
            )
            for sink in records:
                # The epoch of its registration is lost. With 0, a replay of all its epochs is refused.
                self._put_sink(tx, fresh, sink, "joined", 0)
            if result.plan is not None:
                self._insert_plan(
                    tx, fresh, result.plan, compiled, result.committed, normalize_position(result.position)
                )
            self._note(
                tx,
                fresh,
                "rebuilt",
                {
                    "committed": result.committed,
                    "records": {sink: record.to_json() for sink, record in records.items()},
                },
            )
            presence = self._store.present(fresh.pipeline, fresh.lane, generation)
        with self._lock:
            former = self._presences.pop((lease.pipeline, lease.lane, lease.generation), None)
            self._presences[fresh.pipeline, fresh.lane, generation] = presence
        if former is not None:
            former.release()
        return fresh

    def _rename(self, tx: Tx, lease: Lease, recovered: RecoveredState) -> None:
        """Give the pipeline its former UUID. Remove what an older ledger has of it.

        Other lanes of the name must not have begun under the new one.
        """
        state = self._state(tx, lease.name, lease.lane)
        others = tx.one(
            "select 1 from headrace_ledger_lane where uuid = :uuid and lane <> :lane", **ids_of(lease)
        )
        if others and recovered.pipeline != lease.pipeline:
            raise _not_empty(lease, "another run of it has begun")
        if state is not None and (state.committed or state.open_plan or state.sinks):
            if recovered.pipeline != lease.pipeline:
                raise _not_empty(lease, "under another identity")
            newest = state.committed + (state.open_plan is not None)
            if recovered.committed + (recovered.plan is not None) <= newest:
                raise _not_empty(lease, f"it is at epoch {newest}, and no target is ahead of it")
            self._remove_state(tx, lease)
        tx.run(
            "update headrace_ledger_pipeline set uuid = :to where uuid = :uuid",
            to=recovered.pipeline,
            uuid=lease.pipeline,
        )

    def _remove_state(self, tx: Tx, lease: Lease) -> None:
        """Remove what commit records replace. Events stay: skipped epochs, resets, dynamic tables."""
        for table in ("sink", "epoch", "rolled", "verified"):
            tx.run(
                f"delete from headrace_ledger_{table} where uuid = :uuid and lane = :lane",  # noqa: S608
                **ids_of(lease),
            )
        tx.run(
            "delete from headrace_ledger_refresh where name = :name and lane = :lane",
            name=lease.name,
            lane=lease.lane,
        )


def _not_empty(lease: Lease, reason: str) -> SinkStateError:
    return SinkStateError(
        f"the ledger already knows pipeline '{lease.name}': {reason}",
        hint="Only an empty ledger, or one that is older than the targets, is rebuilt. Move the ledger away"
        " first if it is the wrong one.",
    )


def _error_fingerprint(error: str) -> str:
    """Return an error without its digits. Ports, offsets and times differ between equal failures."""
    return re.sub(r"\d+", "#", error)

"""The ledger over a store: leases by compare-and-set, epochs planned and committed, and what is known of sinks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from headrace.pipeline.errors import InternalError, LaneError, RecordError
from headrace.pipeline.ledger.base import Lease
from headrace.pipeline.ledger.leases import Leases, ids_of, missing_row
from headrace.pipeline.ledger.reading import dump, dump_counts, load_plan, plain, timestamp
from headrace.pipeline.ledger.rebuild import Rebuilt, from_records
from headrace.pipeline.ledger.store import Tx
from headrace.pipeline.records import Counts, EpochPlan, Json, Position, Record

SINK_STATES = ("joining", "joined", "replaying", "left")


class Ledger(Leases):
    """The truth about where lanes stand. Every change under a lease is a compare-and-set on its generation.

    Usable from several threads. Changes raise FencedError once a newer generation holds the lane, and TransientError when
    the store cannot be reached; after a TransientError ask `state` whether the change went through.
    """

    # --- epochs

    def begin(self, lease: Lease, initial: Callable[[], Position]) -> None:
        """Gives a new lane the position that it starts at; `initial` is called only then."""
        with self._store.read() as tx:
            row = tx.one("select position from headrace_ledger_lane where uuid = :uuid and lane = :lane", **ids_of(lease))
        if row is not None and row[0] is not None:
            return
        position = dump(plain(initial()))
        with self._store.write() as tx:
            self._hold(tx, lease)
            tx.run(
                "update headrace_ledger_lane set position = :position, ended = :position where uuid = :uuid and lane = :lane",
                position=position,
                **ids_of(lease),
            )
            self._note(tx, lease, "began", {"position": json.loads(position)})

    def plan(self, lease: Lease, plan: EpochPlan, compiled: Json) -> None:
        """Stores an epoch before any sink is touched. Immutable: raises InternalError if another plan is open."""
        with self._store.write() as tx:
            committed, position = self._hold(tx, lease)
            self._insert_plan(tx, lease, plan, compiled, committed, position)

    def _insert_plan(self, tx: Tx, lease: Lease, plan: EpochPlan, compiled: Json, committed: int, position: Json) -> None:
        text = dump(plan.to_json())
        if plan.number != committed + 1 or plain(plan.start) != position:
            msg = f"epoch {plan.number} from {dump(dict(plan.start))} does not follow on epoch {committed}, which ended at {dump(position)}"
            raise InternalError(msg)
        opened = tx.one(
            "select plan from headrace_ledger_epoch where uuid = :uuid and lane = :lane and committed_at is null", **ids_of(lease)
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
            "insert into headrace_ledger_epoch values (:uuid, :lane, :number, :plan, :generation, null, '{}', 0, 0, null, 0)",
            number=plan.number,
            plan=text,
            generation=lease.generation,
            **ids_of(lease),
        )

    def commit(self, lease: Lease, number: int, counts: Mapping[str, Counts]) -> None:
        """Notes that every sink holds the open epoch.

        Raises InternalError unless `number` is the open plan's.
        """
        with self._store.write() as tx:
            self._hold(tx, lease)
            plan = self._opened(tx, lease, number)
            tx.run(
                "update headrace_ledger_epoch set committed_at = :at, counts = :counts, generation = :generation"
                " where uuid = :uuid and lane = :lane and number = :number",
                at=timestamp(),
                counts=dump_counts(counts),
                generation=lease.generation,
                number=number,
                **ids_of(lease),
            )
            tx.run(
                "update headrace_ledger_lane set committed = :number, position = :end, ended = :end, pipeline_hash = :hash"
                " where uuid = :uuid and lane = :lane",
                number=number,
                end=dump(plain(plan.end)),
                hash=plan.pipeline_hash,
                **ids_of(lease),
            )

    def drop_plan(self, lease: Lease, number: int, why: str) -> None:
        """Forgets the open epoch. The caller has made sure that no sink holds it, nor ever will."""
        with self._store.write() as tx:
            self._hold(tx, lease)
            plan = self._opened(tx, lease, number)
            tx.run(
                "delete from headrace_ledger_epoch where uuid = :uuid and lane = :lane and number = :number", number=number, **ids_of(lease)
            )
            self._note(tx, lease, "dropped", {"plan": plan.to_json(), "why": why})

    def failed(self, lease: Lease, number: int, node: str, error: str) -> int:
        """Notes a failure of the open epoch; returns how many times in a row it failed like this, over restarts too."""
        text = f"{node}: {error}"
        with self._store.write() as tx:
            self._hold(tx, lease)
            self._opened(tx, lease, number)
            row = tx.one(
                "select repeats, error from headrace_ledger_epoch where uuid = :uuid and lane = :lane and number = :number",
                number=number,
                **ids_of(lease),
            )
            repeats, last = row or missing_row()
            repeats = repeats + 1 if last is not None and _gist(last) == _gist(text) else 1
            tx.run(
                "update headrace_ledger_epoch set attempts = attempts + 1, repeats = :repeats, error = :error"
                " where uuid = :uuid and lane = :lane and number = :number",
                repeats=repeats,
                error=text,
                number=number,
                **ids_of(lease),
            )
        return repeats

    def rewind(self, lease: Lease, position: Position, why: str) -> None:
        """Lets the next epoch start at another position: an earlier one to read again. Epochs keep their numbers."""
        with self._store.write() as tx:
            _, former = self._hold(tx, lease)
            if (
                tx.one(
                    "select number from headrace_ledger_epoch where uuid = :uuid and lane = :lane and committed_at is null", **ids_of(lease)
                )
                is not None
            ):
                msg = f"lane '{lease.lane}' of pipeline '{lease.name}' has an open epoch; finish it before the lane is rewound"
                raise LaneError(msg, hint="Run the pipeline once; it finishes the open epoch first.")
            tx.run(
                "update headrace_ledger_lane set position = :position where uuid = :uuid and lane = :lane",
                position=dump(plain(position)),
                **ids_of(lease),
            )
            self._note(tx, lease, "rewound", {"from": former, "to": plain(position), "why": why})

    # --- sinks and events

    def set_sink(self, lease: Lease, sink: str, state: str, epoch: int, data: Json | None = None) -> None:
        """Notes that a sink is joining, joined, replaying or left; `epoch` is the one after which it joined."""
        if state not in SINK_STATES:
            msg = f"a sink cannot be '{state}'"
            raise InternalError(msg)
        with self._store.write() as tx:
            self._hold(tx, lease)
            self._put_sink(tx, lease, sink, state, epoch)
            self._note(tx, lease, state, {"sink": sink, "epoch": epoch} | (data or {}))

    def event(self, lease: Lease, kind: str, data: Json) -> None:
        """Notes something that happened to the lane."""
        with self._store.write() as tx:
            self._hold(tx, lease)
            self._note(tx, lease, kind, data)

    def rebuild(self, lease: Lease, records: Mapping[str, Record], compiled: Json, pipeline_hash: str) -> Lease:
        """Takes identity, epoch, position and sinks over from the sinks' records into a ledger that knows nothing yet.

        Returns the lease under the old identity. Its generation continues from the clock: what fences the sinks hold cannot
        be read from their records, and any former generation counted starts. Raises RecordError where the records do not
        agree (see `rebuild.from_records`) or the ledger is not empty.
        """
        found = from_records(lease.name, lease.lane, records, pipeline_hash)
        with self._store.write() as tx:
            self._hold(tx, lease)
            generation = max(found.generation + 1, int(tx.now), lease.generation)
            fresh = replace(lease, pipeline=found.pipeline, generation=generation, settled=False)
            self._rename(tx, lease, found)
            tx.run(
                "update headrace_ledger_lane set uuid = :to, generation = :generation, committed = :committed, position = :position,"
                " ended = :position, pipeline_hash = :hash, unsettled = 1 where uuid = :uuid and lane = :lane",
                to=found.pipeline,
                generation=generation,
                committed=found.committed,
                position=dump(plain(found.position)),
                hash=found.pipeline_hash,
                **ids_of(lease),
            )
            tx.run("update headrace_ledger_event set uuid = :to where uuid = :uuid and lane = :lane", to=found.pipeline, **ids_of(lease))
            for sink in records:
                # When it joined is lost: a replay of all it holds must be refused, not begin at the rebuilt epoch.
                self._put_sink(tx, fresh, sink, "joined", 0)
            if found.plan is not None:
                self._insert_plan(tx, fresh, found.plan, compiled, found.committed, plain(found.position))
            self._note(tx, fresh, "rebuilt", {"records": {sink: record.to_json() for sink, record in records.items()}})
            presence = self._store.present(fresh.pipeline, fresh.lane, generation)
        with self._lock:
            former = self._presences.pop((lease.pipeline, lease.lane, lease.generation), None)
            self._presences[fresh.pipeline, fresh.lane, generation] = presence
        if former is not None:
            former.release()
        return fresh

    def _rename(self, tx: Tx, lease: Lease, found: Rebuilt) -> None:
        """Gives the pipeline its former UUID. Other lanes of the name must not have begun under the new one."""
        state = self._state(tx, lease.name, lease.lane)
        known = state is not None and (state.committed or state.open_plan or state.sinks)
        others = tx.one("select 1 from headrace_ledger_lane where uuid = :uuid and lane <> :lane", **ids_of(lease))
        if known or (others and found.pipeline != lease.pipeline):
            msg = f"the ledger already knows lane '{lease.lane}' of pipeline '{lease.name}'; only an empty one is rebuilt"
            raise RecordError(msg, hint="Move the ledger away first if it is the wrong one.")
        tx.run("update headrace_ledger_pipeline set uuid = :to where uuid = :uuid", to=found.pipeline, uuid=lease.pipeline)

    # --- parts

    def _opened(self, tx: Tx, lease: Lease, number: int) -> EpochPlan:
        row = tx.one("select plan from headrace_ledger_epoch where uuid = :uuid and lane = :lane and committed_at is null", **ids_of(lease))
        plan = load_plan(row[0]) if row else None
        if plan is None or plan.number != number:
            msg = f"epoch {number} is not the open one: {plan.number if plan else 'none'} is"
            raise InternalError(msg)
        return plan

    def _put_sink(self, tx: Tx, lease: Lease, sink: str, state: str, epoch: int) -> None:
        tx.run(
            "insert into headrace_ledger_sink values (:uuid, :lane, :sink, :state, :epoch)"
            " on conflict (uuid, lane, sink) do update set state = excluded.state, epoch = excluded.epoch",
            sink=sink,
            state=state,
            epoch=epoch,
            **ids_of(lease),
        )


def _gist(error: str) -> str:
    """An error without its digits: ports, offsets and times differ between failures that are the same."""
    return re.sub(r"\d+", "#", error)

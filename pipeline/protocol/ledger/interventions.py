"""Interventions for a pipeline that cannot continue: rewind to a position, skip an epoch, reset."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from headrace.pipeline.errors import InternalError, PipelineStateError
from headrace.pipeline.protocol.epochs import EpochPlan, Json, Position, WriteCounts
from headrace.pipeline.protocol.ledger.leases import ids_of
from headrace.pipeline.protocol.ledger.model import Lease
from headrace.pipeline.protocol.ledger.reader import dump, dump_counts, load_plan, normalize_position
from headrace.pipeline.protocol.ledger.rollup import RollUps
from headrace.pipeline.protocol.ledger.store import Tx


class LedgerInterventions(RollUps):
    """Interventions in the ledger. Each one is a single transaction, so the process may die at any point."""

    def rewind(self, lease: Lease, position: Position, *, after: int) -> None:
        """Let the next epoch start at `position`, the end of epoch `after`. Epochs keep their numbers.

        Raise PipelineStateError while an epoch is open.
        """
        with self._store.write() as tx:
            committed, former = self._hold(tx, lease)
            if (plan := self._open_plan(tx, lease)) is not None:
                msg = f"pipeline '{lease.name}' has an open epoch, {plan.number}; it must be finished first"
                raise PipelineStateError(
                    msg, hint="`headrace run FILE` finishes it, `headrace replay FILE --skip-open` skips it."
                )
            tx.run(
                "update headrace_ledger_lane set position = :position where uuid = :uuid and lane = :lane",
                position=dump(normalize_position(position)),
                **ids_of(lease),
            )
            data = {
                "epoch": committed + 1,
                "from": former,
                "to": normalize_position(position),
                "after": after,
            }
            self._note(tx, lease, "rewound", data)

    def skip(
        self, lease: Lease, number: int, counts: Mapping[str, WriteCounts], lacking: Collection[str]
    ) -> None:
        """Commit the open epoch without the sinks in `lacking`, and let those sinks register after it.

        The caller has fenced all sinks. The ledger stores the rows that they lack as the event `skipped`.
        """
        with self._store.write() as tx:
            self._hold(tx, lease)
            plan = self._require_open_plan(tx, lease, number)
            self._close_epoch(tx, lease, plan, counts)
            for sink in lacking:
                self._put_sink(tx, lease, sink, "joining", number)
            data = plan.to_json() | {"epoch": number, "sinks": sorted(lacking)}
            self._note(tx, lease, "skipped", data)

    def reset(self, lease: Lease, sinks: Mapping[str, bool]) -> None:
        """Let the pipeline start over. The next start takes a new position, and these sinks register again.

        `sinks` maps each sink to whether its target is emptied first. Epochs keep their numbers. An open
        epoch is closed without any sink, so that no sink can have a later epoch than the ledger.
        """
        with self._store.write() as tx:
            committed, former = self._hold(tx, lease)
            if (plan := self._open_plan(tx, lease)) is not None:
                self._close_epoch(tx, lease, plan, {})
                committed = plan.number
            tx.run(
                "update headrace_ledger_lane set position = null where uuid = :uuid and lane = :lane",
                **ids_of(lease),
            )
            for sink, emptied in sinks.items():
                self._put_sink(tx, lease, sink, "emptying" if emptied else "joining", committed)
            tx.run(
                "delete from headrace_ledger_event where uuid = :uuid and lane = :lane and kind = 'splits'",
                **ids_of(lease),
            )
            self._refuse_all(tx, lease, "the pipeline was reset, and reads all history again")
            data = {
                "epoch": committed + 1,
                "from": former,
                "closed": plan.number if plan else None,
                "emptied": dict(sinks),
            }
            self._note(tx, lease, "reset", data)

    def _close_epoch(self, tx: Tx, lease: Lease, plan: EpochPlan, counts: Mapping[str, WriteCounts]) -> None:
        """Commit the open epoch: its row, and the pipeline's epoch number and position."""
        self._seal(tx, lease, plan.number, dump_counts(counts))
        tx.run(
            "update headrace_ledger_lane set committed = :number, position = :end, ended = :end,"
            " pipeline_hash = :hash"
            " where uuid = :uuid and lane = :lane",
            number=plan.number,
            end=dump(normalize_position(plan.end)),
            hash=plan.pipeline_hash,
            **ids_of(lease),
        )

    def _open_plan(self, tx: Tx, lease: Lease) -> EpochPlan | None:
        row = tx.one(
            "select plan from headrace_ledger_epoch where uuid = :uuid and lane = :lane and committed_at is"
            " null",
            **ids_of(lease),
        )
        return load_plan(row[0]) if row else None

    def _require_open_plan(self, tx: Tx, lease: Lease, number: int) -> EpochPlan:
        plan = self._open_plan(tx, lease)
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


def skipped_epochs(events: Collection[Json], sink: str) -> list[Json]:
    """Return the `skipped` events whose rows a sink still lacks.

    A sink no longer lacks the rows after a replay, after a rewind that reads them again, or after a reset.
    """
    lacking: dict[int, Json] = {}
    first: int | None = None
    for event in events:
        kind, data = event["kind"], event["data"]
        if kind == "skipped" and sink in data["sinks"]:
            lacking[data["epoch"]] = event
        elif kind == "reset":
            lacking.clear()
        elif kind == "rewound" and "after" in data:
            lacking = {number: one for number, one in lacking.items() if number <= data["after"]}
        elif data.get("sink") == sink and "replayed" in data and first is not None:
            lacking = {number: one for number, one in lacking.items() if number < first}
        elif data.get("sink") == sink and kind == "replaying":
            first = data.get("first")
    return list(lacking.values())


def skipped_ranges(event: Json) -> str:
    """Return a description of a skipped epoch: offsets by source and partition, or splits of history."""
    data, result = event["data"], []
    for source, end in data["end"].items():
        start = data["start"].get(source, {}) if isinstance(data["start"], dict) else {}
        if not isinstance(end, dict) or not isinstance(end.get("stream"), dict):
            continue
        before = (start.get("stream") or start.get("fence") or {}).get("offsets", {})
        for part, offset in end["stream"].get("offsets", {}).items():
            if before.get(part, 0) < offset:
                result.append(f"{source} partition {part}: offsets {before.get(part, 0)} to {offset - 1}")
    if data.get("splits"):
        result.append(f"{len(data['splits'])} pieces of history")
    return ", ".join(result) or "its rows"

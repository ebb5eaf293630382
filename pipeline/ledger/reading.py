"""What anybody may ask of a ledger, at any time and without a lease."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from headrace.pipeline.errors import InternalError
from headrace.pipeline.ledger.base import EpochRow, LaneState, SinkRow
from headrace.pipeline.ledger.store import Store, Tx
from headrace.pipeline.records import Counts, EpochPlan, Json, Position

_PAGE = 500
_LANE = """select p.uuid, p.name, l.lane, l.generation, l.committed, l.position, l.ended, l.pipeline_hash, l.holder, l.expires_at,
    l.progress from headrace_ledger_lane l join headrace_ledger_pipeline p on p.uuid = l.uuid"""


def dump(value: Any) -> str:
    """JSON with one spelling per value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def plain(position: Position) -> Json:
    """A position as it reads back from storage, so that `==` holds between the two. Raises TypeError for what is not JSON."""
    return json.loads(dump(dict(position)))


def timestamp() -> str:
    """Now, as the ledger writes it down."""
    return datetime.now(UTC).isoformat()


def load_plan(text: str) -> EpochPlan:
    """A plan as `dump(plan.to_json())` stored it."""
    return EpochPlan.from_json(json.loads(text))


def dump_counts(counts: Any) -> str:
    """Counts by sink as JSON."""
    return dump({sink: asdict(count) for sink, count in counts.items()})


class LedgerReader:
    """The read-only half of a ledger; every answer is one snapshot."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def state(self, name: str, lane: str = "main") -> LaneState | None:
        """Where a lane stands, None if it was never opened."""
        with self._store.read() as tx:
            return self._state(tx, name, lane)

    def lanes(self) -> list[LaneState]:
        """Every lane of the ledger, by pipeline name and lane."""
        with self._store.read() as tx:
            return [self._lane(tx, row) for row in tx.all(f"{_LANE} order by p.name, l.lane")]

    def compiled(self, pipeline_hash: str) -> Json:
        """The compiled pipeline that plans of this hash run by."""
        with self._store.read() as tx:
            row = tx.one("select body from headrace_ledger_compiled where hash = :hash", hash=pipeline_hash)
        if row is None:
            msg = f"the ledger holds no compiled pipeline with hash {pipeline_hash}"
            raise InternalError(msg)
        return json.loads(row[0])

    def epochs(self, name: str, lane: str = "main", first: int = 1, last: int | None = None) -> Iterator[EpochRow]:
        """Epochs first..last in order, the open one included; read page by page."""
        while True:
            with self._store.read() as tx:
                rows = tx.all(
                    "select plan, generation, committed_at, counts, attempts, error from headrace_ledger_epoch"
                    " where uuid = (select uuid from headrace_ledger_pipeline where name = :name) and lane = :lane"
                    " and number >= :first and number <= :last order by number limit :page",
                    name=name,
                    lane=lane,
                    first=first,
                    last=2**62 if last is None else last,
                    page=_PAGE,
                )
            for row in rows:
                yield _epoch(row)
            if len(rows) < _PAGE:
                return
            first = load_plan(rows[-1][0]).number + 1

    def events(self, name: str, lane: str = "main") -> list[Json]:
        """What happened to the lane beside its epochs, oldest first: `{"at", "generation", "kind", "data"}`."""
        with self._store.read() as tx:
            rows = tx.all(
                "select at, generation, kind, data from headrace_ledger_event"
                " where uuid = (select uuid from headrace_ledger_pipeline where name = :name) and lane = :lane order by seq",
                name=name,
                lane=lane,
            )
        return [{"at": at, "generation": generation, "kind": kind, "data": json.loads(data)} for at, generation, kind, data in rows]

    def close(self) -> None:
        """Lets go of the store."""
        self._store.close()

    def _state(self, tx: Tx, name: str, lane: str) -> LaneState | None:
        row = tx.one(f"{_LANE} where p.name = :name and l.lane = :lane", name=name, lane=lane)
        return self._lane(tx, row) if row else None

    def _lane(self, tx: Tx, row: tuple[Any, ...]) -> LaneState:
        uuid, name, lane, generation, committed, position, ended, pipeline_hash, holder, expires, progress = row
        sinks = tx.all("select sink, state, epoch from headrace_ledger_sink where uuid = :uuid and lane = :lane", uuid=uuid, lane=lane)
        opened = tx.one(
            "select plan, paused_holder from headrace_ledger_epoch where uuid = :uuid and lane = :lane and committed_at is null",
            uuid=uuid,
            lane=lane,
        )
        return LaneState(
            pipeline=uuid,
            name=name,
            lane=lane,
            generation=generation,
            committed=committed,
            position=json.loads(position or "{}"),
            open_plan=load_plan(opened[0]) if opened else None,
            sinks={sink: SinkRow(sink, state, epoch) for sink, state, epoch in sinks},
            pipeline_hash=pipeline_hash,
            holder=json.loads(holder) if holder and expires > tx.now else None,
            progress=json.loads(progress),
            ended=json.loads(ended or "{}"),
            droppable=not (opened and opened[1]),
        )


def _epoch(row: tuple[Any, ...]) -> EpochRow:
    plan, generation, committed_at, counts, attempts, error = row
    return EpochRow(
        plan=load_plan(plan),
        generation=generation,
        committed_at=datetime.fromisoformat(committed_at) if committed_at else None,
        counts={sink: Counts(**count) for sink, count in json.loads(counts).items()},
        attempts=attempts,
        error=error,
    )

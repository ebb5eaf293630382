"""Reads of the ledger. They need no lease."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from headrace.pipeline.errors import InternalError
from headrace.pipeline.protocol.epochs import EpochPlan, Json, Phase, Position, WriteCounts
from headrace.pipeline.protocol.ledger.chain import START, link
from headrace.pipeline.protocol.ledger.model import (
    AuditProgress,
    EpochRow,
    PipelineState,
    Restart,
    RolledUp,
    SinkRow,
    StopAction,
    StopRequest,
    StoredEpoch,
)
from headrace.pipeline.protocol.ledger.store import Store, Tx

_PAGE = 500
_LANE = """select p.uuid, p.name, l.lane, l.generation, l.committed, l.position, l.ended, l.pipeline_hash,
    l.holder, l.expires_at, l.progress, r.action, r.generation, r.requested_at, r.requested_by, r.reason
    from headrace_ledger_lane l join headrace_ledger_pipeline p on p.uuid = l.uuid
    left join headrace_ledger_request r on r.name = p.name and r.lane = l.lane"""


def dump(value: Any) -> str:
    """Return the value as JSON. Equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def normalize_position(position: Position) -> Json:
    """Return a position as storage returns it, so that `==` works between the two.

    Raise TypeError if it is not JSON.
    """
    return json.loads(dump(dict(position)))


def timestamp() -> str:
    """Return the current time in the ledger's format."""
    return datetime.now(UTC).isoformat()


def load_plan(text: str) -> EpochPlan:
    """Return the plan that `dump(plan.to_json())` stored."""
    return EpochPlan.from_json(json.loads(text))


def dump_counts(counts: Any) -> str:
    """Return counts by sink as JSON."""
    return dump({sink: asdict(count) for sink, count in counts.items()})


def add_counts(total: Json, counts: Json) -> None:
    """Add stored counts by sink to `total`, in place."""
    for sink, more in counts.items():
        had = total.get(sink)
        total[sink] = more if had is None else asdict(WriteCounts(**had) + WriteCounts(**more))


class LedgerReader:
    """The read-only half of a ledger. Every result is one snapshot."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def state(self, name: str, lane: str = "main") -> PipelineState | None:
        """Return the state of a pipeline. None if it was never opened."""
        with self._store.read() as tx:
            return self._state(tx, name, lane)

    def lanes(self) -> list[PipelineState]:
        """Return every row of the ledger, by pipeline name and lane."""
        with self._store.read() as tx:
            return [self._lane(tx, row) for row in tx.all(f"{_LANE} order by p.name, l.lane")]

    def compiled(self, pipeline_hash: str) -> Json:
        """Return the compiled pipeline that plans with this hash use."""
        with self._store.read() as tx:
            row = tx.one("select body from headrace_ledger_compiled where hash = :hash", hash=pipeline_hash)
        if row is None:
            msg = f"the ledger holds no compiled pipeline with hash {pipeline_hash}"
            raise InternalError(msg)
        return json.loads(row[0])

    def epochs(
        self, name: str, lane: str = "main", first: int = 1, last: int | None = None
    ) -> Iterator[EpochRow]:
        """Yield the epochs first..last in order, including the open one. They are read page by page."""
        query = (
            "select number, plan, generation, committed_at, counts, attempts, error, repeats from"
            " headrace_ledger_epoch"
            " where uuid = (select uuid from headrace_ledger_pipeline where name = :name) and lane = :lane"
            " and number > :after and number <= :last order by number limit :page"
        )
        for _, *row in self._pages(
            query, first - 1, name=name, lane=lane, last=2**62 if last is None else last
        ):
            yield _epoch(tuple(row))

    def stored_epochs(
        self, name: str, lane: str = "main", after: int = 0, before: str = START
    ) -> Iterator[StoredEpoch]:
        """Yield the committed epochs after a number, in order. They are read page by page.

        Each is checked against the hash chain, which starts from the link `before`.
        """
        query = (
            "select number, time_window, plan, generation, committed_at, counts, link from"
            " headrace_ledger_epoch"
            " where uuid = (select uuid from headrace_ledger_pipeline where name = :name) and lane = :lane"
            " and number > :after and committed_at is not null order by number limit :page"
        )
        for number, window, plan, generation, at, counts, stored in self._pages(
            query, after, name=name, lane=lane
        ):
            linked = stored == link(before, number, plan, generation, at, counts)
            yield StoredEpoch(number, window, json.loads(plan), stored or "", linked)
            before = stored or START

    def rolled_up(self, name: str, lane: str = "main") -> list[RolledUp]:
        """Return the ranges of epochs that were rolled up, oldest first."""
        with self._store.read() as tx:
            rows = tx.all(
                "select first, last, start_position, end_position, first_at, last_at, link_before, link,"
                " counts, windows"
                " from headrace_ledger_rolled"
                " where uuid = (select uuid from headrace_ledger_pipeline where name = :name) and lane ="
                " :lane order by first",
                name=name,
                lane=lane,
            )
        return [_parse_rolled_up(row) for row in rows]

    def window_counts(self, name: str, lane: str = "main") -> dict[str, dict[str, WriteCounts]]:
        """Return the counts of history by partition and sink. Epochs that were rolled up are included."""
        result: Json = {}
        with self._store.read() as tx:
            ids = {"name": name, "lane": lane, "history": str(Phase.HISTORY)}
            rolled = tx.all(
                "select windows from headrace_ledger_rolled"
                " where uuid = (select uuid from headrace_ledger_pipeline where name = :name) and lane ="
                " :lane",
                **ids,
            )
            for (windows,) in rolled:
                for window, counts in json.loads(windows).items():
                    add_counts(result.setdefault(window, {}), counts)
            rows = tx.all(
                "select time_window, counts from headrace_ledger_epoch"
                " where uuid = (select uuid from headrace_ledger_pipeline where name = :name) and lane ="
                " :lane"
                " and time_window is not null and phase = :history and committed_at is not null",
                **ids,
            )
        for window, counts in rows:
            add_counts(result.setdefault(window, {}), json.loads(counts))
        return {window: _counts(by_sink) for window, by_sink in result.items()}

    def read_audit_progress(self, name: str, lane: str = "main") -> AuditProgress | None:
        """Return the progress of the last audit that found no problem."""
        with self._store.read() as tx:
            row = tx.one(
                "select number, link from headrace_ledger_verified"
                " where uuid = (select uuid from headrace_ledger_pipeline where name = :name) and lane ="
                " :lane",
                name=name,
                lane=lane,
            )
        return AuditProgress(*row) if row else None

    def store_audit_progress(self, uuid: str, lane: str, point: AuditProgress) -> None:
        """Store the progress of an audit. This needs no lease, because the point only moves forward."""
        with self._store.write() as tx:
            tx.run(
                "insert into headrace_ledger_verified values (:uuid, :lane, :number, :link, :at) on"
                " conflict (uuid, lane) do update"
                " set number = excluded.number, link = excluded.link, checked_at = excluded.checked_at"
                " where headrace_ledger_verified.number < excluded.number",
                uuid=uuid,
                lane=lane,
                number=point.number,
                link=point.link,
                at=timestamp(),
            )

    def count_epochs(self, name: str, lane: str, last: int) -> int:
        """Return the number of epochs up to `last` that have rows of their own."""
        with self._store.read() as tx:
            row = tx.one(
                "select count(*) from headrace_ledger_epoch"
                " where uuid = (select uuid from headrace_ledger_pipeline where name = :name) and lane ="
                " :lane and number <= :last",
                name=name,
                lane=lane,
                last=last,
            )
        return row[0] if row else 0

    def content(self, ref: str) -> Any | None:
        """Return the value that `Ledger.store_content` stored under this hash.

        None if the ledger does not have it.
        """
        with self._store.read() as tx:
            row = tx.one("select body from headrace_ledger_content where hash = :hash", hash=ref)
        return json.loads(row[0]) if row else None

    def events(self, name: str, lane: str = "main") -> list[Json]:
        """Return the events of the pipeline, oldest first: `{"at", "generation", "kind", "data"}`."""
        with self._store.read() as tx:
            rows = tx.all(
                "select at, generation, kind, data from headrace_ledger_event"
                " where uuid = (select uuid from headrace_ledger_pipeline where name = :name) and lane ="
                " :lane order by seq",
                name=name,
                lane=lane,
            )
        return [
            {"at": at, "generation": generation, "kind": kind, "data": json.loads(data)}
            for at, generation, kind, data in rows
        ]

    def restart(self, name: str, lane: str = "main") -> Restart | None:
        """Return the last reset of a pipeline. None if it was never reset."""
        with self._store.read() as tx:
            rows = tx.all(
                "select kind, data from headrace_ledger_event"
                " where uuid = (select uuid from headrace_ledger_pipeline where name = :name) and lane ="
                " :lane"
                " and kind in ('reset', 'began') order by seq",
                name=name,
                lane=lane,
            )
        restart: Restart | None = None
        for kind, data in rows:
            if kind == "reset":
                restart = Restart(json.loads(data)["epoch"], {})
            elif restart is not None:
                restart = Restart(restart.first, json.loads(data)["position"])
        return restart

    def close(self) -> None:
        """Close the store."""
        self._store.close()

    def _pages(self, query: str, after: int, **values: Any) -> Iterator[tuple[Any, ...]]:
        """Yield rows in the order of their first column, which is a number. Each page is one snapshot."""
        while True:
            with self._store.read() as tx:
                rows = tx.all(query, after=after, page=_PAGE, **values)
            yield from rows
            if len(rows) < _PAGE:
                return
            after = rows[-1][0]

    def _state(self, tx: Tx, name: str, lane: str) -> PipelineState | None:
        row = tx.one(f"{_LANE} where p.name = :name and l.lane = :lane", name=name, lane=lane)
        return self._lane(tx, row) if row else None

    def _lane(self, tx: Tx, row: tuple[Any, ...]) -> PipelineState:
        uuid, name, lane, generation, committed, position, ended, pipeline_hash, holder, expires, progress = (
            row[:11]
        )
        sinks = tx.all(
            "select sink, state, epoch from headrace_ledger_sink where uuid = :uuid and lane = :lane",
            uuid=uuid,
            lane=lane,
        )
        opened = tx.one(
            "select plan, paused_holder from headrace_ledger_epoch where uuid = :uuid and lane = :lane and"
            " committed_at is null",
            uuid=uuid,
            lane=lane,
        )
        kept = tx.one(
            "select min(number) from headrace_ledger_epoch where uuid = :uuid and lane = :lane",
            uuid=uuid,
            lane=lane,
        )
        return PipelineState(
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
            kept_from=kept[0] if kept and kept[0] is not None else committed + 1,
            droppable=not (opened and opened[1]),
            request=load_request(row[11:]) if row[11] is not None else None,
        )


def load_request(row: tuple[Any, ...]) -> StopRequest:
    """Return the request in a row of the ledger."""
    action, generation, at, by, reason = row
    return StopRequest(StopAction(action), generation, datetime.fromisoformat(at), by, reason)


def _epoch(row: tuple[Any, ...]) -> EpochRow:
    plan, generation, committed_at, counts, attempts, error, repeats = row
    return EpochRow(
        plan=load_plan(plan),
        generation=generation,
        committed_at=datetime.fromisoformat(committed_at) if committed_at else None,
        counts=_counts(json.loads(counts)),
        attempts=attempts,
        error=error,
        repeats=repeats,
    )


def _parse_rolled_up(row: tuple[Any, ...]) -> RolledUp:
    first, last, start, end, first_at, last_at, before, linked, counts, windows = row
    return RolledUp(
        first=first,
        last=last,
        start=json.loads(start),
        end=json.loads(end),
        first_at=datetime.fromisoformat(first_at),
        last_at=datetime.fromisoformat(last_at),
        link_before=before,
        link=linked,
        counts=_counts(json.loads(counts)),
        windows={window: _counts(by_sink) for window, by_sink in json.loads(windows).items()},
    )


def _counts(stored: Json) -> dict[str, WriteCounts]:
    return {sink: WriteCounts(**count) for sink, count in stored.items()}

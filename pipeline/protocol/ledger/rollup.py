"""Roll-up: a summary replaces the rows of a range of old epochs.

A summary follows the previous range by number, by position and by the hash chain. The pipeline stays provably
gapless.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from headrace.pipeline.protocol.epochs import Json, Phase
from headrace.pipeline.protocol.ledger.chain import START, link
from headrace.pipeline.protocol.ledger.leases import ids_of, missing_row
from headrace.pipeline.protocol.ledger.model import Lease
from headrace.pipeline.protocol.ledger.reader import add_counts, dump, timestamp
from headrace.pipeline.protocol.ledger.refreshes import RefreshRequests
from headrace.pipeline.protocol.ledger.store import Tx

BATCH = 200
"""Epochs per transaction. Others wait only for milliseconds."""
SPAN = 100_000
"""Epochs per summary."""
ROUTINE_EVENTS = ("opened", "released", "dropped")
"""Routine events. The last `KEPT_EVENTS` of them are kept. All other events stay."""
KEPT_EVENTS = 1_000


class _Row(NamedTuple):
    number: int
    phase: str
    window: str | None
    pipeline_hash: str
    generation: int
    committed_at: str
    counts: str
    link: str | None
    plan: str


class RollUps(RefreshRequests):
    """Keeps the ledger small while a pipeline runs."""

    def roll_up(self, lease: Lease, keep: int, *, history: bool) -> int:
        """Roll up at most `BATCH` epochs older than the last `keep`. Return their number.

        `history` allows the roll-up of history epochs, which is correct once all history is in the sinks.
        Nothing is rolled up while a sink is joining or being replayed. A row that is missing or was changed
        ends the range, because an audit must see it. Raise FencedError if the lease is lost.
        """
        with self._store.write() as tx:
            committed, _ = self._hold(tx, lease)
            rows = (
                [] if self._in_repair(tx, lease) else self._due(tx, lease, committed - keep, history=history)
            )
            if rows:
                self._summarize(tx, lease, rows)
                self._forget(tx, lease, rows)
        if rows:
            self._store.trim()
        return len(rows)

    def _seal(self, tx: Tx, lease: Lease, number: int, counts: str) -> None:
        """Mark the open epoch as committed, and link it to the previous one."""
        row = tx.one(
            "select plan from headrace_ledger_epoch where uuid = :uuid and lane = :lane and number = :n",
            n=number,
            **ids_of(lease),
        )
        at, (plan,) = timestamp(), row or missing_row()
        tx.run(
            "update headrace_ledger_epoch set committed_at = :at, counts = :counts, generation ="
            " :generation, link = :link"
            " where uuid = :uuid and lane = :lane and number = :number",
            at=at,
            counts=counts,
            generation=lease.generation,
            link=link(self._link_before(tx, lease, number), number, plan, lease.generation, at, counts),
            number=number,
            **ids_of(lease),
        )

    def _link_before(self, tx: Tx, lease: Lease, number: int) -> str:
        for query in (
            "select link from headrace_ledger_epoch where uuid = :uuid and lane = :lane and number = :before",
            "select link from headrace_ledger_rolled where uuid = :uuid and lane = :lane and last = :before",
        ):
            row = tx.one(query, before=number - 1, **ids_of(lease))
            if row is not None:
                return row[0] or START
        return START

    def _in_repair(self, tx: Tx, lease: Lease) -> bool:
        query = (
            "select 1 from headrace_ledger_sink where uuid = :uuid and lane = :lane and state in"
            " ('joining', 'replaying', 'emptying')"
        )
        return tx.one(query, **ids_of(lease)) is not None

    def _due(self, tx: Tx, lease: Lease, last: int, *, history: bool) -> list[_Row]:
        """Return the next epochs for one summary. They are consecutive in number, position and chain."""
        result = tx.all(
            "select number, phase, time_window, pipeline_hash, generation, committed_at, counts, link, plan"
            " from headrace_ledger_epoch"
            " where uuid = :uuid and lane = :lane and number <= :last and committed_at is not null order by"
            " number limit :batch",
            last=last,
            batch=BATCH,
            **ids_of(lease),
        )
        before = self._newest(tx, lease)
        number, chained = (
            (before["last"], before["link"]) if before else (result[0][0] - 1 if result else 0, START)
        )
        due: list[_Row] = []
        end: Json | None = None
        for values in result:
            row = _Row(*values)
            plan = json.loads(row.plan)
            chained = link(chained, row.number, row.plan, row.generation, row.committed_at, row.counts)
            joins = end is None or (plan["start"] == end and _is_history(row) == _is_history(due[0]))
            if (
                row.number != number + 1
                or row.link != chained
                or not joins
                or (_is_history(row) and not history)
            ):
                break
            due.append(row)
            number, end = row.number, plan["end"]
        return due

    def _newest(self, tx: Tx, lease: Lease) -> Json | None:
        row = tx.one(
            "select first, last, history, link, counts, windows, end_position from headrace_ledger_rolled"
            " where uuid = :uuid and lane = :lane order by first desc limit 1",
            **ids_of(lease),
        )
        return (
            dict(zip(("first", "last", "history", "link", "counts", "windows", "end"), row, strict=True))
            if row
            else None
        )

    def _summarize(self, tx: Tx, lease: Lease, rows: list[_Row]) -> None:
        """Add rows to the newest summary, or start a new one if they do not continue it."""
        before, history = self._newest(tx, lease), int(_is_history(rows[0]))
        start, end = json.loads(rows[0].plan)["start"], json.loads(rows[-1].plan)["end"]
        extends = (
            before is not None
            and before["history"] == history
            and json.loads(before["end"]) == start
            and rows[-1].number - before["first"] < SPAN
        )
        counts: Json = json.loads(before["counts"]) if before and extends else {}
        windows: Json = json.loads(before["windows"]) if before and extends else {}
        for row in rows:
            result = json.loads(row.counts)
            add_counts(counts, result)
            if row.window is not None and history:
                add_counts(windows.setdefault(row.window, {}), result)
        values: dict[str, Any] = {
            "first": before["first"] if before and extends else rows[0].number,
            "last": rows[-1].number,
            "last_at": rows[-1].committed_at,
            "link": rows[-1].link,
            "counts": dump(counts),
            "windows": dump(windows),
            "end": dump(end),
        } | ids_of(lease)
        if extends:
            tx.run(
                "update headrace_ledger_rolled set last = :last, last_at = :last_at, link = :link, counts ="
                " :counts,"
                " windows = :windows, end_position = :end where uuid = :uuid and lane = :lane and first ="
                " :first",
                **values,
            )
            return
        values |= {
            "history": history,
            "first_at": rows[0].committed_at,
            "before": before["link"] if before else START,
            "start": dump(start),
        }
        tx.run(
            "insert into headrace_ledger_rolled values (:uuid, :lane, :first, :last, :history, :first_at,"
            " :last_at, :before, :link,"
            " :counts, :windows, :start, :end)",
            **values,
        )

    def _forget(self, tx: Tx, lease: Lease, rows: list[_Row]) -> None:
        """Delete the epochs that the summary replaces, and data that nothing refers to any more."""
        tx.run(
            "delete from headrace_ledger_epoch where uuid = :uuid and lane = :lane and number >= :first and"
            " number <= :last",
            first=rows[0].number,
            last=rows[-1].number,
            **ids_of(lease),
        )
        for unused in {row.pipeline_hash for row in rows}:
            tx.run(
                "delete from headrace_ledger_compiled where hash = :hash"
                " and not exists (select 1 from headrace_ledger_epoch where pipeline_hash = :hash)"
                " and not exists (select 1 from headrace_ledger_lane where pipeline_hash = :hash)",
                hash=unused,
            )
        if _is_history(rows[-1]):
            self._forget_splits(tx, lease)
        kinds = {f"kind{place}": kind for place, kind in enumerate(ROUTINE_EVENTS)}
        names = ", ".join(f":{name}" for name in kinds)
        tx.run(
            f"delete from headrace_ledger_event where uuid = :uuid and lane = :lane and kind in ({names})"  # noqa: S608
            " and seq <="
            " (select seq from headrace_ledger_event where uuid = :uuid and lane = :lane"
            f" and kind in ({names}) order by seq desc limit 1 offset :kept)",
            kept=KEPT_EVENTS,
            **kinds,
            **ids_of(lease),
        )

    def _forget_splits(self, tx: Tx, lease: Lease) -> None:
        """Delete the stored splits of partitions once no epoch of history has a row.

        No rewind can need them.
        """
        left = tx.one(
            "select 1 from headrace_ledger_epoch where uuid = :uuid and lane = :lane and phase = :history"
            " limit 1",
            history=str(Phase.HISTORY),
            **ids_of(lease),
        )
        if left is None:
            tx.run(
                "delete from headrace_ledger_event where uuid = :uuid and lane = :lane and kind = 'splits'",
                **ids_of(lease),
            )


def _is_history(row: _Row) -> bool:
    return row.phase == Phase.HISTORY

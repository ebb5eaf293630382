"""Leases: decide which process may write a pipeline, by compare-and-set on its generation."""

from __future__ import annotations

import json
import threading
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from headrace.pipeline.errors import FencedError, InternalError, LeaseHeldError, PausedError
from headrace.pipeline.protocol.epochs import Json
from headrace.pipeline.protocol.ledger.model import Lease
from headrace.pipeline.protocol.ledger.owner import end_jvm, format_owner
from headrace.pipeline.protocol.ledger.reader import dump, timestamp
from headrace.pipeline.protocol.ledger.requests import StopRequests
from headrace.pipeline.protocol.ledger.store import Presence, Store, Tx

_GENERATIONS_BEGIN = 1_577_836_800  # 2020-01-01 UTC


class Leases(StopRequests):
    """Acquires, renews and releases the leases of pipelines."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._presences: dict[tuple[str, str, int], Presence] = {}
        self._lock = threading.Lock()

    def acquire(
        self, name: str, lane: str, holder: Json, ttl: float, *, refuse_if_paused: bool = False
    ) -> Lease:
        """Acquire the lease for this process and raise its generation. A new pipeline gets its UUID.

        A former owner that is proven dead is replaced at once. Any other owner is replaced when its lease has
        expired. If the former owner named a JVM (`holder["jvm"]`) that is alive on this host, kill it. Raise
        LeaseHeldError if another run has the lease, and with `refuse_if_paused` PausedError if the pipeline
        is paused.
        """
        with ExitStack() as undo:
            with self._store.write() as tx:
                former, is_dead, lease = self._follow(tx, name, lane)
                self._take(tx, lease, holder, ttl)
                if refuse_if_paused:
                    self._assert_not_paused(tx, lease, holder)
                if not is_dead:
                    tx.run(
                        "update headrace_ledger_epoch set paused_holder = 1 where uuid = :uuid and lane ="
                        " :lane and committed_at is null",
                        **ids_of(lease),
                    )
                after = "release" if former is None else "death" if is_dead else "expiry"
                self._note(tx, lease, "opened", {"holder": holder, "after": after})
                presence = self._store.present(lease.pipeline, lane, lease.generation)
                undo.callback(presence.release)
            undo.pop_all()
        with self._lock:
            self._presences[lease.pipeline, lane, lease.generation] = presence
        if former is None or not (end_jvm(former) and is_dead):
            return replace(lease, settled=lease.settled and lease.clean)
        # An owner before the former one may have left the lease unsettled.
        # The death of the former owner does not settle that.
        return self.settle(lease) if lease.settled else lease

    def _follow(self, tx: Tx, name: str, lane: str) -> tuple[Json | None, bool, Lease]:
        """Return the former owner, whether it is proven dead, and the lease that would follow its lease.

        The former owner is None if it released the lease; then it counts as dead.
        """
        uuid = self._register(tx, name, lane)
        row = tx.one(
            "select generation, holder, expires_at, unsettled from headrace_ledger_lane where uuid = :uuid"
            " and lane = :lane",
            uuid=uuid,
            lane=lane,
        )
        old, text, expires, unsettled = row or missing_row()
        former = json.loads(text) if text else None
        is_dead = former is None or self._store.is_owner_dead(uuid, lane, old)
        if not is_dead and expires > tx.now:
            msg = f"pipeline '{name}' is held by another run ({format_owner(former or {})})"
            left = (
                f"Stop that run, or wait for its end; its lease expires in {expires - tx.now:.0f} s"
                " unless it is renewed."
            )
            raise LeaseHeldError(msg, hint=left)
        return (
            former,
            is_dead,
            Lease(
                uuid,
                name,
                lane,
                next_generation(old, tx.now),
                clean=former is None,
                settled=not unsettled,
                former=old,
            ),
        )

    def _take(self, tx: Tx, lease: Lease, holder: Json, ttl: float) -> None:
        changed = tx.run(
            "update headrace_ledger_lane set generation = :generation, holder = :holder, expires_at ="
            " :until, progress = '{}',"
            " unsettled = :unsettled where uuid = :uuid and lane = :lane and generation = :old"
            " and (holder is null or :clean = 0)",
            generation=lease.generation,
            holder=dump(holder),
            until=tx.now + ttl,
            unsettled=int(not (lease.settled and lease.clean)),
            clean=int(lease.clean),
            old=lease.former,
            **ids_of(lease),
        )
        if changed != 1:
            msg = f"pipeline '{lease.name}' was taken by another run in this moment"
            raise LeaseHeldError(msg)

    def _assert_not_paused(self, tx: Tx, lease: Lease, holder: Json) -> None:
        """Raise PausedError, which rolls the lease back.

        Call it after the lease's row was changed: from then on no request can be stored for the former one.
        """
        request = self._read_request(tx, lease.name, lease.lane)
        if request is not None and request.is_pause:
            msg = f"pipeline '{lease.name}' is paused {request}"
            raise PausedError(msg, hint=f"End the pause with: headrace resume {holder.get('file', 'FILE')}.")

    def settle(self, lease: Lease) -> Lease:
        """Record that no write of an earlier owner can still land: this is proven, or the wait is over."""
        with self._store.write() as tx:
            self._hold(tx, lease)
            tx.run(
                "update headrace_ledger_lane set unsettled = 0 where uuid = :uuid and lane = :lane",
                **ids_of(lease),
            )
        return replace(lease, settled=True)

    def heartbeat(self, lease: Lease, ttl: float, progress: Json | None = None) -> None:
        """Move the expiry to `ttl` seconds from now, and store the progress of the run."""
        with self._store.write() as tx:
            self._hold(tx, lease)
            tx.run(
                "update headrace_ledger_lane set expires_at = :until, progress = coalesce(:progress,"
                " progress) where uuid = :uuid and lane = :lane",
                until=tx.now + ttl,
                progress=None if progress is None else dump(progress),
                **ids_of(lease),
            )

    def release(self, lease: Lease, *, clean: bool = True) -> None:
        """Release the lease. `clean=False` means that a write may still be in progress."""
        try:
            with self._store.write() as tx:
                self._hold(tx, lease)
                tx.run(
                    "update headrace_ledger_lane set holder = null, expires_at = 0, unsettled = case when"
                    " :clean = 1 then unsettled else 1 end"
                    " where uuid = :uuid and lane = :lane",
                    clean=int(clean),
                    **ids_of(lease),
                )
                self._note(tx, lease, "released", {"clean": clean})
        finally:
            with self._lock:
                presence = self._presences.pop((lease.pipeline, lease.lane, lease.generation), None)
            if presence is not None:
                presence.release()

    def set_holder(self, lease: Lease, holder: Json) -> None:
        """Replace the owner's description, to add `"jvm"` once it is known.

        Call it before the first write to a sink.
        """
        with self._store.write() as tx:
            self._hold(tx, lease)
            tx.run(
                "update headrace_ledger_lane set holder = :holder where uuid = :uuid and lane = :lane",
                holder=dump(holder),
                **ids_of(lease),
            )

    # --- parts

    def _hold(self, tx: Tx, lease: Lease) -> tuple[int, Json]:
        """Do the compare-and-set that every change needs, and lock the pipeline's row.

        Return the committed epoch and the position. Raise FencedError if the generation no longer has the
        lease.
        """
        row = tx.one(
            "update headrace_ledger_lane set generation = generation where uuid = :uuid and lane = :lane"
            " and generation = :generation and holder is not null"
            " returning committed, position",
            generation=lease.generation,
            **ids_of(lease),
        )
        if row is None:
            msg = f"generation {lease.generation} no longer holds the lease of pipeline '{lease.name}'"
            raise FencedError(msg, hint="Another run has taken over; this one must end.")
        return row[0], json.loads(row[1] or "{}")

    def _note(self, tx: Tx, lease: Lease, kind: str, data: Json) -> None:
        tx.run(
            "insert into headrace_ledger_event select :uuid, :lane, coalesce(max(seq), 0) + 1, :at,"
            " :generation, :kind, :data"
            " from headrace_ledger_event where uuid = :uuid and lane = :lane",
            at=timestamp(),
            generation=lease.generation,
            kind=kind,
            data=dump(data),
            **ids_of(lease),
        )


def next_generation(former: int, now: float) -> int:
    """Return the generation that follows `former`: the seconds since 2020, and always more than `former`.

    A ledger that lost its last commits (a failover, a backup) would count on from an old number. The clock
    keeps it from using a generation twice, so that ledger and sinks can tell two owners apart. A generation
    must fit into 31 bits, because Delta's transaction version stores it with a step. It fits until 2088.
    """
    return max(former + 1, int(now) - _GENERATIONS_BEGIN)


def ids_of(lease: Lease) -> dict[str, str]:
    """Return the key of the pipeline's row as bound values."""
    return {"uuid": lease.pipeline, "lane": lease.lane}


def missing_row() -> Any:
    """Raise InternalError for a row that must exist."""
    msg = "a row of the ledger vanished inside its own transaction"
    raise InternalError(msg)

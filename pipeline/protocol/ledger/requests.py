"""Requests to stop or pause a pipeline. Every process can make one; the owner of the lease reads it."""

from __future__ import annotations

from uuid import uuid4

from headrace.pipeline.errors import InternalError
from headrace.pipeline.protocol.ledger.model import LeaseStatus, StopAction, StopRequest
from headrace.pipeline.protocol.ledger.reader import LedgerReader, load_request, timestamp
from headrace.pipeline.protocol.ledger.store import Tx


class StopRequests(LedgerReader):
    """Stores, reads and ends requests. None of this needs the lease."""

    def request_stop(
        self, name: str, action: StopAction, *, by: str, reason: str = "", lane: str = "main"
    ) -> StopRequest | None:
        """Ask the owner of the lease to end, and with PAUSE keep further runs from starting.

        Return the request that is now stored: an equal one that was there before stays as it is. Return None
        for STOP if no run can be alive. An owner whose lease has expired may only be suspended, so it counts.
        """
        with self._store.write() as tx:
            if action is StopAction.PAUSE:
                self._register(tx, name, lane)
            owner = self._lock_lane(tx, name, lane)
            if owner is None:
                return None
            uuid, generation, holder = owner
            alive = holder is not None and not self._store.is_owner_dead(uuid, lane, generation)
            former = self._read_request(tx, name, lane)
            if action is StopAction.STOP and not alive:
                return None
            if former is None or not self._covers(former, action, generation):
                self._put_request(tx, name, lane, former, action, generation, by, reason)
            stored = self._read_request(tx, name, lane)
        if stored is None:
            msg = "a request vanished inside its own transaction"
            raise InternalError(msg)
        return stored

    def end_pause(self, name: str, lane: str = "main") -> StopRequest | None:
        """Remove the pause of a pipeline and return it. None if it is not paused."""
        with self._store.write() as tx:
            former = self._read_request(tx, name, lane)
            if former is None or not former.is_pause:
                return None
            tx.run(
                "delete from headrace_ledger_request where name = :name and lane = :lane",
                name=name,
                lane=lane,
            )
        return former

    def lease_status(self, name: str, generation: int, lane: str = "main") -> LeaseStatus:
        """Return the status of the lease that a generation of the pipeline acquired."""
        with self._store.read() as tx:
            row = tx.one(
                "select p.uuid, l.generation, l.holder, l.expires_at from headrace_ledger_lane l"
                " join headrace_ledger_pipeline p on p.uuid = l.uuid where p.name = :name and l.lane = :lane",
                name=name,
                lane=lane,
            )
            now = tx.now
        if row is None or row[1] != generation or row[2] is None:
            return LeaseStatus.RELEASED
        if self._store.is_owner_dead(row[0], lane, generation):
            return LeaseStatus.DEAD
        return LeaseStatus.ACTIVE if row[3] > now else LeaseStatus.EXPIRED

    # --- parts

    def _register(self, tx: Tx, name: str, lane: str) -> str:
        """Return the pipeline's UUID. A new pipeline gets one, and its row."""
        uuid = self._identity(tx, name)
        tx.run(
            "insert into headrace_ledger_lane values (:uuid, :lane, 0, 0, null, null, null, null, 0, '{}', 0)"
            " on conflict (uuid, lane) do nothing",
            uuid=uuid,
            lane=lane,
        )
        return uuid

    def _identity(self, tx: Tx, name: str) -> str:
        tx.run(
            "insert into headrace_ledger_pipeline values (:name, :uuid, :at) on conflict (name) do nothing",
            name=name,
            uuid=str(uuid4()),
            at=timestamp(),
        )
        row = tx.one("select uuid from headrace_ledger_pipeline where name = :name", name=name)
        if row is None:
            msg = "a pipeline vanished inside its own transaction"
            raise InternalError(msg)
        return row[0]

    def _lock_lane(self, tx: Tx, name: str, lane: str) -> tuple[str, int, str | None] | None:
        """Lock the pipeline's row, so that no run takes the lease meanwhile.

        Return its UUID, its generation, and the owner's description unless it released the lease. None if the
        pipeline never ran.
        """
        # Not `returning holder is not null`: SQLite 3.40 returns 1 for null.
        return tx.one(
            "update headrace_ledger_lane set generation = generation where lane = :lane and uuid ="
            " (select uuid from headrace_ledger_pipeline where name = :name)"
            " returning uuid, generation, holder",
            name=name,
            lane=lane,
        )

    def _read_request(self, tx: Tx, name: str, lane: str) -> StopRequest | None:
        row = tx.one(
            "select action, generation, requested_at, requested_by, reason from headrace_ledger_request"
            " where name = :name and lane = :lane",
            name=name,
            lane=lane,
        )
        return load_request(row) if row else None

    @staticmethod
    def _covers(former: StopRequest, action: StopAction, generation: int) -> bool:
        return former.generation == generation and (former.is_pause or action is StopAction.STOP)

    def _put_request(
        self,
        tx: Tx,
        name: str,
        lane: str,
        former: StopRequest | None,
        action: StopAction,
        generation: int,
        by: str,
        reason: str,
    ) -> None:
        """Store the request. A pause stays a pause, and only its generation rises."""
        if former is not None and former.is_pause:
            tx.run(
                "update headrace_ledger_request set generation = :generation"
                " where name = :name and lane = :lane",
                name=name,
                lane=lane,
                generation=generation,
            )
            return
        tx.run(
            "insert into headrace_ledger_request values (:name, :lane, :action, :generation, :at, :by,"
            " :reason)"
            " on conflict (name, lane) do update set action = excluded.action, generation ="
            " excluded.generation, requested_at = excluded.requested_at, requested_by ="
            " excluded.requested_by, reason = excluded.reason",
            name=name,
            lane=lane,
            action=str(action),
            generation=generation,
            at=timestamp(),
            by=by,
            reason=reason,
        )

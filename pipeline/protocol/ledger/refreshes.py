"""Requests to refresh partitions of history. Any process makes one, the owner of the lease executes it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from headrace.pipeline.errors import PipelineStateError
from headrace.pipeline.protocol.ledger.leases import Leases, missing_row
from headrace.pipeline.protocol.ledger.model import Lease, RefreshRequest, RefreshState, StopRequest
from headrace.pipeline.protocol.ledger.reader import dump, timestamp
from headrace.pipeline.protocol.ledger.store import Tx

KEPT_REFRESHES = 100
"""The number of requests of a pipeline that stay in the ledger after their end."""
_SELECT = (
    "select number, partitions, requested_at, requested_by, state, first_epoch, last_epoch, message, hint"
    " from headrace_ledger_refresh where name = :name and lane = :lane"
)


class RefreshRequests(Leases):
    """Stores requests, which needs no lease, and their results, which only the owner stores."""

    def request_refresh(
        self, name: str, partitions: Iterable[str], *, by: str, lane: str = "main"
    ) -> RefreshRequest:
        """Ask the owner of the lease to read partitions again. Return the request that is now stored.

        An equal request that the owner has not begun is returned as it is. One that has begun does not count:
        its snapshot can be older than the rows that this request is for. The next owner executes the request
        if there is none now. Raise PipelineStateError for a pipeline that the ledger does not have.
        """
        keys = dump(sorted(set(partitions)))
        ids = {"name": name, "lane": lane}
        with self._store.write() as tx:
            if self._lock_lane(tx, name, lane) is None:
                msg = f"pipeline `{name}` never ran with this ledger"
                raise PipelineStateError(msg, hint="Start it: headrace run FILE.")
            equal = tx.one(
                f"{_SELECT} and state = :state and first_epoch is null and partitions = :keys",
                state=str(RefreshState.REQUESTED),
                keys=keys,
                **ids,
            )
            return _load_refresh(equal) if equal else self._put_refresh(tx, keys, by, **ids)

    def pending_refreshes(self, name: str, lane: str = "main") -> list[RefreshRequest]:
        """Return the requests that wait for their execution or are executed, oldest first."""
        with self._store.read() as tx:
            rows = tx.all(
                f"{_SELECT} and state = :state order by number",
                name=name,
                lane=lane,
                state=str(RefreshState.REQUESTED),
            )
        return [_load_refresh(row) for row in rows]

    def withdraw_refresh(self, name: str, number: int, *, by: str, lane: str = "main") -> bool:
        """End a request of this requester that the owner has not begun. Return whether it was withdrawn."""
        with self._store.write() as tx:
            changed = tx.run(
                "update headrace_ledger_refresh set state = :withdrawn where name = :name and lane = :lane"
                " and number = :number and state = :pending and first_epoch is null and requested_by = :by",
                name=name,
                lane=lane,
                number=number,
                by=by,
                withdrawn=str(RefreshState.WITHDRAWN),
                pending=str(RefreshState.REQUESTED),
            )
        return changed == 1

    def requested_refresh(self, name: str, by: str, lane: str = "main") -> RefreshRequest | None:
        """Return the newest request of a requester. None if there is none, or no longer."""
        with self._store.read() as tx:
            row = tx.one(
                f"{_SELECT} and requested_by = :by order by number desc limit 1", name=name, lane=lane, by=by
            )
        return _load_refresh(row) if row else None

    def refresh_request(self, name: str, number: int, lane: str = "main") -> RefreshRequest | None:
        """Return a request with its result. None if later requests have replaced it."""
        with self._store.read() as tx:
            row = tx.one(f"{_SELECT} and number = :number", name=name, lane=lane, number=number)
        return _load_refresh(row) if row else None

    def read_requests(self, name: str, lane: str = "main") -> tuple[StopRequest | None, bool]:
        """Return the newest request to stop, and whether a request for a refresh waits."""
        with self._store.read() as tx:
            waiting = tx.one(
                "select 1 from headrace_ledger_refresh where name = :name and lane = :lane and state = :state"
                " limit 1",
                name=name,
                lane=lane,
                state=str(RefreshState.REQUESTED),
            )
            return self._read_request(tx, name, lane), waiting is not None

    def begin_refresh(self, lease: Lease, number: int, first_epoch: int) -> bool:
        """Record the first epoch of a request, which refers to the new snapshots if there are some.

        Call it before that epoch is planned. Return False for a request that was withdrawn.
        """
        return self._change_refresh(lease, number, "first_epoch = :first", first=first_epoch)

    def end_refresh(self, lease: Lease, number: int, last_epoch: int) -> None:
        """Record that all sinks have the partitions as the new snapshots have them."""
        self._change_refresh(
            lease, number, "state = :state, last_epoch = :last", state=str(RefreshState.DONE), last=last_epoch
        )

    def refuse_refresh(self, lease: Lease, number: int, message: str, hint: str) -> None:
        """Record why a request is not executed."""
        self._change_refresh(
            lease,
            number,
            "state = :state, message = :message, hint = :hint",
            state=str(RefreshState.REFUSED),
            message=message,
            hint=hint,
        )

    # --- parts

    def _change_refresh(self, lease: Lease, number: int, change: str, **values: Any) -> bool:
        """Change a request that waits or is executed. Return False if it is not."""
        with self._store.write() as tx:
            self._hold(tx, lease)
            changed = tx.run(
                f"update headrace_ledger_refresh set {change}"  # noqa: S608  the callers' own text
                " where name = :name and lane = :lane and number = :number and state = :pending",
                name=lease.name,
                lane=lease.lane,
                number=number,
                pending=str(RefreshState.REQUESTED),
                **values,
            )
        return changed == 1

    def _refuse_all(self, tx: Tx, lease: Lease, message: str) -> None:
        """Refuse the requests that wait."""
        tx.run(
            "update headrace_ledger_refresh set state = :refused, message = :message"
            " where name = :name and lane = :lane and state = :pending",
            name=lease.name,
            lane=lease.lane,
            refused=str(RefreshState.REFUSED),
            message=message,
            pending=str(RefreshState.REQUESTED),
        )

    def _put_refresh(self, tx: Tx, keys: str, by: str, *, name: str, lane: str) -> RefreshRequest:
        """Store a request after the others. Delete the oldest ones that have ended."""
        newest = tx.one(
            "select coalesce(max(number), 0) from headrace_ledger_refresh where name = :name and lane ="
            " :lane",
            name=name,
            lane=lane,
        )
        number = (newest or missing_row())[0] + 1
        tx.run(
            "insert into headrace_ledger_refresh values (:name, :lane, :number, :keys, :at, :by, :state,"
            " null, null, '', '')",
            name=name,
            lane=lane,
            number=number,
            keys=keys,
            at=timestamp(),
            by=by,
            state=str(RefreshState.REQUESTED),
        )
        tx.run(
            "delete from headrace_ledger_refresh where name = :name and lane = :lane and number <= :last and"
            " state <> :state",
            name=name,
            lane=lane,
            last=number - KEPT_REFRESHES,
            state=str(RefreshState.REQUESTED),
        )
        row = tx.one(f"{_SELECT} and number = :number", name=name, lane=lane, number=number)
        return _load_refresh(row or missing_row())


def _load_refresh(row: tuple[Any, ...]) -> RefreshRequest:
    number, partitions, at, by, state, first, last, message, hint = row
    return RefreshRequest(
        number,
        tuple(json.loads(partitions)),
        datetime.fromisoformat(at),
        by,
        RefreshState(state),
        first,
        last,
        message,
        hint,
    )

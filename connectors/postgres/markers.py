"""Markers of direct loads: which splits of the open epoch are in the target already.

A marker is written first in the transaction that loads its split. So a split is loaded once, whichever task,
try or process gets to it.
"""

from __future__ import annotations

import hashlib
import json

from headrace.connectors.postgres.session import Session
from headrace.pipeline.protocol.epochs import Json, SinkKey, WriteCounts


def split_id(split: Json) -> str:
    """Return an id of a split made from its content, not from its index in a list."""
    return hashlib.sha256(json.dumps(split, sort_keys=True, default=str).encode()).hexdigest()[:32]


def set_marker(session: Session, key: SinkKey, epoch: int, split: str, generation: int) -> bool:
    """Mark a split as loaded by this transaction; return False if another transaction did.

    An open transaction with the same marker is waited for.
    """
    rows = session.run(
        "INSERT INTO headrace.splits (pipeline, lane, sink, epoch, split, generation)"
        " VALUES ($1::text, $2::text, $3::text, $4::bigint, $5::text, $6::bigint) ON CONFLICT DO NOTHING"
        " RETURNING 1",
        key.pipeline,
        key.lane,
        key.sink,
        epoch,
        split,
        generation,
    )
    return bool(rows)


def fill_marker(session: Session, key: SinkKey, epoch: int, split: str, counts: WriteCounts) -> None:
    """Store the split's row counts in the transaction that marked it."""
    session.run(
        "UPDATE headrace.splits SET rows = $6::bigint, inserted = $7::bigint, updated = $8::bigint"
        " WHERE pipeline = $1::text AND lane = $2::text AND sink = $3::text AND epoch = $4::bigint AND"
        " split = $5::text",
        key.pipeline,
        key.lane,
        key.sink,
        epoch,
        split,
        counts.rows,
        counts.inserted,
        counts.updated,
    )


def markers(session: Session, key: SinkKey, epoch: int) -> dict[str, WriteCounts]:
    """Return the loaded and committed splits of an epoch with their row counts."""
    rows = session.run(
        "SELECT split, rows, inserted, updated FROM headrace.splits"
        " WHERE pipeline = $1::text AND lane = $2::text AND sink = $3::text AND epoch = $4::bigint",
        key.pipeline,
        key.lane,
        key.sink,
        epoch,
    )
    return {split: WriteCounts(count, inserted, updated, 0) for split, count, inserted, updated in rows}

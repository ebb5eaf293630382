"""The stored form of epochs: plans in the ledger, commit records in the sinks.

Both are JSON with a format number. A format newer than this code is rejected.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Self

from headrace.pipeline.errors import InternalError

Json = dict[str, Any]
Position = Mapping[str, Any]
"""The position of every source, by source name. Plain JSON, comparable with `==`."""

RECORD_FORMAT = 2
RECORD_BYTES = 1_000
"""The maximal size of a record as JSON. It is written to the target with every epoch."""
_END_BYTES, _STREAM_END_BYTES = 500, 65_536
"""The maximal size of a position in a record, without and with a stream.

A stream's position grows only with its partitions, and a rebuild needs it.
"""


def content_ref(value: Any) -> str:
    """Return the reference under which a ledger keeps a JSON value."""
    return f"sha256:{digest({'value': value})}"


def digest(position: Position) -> str:
    """Return 32 hex digits that are the same for two positions only if the positions are equal."""
    text = json.dumps(dict(position), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class Phase(StrEnum):
    """The phase of an epoch."""

    HISTORY = "history"
    CATCHING_UP = "catching_up"
    LIVE = "live"


@dataclass(frozen=True, slots=True)
class SinkKey:
    """Identity of a sink's record. `pipeline` is the UUID from the ledger. `name` is only for display."""

    pipeline: str
    name: str
    lane: str
    sink: str

    @property
    def text(self) -> str:
        """`<uuid>/<lane>/<sink>`, for systems that take one string.

        Examples are Delta's txn app id and Kafka's transactional id.
        """
        return f"{self.pipeline}/{self.lane}/{self.sink}"


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """One planned epoch, immutable once the ledger has it.

    `start` and `end` are positions: the epoch has the rows in [start, end). `splits` are the splits of the
    history snapshot that it reads, and are empty in a stream epoch. `planned_at` is the value of `now()`
    inside the epoch.
    """

    number: int
    phase: Phase
    start: Position
    end: Position
    pipeline_hash: str
    planned_at: datetime
    window: str | None = None
    splits: tuple[Json, ...] = ()

    def to_json(self) -> Json:
        """Return the plan as plain JSON values."""
        return asdict(self) | {
            "phase": str(self.phase),
            "planned_at": self.planned_at.isoformat(),
            "splits": list(self.splits),
        }

    @classmethod
    def from_json(cls, data: Json) -> Self:
        """Create a plan from the output of `to_json`."""
        return cls(
            **data
            | {
                "phase": Phase(data["phase"]),
                "planned_at": datetime.fromisoformat(data["planned_at"]),
                "splits": tuple(data["splits"]),
            }
        )


@dataclass(frozen=True, slots=True)
class WriteCounts:
    """Rows of one epoch at one sink, as the sink acknowledged them.

    `rows` is the number of rows passed to the sink after de-duplication. The others are None if the sink
    cannot know them.
    """

    rows: int = 0
    inserted: int | None = 0
    updated: int | None = 0
    deleted: int | None = 0

    def __add__(self, other: WriteCounts) -> WriteCounts:
        def add(a: int | None, b: int | None) -> int | None:
            return None if a is None or b is None else a + b

        return WriteCounts(
            self.rows + other.rows,
            add(self.inserted, other.inserted),
            add(self.updated, other.updated),
            add(self.deleted, other.deleted),
        )


def largest_row_count(counts: Mapping[str, WriteCounts]) -> int:
    """Return the rows of the sink that received most, 0 without sinks."""
    return max((one.rows for one in counts.values()), default=0)


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """The record that a sink stores about the last epoch that it has, in 1 kB at most.

    Positions are compared by digest. The end is stored in full if it is small or belongs to a stream, so that
    a lost ledger can be rebuilt from it. The splits are stored if they fit. `totals` sums `counts` since the
    sink registered. `baseline` is the number of rows in the target at that time (None: unknown).
    """

    key: SinkKey
    epoch: int
    generation: int
    phase: Phase
    window: str | None
    start_digest: str
    end_digest: str
    pipeline_hash: str
    counts: WriteCounts
    totals: WriteCounts
    baseline: int | None
    end: Position | None = None
    """The end of the epoch. None if it is too large for a record."""
    written_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    planned_at: datetime | None = None
    """The time of planning. None in a registration record."""
    splits: tuple[Json, ...] | None = ()
    """The splits of the epoch. None if they are too large for a record."""

    @property
    def is_registration(self) -> bool:
        """Whether the sink registered with this record and has written no epoch since."""
        return self.planned_at is None

    def is_of(self, plan: EpochPlan) -> bool:
        """Return whether this is the record of the epoch that `plan` describes."""
        mine = (self.start_digest, self.end_digest, self.pipeline_hash)
        return mine == (digest(plan.start), digest(plan.end), plan.pipeline_hash)

    def plan_from(self, start: Position) -> EpochPlan | None:
        """Return this record's plan.

        None if it does not begin at `start`, or if its end, splits or time are missing.
        """
        if (
            self.planned_at is None
            or self.end is None
            or self.splits is None
            or digest(start) != self.start_digest
        ):
            return None
        return EpochPlan(
            self.epoch,
            self.phase,
            start,
            self.end,
            self.pipeline_hash,
            self.planned_at,
            window=self.window,
            splits=self.splits,
        )

    @classmethod
    def for_registration(
        cls,
        key: SinkKey,
        generation: int,
        epoch: int,
        position: Position,
        pipeline_hash: str,
        baseline: int | None,
    ) -> Self:
        """Create the record of a sink that registers after `epoch` and has no row of this pipeline yet."""
        at = digest(position)
        return cls(
            key,
            epoch,
            generation,
            Phase.HISTORY,
            None,
            at,
            at,
            pipeline_hash,
            WriteCounts(),
            WriteCounts(),
            baseline,
            end=_fitting(position),
        )

    def after_epoch(self, plan: EpochPlan, generation: int, counts: WriteCounts) -> Self:
        """Return the record that follows this one after `plan` is written."""
        result = replace(
            self,
            epoch=plan.number,
            generation=generation,
            phase=plan.phase,
            window=plan.window,
            start_digest=digest(plan.start),
            end_digest=digest(plan.end),
            pipeline_hash=plan.pipeline_hash,
            counts=counts,
            totals=self.totals + counts,
            end=_fitting(plan.end),
            written_at=datetime.now(UTC),
            planned_at=plan.planned_at,
            splits=plan.splits,
        )
        # Reserve room for the counts, which some sinks know only after the record is created.
        fits = not plan.splits or _size(result.to_json()) <= RECORD_BYTES - 100
        return result if fits else replace(result, splits=None)

    def to_json(self) -> Json:
        """Return the record as plain JSON values, with its format number."""
        result = {
            "format": RECORD_FORMAT,
            "key": asdict(self.key),
            "epoch": self.epoch,
            "generation": self.generation,
            "phase": str(self.phase),
            "window": self.window,
            "start": self.start_digest,
            "end": self.end_digest if self.end is None else dict(self.end),
            "pipeline_hash": self.pipeline_hash,
            "counts": _pack_counts(self.counts),
            "totals": _pack_counts(self.totals),
            "baseline": self.baseline,
            "written_at": self.written_at.isoformat(),
            "planned_at": self.planned_at and self.planned_at.isoformat(),
            "splits": None if self.splits is None else list(self.splits),
        }
        absent = {"window": None, "planned_at": None, "splits": []}
        return {name: value for name, value in result.items() if name not in absent or value != absent[name]}

    @classmethod
    def from_json(cls, data: Json) -> Self:
        """Create a record from the output of `to_json`. Raise InternalError for an unknown format."""
        if (result := data.get("format")) != RECORD_FORMAT:
            msg = f"a sink's record has format {result}, this Headrace knows {RECORD_FORMAT}"
            raise InternalError(msg, hint="Run the Headrace version that wrote it, or a newer one.")
        end, splits = data["end"], data.get("splits", [])
        return cls(
            key=SinkKey(**data["key"]),
            epoch=data["epoch"],
            generation=data["generation"],
            phase=Phase(data["phase"]),
            window=data.get("window"),
            start_digest=data["start"],
            end_digest=end if isinstance(end, str) else digest(end),
            pipeline_hash=data["pipeline_hash"],
            counts=WriteCounts(*data["counts"]),
            totals=WriteCounts(*data["totals"]),
            baseline=data["baseline"],
            end=None if isinstance(end, str) else end,
            written_at=datetime.fromisoformat(data["written_at"]),
            planned_at=datetime.fromisoformat(planned) if (planned := data.get("planned_at")) else None,
            splits=None if splits is None else tuple(splits),
        )


def _pack_counts(counts: WriteCounts) -> list[int | None]:
    return [counts.rows, counts.inserted, counts.updated, counts.deleted]


def _size(value: Any) -> int:
    return len(json.dumps(value, separators=(",", ":")))


def _fitting(position: Position) -> Position | None:
    """Return the position, or None if it is too large for a record."""
    streams = any(isinstance(one, Mapping) and "stream" in one for one in position.values())
    return position if _size(dict(position)) <= (_STREAM_END_BYTES if streams else _END_BYTES) else None

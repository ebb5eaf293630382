"""What is written down about epochs: plans in the ledger, records in the sinks.

All of it is JSON with a format number; a newer format than this code knows is refused, never guessed at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Self

from headrace.pipeline.errors import InternalError

Json = dict[str, Any]
Position = Mapping[str, Any]
"""Where every source of a lane stands, by source name. Plain JSON, comparable with `==`."""

RECORD_FORMAT = 1


class Phase(StrEnum):
    """What an epoch carries."""

    HISTORY = "history"
    CATCHING_UP = "catching_up"
    LIVE = "live"


@dataclass(frozen=True, slots=True)
class SinkKey:
    """Identity of a sink's record. `pipeline` is the UUID from the ledger; `name` is for people only."""

    pipeline: str
    name: str
    lane: str
    sink: str

    @property
    def text(self) -> str:
        """`<uuid>/<lane>/<sink>`, for systems that take one string (Delta's txn app id, Kafka's transactional id)."""
        return f"{self.pipeline}/{self.lane}/{self.sink}"


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """One epoch as it was planned, immutable once the ledger holds it.

    `start` and `end` are lane positions: the epoch carries what lies in [start, end). `splits` are the pieces of
    pinned history that it reads, empty in a stream epoch. `planned_at` is what `now()` means inside the epoch.
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
        """The plan as plain JSON values."""
        return asdict(self) | {"phase": str(self.phase), "planned_at": self.planned_at.isoformat(), "splits": list(self.splits)}

    @classmethod
    def from_json(cls, data: Json) -> Self:
        """The inverse of `to_json`."""
        return cls(
            **data
            | {"phase": Phase(data["phase"]), "planned_at": datetime.fromisoformat(data["planned_at"]), "splits": tuple(data["splits"])}
        )


@dataclass(frozen=True, slots=True)
class Counts:
    """Rows of one epoch at one sink, as the sink acknowledged them.

    `rows` is what was handed to the sink after de-duplication. The others are None where the sink cannot know them.
    """

    rows: int = 0
    inserted: int | None = 0
    updated: int | None = 0
    deleted: int | None = 0

    def __add__(self, other: Counts) -> Counts:
        def add(a: int | None, b: int | None) -> int | None:
            return None if a is None or b is None else a + b

        return Counts(
            self.rows + other.rows, add(self.inserted, other.inserted), add(self.updated, other.updated), add(self.deleted, other.deleted)
        )


@dataclass(frozen=True, slots=True)
class Record:
    """What a sink keeps about the last epoch that it holds.

    It carries positions, so that a lost ledger can be rebuilt from it. `totals` sums `counts` since the sink joined;
    `baseline` is the number of rows that the target held then (None: unknown).
    """

    key: SinkKey
    epoch: int
    generation: int
    phase: Phase
    window: str | None
    start: Position
    end: Position
    pipeline_hash: str
    counts: Counts
    totals: Counts
    baseline: int | None
    written_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    planned_at: datetime | None = None
    """When the epoch was planned; None in the record that a sink joins with."""
    splits: tuple[Json, ...] = ()

    @property
    def plan(self) -> EpochPlan | None:
        """The plan that this record was written by, so that a lost ledger can be rebuilt; None for a sink that only joined."""
        if self.planned_at is None:
            return None
        return EpochPlan(
            self.epoch, self.phase, self.start, self.end, self.pipeline_hash, self.planned_at, window=self.window, splits=self.splits
        )

    @classmethod
    def joined(cls, key: SinkKey, generation: int, epoch: int, position: Position, pipeline_hash: str, baseline: int | None) -> Self:
        """The first record of a sink that joins after `epoch`: it holds no row of this pipeline yet."""
        return cls(key, epoch, generation, Phase.HISTORY, None, position, position, pipeline_hash, Counts(), Counts(), baseline)

    def next(self, plan: EpochPlan, generation: int, counts: Counts) -> Self:
        """The record that follows this one once `plan` is written."""
        return replace(
            self,
            epoch=plan.number,
            generation=generation,
            phase=plan.phase,
            window=plan.window,
            start=plan.start,
            end=plan.end,
            pipeline_hash=plan.pipeline_hash,
            counts=counts,
            totals=self.totals + counts,
            written_at=datetime.now(UTC),
            planned_at=plan.planned_at,
            splits=plan.splits,
        )

    def to_json(self) -> Json:
        """The record as plain JSON values, with its format number."""
        return asdict(self) | {
            "format": RECORD_FORMAT,
            "phase": str(self.phase),
            "written_at": self.written_at.isoformat(),
            "planned_at": self.planned_at and self.planned_at.isoformat(),
            "splits": list(self.splits),
        }

    @classmethod
    def from_json(cls, data: Json) -> Self:
        """The inverse of `to_json`. Raises InternalError for a format that this version does not know."""
        known = dict(data)
        if (found := known.pop("format", None)) != RECORD_FORMAT:
            msg = f"a sink's record has format {found}, this Headrace knows {RECORD_FORMAT}"
            raise InternalError(msg, hint="Run the Headrace version that wrote it, or a newer one.")
        return cls(
            **known
            | {
                "key": SinkKey(**known["key"]),
                "phase": Phase(known["phase"]),
                "counts": Counts(**known["counts"]),
                "totals": Counts(**known["totals"]),
                "written_at": datetime.fromisoformat(known["written_at"]),
                "planned_at": datetime.fromisoformat(planned) if (planned := known.get("planned_at")) else None,
                "splits": tuple(known.get("splits", ())),
            }
        )

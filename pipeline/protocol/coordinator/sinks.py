"""What a lane needs of its sinks: the protocol of an open one, and an epoch that waits to be written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from headrace.pipeline.protocol.claims import Claim
from headrace.pipeline.protocol.epochs import CommitRecord, EpochPlan, Json
from headrace.pipeline.protocol.ledger import PipelineState


class CoordinatedSink(Protocol):
    """What the protocol needs of an open sink; writing is the caller's."""

    @property
    def supports_fencing(self) -> bool:
        """Whether the atomic act compares generations."""
        ...

    @property
    def is_idempotent(self) -> bool:
        """Whether writing an epoch again leaves the same rows: the sink has a key."""
        ...

    @property
    def stores_record(self) -> bool:
        """Whether the target keeps the record. False: the ledger's word is all there is (print, blackhole)."""
        ...

    def prepare(self, generation: int) -> None:
        """Proves the target and fences older generations; raises FencedError when a newer one was here."""
        ...

    def record(self) -> CommitRecord | None:
        """The record of this lane and sink, asked from the outside system."""
        ...

    def find_conflicting_record(self) -> CommitRecord | None:
        """A record of the same pipeline name and sink under another UUID."""
        ...

    def refuse_rivals(self) -> None:
        """Raise SinkStateError where another pipeline's sink claims the target; asked before `prepare`."""
        ...

    def release_rivals(self) -> Sequence[Claim]:
        """End such claims and fence their sinks; return them."""
        ...

    def register(self, record: CommitRecord) -> CommitRecord:
        """Writes the first record over whatever record this key had; `record.epoch` may be lower than that of the old one."""
        ...

    def truncate(self) -> None:
        """Remove all rows from the target under the announced generation. Raise UserError where the sink cannot."""
        ...

    def read_row_count(self) -> tuple[CommitRecord | None, int] | None:
        """Record and rows of the target in one snapshot; None where the sink cannot know."""
        ...

    def close(self) -> None:
        """Lets go of connections."""
        ...


OpenSinks = Callable[[str, Json], Mapping[str, CoordinatedSink]]
"""Opens the sinks of a compiled pipeline, by name. Called with the pipeline's UUID and a compiled pipeline: the file's, or the
older one that an open epoch was planned with. The lane closes what it opened."""


CheckFile = Callable[[PipelineState], None]
"""Raises a UserError where today's file is no continuation of a lane's state. Called before its sinks are opened."""


class Pending(NamedTuple):
    """An epoch to be written: by which compiled pipeline, and to which sinks (those that do not hold it)."""

    plan: EpochPlan
    compiled: Json
    sinks: tuple[str, ...]

"""The protocol of an open sink, and an epoch that waits to be written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from headrace.pipeline.protocol.claims import Claim
from headrace.pipeline.protocol.epochs import CommitRecord, EpochPlan, Json
from headrace.pipeline.protocol.ledger import PipelineState


class CoordinatedSink(Protocol):
    """The operations of an open sink that the coordinator calls. The caller does the writing."""

    @property
    def supports_fencing(self) -> bool:
        """Whether the commit compares generations."""
        ...

    @property
    def is_idempotent(self) -> bool:
        """Whether writing an epoch again leaves the same rows: the sink has a primary key."""
        ...

    @property
    def stores_record(self) -> bool:
        """Whether the target stores the record. If not (print, blackhole), only the ledger has the state."""
        ...

    def prepare(self, generation: int) -> None:
        """Check the target and fence older generations.

        Raise FencedError if a newer generation has written to it.
        """
        ...

    def record(self) -> CommitRecord | None:
        """Read the record of this pipeline and sink from the target system."""
        ...

    def find_conflicting_record(self) -> CommitRecord | None:
        """Return a record of the same pipeline name and sink under another UUID."""
        ...

    def refuse_rivals(self) -> None:
        """Raise SinkStateError if another pipeline's sink claims the target. Called before `prepare`."""
        ...

    def release_rivals(self) -> Sequence[Claim]:
        """End such claims and fence their sinks. Return the claims."""
        ...

    def register(self, record: CommitRecord) -> CommitRecord:
        """Write the first record over any record under this key.

        `record.epoch` may be lower than the epoch of the old record.
        """
        ...

    def truncate(self) -> None:
        """Remove all rows from the target under the announced generation.

        Raise UserError if the sink cannot.
        """
        ...

    def read_row_count(self) -> tuple[CommitRecord | None, int] | None:
        """Return the record and the number of rows in the target, in one snapshot.

        None if the sink cannot know.
        """
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


OpenSinks = Callable[[str, Json], Mapping[str, CoordinatedSink]]
"""Opens the sinks of a compiled pipeline, by name. The coordinator closes them.

Called with the pipeline's UUID and a compiled pipeline: the file's, or the older one of an open epoch.
"""


CheckFile = Callable[[PipelineState], None]
"""Raises a UserError if the current file cannot continue the pipeline's state.

Called before its sinks are opened.
"""


class Pending(NamedTuple):
    """An epoch to be written, with its compiled pipeline and the sinks that do not have it."""

    plan: EpochPlan
    compiled: Json
    sinks: tuple[str, ...]

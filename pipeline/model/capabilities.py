"""What a connector can do. The planner, the checks, the docs and the shared test suite read it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Delivery(StrEnum):
    """What a sink can promise for its own target."""

    EXACTLY_ONCE = "exactly_once"
    AT_LEAST_ONCE = "at_least_once"


class Visibility(StrEnum):
    """The smallest whole that a reader of the target sees."""

    EPOCH = "epoch"
    SPLIT = "split"
    PARTITION = "partition"
    ROW = "row"


@dataclass(frozen=True, slots=True)
class SinkCapabilities:
    """What a sink can do."""

    delivery: Delivery
    upsert: bool = False
    delete: bool = False
    visibility: Visibility = Visibility.ROW
    creates_target: bool = False
    appends_changes: bool = False
    """Appends an upsert or a delete as a change with its key. Readers of the target apply the changes."""
    fences: bool = False
    """Compares generations in its atomic act.

    Where not, a newcomer also waits out lease plus commit timeout.
    """
    idempotency_keys: bool = False
    """Writes an epoch in parts with keys that are the same at every attempt."""
    counts_changes: bool = False
    """Knows how many rows were inserted, updated and deleted."""
    can_truncate: bool = False
    """Can remove all rows of its target (`Sink.truncate`)."""
    reads_keys: bool = False
    """Can return the keys of the rows in a partition (`Sink.read_keys`), which a refresh replaces."""
    maintains_files: bool = False
    """Can compact its table and remove unused files (`Sink.open_maintenance`)."""
    direct: Visibility | None = None
    """Takes Arrow from a task without Spark's rows in between (`DirectSink`): what readers see of it."""
    orders_splits: bool = False
    """A direct load also takes splits that share keys (`keys_spread` of `DirectSink.write_direct`)."""
    without_spark: bool = False
    """`validate_target` starts no lazy session, except for targets that need one."""
    versions: bool = False
    """Keeps the row with the highest `version_column` of its node, see `connectors.versions`."""


@dataclass(frozen=True, slots=True)
class SourceCapabilities:
    """What a source can do."""

    bounded: bool
    stable_snapshot: bool = False
    """`create_snapshot` gives a snapshot that stays the same while the source is written to."""
    direct: bool = False
    """Tasks read splits as Arrow (`BoundedSource.create_split_reader`)."""
    computes_sql: bool = False
    """Tasks read the result of SQL and of filters: the source computes them."""
    filters_in_driver: bool = False
    """A stream whose filter is a predicate over the columns of `schema` and `_gs_op`.

    It is computed without Spark for rows of `read_table`, where its SQL allows that.
    """
    splits_have_keys: bool = False
    """Splits have what keeps keys apart (`BoundedSource.keeps_together`), whatever the source says later."""
    job_mode: bool = True
    phase: bool = True
    """Can be a phase of a hybrid source."""
    is_ordered: bool = False
    """A stream whose rows are all in one partition."""
    without_spark: bool = False
    """`schema` and `check` need no session for a node without a filter: None will do.

    Other methods may start a lazy session.
    """

"""The explanation of a pipeline, which all formats render."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.jobs.planning.load_path import LoadPath
from headrace.pipeline.lineage.relations import ColumnLineage


@dataclass(frozen=True, slots=True)
class ExplainedColumn:
    """A column of a node. `type` is Spark SQL's, empty where it is not known."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class SourcePart:
    """One table or topic that a source reads: one phase of its history, or its stream.

    `has_snapshot` is None for a stream; `description` says what it means.
    """

    phase: str
    type: str
    name: str
    has_snapshot: bool | None
    description: str


@dataclass(frozen=True, slots=True)
class Guarantee:
    """The guarantee of a sink, why, and on which conditions."""

    delivery: str
    reason: str
    provided: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Order:
    """Which row of a key a sink keeps. `notes` give the reasons; `guaranteed` means without assumptions."""

    wins: str
    guaranteed: bool
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExplainedTarget:
    """What a sink does.

    `load_path` is the path of history, None without history; `order` is None if every row is kept.
    """

    name: str
    created: bool
    writes: str
    guarantee: Guarantee
    visible: str
    load_path: LoadPath | None
    order: Order | None = None


@dataclass(frozen=True, slots=True)
class ExplainedNode:
    """One node of the pipeline.

    `kind` is source, errors (rejected rows), transform, table (dynamic) or sink. `key_from` are the nodes
    that declare the key. `complete`: `columns` are all columns. `unchecked` are the facts that could not be
    read, each with its reason. `notes` are (label, sentence) pairs of a source, a transform or a table.
    `asked_by` are the nodes whose SQL looks up a table.
    """

    name: str
    kind: str
    type: str
    inputs: tuple[str, ...]
    key: tuple[str, ...]
    key_from: tuple[str, ...]
    columns: tuple[ExplainedColumn, ...]
    complete: bool
    lineage: Mapping[str, ColumnLineage]
    unchecked: tuple[str, ...] = ()
    parts: tuple[SourcePart, ...] = ()
    notes: tuple[tuple[str, str], ...] = ()
    target: ExplainedTarget | None = None
    asked_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SplitSummary:
    """The splits of one phase of a source in one partition (empty: all of the history).

    First and last are (id, rows).
    """

    source: str
    part: str
    partition: str
    count: int
    rows: int
    first: tuple[str, int] | None
    last: tuple[str, int] | None


@dataclass(frozen=True, slots=True)
class HistorySplits:
    """The splits of history that a run would read, and by source why some are unknown."""

    summaries: tuple[SplitSummary, ...] = ()
    unchecked: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Explanation:
    """A pipeline. Nodes are in the order sources, transforms (each after its inputs), sinks."""

    name: str
    pipeline_hash: str
    offline: bool
    nodes: tuple[ExplainedNode, ...]
    partitions: tuple[str, str | int, tuple[str, ...]] | None = None
    """Column, a length of time, a number or `value`, and the keys of the history's partitions."""
    splits: HistorySplits | None = None
    spark_plan: str | None = None

    @property
    def edges(self) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
        """(from, to, key of the rows that go there)."""
        keys = {node.name: node.key for node in self.nodes}
        return tuple((upstream, node.name, keys[upstream]) for node in self.nodes for upstream in node.inputs)

    @property
    def asks(self) -> tuple[tuple[str, str], ...]:
        """Pairs of a dynamic table and a node that looks it up."""
        return tuple((node.name, asker) for node in self.nodes for asker in node.asked_by)

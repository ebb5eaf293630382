"""Rows and event times by node and epoch, counted by Spark while it computes the epoch.

There is no second pass over the data. Spark counts the rows of a node in the first query that reads it. Rows
that several sinks share are computed once, each partition by the query that needs it first, so one query does
not know the counts of the others: counts of shared rows are read at the end. A retried task may be counted
twice, and a query that stops early counts less. The figures are only for monitoring. Sinks count what they
write.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.pipeline.model import graph
from headrace.pipeline.model.error_outputs import errors_outputs
from headrace.pipeline.model.nodes import PipelineModel
from headrace.pipeline.model.telemetry import EventTime
from headrace.pipeline.sql.system_columns import POS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation

_LOOK_SECONDS = 0.02
MILLIS = {"seconds": 1000, "milliseconds": 1, "microseconds": 0.001}


@dataclass(frozen=True, slots=True)
class NodeFigures:
    """What Spark reported of a node in one epoch.

    `latest` are event times in milliseconds by the node that configures them.
    """

    rows: int
    latest: Mapping[str, int]

    def or_more(self, other: NodeFigures | None) -> NodeFigures:
        """Return the larger figures of two queries.

        No query counts too many rows, and one may not have read all.
        """
        if other is None:
            return self
        askers = {**self.latest, **other.latest}
        latest = {
            asker: max(at for at in (self.latest.get(asker), other.latest.get(asker)) if at is not None)
            for asker in askers
        }
        return NodeFigures(max(self.rows, other.rows), latest)


@dataclass(slots=True)
class EpochObservation:
    """The observations of one epoch by node. `frames` are the rows of nodes, for sampling."""

    waiting: dict[str, tuple[Observation, tuple[str, ...]]] = field(default_factory=dict)
    known: dict[str, NodeFigures] = field(default_factory=dict)
    """The figures of nodes whose rows were in the driver."""
    frames: dict[str, DataFrame] = field(default_factory=dict)
    shared: list[Any] = field(default_factory=list)

    def share(self, frame: DataFrame) -> None:
        """Rows that were just persisted, for several queries.

        Plans a query over them that never runs, since it leads to their counts.
        """
        rows: Any = frame.select("*")._jdf  # noqa: SLF001
        execution = rows.queryExecution()
        execution.executedPlan()  # now: when the rows are given back, a query is planned without them
        self.shared.append(execution)

    def figures(self, within: float) -> dict[str, NodeFigures]:
        """Return the figures that are known after at most `within` seconds.

        Spark reports them shortly after a query ends, and never for a node that no query reads. Call it once,
        after all queries of the epoch have ended.
        """
        result = {**self.known, **self._read_shared()}
        deadline = time.monotonic() + within
        while self.waiting:
            for node in list(self.waiting):
                observation, askers = self.waiting[node]
                row = _jvm(
                    observation
                ).getRowOrEmpty()  # `get` would wait for ever where no query reads the node
                if row.isDefined():
                    result[node] = _figures(row.get(), askers).or_more(result.get(node))
                    del self.waiting[node]
            if not self.waiting or time.monotonic() > deadline:
                break
            time.sleep(_LOOK_SECONDS)
        return result

    def _read_shared(self) -> dict[str, NodeFigures]:
        result: dict[str, NodeFigures] = {}
        for execution in self.shared:
            metrics = execution.observedMetrics()
            for node, (observation, askers) in self.waiting.items():
                row = metrics.get(_jvm(observation).name())
                if row.isDefined():
                    result[node] = _figures(row.get(), askers).or_more(result.get(node))
        return result


def _jvm(observation: Observation) -> Any:
    return observation._jo  # noqa: SLF001


def _figures(row: Any, askers: tuple[str, ...]) -> NodeFigures:
    latest = {asker: int(row.getLong(at)) for at, asker in enumerate(askers, 1) if not row.isNullAt(at)}
    return NodeFigures(int(row.getLong(0)), latest)


def event_times_by_node(model: PipelineModel) -> dict[str, dict[str, EventTime]]:
    """Return the configured event times by observed node, then by the node that configures them.

    The rows of a sink are those of the node that it reads.
    """
    result: dict[str, dict[str, EventTime]] = {}
    for name, node in model.nodes().items():
        if node.telemetry and node.telemetry.event_time:
            at = node.from_ if name in model.sinks else name
            result.setdefault(at, {})[name] = node.telemetry.event_time
    return result


def observe_frame(
    frame: DataFrame, times: Mapping[str, EventTime]
) -> tuple[DataFrame, tuple[Observation, tuple[str, ...]]]:
    """Return the same rows with an observation of their number and their latest event times."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F  # noqa: N812

    columns = {
        asker: column for asker, time_ in times.items() if (column := _millis(frame, time_)) is not None
    }
    passed = (
        F.col(f"{POS}.sub") >= 0 if POS in frame.columns else F.lit(True)
    )  # rows that a filter marks are not the node's
    latest = [
        F.max(F.when(passed, column)).alias(f"latest_{at}") for at, column in enumerate(columns.values())
    ]
    seen = Observation()
    return frame.observe(seen, F.count(F.when(passed, 1)).alias("rows"), *latest), (seen, tuple(columns))


def _millis(frame: DataFrame, event_time: EventTime) -> Column | None:
    """Return an event time as milliseconds since 1970. None if the column is missing or of another type."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql import types as T  # noqa: N812

    result = next((one for one in frame.schema.fields if one.name.lower() == event_time.column.lower()), None)
    if result is None:
        return None
    column = F.col(f"`{result.name}`")
    if isinstance(result.dataType, T.DateType):
        return F.unix_date(column).cast("bigint") * F.lit(86_400_000)
    if isinstance(result.dataType, (T.TimestampType, T.TimestampNTZType)):
        return F.unix_millis(column.cast("timestamp"))
    if isinstance(result.dataType, T.IntegralType):
        millis = column.cast("double") * F.lit(MILLIS[event_time.unit or "milliseconds"])
        return millis.try_cast("bigint")  # a meaningless value must not fail the epoch
    return None


def upstream_nodes(model: PipelineModel, sinks: Collection[str]) -> frozenset[str]:
    """Return the sources and transforms that lead to these sinks, or that fill dynamic tables."""
    result: set[str] = set()
    outputs = errors_outputs(model)
    left = [model.sinks[name].from_ for name in sinks]
    left += [upstream for table in graph.dynamic_tables(model) for upstream in graph.inputs_of(model, table)]
    while left:
        name = left.pop()
        if name not in result:
            result.add(name)
            # Sinks that read rejected rows do not read the rows of their source.
            left += graph.inputs_of(model, name) if name not in outputs else ()
    return frozenset(result)

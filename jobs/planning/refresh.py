"""Refresh: a partition of history is read again, and its rows replace those that the sinks have of it.

The epoch of a refresh has a delete for each key that the target has in the partition, before all rows of the
partition. A key that history still has keeps its new row, because the last row of a key wins. Keys that a
stream has written or deleted since the handoff are left out: their rows in the target are newer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.connectors import registry
from headrace.connectors.filters import quote_identifier
from headrace.connectors.frame import EpochFrame
from headrace.connectors.sink_base import Sink
from headrace.jobs.planning.compiled_pipeline import PipelineSink
from headrace.jobs.staging.determinism import nondeterministic_nodes
from headrace.pipeline.errors import GuaranteeError, InternalError
from headrace.pipeline.file.loader import PipelineFile
from headrace.pipeline.lineage.partition_columns import partition_column_at
from headrace.pipeline.model import graph
from headrace.pipeline.model.error_outputs import errors_output, transform_errors
from headrace.pipeline.model.nodes import PipelineModel
from headrace.pipeline.protocol import positions
from headrace.pipeline.protocol.epochs import EpochPlan, Phase
from headrace.pipeline.protocol.partitions import WHOLE, HistoryPartition
from headrace.pipeline.sql.system_columns import OP, POS

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame

FIRST = -1
"""`_gs_pos.source` of the deletes: before all sources."""
_CHANGED = "_hr_changed_"
_RESET = "Start over with: headrace reset FILE."


def find_refresh_obstacle(file: PipelineFile) -> GuaranteeError | None:
    """Return why the partitions of a pipeline cannot be refreshed, or None if they can."""
    model, (name, *others) = file.model, file.model.sources
    source = model.sources[name]
    obstacle: GuaranteeError | None = None
    if others or positions.bounded_phases(source) != 1:
        msg = "only a pipeline with one source, which has one table of history, can be refreshed"
        obstacle = GuaranteeError(msg, hint=_RESET, node=name)
    elif rejecting := [name for name, node in model.transforms.items() if transform_errors(name, node)]:
        msg = "with `on_error: dead_letter`, a row that is rejected now would leave the targets"
        obstacle = GuaranteeError(msg, hint=_RESET, node=rejecting[0])
    elif tables := graph.dynamic_tables(model):
        msg = "the values that a dynamic table has of a partition cannot be replaced"
        obstacle = GuaranteeError(msg, hint=_RESET, node=next(iter(tables)))
    else:
        obstacle = _stream_obstacle(model, name) if positions.is_unbounded(source) else None
        result = (_sink_obstacle(model, sink, name) for sink in model.sinks)
        obstacle = obstacle or next((one for one in result if one), None)
    if obstacle is not None:
        file.locate(obstacle)
    return obstacle


def _stream_obstacle(model: PipelineModel, name: str) -> GuaranteeError | None:
    """Return why the keys that the stream has changed at the sinks cannot be computed again."""
    source = model.sources[name]
    impure = nondeterministic_nodes(model)
    msg, node = "", name
    if getattr(source, "cursor", None) is not None:
        msg = "with `cursor`, some messages are not written, so the keys that the stream changed are unknown"
    elif errors_output(name, source) is not None:
        msg = "with `on_error: dead_letter`, the keys that the stream has changed cannot be read again"
    elif impure:
        node = next(iter(impure))
        msg = f"the keys that the stream has changed cannot be computed again: {impure[node]}"
    for sink, config in model.sinks.items():
        fields = ("version_column", "update_where")
        setting = next((field for field in fields if getattr(config, field, None)), "")
        if getattr(config, "on_conflict", "update") == "nothing":
            setting = "on_conflict"
        if not msg and setting:
            msg, node = f"with `{setting}`, a row of the stream does not always replace that of history", sink
    return GuaranteeError(msg, hint=_RESET, node=node) if msg else None


def _sink_obstacle(model: PipelineModel, sink: str, source: str) -> GuaranteeError | None:
    """Return why a sink cannot replace the rows of a partition."""
    node = model.sinks[sink]
    if graph.lacks_commit_record(node):
        return None  # such a sink keeps no rows
    msg = ""
    if not registry.sink_class(node).capabilities.reads_keys:
        msg = f"a sink of type `{node.type}` cannot replace the rows of a partition"
    elif not graph.key_of(model, sink):
        msg = "without a primary key, the rows of a partition cannot be replaced"
    elif graph.is_shared(node):
        msg = "the target is shared, so rows of a partition may be of another pipeline"
    elif model.partitions and partition_column_at(model, sink, source, model.partitions.column) is None:
        msg = (
            f"column `{model.partitions.column}` of `partitions` does not reach the sink unchanged, so the"
            " rows of a partition cannot be found there"
        )
    return GuaranteeError(msg, hint=_RESET, node=sink) if msg else None


def is_refresh_epoch(model: PipelineModel, plan: EpochPlan) -> bool:
    """Return whether an epoch replaces the rows of a partition."""
    if plan.phase is not Phase.HISTORY:
        return False
    source = next(iter(model.sources))
    start, end = plan.start.get(source, {}), plan.end.get(source, {})
    return positions.is_refreshed(model, start, end, plan.window or WHOLE)


def check_readable_keys(sinks: Iterable[object]) -> None:
    """Raise GuaranteeError if a sink of a run cannot return the keys that a refresh replaces."""
    for sink in sinks:
        if isinstance(sink, PipelineSink) and sink.sink.capabilities.reads_keys:
            sink.sink.check_readable_keys()


@dataclass(frozen=True, slots=True)
class RefreshEpoch:
    """The epoch that replaces the rows of one partition. `column` has the partition column of each sink."""

    partition: HistoryPartition | None
    """None is a history without partitions."""
    columns: Mapping[str, str | None]

    @classmethod
    def of(cls, model: PipelineModel, plan: EpochPlan) -> RefreshEpoch | None:
        """Return the refresh that an epoch is. None if it only adds rows."""
        if not is_refresh_epoch(model, plan):
            return None
        source = next(iter(model.sources))
        bounds = positions.history_partition(model, plan.window or WHOLE)
        columns = {
            sink: partition_column_at(model, sink, source, bounds.column) if bounds else None
            for sink in model.sinks
        }
        return cls(bounds, columns)

    def replace_rows(
        self, name: str, sink: Sink, frame: EpochFrame, folder: Path, changed: DataFrame | None = None
    ) -> EpochFrame:
        """Return the rows of the epoch after deletes of what the target has of the partition now.

        The sink may write files to `folder`, which the frame reads. Rows and deletes of the keys in `changed`
        are left out.
        """
        if not sink.capabilities.reads_keys:
            return frame
        column = self.columns[name]
        if self.partition is not None and column is None:
            msg = "the partition column of a refresh is unknown"
            raise InternalError(msg, node=name)
        within = replace(self.partition, column=column) if self.partition and column else None
        rows = frame.rows
        rows = rows.unionByName(_deletes_of(sink.read_keys(within, folder), rows))
        return replace(
            frame,
            node_rows=rows if changed is None else _without_keys(rows, frame.key, changed),
            boundary=None,
            table=None,
            estimate=None,
            likely=None,
            size=None,
        )


def _without_keys(rows: DataFrame, key: Sequence[str], changed: DataFrame) -> DataFrame:
    """Return the rows whose key is not in `changed`, which has the columns of the key in this order."""
    names = [f"{_CHANGED}{place}" for place in range(len(key))]
    changed = changed.toDF(*names)
    same = [
        rows[quote_identifier(column)].eqNullSafe(changed[name])
        for column, name in zip(key, names, strict=True)
    ]
    return rows.join(changed, same, "left_anti")


def _deletes_of(keys: DataFrame, rows: DataFrame) -> DataFrame:
    """Return a delete per key, with the columns of `rows`."""
    from pyspark.sql import functions as F  # noqa: N812

    have = {name.lower() for name in keys.columns}
    payload = [
        (F.col(quote_identifier(field.name)) if field.name.lower() in have else F.lit(None))
        .cast(field.dataType)
        .alias(field.name)
        for field in rows.schema.fields
        if field.name not in (OP, POS)
    ]
    start = F.struct(
        F.lit(FIRST).alias("source"), F.lit(0).alias("part"), F.lit(0).alias("off"), F.lit(0).alias("sub")
    )
    return keys.select(*payload, F.lit("d").alias(OP), start.cast(rows.schema[POS].dataType).alias(POS))

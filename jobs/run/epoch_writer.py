"""Writes one epoch: reads the ranges of the plan once, computes the rows, writes them to pending sinks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from headrace.connectors.filters import quote_identifier
from headrace.connectors.frame import EpochFrame
from headrace.connectors.lazy_session import find_started_session
from headrace.connectors.sink_base import DirectSink, Sink
from headrace.jobs.monitoring.monitor import NullMonitor
from headrace.jobs.planning.arrow_sql import TransformedSplits
from headrace.jobs.planning.load_path import LoadPath
from headrace.jobs.planning.planner import PipelinePlanner
from headrace.jobs.planning.refresh import RefreshEpoch, is_refresh_epoch
from headrace.jobs.planning.split_sql import SplitSql
from headrace.jobs.sources.backfill import splits_by_phase
from headrace.jobs.sources.changed_keys import read_since_handoff
from headrace.jobs.sources.pipeline_source import PipelineSource
from headrace.jobs.sources.side_outputs import SideOutputs
from headrace.jobs.sources.source_batch import SourceBatch
from headrace.jobs.spark.errors import as_headrace_error
from headrace.jobs.spark.job_tags import inherit_job_tag
from headrace.jobs.staging.determinism import nondeterministic_nodes
from headrace.jobs.staging.store import ResultStore
from headrace.jobs.staging.stored_results import NodeGraph, StoredResults
from headrace.jobs.transforms.retractions import without_marked
from headrace.pipeline.errors import HeadraceError
from headrace.pipeline.model import graph
from headrace.pipeline.model.error_outputs import errors_name
from headrace.pipeline.protocol.epochs import EpochPlan, Phase, WriteCounts
from headrace.pipeline.protocol.log_context import log_context, with_log_context

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class EpochWriter:
    """Writes epochs of one compiled pipeline: its sources, its planner, its sinks."""

    def __init__(
        self,
        planner: PipelinePlanner,
        sources: Mapping[str, PipelineSource],
        sinks: Mapping[str, Sink],
        ways: Mapping[str, LoadPath] | None = None,
        stages: ResultStore | None = None,
        pipeline_hash: str = "",
        monitor: NullMonitor | None = None,
        side: SideOutputs | None = None,
    ) -> None:
        self._planner = planner
        self._monitor = monitor or NullMonitor()
        self._routes = ways or {}
        self._sources = sources
        self._sinks = sinks
        self._stages = stages
        self._hash = pipeline_hash or planner.file.hash
        self._side = side
        self.steps: dict[str, float] = {}
        """Seconds by step of the last `write`."""
        self.seconds = 0.0
        """How long the last `write` took."""

    def staging(
        self, plan: EpochPlan, pending: Sequence[str], *, replayed: bool = False
    ) -> StoredResults | None:
        """Return the store of this epoch's non-deterministic rows, or None if it has none.

        Raises SinkStateError if those rows would have to be recomputed although sinks or dynamic tables hold
        the epoch.
        """
        model = self._planner.file.model
        impure = nondeterministic_nodes(model)
        if self._stages is None or not impure:
            return None
        tables = self._planner.tables

        def holders() -> dict[str, str]:
            whole = {name: f"sink {name} has this epoch" for name in model.sinks if name not in pending}
            some = {
                name: f"sink {name} has a part of this epoch"
                for name in pending
                if self._sinks[name].has_partial_epoch(plan)
            }
            kept = {
                name: f"dynamic table {name} has the values of this epoch"
                for name, table in tables.items()
                if table.has_values(plan)
            }
            return whole | some | kept

        filled = [name for name, table in tables.items() if table.needs_values(plan)]
        result = StoredResults(
            self._stages.for_epoch(plan, self._hash), NodeGraph.of(model), list(impure), holders
        )
        result.check([*pending, *filled], replayed=replayed, recompute=self._stages.recompute)
        return result

    def write(
        self, plan: EpochPlan, pending: Sequence[str], *, replayed: bool = False
    ) -> dict[str, WriteCounts]:
        """Write the epoch to the pending sinks in parallel and return the counts that each one acknowledged.

        `replayed` means that the epoch is already committed and is written again. Raises the first error as a
        HeadraceError that names the node. Rows that other sinks wrote by then stay, and their commit records
        show them.
        """
        started = time.monotonic()
        readings: dict[str, SourceBatch] = {}
        try:
            if (session := find_started_session(self._planner.spark)) is not None:
                inherit_job_tag(session)
            staging = self.staging(plan, pending, replayed=replayed)
            self._read(plan, readings, pending)
            self.steps["read"] = time.monotonic() - started
            if self._side is not None:
                self._side.see(plan, readings, self._leave_out_marked)
            direct = [name for name in pending if self._direct(plan, name)]
            look = self._monitor.create_observer(
                self._planner.file.model, [name for name in pending if name not in direct]
            )
            rejected = {
                errors_name(name): one.rejected for name, one in readings.items() if one.rejected is not None
            }
            with self._planner.frames(plan, readings | rejected, pending, staging, look, direct) as frames:
                staged = staging.seconds if staging else {}
                self.steps |= {f"stage {name}": seconds for name, seconds in staged.items()}
                self.steps["plan"] = time.monotonic() - started - self.steps["read"] - sum(staged.values())
                with self._add_refresh_deletes(plan, frames) as rows:
                    return self._write_concurrently(plan, rows)
        except HeadraceError:
            raise
        except Exception as error:
            raise as_headrace_error(error, texts=self._planner.texts) from error
        finally:
            for one in readings.values():
                if one.persisted is not None:
                    one.persisted.unpersist(blocking=False)
            self.seconds = time.monotonic() - started

    def _leave_out_marked(self, source: str, rows: DataFrame) -> DataFrame:
        return without_marked(rows) if source in self._planner.retractions.marked else rows

    def _read(self, plan: EpochPlan, batches: dict[str, SourceBatch], pending: Sequence[str] = ()) -> None:
        """Add what the epoch reads of every source."""
        spark = self._planner.spark
        in_driver = self._reads_in_driver(plan, pending)
        for name, source in self._sources.items():
            if plan.phase is Phase.HISTORY:
                for phase, splits in splits_by_phase(plan.splits, name).items():
                    batches[name] = source.read_history(
                        spark,
                        plan.start[name],
                        phase,
                        splits,
                        self._planner.source_schemas[name],
                        in_driver=in_driver,
                    )
            elif source.unbounded is not None and plan.start[name].get("stream") != plan.end[name]["stream"]:
                start = (
                    plan.start[name]
                    if "stream" in plan.start[name]
                    else {**plan.start[name], "stream": plan.start[name]["fence"]}
                )
                appends = graph.appending_sinks(self._planner.file.model, name) if start.get("cursor") else ()
                batches[name] = source.read_stream(
                    spark,
                    start,
                    plan.end[name],
                    appends,
                    self._planner.file.model.epoch.max_bytes,
                    epoch=plan.number,
                )

    def _reads_in_driver(self, plan: EpochPlan, pending: Sequence[str]) -> bool:
        """Return whether small history is read without Spark.

        It is if nothing has started Spark yet, and not all sinks copy splits by themselves.
        """
        return (
            plan.phase is Phase.HISTORY
            and find_started_session(self._planner.spark) is None
            and not is_refresh_epoch(self._planner.file.model, plan)
            and not all(self._direct(plan, name) for name in pending)
        )

    @contextmanager
    def _add_refresh_deletes(
        self, plan: EpochPlan, frames: Mapping[str, EpochFrame]
    ) -> Iterator[Mapping[str, EpochFrame]]:
        """Yield the frames, with the deletes that replace a partition if the epoch is a refresh."""
        refresh = RefreshEpoch.of(self._planner.file.model, plan)
        if refresh is None:
            yield frames
            return
        changed = self._changed_keys(plan, [name for name, frame in frames.items() if frame.key])
        with TemporaryDirectory(prefix="headrace-") as folder:
            yield {
                name: refresh.replace_rows(name, self._sinks[name], frame, Path(folder), changed.get(name))
                for name, frame in frames.items()
            }

    def _changed_keys(self, plan: EpochPlan, sinks: Sequence[str]) -> Mapping[str, DataFrame]:
        """Return the keys that the stream has written or deleted at each sink before the epoch."""
        (name, source), *_ = self._sources.items()
        batch = read_since_handoff(source, self._planner.spark, plan.start[name])
        if batch is None:
            return {}
        with self._planner.frames(plan, {name: batch}, sinks) as frames:
            return {
                sink: frame.rows.select(*map(quote_identifier, frame.key)).distinct().localCheckpoint()
                for sink, frame in frames.items()
            }

    def _write_concurrently(
        self, plan: EpochPlan, frames: Mapping[str, EpochFrame]
    ) -> dict[str, WriteCounts]:
        if len(frames) == 1:
            return {name: self._write_sink(plan, name, frame) for name, frame in frames.items()}
        with ThreadPoolExecutor(len(frames), thread_name_prefix="sink") as pool:
            waiting = {
                name: pool.submit(
                    with_log_context(_in_pool(self._planner.spark, name, self._write_sink)), plan, name, frame
                )
                for name, frame in frames.items()
            }
            errors = [error for future in waiting.values() if (error := future.exception()) is not None]
            if errors:
                raise next((error for error in errors if not getattr(error, "retriable", False)), errors[0])
            return {name: future.result() for name, future in waiting.items()}

    def _direct(self, plan: EpochPlan, name: str) -> bool:
        """Return whether tasks bulk-copy this epoch.

        Rows of a key that several splits share need one order. If the sink does not keep it, they are loaded
        through Spark.
        """
        route = self._routes.get(name)
        if (
            plan.phase is not Phase.HISTORY
            or route is None
            or not route.is_bulk_copy
            or not isinstance(self._sinks[name], DirectSink)
            or is_refresh_epoch(self._planner.file.model, plan)
        ):
            return False
        return route.keys_spread or not self._has_spread_keys(plan, name, route)

    def _has_spread_keys(self, plan: EpochPlan, name: str, route: LoadPath) -> bool:
        """Return whether several splits of the epoch may have rows of one key of a sink."""
        source = self._sources[route.source]
        pieces = splits_by_phase(plan.splits, route.source)
        return bool(graph.key_of(self._planner.file.model, name)) and not all(
            source.bounded[phase].keeps_together(splits, route.key, ever=route.filters)
            for phase, splits in pieces.items()
        )

    def _write_direct(self, plan: EpochPlan, name: str) -> WriteCounts | None:
        """Write an epoch by bulk copy. Return None if history is loaded through Spark."""
        route, sink = self._routes.get(name), self._sinks[name]
        if route is None or not isinstance(sink, DirectSink) or not self._direct(plan, name):
            return None
        for phase, splits in splits_by_phase(plan.splits, route.source).items():
            last = route.filters and route.query is not None
            result = self._sources[route.source].fetch(
                plan.start[route.source], phase, splits, route.query, route.key, last=last
            )
            if result is None:
                return None
            if route.transforms:
                sql = (
                    SplitSql(self._planner, route.source, route.guarded_transforms, plan)
                    if route.guarded_transforms
                    else None
                )
                result = TransformedSplits(result, route.transforms, sql.compute if sql else None)
            spread = route.keys_spread and self._has_spread_keys(plan, name, route)
            return sink.write_direct(plan, result, self._planner.spark, keys_spread=spread)
        return None

    def _write_sink(self, plan: EpochPlan, name: str, frame: EpochFrame) -> WriteCounts:
        started = time.monotonic()
        try:
            with log_context(node=name):
                counts = self._write_direct(plan, name)
                return counts if counts is not None else self._sinks[name].write(plan, frame)
        except HeadraceError as error:
            error.node = error.node or name
            raise
        except Exception as error:
            raise as_headrace_error(error, node=name, texts=self._planner.texts) from error
        finally:
            self.steps[f"write {name}"] = time.monotonic() - started


def _in_pool(
    spark: SparkSession, pool: str, function: Callable[..., WriteCounts]
) -> Callable[..., WriteCounts]:
    """Run the function in its own scheduler pool, so that sinks share the cores instead of queueing."""

    def run(*args: object) -> WriteCounts:
        if (started := find_started_session(spark)) is not None:
            started.sparkContext.setLocalProperty("spark.scheduler.pool", pool)
            inherit_job_tag(started)
        return function(*args)

    return run


def step_seconds(writer: EpochWriter | None, started: float, planning: float) -> dict[str, float]:
    """Return the seconds of each step of an epoch, of its ledger writes, and in total since `started`."""
    total = time.monotonic() - started
    ledger = planning + max(0.0, total - (writer.seconds if writer else 0.0))
    return {**(writer.steps if writer else {}), "ledger": ledger, "total": total}

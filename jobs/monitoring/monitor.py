"""Run monitoring: metrics and the admin endpoint. `NullMonitor` is used when settings enable neither.

Monitoring never fails the run: its errors are logged, and the epoch continues.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING

from headrace.jobs.monitoring.errors import log_errors
from headrace.jobs.monitoring.frame_observer import EpochObserver, FrameObserver
from headrace.jobs.monitoring.labels import node_labels
from headrace.jobs.monitoring.plugin_metrics import offer
from headrace.jobs.monitoring.sample_buffer import SampleBuffer
from headrace.jobs.monitoring.sampler import Sampler
from headrace.jobs.monitoring.spark_observation import (
    EpochObservation,
    NodeFigures,
    event_times_by_node,
    upstream_nodes,
)
from headrace.jobs.staging.determinism import nondeterministic_nodes
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.config.values import is_url
from headrace.pipeline.errors import HeadraceError, InternalError, UserError
from headrace.pipeline.file.loader import PipelineFile
from headrace.pipeline.model import graph
from headrace.pipeline.model.nodes import PipelineModel
from headrace.pipeline.protocol.epochs import EpochPlan, Json, Phase, WriteCounts
from headrace.pipeline.protocol.log_context import with_log_context

if TYPE_CHECKING:
    from headrace.jobs.monitoring.admin import Admin

log = logging.getLogger(__name__)


_FIGURES_WITHIN = 2.0
_CLOSE_SECONDS = 3.0
_NEEDED = ("opentelemetry.sdk", "opentelemetry.exporter.otlp", "prometheus_client", "starlette", "uvicorn")


class NullMonitor:
    """Records nothing. The base class of `RunMonitor`."""

    waiting = ""
    """What the run waits for outside, at the last heartbeat."""

    def start(self, generation: int, epoch: int) -> Json:
        """Start monitoring. Return data that the ledger stores with the owner of the lease."""
        del generation, epoch
        return {}

    def create_observer(self, model: PipelineModel, sinks: Sequence[str]) -> FrameObserver | None:
        """Return the observer of the next epoch's frames, or None.

        `model` is the pipeline that computes the epoch. `sinks` are those that will read Spark's rows.
        """
        del model, sinks

    def record_plan(self, plan: EpochPlan, *, again: bool = False) -> None:
        """Record that an epoch is in the ledger, or is tried `again`, in this run or after an earlier one."""

    def record_commit(
        self,
        plan: EpochPlan,
        counts: Mapping[str, WriteCounts],
        steps: Mapping[str, float],
        backlog: int | None,
        rejected: Mapping[str, int] | None = None,
    ) -> None:
        """Record that all sinks committed the epoch. `rejected` are rows by source."""

    def record_failure(self, error: BaseException) -> None:
        """Record that an attempt at an epoch, or the whole run, failed."""

    def phase(self, phase: Phase) -> None:
        """Record that the pipeline enters a phase."""

    def lags(self, lags: Mapping[str, Mapping[str, int]]) -> None:
        """Record how far streams are ahead of the pipeline, by source and partition."""

    def close(self) -> None:
        """Send the last data and close, within seconds."""


@dataclass(slots=True)
class _RunState:
    """The state of the run, for /health and /admin/error."""

    epoch: int = 0
    generation: int = 0
    phase: str = ""
    backlog: int | None = None
    committed_at: str | None = None
    error: Json | None = None


@dataclass(slots=True)
class _CommittedEpoch:
    """A committed epoch whose rows by node are still to be recorded, in the monitor's thread."""

    plan: EpochPlan
    counts: Mapping[str, WriteCounts]
    observation: EpochObservation
    at_millis: float = field(default_factory=lambda: time.time() * 1000)


class RunMonitor(NullMonitor):
    """Records metrics. Serves the admin endpoint if settings name a port or enable live data inspection."""

    def __init__(self, file: PipelineFile, settings: Settings, run_id: str) -> None:
        from headrace.jobs.monitoring.instruments import Meters

        self._file, self._settings, self._model = file, settings, file.model
        self._labels = node_labels(file.model)
        self._meters = Meters(settings.open_telemetry_metrics, file.name, run_id)
        self._withdraw = offer(self._meters, self._labels)
        inspect = settings.live_data_inspect
        self._samples = (
            SampleBuffer(file.model.nodes(), inspect.records_per_topology_node, inspect.refresh_in_secs)
            if settings.live_data_inspect_enabled
            else None
        )
        pause = inspect.refresh_in_secs / inspect.records_per_topology_node
        self._sampler = Sampler(self._samples, file.model, pause) if self._samples else None
        self._impure = frozenset(nondeterministic_nodes(file.model))
        self._state = _RunState()
        self._observation = EpochObservation()
        self._watermarks: dict[str, int] = {}
        self._queue: queue.SimpleQueue[_CommittedEpoch | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._admin: Admin | None = None

    def start(self, generation: int, epoch: int) -> Json:
        """Start the monitor's thread and the endpoint. Return its address for `headrace tail`.

        If the endpoint cannot be opened, log it and go on without one.
        """
        self._state.generation, self._state.epoch = generation, epoch
        self._begin(generation, epoch)
        self._thread = threading.Thread(
            target=with_log_context(self._record_committed), name="headrace-watch", daemon=True
        )
        self._thread.start()
        if self._settings.admin_api_port is None and self._samples is None:
            return {}
        from headrace.jobs.monitoring.admin import Admin, EndpointData

        try:
            port = self._settings.admin_api_port or 0
            self._admin = Admin(
                self._settings.admin_api_host,
                port,
                EndpointData(self._meters.text, self._health, lambda: self._state.error, self._samples),
            )
        except OSError as error:
            log.warning(
                "event=admin_endpoint_not_started host=%s error=%s",
                self._settings.admin_api_host,
                error.strerror,
            )
            return {}
        log.info("event=admin_endpoint_started address=%s", self._admin.address)
        return {"admin": self._admin.address, "inspect": self._samples is not None}

    @log_errors
    def _begin(self, generation: int, epoch: int) -> None:
        self._meters.set("generation", generation)
        self._meters.set("epoch", epoch)
        self._meters.set("epoch_failing", 0)
        self._meters.set("checkpoint_epochs_in_flight", 0)
        for name in ("markers_sent", "epochs_succeeded", "epochs_failed", "finalizers_sent"):
            self._meters.add(f"checkpoint_{name}_total", 0)

    def create_observer(self, model: PipelineModel, sinks: Sequence[str]) -> FrameObserver | None:
        """Return an observer of the frames that sinks read through Spark.

        If live data is inspected, it also keeps frames to sample.
        """
        self._observation = observation = EpochObservation()
        # None of an epoch that an earlier version of the file began: its nodes may have today's names and be
        # others.
        kept = self._sampler.pending_nodes() if self._sampler and model is self._model else frozenset[str]()
        return EpochObserver(
            observation, model, upstream_nodes(model, sinks), kept, self._impure, event_times_by_node(model)
        )

    @log_errors
    def record_plan(self, plan: EpochPlan, *, again: bool = False) -> None:
        """See `NullMonitor`."""
        if not again:
            self._meters.add("checkpoint_markers_sent_total", 1)
        self._meters.set("checkpoint_epochs_in_flight", 1)
        self.phase(plan.phase)

    @log_errors
    def record_commit(
        self,
        plan: EpochPlan,
        counts: Mapping[str, WriteCounts],
        steps: Mapping[str, float],
        backlog: int | None,
        rejected: Mapping[str, int] | None = None,
    ) -> None:
        """Record the epoch. Rows by node follow in the monitor's thread, because Spark reports them later."""
        add, record, put = self._meters.add, self._meters.record, self._meters.set
        state = self._state
        state.epoch, state.error, state.backlog = plan.number, None, backlog
        state.committed_at = datetime.now(UTC).isoformat(timespec="milliseconds")
        self.phase(plan.phase)
        for sink, count in counts.items():
            labels = self._labels.get(sink, {"id": sink})
            add("output_rows_total", count.rows, labels)
            add("checkpoint_acks_received_total", 1, labels)
            if (seconds := steps.get(f"write {sink}")) is not None:
                record("checkpoint_sink_flush_milliseconds", seconds * 1000, labels)
        for source, rows in (rejected or {}).items():
            add("rejected_rows_total", rows, self._labels.get(source, {"id": source}))
        add("checkpoint_epochs_succeeded_total", 1)
        add("checkpoint_finalizers_sent_total", 1)
        put("checkpoint_epochs_in_flight", 0)
        put("epoch_failing", 0)
        put("epoch", plan.number)
        put("last_commit_timestamp_seconds", time.time())
        if backlog is not None:
            put("source_lag_rows", backlog)
        self._durations(steps)
        if any(node.type == "handler" for node in self._model.transforms.values()):
            self._calls()
        self._queue.put(_CommittedEpoch(plan, counts, self._observation))
        self._observation = EpochObservation()

    def _calls(self) -> None:
        from headrace.connectors.http.call_metrics import drain_call_metrics

        for node, calls in drain_call_metrics().items():
            own = self._labels.get(node, {"id": node})
            for (outcome, status_class), latencies in calls.latencies.items():
                labels = {**own, "outcome": outcome, "status_class": status_class}
                self._meters.add("http_requests_total", len(latencies), labels)
                for latency in latencies:
                    self._meters.record("http_request_latency_milliseconds", latency, labels)
            if calls.retries:
                self._meters.add("http_retries_total", calls.retries, own)

    def _durations(self, steps: Mapping[str, float]) -> None:
        record = self._meters.record
        record("checkpoint_epoch_duration_milliseconds", steps.get("total", 0.0) * 1000)
        if "ledger" in steps:
            record("checkpoint_finalization_wait_milliseconds", steps["ledger"] * 1000)
        by_step = {step: steps[step] for step in ("read", "plan", "ledger") if step in steps}
        if staged := [seconds for step, seconds in steps.items() if step.startswith("stage ")]:
            by_step["stage"] = sum(staged)
        if written := [seconds for step, seconds in steps.items() if step.startswith("write ")]:
            by_step["write"] = max(written)  # sinks write side by side
        for step, seconds in by_step.items():
            record("epoch_step_milliseconds", seconds * 1000, {"step": step})

    @log_errors
    def record_failure(self, error: BaseException) -> None:
        """Record the failure, as in `NullMonitor`. /admin/error shows it until an epoch is committed."""
        known = isinstance(error, HeadraceError)
        self._state.error = {
            "node": error.node if isinstance(error, HeadraceError) else None,
            "message": error.message if isinstance(error, HeadraceError) else type(error).__name__,
            "internal": isinstance(error, InternalError) if known else True,
            "retriable": bool(getattr(error, "retriable", False)),
        }
        self._meters.add("checkpoint_epochs_failed_total", 1)
        self._meters.set("last_error_timestamp_seconds", time.time())
        self._meters.set("epoch_failing", 1)

    @log_errors
    def phase(self, phase: Phase) -> None:
        """See `NullMonitor`."""
        self._state.phase = str(phase)
        for one in Phase:
            self._meters.set("phase", int(one is phase), {"phase": str(one)})

    @log_errors
    def lags(self, lags: Mapping[str, Mapping[str, int]]) -> None:
        """See `NullMonitor`."""
        for source, parts in lags.items():
            for part, lag in parts.items():
                self._meters.set(
                    "kafka_consumer_messages_lag",
                    lag,
                    {**self._labels.get(source, {"id": source}), "partition": part},
                )
        if lags:
            self._state.backlog = sum(sum(parts.values()) for parts in lags.values())
            self._meters.set("source_lag_rows", self._state.backlog)

    def _health(self) -> Json:
        state = self._state
        return {
            "status": "failing" if state.error else "ok",
            "pipeline": self._file.name,
            "phase": state.phase,
            "epoch": state.epoch,
            "generation": state.generation,
            "source_lag_rows": state.backlog,
            "committed_at": state.committed_at,
            "waiting": self.waiting or None,
        }

    # --- in the monitor's thread
    def _record_committed(self) -> None:
        while (epoch := self._queue.get()) is not None:
            self._figures(epoch)
            if self._sampler is not None:
                self._sampler.take(epoch.observation.frames)

    @log_errors
    def _figures(self, epoch: _CommittedEpoch) -> None:
        result = epoch.observation.figures(_FIGURES_WITHIN)
        rows = _split_rows(epoch.plan) | {name: figures.rows for name, figures in result.items()}
        for name, number in rows.items():
            if number and name not in epoch.counts:
                self._meters.add("output_rows_total", number, self._labels.get(name, {"id": name}))
        for name in [*self._model.transforms, *epoch.counts]:
            inputs = graph.inputs_of(self._model, name) if name in self._labels else ()
            if number := sum(rows.get(upstream, 0) for upstream in inputs):
                self._meters.add("input_rows_total", number, self._labels[name])
        for figures in result.values():
            self._event_times(figures, epoch.at_millis)

    def _event_times(self, figures: NodeFigures, at_millis: float) -> None:
        for node, latest in figures.latest.items():
            self._watermarks[node] = max(latest, self._watermarks.get(node, latest))
            labels = self._labels.get(node, {"id": node})  # a node of an earlier version of the file has none
            self._meters.set("event_time_watermark_milliseconds", self._watermarks[node], labels)
            self._meters.record("event_time_lag_milliseconds", at_millis - latest, labels)

    def close(self) -> None:
        """Stop the endpoint, and send a last batch."""
        if self._sampler is not None:
            self._sampler.stop()
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)
        for end in (self._withdraw, self._admin.close if self._admin else None, self._meters.close):
            if end is not None:
                log_errors(end)()


def _split_rows(plan: EpochPlan) -> dict[str, int]:
    """Return the rows of history by source, from its splits.

    A bulk copy has no rows in Spark that could be counted.
    """
    rows: dict[str, int] = {}
    for piece in plan.splits:
        rows[piece["source"]] = rows.get(piece["source"], 0) + int(piece["split"].get("rows", 0))
    return rows


def open_monitor(file: PipelineFile, settings: Settings, run_id: str) -> NullMonitor:
    """Return the monitor that the settings ask for.

    Raises UserError if a package that they need is not installed.
    """
    wanted = settings.admin_api_port is not None or settings.live_data_inspect_enabled
    if not wanted and not is_url(settings.open_telemetry_metrics.ingestion_endpoint):
        return NullMonitor()
    if missing := next((name for name in _NEEDED if not _is_installed(name)), None):
        msg = f"settings ask for metrics or the admin endpoint, which need the package `{missing}`"
        raise UserError(msg, hint="pip install 'headrace[telemetry]'")
    return RunMonitor(file, settings, run_id)


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False

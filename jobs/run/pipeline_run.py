"""One run of a pipeline: opens Spark and the ledger, and writes epochs with retries."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Self

from headrace.connectors.ledger.factory import open_ledger
from headrace.jobs.dynamic_tables.factory import EVENT
from headrace.jobs.monitoring.monitor import open_monitor
from headrace.jobs.planning.compiled_pipeline import CompiledPipeline, PipelineSink
from headrace.jobs.planning.resolution import resolve_file
from headrace.jobs.run.compiled_versions import CompiledVersions
from headrace.jobs.run.epoch_writer import EpochWriter, step_seconds
from headrace.jobs.run.events import (
    AttemptFailed,
    EpochCommitted,
    EpochStarted,
    Listener,
    RunFailed,
    RunMessage,
    RunResult,
)
from headrace.jobs.run.file_check import check_file
from headrace.jobs.run.reporter import RunReporter
from headrace.jobs.run.rollup import RollingUp
from headrace.jobs.run.session import RunSession
from headrace.jobs.run.snapshots import drop_unused_snapshots
from headrace.jobs.run.subscribers import HeartbeatDetails, create_event_stream
from headrace.jobs.sources.backfill import EpochRange
from headrace.jobs.sources.retention import RetentionCheck, find_changed_source
from headrace.jobs.sources.snapshots import create_token, keep_opening, open_sources
from headrace.jobs.staging.pending_calls import waits_folder
from headrace.jobs.staging.store import ResultStore
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import FencedError, HeadraceError, PipelineStateError, SparkJvmError
from headrace.pipeline.file.loader import PipelineFile, hash_of
from headrace.pipeline.protocol.coordinator import EpochCoordinator, Pending
from headrace.pipeline.protocol.epochs import EpochPlan, Json, Phase, Position, WriteCounts
from headrace.pipeline.protocol.ledger import Ledger, PipelineState, StopRequest, describe_launcher
from headrace.pipeline.protocol.log_context import log_context

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LANE = "main"
RETRY_FOR = 300.0
"""Seconds for which transient failures are retried."""


class PipelineRun:
    """A run, used as a context manager. Creating it resolves the file.

    At the end it releases the lease and stops the Spark session that it started.
    """

    def __init__(
        self,
        file: PipelineFile,
        settings: Settings,
        *,
        listener: Listener | None,
        stop: threading.Event | None,
        max_run_time: timedelta | None,
        launched_by: str,
        run_id: str,
        spark: SparkSession | None,
        repair: tuple[str, ...] = (),
        take_over: tuple[str, ...] = (),
        refuse_if_paused: bool = False,
    ) -> None:
        self.file = file = resolve_file(file, settings)
        self.settings = settings
        self._stop = stop or threading.Event()
        self._deadline = time.monotonic() + max_run_time.total_seconds() if max_run_time else None
        self._holder: Json = describe_launcher(launched_by, file.path) | {
            "run_id": run_id,
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        self._repair, self._take_over, self._refuse_if_paused = repair, take_over, refuse_if_paused
        self._rolling = RollingUp(file.model, settings.ledger.keep_epochs)
        self._request: StopRequest | None = None
        self._run_id = run_id
        self.monitor = open_monitor(file, settings, run_id)
        self._heartbeat = HeartbeatDetails()
        self.reporter = RunReporter(file, create_event_stream(self._heartbeat, self.monitor, listener))
        self.session = RunSession(file, settings, spark)
        self._versions = CompiledVersions(file, settings, self.session, self._stop, lambda: self._ledger)
        self._stack = ExitStack()
        self._published_notes: set[str] = set()
        self._pipeline = ""
        """The UUID of a new pipeline."""

    def __enter__(self) -> Self:
        with self.file.locate_errors():
            self._open()
        return self

    def _open(self) -> None:
        with ExitStack() as stack:
            stack.enter_context(log_context(pipeline=self.file.name, run_id=self._run_id))
            stack.callback(self.session.stop)
            stack.callback(self._versions.close)
            self._ledger = ledger = open_ledger(self.settings)
            stack.callback(ledger.close)
            self.coordinator = EpochCoordinator.open(
                ledger,
                self.file.name,
                LANE,
                self._holder,
                self._open_sinks,
                self.file.compiled(),
                self.file.hash,
                initial=self._initial,
                ttl=self.settings.lease_seconds,
                commit_timeout=self.settings.commit_timeout_seconds,
                max_attempts=self.file.model.epoch.max_attempts,
                repair=self._repair,
                check_file=self._check_file,
                take_over=self._take_over,
                refuse_if_paused=self._refuse_if_paused,
                on_request=self._on_request,
            )
            stack.callback(self.coordinator.close)
            lease = self.coordinator.lease
            self._stages = ResultStore(self.settings, lease.pipeline, lease.lane, lease.generation)
            waits = waits_folder(self.settings, lease.pipeline)
            self.coordinator.heartbeat.details = lambda: self._heartbeat.read(waits, self.reporter.publish)
            stack.callback(self.monitor.close)
            self._holder |= self.monitor.start(self.coordinator.generation, self.coordinator.committed)
            self._set_holder(self.session.jvm)
            self.session.on_start = self._set_holder
            if not self.coordinator.committed:  # an earlier start may have created some and not stored them
                drop_unused_snapshots(self.assembly, self.coordinator, self.reporter)
            stack.callback(self.session.abort_after_stop(self._stop))
            self._stack = stack.pop_all()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            self.reporter.publish(RunFailed(error))
            self.file.locate(error)
        self._stack.close()

    @contextmanager
    def open_target_sinks(self, ledger: Ledger, uuid: str) -> Iterator[Mapping[str, PipelineSink]]:
        """Open the sinks of the file to check their targets before the first epoch.

        Stops Spark if the block raises.
        """
        self._ledger = ledger
        with ExitStack() as stack:
            stack.callback(self.session.stop)
            stack.callback(self._versions.close)
            opened = self.assembly.open_sinks(uuid, LANE, ledger)
            try:
                yield opened
            finally:
                for sink in opened.values():
                    sink.close()
            stack.pop_all()

    # --- what the run is made of

    @property
    def assembly(self) -> CompiledPipeline:
        """The compiled pipeline of the current file."""
        return self._versions.current

    def _open_sinks(self, uuid: str, compiled: Json) -> Mapping[str, PipelineSink]:
        assembly = self._versions.find(compiled)
        assembly.open_tables(uuid, LANE, self._ledger, self._note_table)
        return assembly.open_sinks(uuid, LANE, self._ledger)

    def _note_table(self, table: str, epoch: int) -> None:
        self._ledger.event(self.coordinator.lease, EVENT, {"table": table, "epoch": epoch})

    def _on_request(self, request: StopRequest) -> None:
        """Stop as after a signal. Called by the heartbeat's thread."""
        self._request = request
        self._stop.set()

    def _set_holder(self, jvm: Json | None) -> None:
        """Store the run's JVM with its lease: a successor kills it if it outlives this process."""
        self._ledger.set_holder(self.coordinator.lease, self._holder | {"jvm": jvm})

    def _check_file(self, state: PipelineState) -> None:
        for note in check_file(self.file, state, self._ledger).notes:
            if note not in self._published_notes:
                self._published_notes.add(note)
                self.reporter.publish(RunMessage(note))

    def _initial(self) -> Position:
        state = self._ledger.state(self.file.name, LANE)
        assert state is not None  # noqa: S101  the lease was taken before
        self._pipeline = state.pipeline
        token = create_token(state.pipeline, state.generation)
        opened = open_sources(self.assembly.sources, self.assembly.planner.spark, token, self.file.model)
        return {
            name: keep_opening(self._ledger, self.file.model.sources[name], position)
            for name, position in opened.items()
        }

    # --- epochs

    @property
    def stopping(self) -> bool:
        """Whether no further epoch may begin."""
        return self._stop.is_set() or (self._deadline is not None and time.monotonic() >= self._deadline)

    def finish_open(self) -> None:
        """Finish the epoch that an earlier run left open, with its original plan and file.

        If its files have changed since, and no target has rows of it, drop it: a later one has them.
        """
        plan = self.coordinator.open_plan
        changed = find_changed_source(self.assembly.sources, plan) if plan else ""
        if plan and changed and self.coordinator.drop_open_epoch(f"data of `{changed}` changed"):
            dropped = f"epoch {plan.number} is planned again: data of `{changed}` changed, and no sink has it"
            self.reporter.publish(RunMessage(dropped))
        if self.coordinator.has_open_epoch:
            self.reporter.publish(
                RunMessage(
                    f"finishing epoch {self.coordinator.committed + 1}, which an earlier run left open"
                )
            )
            self._finish_epoch()

    def run_epoch(self, step: EpochRange, backlog: Callable[[Position], int | None] | None = None) -> None:
        """Plan the step as the next epoch and write it to every sink."""
        started = time.monotonic()
        plan = self.coordinator.plan(step.end, step.phase, window=step.window, splits=step.splits)
        self.reporter.publish(EpochStarted(plan))
        self._finish_epoch(backlog, time.monotonic() - started)

    def rewrite(self, sink: str, first: int | None) -> None:
        """Write committed epochs to one sink again; see `replay`.

        Raises PipelineStateError if a stop interrupts it. Before it writes anything, raises SinkStateError if
        stored results of an epoch are missing, and RetentionError if the topic no longer has its messages.
        """
        right = (
            f"If the target is right as it is: headrace accept-target {self.file.path} --sink {sink}."
            f" Else: headrace reset {self.file.path}"
        )
        retained = RetentionCheck(self.assembly.sources, "the replay", right)

        def check(pending: Pending) -> None:
            retained.check_epoch(pending.plan)
            retained.check_snapshots(pending.plan, self.coordinator.position)
            self._writer(pending).staging(pending.plan, pending.sinks, replayed=True)

        def write(pending: Pending) -> Mapping[str, WriteCounts]:
            if self._stop.is_set():
                msg = f"stopped before epoch {pending.plan.number} was written again"
                raise PipelineStateError(
                    msg, hint=f"Continue with: headrace replay {self.file.path} --sink {sink}."
                )
            started = time.monotonic()
            with log_context(epoch=pending.plan.number):
                writer = self._writer(pending)
                if isinstance(target := self.coordinator.sinks[sink], PipelineSink):
                    version = self._versions.find(pending.compiled)
                    target.prepare_version(version.planner.schemas[sink], self.coordinator.generation)
                counts = writer.write(pending.plan, pending.sinks, replayed=True)
                # No sweep here: later epochs of the replay still need their stored results.
                steps = {**writer.steps, "total": time.monotonic() - started}
                self.reporter.record_commit(EpochCommitted(pending.plan, counts, steps))
            return counts

        self.coordinator.replay(sink, write, first, check)

    def _finish_epoch(
        self, backlog: Callable[[Position], int | None] | None = None, planning: float = 0.0
    ) -> None:
        """Write and commit the open epoch. Retry transient failures with growing pauses.

        `planning` is the time in seconds that it took to plan the epoch.
        """
        began, pause = time.monotonic(), 0.5
        with log_context(epoch=self.coordinator.committed + 1):
            while True:
                started = time.monotonic()
                try:
                    pending = self.coordinator.begin()
                    if pending is None:
                        return
                    self.reporter.publish(EpochStarted(pending.plan, again=True))
                    writer = self._writer(pending) if pending.sinks else None
                    counts = self.coordinator.commit(
                        writer.write(pending.plan, pending.sinks) if writer else {}
                    )
                    self._after_commit(pending.plan, counts, step_seconds(writer, started, planning), backlog)
                    return
                except FencedError:
                    raise
                except HeadraceError as failure:
                    if not self._wait_to_retry(failure, time.monotonic() - began, pause):
                        return
                    pause = min(pause * 2, 15.0)

    def _wait_to_retry(self, failure: HeadraceError, elapsed: float, pause: float) -> bool:
        """Record a failed attempt at the open epoch, wait `pause` seconds and return True.

        Returns False if a stop was requested. Raises if the failure is permanent, or if attempts have failed
        for too long.
        """
        error = self.session.explain_death(5.0 if isinstance(failure, SparkJvmError) else 0.0) or failure
        if self._stop.is_set():
            abandoned = f"epoch {self.coordinator.committed + 1} was abandoned; the next run finishes it"
            self.reporter.publish(RunMessage(abandoned, "warning"))
            return False
        self.reporter.publish(AttemptFailed(error))
        attempts = self.coordinator.record_failure(error.node or "?", error)
        if not error.retriable or elapsed > RETRY_FOR:
            raise error from (failure if failure is not error else failure.__cause__)
        self.reporter.publish(
            RunMessage(f"attempt {attempts} failed, trying again in {pause:.1f} s: {error}", "warning")
        )
        self.wait(pause)
        return True

    def _writer(self, pending: Pending) -> EpochWriter:
        """Return the writer of a pending epoch. Raises FencedError if this run lost its lease."""
        assembly = self._versions.find(pending.compiled)
        assembly.open_former_tables(self.coordinator.lease.pipeline, LANE, self._ledger, self._note_table)
        assembly.planner.pipeline = self.coordinator.lease.pipeline
        sinks = {
            name: sink.sink for name, sink in self.coordinator.sinks.items() if isinstance(sink, PipelineSink)
        }
        routes = assembly.load_paths if pending.plan.phase is Phase.HISTORY else None
        writer = EpochWriter(
            assembly.planner,
            assembly.sources,
            sinks,
            routes,
            self._stages,
            hash_of(pending.compiled),
            monitor=self.monitor,
            side=assembly.side_outputs,
        )
        self.coordinator.check()
        return writer

    def _after_commit(
        self,
        plan: EpochPlan,
        counts: Mapping[str, WriteCounts],
        steps: Mapping[str, float],
        backlog: Callable[[Position], int | None] | None,
    ) -> None:
        self._stages.sweep(self.coordinator.committed)
        self._rolling.after_commit(self.coordinator)
        self.reporter.record_commit(
            EpochCommitted(plan, counts, steps, backlog(plan.end) if backlog else None)
        )

    def idle(self, backlog: int | None) -> None:
        """Report an idle stream. Raise if this run no longer owns the pipeline."""
        self.reporter.idle(
            backlog, [name for name, source in self.assembly.sources.items() if source.unbounded]
        )
        self.coordinator.check()

    def wait(self, seconds: float) -> None:
        """Wait for `seconds`, or until a stop is requested."""
        if seconds > 0:
            self._stop.wait(seconds)

    def result(self, *, caught_up: bool) -> RunResult:
        """Return the result of this run."""
        return self.reporter.result(self.coordinator, self._find_stop_reason(), caught_up=caught_up)

    def result_of_stopped_start(self) -> RunResult:
        """Return the result of a run that was stopped before the first position of its pipeline."""
        return RunResult(
            name=self.file.name,
            pipeline=self._pipeline,
            stop_reason=self._find_stop_reason(),
            epochs=0,
            first_epoch=None,
            last_epoch=0,
            counts={},
            phases={},
            history_complete=False,
            caught_up=False,
        )

    def _find_stop_reason(self) -> str:
        if self._request is not None:
            reason = str(self._request.action)
            self.reporter.publish(RunMessage(f"{reason} requested {self._request}"))
            return reason
        return "signal" if self._stop.is_set() else "max_run_time" if self.stopping else "completed"

"""One run of one lane: Spark, ledger and lane in hand, epochs carried with retries, and what people are told meanwhile."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Self
from uuid import uuid4

from headrace.connectors.ledgers import open_ledger
from headrace.jobs.assembly import Assembly, LaneSink, node_types
from headrace.jobs.epoch import EpochWriter
from headrace.jobs.events import EpochDone, Event, Listener, Notice, PhaseChanged, PhaseFigures, RunResult, WindowDone
from headrace.jobs.history import Step
from headrace.jobs.session import jvm_alive, jvm_process, start_session, stop_session
from headrace.jobs.staging import LaneStages
from headrace.jobs.tables.opening import EVENT
from headrace.jobs.watch.eyes import open_eyes
from headrace.pipeline import positions
from headrace.pipeline.errors import FencedError, HeadraceError, LaneError, PluginError
from headrace.pipeline.file import PipelineFile, from_compiled, hash_of
from headrace.pipeline.lane import Lane, Pending
from headrace.pipeline.log_lines import carried, said_by
from headrace.pipeline.records import Counts, EpochPlan, Json, Phase, Position
from headrace.pipeline.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

LANE = "main"
ABORT_AFTER = 25.0
"""Seconds that an epoch in flight gets after a stop was asked for."""
RETRY_FOR = 300.0
"""Seconds for which failures that pass by themselves are tried again."""
_IDLE_NOTICE = 30.0


class LaneRun:
    """Use it as a context manager; leaving it gives the lane back and stops the Spark session that it started."""

    def __init__(
        self,
        file: PipelineFile,
        settings: Settings,
        *,
        listener: Listener | None,
        stop: threading.Event | None,
        lifetime: timedelta | None,
        door: str,
        run_id: str,
        spark: SparkSession | None,
        repair: tuple[str, ...] = (),
    ) -> None:
        self.file = file
        self.settings = settings
        self.epochs = 0
        self.last_seconds = 0.0
        self._listener = listener
        self._stop = stop or threading.Event()
        self._deadline = time.monotonic() + lifetime.total_seconds() if lifetime else None
        self._holder: Json = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "door": door,
            "run_id": run_id,
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
            "file": file.path,
        }
        self._repair = repair
        self._run_id = run_id
        self.eyes = open_eyes(file, settings, run_id)
        self._given = spark
        self._spark: SparkSession | None = spark
        self._assemblies: dict[str, Assembly] = {}
        self._versions: dict[str, PipelineFile] = {}
        self._stack = ExitStack()
        self._phase: Phase | None = None
        self._figures: dict[Phase, PhaseFigures] = {}
        self._counts: dict[str, Counts] = {}
        self._first: int | None = None
        self._window_rows: dict[str, dict[str, int]] = {}
        self._idle_since: float | None = None
        self._steps: Mapping[str, float] = {}
        self._writing = 0.0
        self._said: Json = {}

    def __enter__(self) -> Self:
        try:
            self._open()
        except PluginError as error:
            self.file.placed(error)
            raise
        return self

    def _open(self) -> None:
        with ExitStack() as stack:
            stack.enter_context(said_by(pipeline=self.file.name, run_id=self._run_id))
            stack.callback(self._stop_spark)
            stack.callback(self._close_assemblies)
            self._ledger = ledger = open_ledger(self.settings)
            stack.callback(ledger.close)
            self.lane = Lane.open(
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
            )
            stack.callback(self.lane.close)
            lease = self.lane.lease
            self._stages = LaneStages(self.settings, lease.pipeline, lease.lane, lease.generation)
            stack.callback(self.eyes.close)
            seen = self.eyes.start(self.lane.generation, self.lane.committed)
            ledger.set_holder(self.lane.lease, self._holder | {"jvm": jvm_process(self.spark)} | seen)
            done = threading.Event()
            stack.callback(done.set)
            threading.Thread(target=carried(self._abort_late), args=(done,), name="headrace-abort", daemon=True).start()
            self._stack = stack.pop_all()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, Exception):
            self.eyes.failed(error)
        if isinstance(error, PluginError):
            self.file.placed(error)
        self._stack.close()

    # --- what the run is made of

    @property
    def spark(self) -> SparkSession:
        """The session, started when it is first needed: a lane that is held refuses before that."""
        if self._spark is None:
            self._spark = start_session(self.settings, node_types(self.file))
        return self._spark

    @property
    def assembly(self) -> Assembly:
        """The file as it is now."""
        return self.assembly_of(self.file)

    def assembly_of(self, file: PipelineFile) -> Assembly:
        """A version of the file, put together once."""
        if file.hash not in self._assemblies:
            self._assemblies[file.hash] = Assembly(file, self.settings, self.spark)
        return self._assemblies[file.hash]

    def _version(self, compiled: Json) -> PipelineFile:
        stored = hash_of(compiled)
        if stored not in self._versions:
            found = from_compiled(compiled, self.file.path, self.file)
            self._versions[stored] = self.file if found.hash == self.file.hash else found
        return self._versions[stored]

    def _open_sinks(self, uuid: str, compiled: Json) -> Mapping[str, LaneSink]:
        assembly = self.assembly_of(self._version(compiled))
        assembly.open_tables(uuid, LANE, self._ledger, self._note_table)
        return assembly.open_sinks(uuid, LANE, self._ledger)

    def _note_table(self, table: str, epoch: int) -> None:
        self._ledger.event(self.lane.lease, EVENT, {"table": table, "epoch": epoch})

    def _initial(self) -> Position:
        token = uuid4().hex[:12]
        assembly = self.assembly
        return {
            name: source.opening(assembly.planner.spark, f"{token}_{index}")
            for index, (name, source) in enumerate(assembly.sources.items())
        }

    # --- epochs

    @property
    def stopping(self) -> bool:
        """Whether no further epoch is to be begun."""
        return self._stop.is_set() or (self._deadline is not None and time.monotonic() >= self._deadline)

    def finish_open(self) -> None:
        """Finishes the epoch that a former run left open, by the plan and the file that it was planned with."""
        if self.lane.busy:
            self.tell(Notice(f"finishing epoch {self.lane.committed + 1}, which an earlier run left open"))
            self._execute(None)

    def carry(self, step: Step, backlog: Callable[[Position], int | None] | None = None) -> None:
        """Plans the step as the next epoch and carries it into every sink."""
        self._idle_since = None
        started = time.monotonic()
        plan = self.lane.plan(step.end, step.phase, window=step.window, splits=step.splits)
        self.eyes.planned(plan)
        self._execute(backlog, time.monotonic() - started)

    def rewrite(self, sink: str, first: int | None) -> None:
        """Writes committed epochs again into one sink; see `replay`.

        Raises LaneError when stopped in between, RecordError, before anything is written, where staged rows of one of them are gone.
        """

        def check(pending: Pending) -> None:
            self._writer(pending).staging(pending.plan, pending.sinks, replayed=True)

        def write(pending: Pending) -> Mapping[str, Counts]:
            if self._stop.is_set():
                msg = f"stopped before epoch {pending.plan.number} was written again"
                raise LaneError(msg, hint=f"Go on with: headrace replay {self.file.path} --sink {sink}.")
            started = time.monotonic()
            with said_by(epoch=pending.plan.number):
                counts = self._write(pending, replayed=True)
                self._committed(pending.plan, counts, {**self._steps, "total": time.monotonic() - started}, None)
            return counts

        self.lane.replay(sink, write, first, check)

    def _execute(self, backlog: Callable[[Position], int | None] | None, planning: float = 0.0) -> None:
        """Until the open epoch is committed. Failures that pass by themselves are tried again, with growing pauses."""
        with said_by(epoch=self.lane.committed + 1):
            self._until_committed(backlog, planning)

    def _until_committed(self, backlog: Callable[[Position], int | None] | None, planning: float) -> None:
        began, pause = time.monotonic(), 0.5
        while True:
            started = time.monotonic()
            try:
                work = self.lane.pending()
                self._steps, self._writing = {}, 0.0
                counts = self.lane.execute(self._write)
                if work is not None:
                    total = time.monotonic() - started
                    ledger = planning + max(0.0, total - self._writing)
                    self._committed(work.plan, counts, {**self._steps, "ledger": ledger, "total": total}, backlog)
                return
            except FencedError:
                raise
            except HeadraceError as error:
                if self._stop.is_set():
                    self.tell(Notice(f"epoch {self.lane.committed + 1} was abandoned; the next run finishes it", "warning"))
                    return
                self.eyes.failed(error)
                self.lane.progress({**self._said, "error": _first_line(error)})
                attempts = self.lane.failed(error.node or "?", error)
                if not error.retriable or time.monotonic() - began > RETRY_FOR or not jvm_alive(self.spark):
                    raise
                self.tell(Notice(f"attempt {attempts} failed, trying again in {pause:.1f} s: {error}", "warning"))
                self.wait(pause)
                pause = min(pause * 2, 15.0)

    def _writer(self, pending: Pending) -> EpochWriter:
        assembly = self.assembly_of(self._version(pending.compiled))
        assembly.open_former_tables(self.lane.lease.pipeline, LANE, self._ledger, self._note_table)
        assembly.planner.pipeline = self.lane.lease.pipeline
        sinks = {name: sink.sink for name, sink in self.lane.sinks.items() if isinstance(sink, LaneSink)}
        routes = assembly.routes if pending.plan.phase is Phase.HISTORY else None
        return EpochWriter(
            assembly.planner,
            assembly.sources,
            sinks,
            routes,
            self._stages,
            hash_of(pending.compiled),
            eyes=self.eyes,
            side=assembly.side_outputs,
        )

    def _write(self, pending: Pending, *, replayed: bool = False) -> Mapping[str, Counts]:
        writer = self._writer(pending)
        self.lane.check()
        self._steps, started = writer.steps, time.monotonic()
        try:
            return writer.write(pending.plan, pending.sinks, replayed=replayed)
        finally:
            self._writing = time.monotonic() - started

    def _committed(
        self, plan: EpochPlan, counts: Mapping[str, Counts], steps: Mapping[str, float], backlog: Callable[[Position], int | None] | None
    ) -> None:
        self._stages.sweep(self.lane.committed)
        self.epochs += 1
        self._first = self._first or plan.number
        self.last_seconds = steps["total"]
        rows = max((count.rows for count in counts.values()), default=0)
        before = self._figures.get(plan.phase, PhaseFigures(0, 0, 0.0))
        self._figures[plan.phase] = PhaseFigures(before.epochs + 1, before.rows + rows, before.seconds + self.last_seconds)
        for name, count in counts.items():
            self._counts[name] = self._counts.get(name, Counts()) + count
        left = backlog(plan.end) if backlog else None
        self._said = {
            "phase": str(plan.phase),
            "epoch": plan.number,
            "rows": rows,
            "rows_per_s": round(rows / max(self.last_seconds, 1e-3)),
            "backlog": left,
        }
        self.lane.progress(self._said)
        self.eyes.committed(plan, counts, steps, left)
        self.tell(EpochDone(plan, counts, steps, left))
        self._window_progress(plan, counts)

    def _window_progress(self, plan: EpochPlan, counts: Mapping[str, Counts]) -> None:
        if plan.phase is not Phase.HISTORY:
            return
        window = plan.window or ""
        rows = self._window_rows.setdefault(window, {})
        for name, count in counts.items():
            rows[name] = rows.get(name, 0) + count.rows
        model = self.file.model
        if all(
            positions.window_done(node, plan.end.get(name, {}), window)
            for name, node in model.sources.items()
            if positions.bounded_phases(node)
        ):
            self.tell(WindowDone(window, self._window_rows.pop(window)))

    # --- what people are told

    def tell(self, event: Event) -> None:
        """Hands an event to the door, and to the log."""
        if isinstance(event, Notice):
            log.log(logging.WARNING if event.level == "warning" else logging.INFO, "%s", event.message)
        if self._listener is not None:
            self._listener(event)

    def enter(self, phase: Phase, detail: Json | None = None) -> None:
        """Notes the phase; says so when it is another one than before."""
        if phase is not self._phase:
            self._phase = phase
            self.eyes.phase(phase)
            self.tell(PhaseChanged(phase, detail or {}))

    def announce_stream(self, begun: Position) -> None:
        """Says where the stream stands as it begins: at the handoff, the fence."""
        streams = {name: positions.offsets(place["stream"]) for name, place in begun.items() if "stream" in place}
        fences = {name: positions.offsets(place.get("fence")) for name, place in begun.items() if place.get("fence")}
        phase = Phase.CATCHING_UP if positions.catching_up(begun.values()) else Phase.LIVE
        self.enter(phase, {"offsets": streams, "fence": fences})

    def idle(self, backlog: int | None) -> None:
        """A stream that brings nothing says so after a while, and keeps its heartbeat's word fresh."""
        now = time.monotonic()
        if self._said and self._said["backlog"] != backlog:
            self._said = {**self._said, "backlog": backlog}
            self.lane.progress(self._said)
        if self._idle_since is None:
            self._idle_since = now
        elif now - self._idle_since > _IDLE_NOTICE:
            self._idle_since = now + 1e9
            where = ", ".join(f"`{name}`" for name, source in self.assembly.sources.items() if source.unbounded)
            self.tell(Notice(f"nothing new from {where} for {_IDLE_NOTICE:.0f} s; the lane stands at the end ({backlog} offsets behind)"))
        self.lane.check()

    def wait(self, seconds: float) -> None:
        """Pauses, unless a stop is asked for meanwhile."""
        if seconds > 0:
            self._stop.wait(seconds)

    def result(self, *, caught_up: bool) -> RunResult:
        """What this run did."""
        position = self.lane.position
        return RunResult(
            name=self.file.name,
            pipeline=self.lane.lease.pipeline,
            stopped="signal" if self._stop.is_set() else "lifetime" if self.stopping else "done",
            epochs=self.epochs,
            first_epoch=self._first,
            last_epoch=self.lane.committed,
            counts=self._counts,
            phases=self._figures,
            history_complete=positions.history_complete(self.file.model, position),
            caught_up=caught_up,
        )

    # --- ending

    def _abort_late(self, done: threading.Event) -> None:
        """Cancels Spark's work when an epoch does not end in time after a stop; a cancelled epoch is as safe as a crashed one."""
        while not self._stop.wait(1.0):
            if done.is_set():
                return
        if not done.wait(ABORT_AFTER) and self._spark is not None:
            self._spark.sparkContext.cancelAllJobs()

    def _close_assemblies(self) -> None:
        for assembly in self._assemblies.values():
            assembly.close()

    def _stop_spark(self) -> None:
        if self._spark is not None and self._given is None:
            stop_session(self._spark)


def _first_line(error: HeadraceError) -> str:
    """For people who look at the lane from outside."""
    return error.message.splitlines()[0][:200] if error.message else type(error).__name__

"""Runs a pipeline in its own process and injects a fault at a named point of an epoch.

    python fault_driver.py FILE POINT NTH ACTION

POINT is a key of POINTS, or `none`. ACTION: `driver` kills this process, `group` its whole process group,
`jvm` Spark's JVM, `stop` stops this process until somebody continues it. Everything is a real signal; nothing
below this file is a fake. HEADRACE_TEST_TODAY is the day that the run takes for today,
HEADRACE_TEST_REDIS_ROWS the rows of one script of a redis sink, HEADRACE_TEST_UNTIL when the run ends.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from datetime import date
from typing import Any

from headrace.connectors.clickhouse.commit_table import CommitTable
from headrace.connectors.clickhouse.sink import ClickHouseSink
from headrace.connectors.clickhouse.source import ClickHouseTable
from headrace.connectors.clickhouse.stage import GenerationStage
from headrace.connectors.delta.direct import FileTask
from headrace.connectors.delta.local_log import LocalTableLog
from headrace.connectors.delta.sink import DeltaTableSink
from headrace.connectors.files.sink import FileFolderSink
from headrace.connectors.files.sink_folder import SinkFolder
from headrace.connectors.http.client import HttpCaller
from headrace.connectors.kafka.avro.encoder import AvroFormat
from headrace.connectors.kafka.driver_reader import DriverReader
from headrace.connectors.kafka.encoder import JsonMessageEncoder
from headrace.connectors.kafka.producer import TransactionalProducer
from headrace.connectors.postgres.direct import SplitTask
from headrace.connectors.postgres.sink import PostgresSink
from headrace.connectors.redis import encoder as redis_encoder
from headrace.connectors.redis.state import RedisState
from headrace.jobs.dynamic_tables.memory import MemoryTable
from headrace.jobs.dynamic_tables.postgres import PostgresTableBackend
from headrace.jobs.run.epoch_writer import EpochWriter
from headrace.jobs.run.events import Until
from headrace.jobs.run.runner import run
from headrace.jobs.sources.pipeline_source import PipelineSource
from headrace.jobs.sources.stream import StreamPlanner
from headrace.jobs.staging.store import EpochResultStore
from headrace.pipeline.config.settings import load_settings
from headrace.pipeline.errors import HeadraceError
from headrace.pipeline.file.loader import load_pipeline
from headrace.pipeline.protocol import partitions
from headrace.pipeline.protocol.ledger import Ledger
from headrace.pipeline.protocol.ledger.sqlite import SqliteStore

POINTS: dict[str, tuple[type, str, str]] = {
    "pinned": (PipelineSource, "create_initial_position", "after"),
    "snapshot": (ClickHouseTable, "create_snapshot", "after"),
    "planned": (Ledger, "plan", "after"),
    "reading": (EpochWriter, "write", "before"),
    "sinks-written": (Ledger, "commit", "before"),
    "committed": (Ledger, "commit", "after"),
    "handoff": (StreamPlanner, "begin", "after"),
    "staging": (EpochResultStore, "_complete", "before"),
    "staged": (EpochResultStore, "make", "after"),
    "memory-filling": (MemoryTable, "fill", "before"),
    "memory-filled": (MemoryTable, "fill", "after"),
    "messages-decoded": (DriverReader, "_decode_ahead", "after"),
    "topic-encoding": (JsonMessageEncoder, "_encode_table", "before"),
    "topic-encoded": (JsonMessageEncoder, "_encode_table", "after"),
    "schemas-registering": (AvroFormat, "register", "before"),
    "schemas-registered": (AvroFormat, "register", "after"),
    "avro-encoding": (AvroFormat, "create_encoder", "before"),
    "avro-encoded": (TransactionalProducer, "send", "before"),
    "topic-sending": (TransactionalProducer, "send", "after"),
    "topic-sent": (TransactionalProducer, "_commit", "before"),
    "topic-committed": (TransactionalProducer, "_commit", "after"),
    "stage-opened": (GenerationStage, "open", "after"),
    "stage-filled": (ClickHouseSink, "_stage_rows", "after"),
    "stage-announced": (GenerationStage, "attach", "before"),
    "stage-attached": (GenerationStage, "attach", "after"),
    "stage-recorded": (GenerationStage, "clear", "before"),
    "stage-cleared": (GenerationStage, "clear", "after"),
    "delta-committing": (LocalTableLog, "_put", "before"),
    "delta-committed": (LocalTableLog, "_put", "after"),
    "delta-file-written": (FileTask, "_write", "after"),
    "state-written": (CommitTable, "write_state", "after"),
    "request-sending": (HttpCaller, "send", "before"),
    "request-sent": (HttpCaller, "send", "after"),
    "postgres-committed": (PostgresSink, "commit", "after"),
    "folder-fenced": (SinkFolder, "raise_generation", "after"),
    "folder-writing": (FileFolderSink, "_write_files", "before"),
    "folder-written": (FileFolderSink, "_write_files", "after"),
    "folder-moved": (SinkFolder, "_rename_commit", "before"),
    "folder-renamed": (SinkFolder, "_rename_commit", "after"),
    "folder-published": (SinkFolder, "publish", "after"),
    "folder-state": (SinkFolder, "write_state", "after"),
    "entries-writing": (RedisState, "write", "before"),
    "entries-written": (RedisState, "write", "after"),
    "split-loaded": (SplitTask, "_load_split", "after"),
    "outside-filled": (PostgresTableBackend, "fill", "after"),
    "refresh-begun": (Ledger, "begin_refresh", "after"),
    "refresh-ending": (Ledger, "end_refresh", "before"),
}
"""Class, method, and whether it happens before or after the method."""
DURING: dict[str, tuple[type, str]] = {
    "topic-committing": (TransactionalProducer, "_commit"),
    "split-loading": (SplitTask, "_load_split"),
    "stage-attaching": (GenerationStage, "attach"),
    "entries-under-way": (RedisState, "write"),
    "folder-writing-files": (FileFolderSink, "_write_files"),
    "folder-publishing": (SinkFolder, "publish"),
    "postgres-committing": (PostgresSink, "commit"),
    "request-under-way": (HttpCaller, "send"),
}
"""Class and method: it happens while the method runs."""


def act(action: str) -> None:
    """Does it."""
    print(f"now: {action}", flush=True)
    match action:
        case "driver":
            os.kill(os.getpid(), signal.SIGKILL)
        case "group":
            os.killpg(os.getpgrp(), signal.SIGKILL)
        case "stop":
            # A process that stops while its heartbeat writes the ledger keeps SQLite's lock from all others.
            with ExitStack() as stack:
                for store in gc.get_objects():
                    if isinstance(store, SqliteStore):
                        stack.enter_context(store._lock)
                os.kill(os.getpid(), signal.SIGSTOP)
        case "jvm":
            from pyspark import SparkContext

            gateway: Any = SparkContext._gateway
            gateway.proc.kill()


def at_nth(nth: int, action: str) -> Callable[[], None]:
    """A call that acts the nth time it is made."""
    seen = 0
    lock = threading.Lock()

    def hit() -> None:
        nonlocal seen
        with lock:
            seen += 1
            now = seen == nth
        if now:
            act(action)

    return hit


def install(point: str, nth: int, action: str) -> None:
    """Puts the act at its point."""
    hit = at_nth(nth, action)
    if point in POINTS:
        owner, name, when = POINTS[point]
        original = getattr(owner, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if when == "before":
                hit()
            found = original(*args, **kwargs)
            if when == "after":
                hit()
            return found

        setattr(owner, name, wrapped)
    elif point in DURING:
        owner, name = DURING[point]
        method = getattr(owner, name)

        def running(*args: Any, **kwargs: Any) -> Any:
            threading.Timer(0.002, hit).start()
            return method(*args, **kwargs)

        setattr(owner, name, running)
    elif point in ("postgres-only", "delta-only"):
        first, second = (
            (PostgresSink, DeltaTableSink) if point == "postgres-only" else (DeltaTableSink, PostgresSink)
        )
        one_holds(first, second, hit)
    elif point != "none":
        raise SystemExit(f"no point {point}")


def one_holds(first: type, second: type, hit: Callable[[], None]) -> None:
    """Acts while `first` holds an epoch and `second` does not yet."""
    done: dict[int, threading.Event] = {}
    lock = threading.Lock()

    def event(number: int) -> threading.Event:
        with lock:
            return done.setdefault(number, threading.Event())

    write_first, write_second = first.write, second.write

    def wrapped_first(self: Any, plan: Any, frame: Any) -> Any:
        found = write_first(self, plan, frame)
        event(plan.number).set()
        return found

    def wrapped_second(self: Any, plan: Any, frame: Any) -> Any:
        event(plan.number).wait(60)
        hit()
        return write_second(self, plan, frame)

    first.write, second.write = wrapped_first, wrapped_second


def main() -> int:
    """Runs until caught up; prints the result, or the error that a user would see."""
    path, point, nth, action = sys.argv[1:5]
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    install(point, int(nth), action)
    if day := os.environ.get("HEADRACE_TEST_TODAY"):
        partitions.today = lambda: date.fromisoformat(day)
    if rows := os.environ.get("HEADRACE_TEST_REDIS_ROWS"):
        redis_encoder.CHUNK_ROWS = int(rows)
    try:
        again = os.environ.get("HEADRACE_TEST_REFRESH")
        result = run(
            load_pipeline(path),
            load_settings(),
            until=Until(os.environ.get("HEADRACE_TEST_UNTIL", Until.CAUGHT_UP)),
            partitions=again.split(",") if again else None,
            refresh=bool(again),
            launched_by="fault test",
        )
    except HeadraceError as error:
        print(json.dumps({"error": type(error).__name__, "said": str(error)}), flush=True)
        return 1
    answer = {"epochs": result.epochs, "last": result.last_epoch, "caught_up": result.caught_up}
    print(json.dumps(answer | {"pandas": "pandas" in sys.modules}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

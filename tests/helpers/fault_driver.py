"""Runs a pipeline in its own process and injects a fault at a named point of an epoch.

    python fault_driver.py FILE POINT NTH ACTION

POINT is a key of `fault_points`, or `none`. ACTION: `driver` kills this process, `group` its whole process group,
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
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # tests start this file by its path
from helpers.fault_points import DELTA, DURING, POINTS, POSTGRES, find_class


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
            from headrace.pipeline.protocol.ledger.sqlite import SqliteStore

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
        place, name, when = POINTS[point]
        owner = find_class(place)
        original = getattr(owner, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if when == "before":
                hit()
            result = original(*args, **kwargs)
            if when == "after":
                hit()
            return result

        setattr(owner, name, wrapped)
    elif point in DURING:
        place, name = DURING[point]
        owner = find_class(place)
        method = getattr(owner, name)

        def running(*args: Any, **kwargs: Any) -> Any:
            threading.Timer(0.002, hit).start()
            return method(*args, **kwargs)

        setattr(owner, name, running)
    elif point in ("postgres-only", "delta-only"):
        first, second = (POSTGRES, DELTA) if point == "postgres-only" else (DELTA, POSTGRES)
        one_holds(find_class(first), find_class(second), hit)
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
        result = write_first(self, plan, frame)
        event(plan.number).set()
        return result

    def wrapped_second(self: Any, plan: Any, frame: Any) -> Any:
        event(plan.number).wait(60)
        hit()
        return write_second(self, plan, frame)

    first.write, second.write = wrapped_first, wrapped_second


def main() -> int:
    """Runs until caught up; prints the result, or the error that a user would see."""
    gc.set_threshold(50_000, 20, 20)  # as the command does, before its imports
    from headrace.jobs.run.events import Until
    from headrace.jobs.run.runner import run
    from headrace.pipeline.config.settings import load_settings
    from headrace.pipeline.errors import HeadraceError
    from headrace.pipeline.file.loader import load_pipeline

    path, point, nth, action = sys.argv[1:5]
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    install(point, int(nth), action)
    if day := os.environ.get("HEADRACE_TEST_TODAY"):
        from headrace.pipeline.protocol import partitions

        partitions.today = lambda: date.fromisoformat(day)
    if rows := os.environ.get("HEADRACE_TEST_REDIS_ROWS"):
        from headrace.connectors.redis import encoder

        encoder.CHUNK_ROWS = int(rows)
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
        print(json.dumps({"error": type(error).__name__, "message": str(error)}), flush=True)
        return 1
    answer = {"epochs": result.epochs, "last": result.last_epoch, "caught_up": result.caught_up}
    print(json.dumps(answer | {"pandas": "pandas" in sys.modules}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A session that starts on first use, with objects in place of Spark's."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from headrace.connectors.lazy_session import LazySession, create_frame, ensure_started, find_started_session

PAYLOAD = pa.schema([("id", pa.int64())])


def start(log: list[str]) -> Any:
    """Return a session that logs what it is used for."""
    log.append("start")

    def create(rows: Any, columns: Any) -> Any:
        log.append("frame")
        return SimpleNamespace(rows=rows, schema=columns, count=lambda: len(rows))

    return SimpleNamespace(createDataFrame=create, newSession=lambda: start(log), version="4")


def test_many_threads_start_one_session() -> None:
    log: list[str] = []
    lazy, barrier = LazySession(lambda: start(log)), Barrier(8)

    def use() -> Any:
        barrier.wait(30)
        return lazy.version

    with ThreadPoolExecutor(8) as pool:
        assert [used.result() for used in [pool.submit(use) for _ in range(8)]] == ["4"] * 8
    assert log == ["start"]


def test_a_new_session_and_its_frames_start_nothing_before_their_rows_are_used() -> None:
    log: list[str] = []
    lazy = LazySession(lambda: start(log))
    session = lazy.newSession()
    frame = create_frame(session, pa.table({"id": [1, 2]}), PAYLOAD)
    assert frame.columns == ["id", "_gs_op", "_gs_pos"]
    assert find_started_session(session) is None
    assert log == []
    assert frame.count() == 2
    assert ensure_started(frame) is ensure_started(frame)
    assert log == ["start", "start", "frame"], "the session, its new session, and the frame"
    assert find_started_session(session) is not None


def test_a_started_session_creates_frames_at_once() -> None:
    log: list[str] = []
    session = cast("SparkSession", start(log))
    frame = create_frame(session, [], PAYLOAD)
    assert log == ["start", "frame"]
    assert ensure_started(frame) is frame


def test_a_session_that_cannot_start_is_tried_again() -> None:
    tries: list[int] = []

    def fail_once() -> Any:
        tries.append(1)
        if len(tries) == 1:
            raise OSError("no Java")
        return start([])

    lazy = LazySession(fail_once)
    with pytest.raises(OSError, match="no Java"):
        _ = lazy.version
    assert lazy.version == "4"

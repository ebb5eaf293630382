"""A hybrid source into a service, with kill -9 and pauses around its requests.

The service remembers idempotency keys. Each time it must have every change once, those of a key in their
order, and a repeated key must have the same body.
"""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from helpers.appended_rows import expected_changes
from helpers.pipeline_world import HYBRID_SOURCE, World, until
from helpers.web_server import Service, WebRequest, served
from helpers.webhook_sink import Receiver
from pyspark.sql import SparkSession

SINK = """\
transforms:
  shaped: {{type: sql, sql: "select id, day, upper(name) as name, {doubled} as amount from src"}}
sinks:
  out: {{type: webhook, from: shaped, url: "{url}", batch_size: 100, retry: {{timeout: 30s}}}}
epoch: {{interval: 0s, stream_rows: 250, history_rows: 1000}}
"""

# Requests of a run: 30 of history, then 2 to 3 of each epoch of the stream. (point, nth, who dies)
STEPS = [
    ("request-sending", 1, "driver"),
    ("request-sending", 25, "group"),
    ("request-sent", 1, "group"),
    ("request-sent", 15, "driver"),
    ("request-sent", 30, "driver"),
    ("request-sent", 32, "group"),
    ("request-under-way", 12, "driver"),
    ("request-under-way", 33, "group"),
    ("request-under-way", 20, "jvm"),
    ("sinks-written", 2, "driver"),
    ("sinks-written", 5, "group"),
]


@contextmanager
def hooked(world: World) -> Iterator[tuple[Service, Receiver]]:
    """A service, and the world with a pipeline into it."""
    receiver = Receiver()
    with served(receiver) as service:
        world.file.write_text((HYBRID_SOURCE + SINK).format(**world.file_values, url=service.url))
        yield service, receiver


def check(world: World, receiver: Receiver) -> None:
    result: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    for row in receiver.rows():
        result[row["id"]].append((row["_gs_op"], row["day"], row["name"], row["amount"]))
    assert result == expected_changes(world)


@pytest.mark.slow  # test_a_run_that_dies_between_two_requests is the daily sample
@pytest.mark.parametrize(("point", "nth", "who"), STEPS)
def test_every_change_arrives_under_one_key(
    world: World, spark: SparkSession, point: str, nth: int, who: str
) -> None:
    with hooked(world) as (_, receiver):
        assert world.crash(point, nth, who) != 0
        assert world.run_here(spark).caught_up
        check(world, receiver)


def test_a_run_that_dies_between_two_requests(world: World, spark: SparkSession) -> None:
    with hooked(world) as (_, receiver):
        world.enlarge_epochs()
        assert world.crash("request-sent", 15, "driver") != 0
        assert world.run_here(spark).caught_up
        check(world, receiver)
        assert receiver.repeated >= 1


@pytest.mark.slow
@pytest.mark.parametrize("nth", [5, 32])
def test_a_paused_run_repeats_keys_after_a_takeover(world: World, nth: int) -> None:
    with hooked(world) as (service, receiver):
        zombie = world.start("request-sent", nth, "stop")
        world.await_stop(zombie)
        answer = until(lambda: (result := world.run())["code"] == 0 and result, "the takeover", 240)
        assert answer["caught_up"]
        check(world, receiver)
        newest = max(int(requests.headers["headrace-generation"]) for requests in service.requests)
        before = len(service.requests)
        os.kill(zombie.pid, signal.SIGCONT)
        assert world.answer(zombie)["error"] == "FencedError"
        late: list[WebRequest] = service.requests[before:]
        assert all(int(requests.headers["headrace-generation"]) < newest for requests in late)
        check(world, receiver)


@pytest.mark.slow
def test_lost_answers_repeat_keys(world: World, spark: SparkSession) -> None:
    with hooked(world) as (service, receiver):
        lost = {3, 7, 20, 33}

        def answer(request: WebRequest) -> Any:
            result = receiver(request)
            if len(service.requests) in lost:
                raise ConnectionResetError
            return result

        service.answer = answer
        service.faults = [None, "torn", None, "reset", 503]
        assert world.run_here(spark).caught_up
        check(world, receiver)
        assert receiver.repeated == len(lost)

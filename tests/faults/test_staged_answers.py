"""A service with a different response each time, and processes that die.

Every sink holds one and the same answer for a row.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from helpers.pipeline_world import World, until
from helpers.web_server import Service, WebRequest, served
from pyspark.sql import SparkSession

from headrace.jobs.run.repair import replay
from headrace.pipeline.errors import SinkStateError
from headrace.pipeline.file.loader import load_pipeline

# Epochs as in test_kills: 1 to 4 history, 5 to 8 stream. The last word: whether the epoch's stage was
# complete when it died.
STEPS = [
    ("staging", 2, "driver", False),
    ("staging", 6, "group", False),
    ("staged", 3, "driver", True),
    ("staged", 6, "group", True),
    ("postgres-only", 2, "driver", True),
    ("delta-only", 6, "group", True),
    ("sinks-written", 5, "group", True),
    ("postgres-only", 7, "jvm", True),
]


@pytest.fixture
def web() -> Iterator[Service]:
    numbers = itertools.count()

    def answer(request: WebRequest) -> Any:
        return [{**row, "answer": next(numbers)} for row in request.rows]

    with served(answer) as service:
        yield service


@pytest.fixture
def asking(world: World, web: Service) -> World:
    """The world with a service between its transform and its sinks."""
    ask = (
        f"\n  asked: {{type: handler, from: shaped, url: '{web.url}', schema_override: {{answer: int64}},"
        f" batch_size: 100}}"
    )
    text = (
        world.file.read_text()
        .replace('from src"}', f'from src"}}{ask}')
        .replace("from: shaped, table", "from: asked, table")
    )
    world.file.write_text(text.replace("from: shaped, path", "from: asked, path"))
    return world


def answers(world: World, spark: SparkSession) -> dict[int, int]:
    """What both sinks hold, which must be the same."""
    with psycopg.connect(world.conninfo) as connection:
        rows = dict(connection.execute("SELECT id, answer FROM target").fetchall())
    lake = {
        row.id: row.answer
        for row in spark.read.format("delta").load(str(world.lake)).select("id", "answer").collect()
    }
    assert rows == lake
    return rows


@pytest.mark.slow  # test_transforms is the daily sample
@pytest.mark.parametrize(("point", "nth", "who", "staged"), STEPS)
def test_both_sinks_hold_the_same_answers(
    asking: World, web: Service, spark: SparkSession, point: str, nth: int, who: str, staged: bool
) -> None:
    assert asking.crash(point, nth, who) != 0
    answer = asking.run()
    assert answer["code"] == 0, answer
    asking.check(spark)
    expected = answers(asking, spark)
    twice = [key for key, times in Counter(web.keys).items() if times > 1]
    assert not twice if staged else {key.split("/")[2] for key in twice} <= {str(nth)}

    before, last = len(web.requests), answer["last"]
    file, settings = load_pipeline(asking.file), asking.settings()
    assert replay(file, settings, sink="pg", from_epoch=last - 1, spark=spark).epochs == 2
    assert answers(asking, spark) == expected
    assert len(web.requests) == before, "a replay sends no request"

    requests = {key for key in web.keys if int(key.split("/")[2]) >= last - 1}
    shutil.rmtree(asking.folder / "home" / "staging")
    with pytest.raises(SinkStateError, match="--recompute"):
        replay(file, settings, sink="pg", from_epoch=last - 1, spark=spark)
    assert answers(asking, spark) == expected, "a refused replay changes nothing"
    replay(file, settings, sink="pg", from_epoch=last - 1, recompute=True, spark=spark)
    assert {*web.keys[before:]} == requests, "requests that are computed again have the same keys"


@pytest.mark.slow
def test_a_process_that_slept_while_it_staged_is_fenced(
    asking: World, web: Service, spark: SparkSession
) -> None:
    zombie = asking.start("staging", 6, "stop")
    asking.await_stop(zombie)
    until(
        lambda: (result := asking.run())["code"] == 0 and result,
        "the takeover, once the lease has expired",
        240,
    )
    requests = len(web.requests)
    os.kill(zombie.pid, signal.SIGCONT)
    assert asking.answer(zombie)["error"] == "FencedError"
    assert len(web.requests) == requests
    asking.check(spark)
    answers(asking, spark)

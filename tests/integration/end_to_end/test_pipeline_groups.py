"""Several pipelines in one process and one Spark session: each has its own lease, failures and stop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Producer
from helpers.pipeline_world import World, until
from pyspark.sql import SparkSession

from headrace.jobs.run.events import RunResult, Until
from headrace.jobs.run.group import GroupMember, run_group
from headrace.pipeline.errors import UserError
from headrace.pipeline.file.loader import load_pipeline
from headrace.pipeline.protocol.ledger import StopAction
from headrace.pipeline.protocol.ledger.sqlite import open_sqlite
from headrace.services import Services

PIPELINE = """
name: {name}
sources: {{src: {{type: kafka, topic: {topic}, primary_key: id, schema: {{id: int64, v: int64}}}}}}
transforms: {{shaped: {{type: sql, primary_key: id, sql: "select id, v * {factor} as v from src"}}}}
sinks: {{pg: {{type: postgres, from: shaped, table: {name}}}}}
epoch: {{interval: 0s, stream_rows: 100}}
"""
FACTORS = {"one": 1, "two": 2, "three": 3}


class Group(World):
    """Pipelines with the same node names, each with a table of its own."""

    def create(self, topic: str) -> None:
        self.topic = topic
        (self.folder / "pipelines").mkdir()
        for name, factor in FACTORS.items():
            text = PIPELINE.format(name=name, topic=topic, factor=factor)
            (self.folder / "pipelines" / f"{name}.yaml").write_text(text)
        self.sent: dict[int, int] = {}
        self.send(range(500))

    def send(self, keys: range) -> None:
        producer = Producer({"bootstrap.servers": self.services.kafka.brokers})
        for key in keys:
            self.sent[key] = key * 7
            producer.produce(self.topic, json.dumps({"id": key, "v": key * 7}))
        assert producer.flush(30) == 0

    def members(self) -> list[GroupMember]:
        files = [load_pipeline(self.folder / "pipelines" / f"{name}.yaml") for name in FACTORS]
        return [GroupMember(file, lambda _: None) for file in files]

    def rows(self, name: str) -> dict[int, int]:
        with psycopg.connect(self.conninfo) as connection:
            if connection.execute("SELECT to_regclass(%s)", [name]).fetchone() == (None,):
                return {}
            return dict(connection.execute(f"SELECT id, v FROM {name}".encode()).fetchall())

    def expected_rows(self, name: str) -> dict[int, int]:
        return {key: value * FACTORS[name] for key, value in self.sent.items()}


@pytest.fixture
def group(
    services: Services, pg: str, ch_db: str, topic: Callable[..., str], tmp_path: Path
) -> Iterator[Group]:
    result = Group(services, tmp_path, ch_db, pg)
    result.create(topic())
    yield result
    result.close()


@pytest.fixture
def go(
    group: Group, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., dict[str, RunResult | Exception]]:
    """Return a function that runs the group in the session of the tests, and returns how each run ended."""
    monkeypatch.setattr("headrace.jobs.run.group.start_session", lambda *_: spark)
    monkeypatch.setattr("headrace.jobs.run.group.stop_session", lambda _: None)

    def call(until: Until, stop: threading.Event | None = None) -> dict[str, RunResult | Exception]:
        ends: dict[str, RunResult | Exception] = {}
        failed = run_group(
            group.members(),
            group.settings(),
            until=until,
            stop=stop or threading.Event(),
            on_end=lambda member, outcome: ends.update({member.file.name: outcome}),
        )
        assert failed == sum(isinstance(end, Exception) for end in ends.values())
        return ends

    return call


def test_each_pipeline_has_its_own_rows_and_failures(
    group: Group, go: Callable[..., dict[str, RunResult | Exception]]
) -> None:
    with psycopg.connect(group.conninfo) as connection:
        connection.execute("CREATE TABLE two (id BIGINT PRIMARY KEY, v BIGINT CHECK (v < 5000))")
    ends = go(Until.CAUGHT_UP)
    assert {name: type(end).__name__ for name, end in ends.items()} == {
        "one": "RunResult", "two": "DataError", "three": "RunResult"
    }  # fmt: skip
    assert group.rows("one") == group.expected_rows("one")
    assert group.rows("three") == group.expected_rows("three")
    assert max(group.rows("two").values()) < 5000

    with psycopg.connect(group.conninfo) as connection:
        connection.execute("ALTER TABLE two DROP CONSTRAINT two_v_check")
    group.send(range(400, 600))
    assert all(isinstance(end, RunResult) for end in go(Until.CAUGHT_UP).values())
    for name in FACTORS:
        assert group.rows(name) == group.expected_rows(name)


def test_a_request_stops_one_pipeline_and_the_stop_all(
    group: Group, go: Callable[..., dict[str, RunResult | Exception]]
) -> None:
    stop, ends = threading.Event(), {}
    thread = threading.Thread(target=lambda: ends.update(go(Until.FOREVER, stop)))
    thread.start()
    try:
        until(lambda: all(group.rows(name) == group.expected_rows(name) for name in FACTORS), "rows", 120)
        ledger = open_sqlite(group.ledger)
        request = ledger.request_stop("two", StopAction.STOP, by="a test", reason="")
        assert request
        until(lambda: (state := ledger.state("two")) and state.holder is None, "the end of `two`", 60)
        ledger.close()
        former = group.expected_rows("two")
        group.send(range(500, 700))
        until(lambda: group.rows("one") == group.expected_rows("one"), "rows after the request", 60)
        until(lambda: group.rows("three") == group.expected_rows("three"), "rows after the request", 60)
        assert group.rows("two") == former
    finally:
        stop.set()
        thread.join()
    assert {name: end.stop_reason for name, end in ends.items()} == {
        "one": "signal", "two": "stop", "three": "signal"
    }  # fmt: skip


def test_two_files_of_one_name_are_refused(
    group: Group, go: Callable[..., dict[str, RunResult | Exception]]
) -> None:
    other = group.folder / "pipelines" / "three.yaml"
    other.write_text(other.read_text().replace("name: three", "name: one", 1))
    with pytest.raises(UserError, match="two files have the pipeline `one`") as caught:
        go(Until.CAUGHT_UP)
    assert str(caught.value.place).endswith("three.yaml:2:1")


@pytest.mark.slow  # two cold starts; test_each_pipeline_has_its_own_rows_and_failures is the daily one
def test_a_killed_process_is_resumed_by_the_command(group: Group) -> None:
    """The command runs all pipelines of a folder. Kill its process while they write."""
    command = [sys.executable, "-m", "headrace", "run", "pipelines", "--until", "caught-up"]
    process = subprocess.Popen(command, cwd=group.folder, env=group.env(), start_new_session=True)
    until(lambda: any(group.rows(name) for name in FACTORS), "the first rows", 240)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    group.send(range(450, 900))

    def is_complete() -> bool:
        # A lease of the killed process expires after four seconds.
        done = subprocess.run(
            command, cwd=group.folder, env=group.env(), capture_output=True, text=True, check=False
        )
        return done.returncode == 0

    until(is_complete, "a run of the group", 240)
    for name in FACTORS:
        assert group.rows(name) == group.expected_rows(name)

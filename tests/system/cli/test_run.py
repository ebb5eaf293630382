"""`headrace run` on real servers: its output, and signals in each phase."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import clickhouse_connect
import psutil
import psycopg
import pytest
from confluent_kafka import Producer
from helpers.depth import FULL
from helpers.spark_settings import PRODUCT_SPARK_ENVIRONMENT

from headrace.pipeline.protocol.ledger import PipelineState
from headrace.pipeline.protocol.ledger.sqlite import open_sqlite
from headrace.services import Services

ROWS, MESSAGES = 40_000, 500
FILE = """
version: 1
name: stopped
sources:
  src:
    type: hybrid
    primary_key: id
    bounded_sources: [{{source_type: clickhouse, table_name: {db}.src, split_rows: 2000}}]
    unbounded_source: {{source_type: kafka, topic: {topic}, schema: {{id: int64, name: string}}}}
    offset_table: {{}}
sinks:
  pg: {{type: postgres, from: src, table: stopped}}
epoch: {{history_rows: 2000, stream_rows: 100, interval: 0s}}
"""


class Runs:
    """Runs of one pipeline, each in a session of its own."""

    def __init__(self, folder: Path, services: Services) -> None:
        self.folder, self.home = folder, folder / "home"
        self.env = os.environ | {
            "HEADRACE_HOME": str(self.home),
            "HEADRACE__POSTGRES_SINK": json.dumps(self._postgres(services)),
            "HEADRACE__CLICKHOUSE_SOURCE__URL": services.clickhouse.url,
            "HEADRACE__CLICKHOUSE_SOURCE__USER": services.clickhouse.user,
            "HEADRACE__CLICKHOUSE_SOURCE__PASSWORD": services.clickhouse.password,
            "HEADRACE__KAFKA_SOURCE__BROKERS": services.kafka.brokers,
            **PRODUCT_SPARK_ENVIRONMENT,
        }
        self.sessions: list[int] = []

    @staticmethod
    def _postgres(services: Services) -> dict[str, Any]:
        server = services.postgres
        return {
            "host": server.host,
            "port": server.port,
            "user": server.user,
            "password": server.password,
            "db": server.dbname,
        }

    def start(self, *args: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "headrace", "run", "stopped.yaml", *args]
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.sessions.append(process.pid)
        return process

    def wait_for(self, process: subprocess.Popen[str], wanted: Callable[[PipelineState], bool]) -> None:
        """Until the ledger says so."""
        deadline = time.monotonic() + 300
        while True:
            if process.poll() is not None:
                pytest.fail(f"the run ended by itself: {process.communicate()}")
            state = self.state()
            if state and wanted(state):
                return
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def state(self) -> PipelineState | None:
        if not (self.home / "ledger.db").exists():
            return None
        ledger = open_sqlite(self.home / "ledger.db")
        try:
            return ledger.state("stopped")
        finally:
            ledger.close()

    def find_remaining(self) -> list[str]:
        """Processes of all sessions that were started."""
        result = []
        for process in psutil.process_iter(["cmdline", "status"]):
            try:
                if os.getsid(process.pid) in self.sessions and process.info["status"] != psutil.STATUS_ZOMBIE:
                    result.append(" ".join(process.info["cmdline"])[:200])
            except ProcessLookupError:
                continue
        return result


@pytest.fixture
def runs(services: Services, ch_db: str, topic: Callable[..., str], tmp_path: Path) -> Iterator[Runs]:
    name = topic(2)
    (tmp_path / "stopped.yaml").write_text(FILE.format(db=ch_db, topic=name))
    with clickhouse_connect.get_client(**services.clickhouse.client_arguments(database=ch_db)) as client:
        columns = "id Int64, name String, _kafka_partition Nullable(Int32), _kafka_offset Nullable(Int64)"
        client.command(f"CREATE TABLE src ({columns}) ENGINE = MergeTree ORDER BY id")
        client.command(f"INSERT INTO src SELECT number, 'old', NULL, NULL FROM numbers({ROWS})")
    producer = Producer({"bootstrap.servers": services.kafka.brokers})
    for number in range(MESSAGES):
        row = (
            {"id": number * 100, "name": "new"}
            if number < ROWS // 100
            else {"id": ROWS + number, "name": "new"}
        )
        producer.produce(name, json.dumps(row), key=str(row["id"]))
    assert producer.flush(30) == 0
    result = Runs(tmp_path, services)
    yield result
    for session in result.sessions:
        for process in psutil.process_iter():
            try:
                if os.getsid(process.pid) == session:
                    process.kill()
            except (ProcessLookupError, psutil.NoSuchProcess):
                continue
    with psycopg.connect(services.postgres.conninfo()) as connection:
        connection.execute("DROP TABLE IF EXISTS stopped")


def has_begun(state: PipelineState) -> bool:
    return state.holder is not None


def in_history(state: PipelineState) -> bool:
    return state.open_plan is not None and state.open_plan.phase == "history" and state.committed >= 2


def in_the_stream(state: PipelineState) -> bool:
    return state.open_plan is not None and state.open_plan.phase != "history"


def idle(state: PipelineState) -> bool:
    offsets = state.position.get("src", {}).get("stream", {}).get("offsets", {})
    return sum(offsets.values()) == MESSAGES and state.open_plan is None


@pytest.mark.sampled
def test_signals_end_a_run_in_every_phase_and_the_next_goes_on(runs: Runs, services: Services) -> None:
    ways = [
        (in_history, signal.SIGINT, os.killpg),  # as a terminal does it
        (in_the_stream, signal.SIGTERM, os.killpg),  # as a service manager does it: the JVM gets it as well
        (idle, signal.SIGINT, os.kill),
    ]
    if FULL:
        ways = [(has_begun, signal.SIGTERM, os.kill), (in_history, signal.SIGTERM, os.killpg), *ways]
    for wanted, number, send in ways:
        process = runs.start()
        runs.wait_for(process, wanted)
        send(process.pid, number)
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        assert f"stopped: {signal.Signals(number).name}, ending" in err
        assert "Traceback" not in out + err
        assert runs.find_remaining() == []

    process = runs.start("--until", "caught-up")
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    assert "stopped: nothing to do. History complete, stream caught up." in out
    with psycopg.connect(services.postgres.conninfo()) as connection:
        result = connection.execute(
            "SELECT count(*), count(DISTINCT id), count(*) FILTER (WHERE name = 'new') FROM stopped"
        ).fetchone()
    assert result == (ROWS + MESSAGES - ROWS // 100, ROWS + MESSAGES - ROWS // 100, MESSAGES)
    assert runs.find_remaining() == []


def test_a_second_run_is_refused_while_the_first_works(runs: Runs) -> None:
    first = runs.start()
    runs.wait_for(first, in_history)
    second = runs.start()
    _, err = second.communicate(timeout=120)
    assert second.returncode == 1
    assert "error[HR201]: " in err
    assert str(first.pid) in err
    first.send_signal(signal.SIGTERM)
    assert first.wait(timeout=300) == 0
    assert runs.find_remaining() == []

"""A process with Spark started waits for the next `headrace run`, and becomes it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from helpers.dagster_ui import is_alive
from helpers.pipeline_world import World, until
from pyspark.sql import SparkSession

from headrace.pipeline.protocol.ledger import open_sqlite

ENVIRONMENT = {"HEADRACE__SPARK__WARM_ENGINE_SECS": "600"}


class WarmWorld:
    """Commands of one pipeline in its folder, and the engine that waits for the next."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.clients: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        """Start `headrace run`."""
        client = subprocess.Popen(
            [sys.executable, "-m", "headrace", "run", *arguments],
            cwd=self.world.folder,
            env=self.world.env() | ENVIRONMENT | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.clients.append(client)
        return client

    def engines(self) -> list[psutil.Process]:
        """The processes that wait, or that became a command."""
        result = []
        for process in psutil.process_iter():
            try:
                mine = process.environ().get("HEADRACE_HOME") == self.world.env()["HEADRACE_HOME"]
                if mine and "headrace.warm_engine" in process.cmdline():
                    result.append(process)
            except psutil.Error:
                continue
        return result

    def wait_for_engine(self) -> psutil.Process:
        """Return the engine once it listens, besides those that became commands."""
        before = {process.pid for process in self.engines() if self.holder().get("pid") == process.pid}

        def listening() -> psutil.Process | None:
            for process in self.engines():
                listens = [
                    one.laddr for one in process.net_connections("unix") if "headrace-" in str(one.laddr)
                ]
                if process.pid not in before and listens:
                    return process
            return None

        return until(listening, "an engine that waits", 120)

    def holder(self) -> dict[str, Any]:
        """The owner of the lease."""
        if not self.world.ledger.exists():
            return {}
        ledger = open_sqlite(self.world.ledger)
        try:
            state = ledger.state(self.world.name)
        finally:
            ledger.close()
        return (state.holder or {}) if state else {}


@pytest.fixture
def warm(world: World) -> Iterator[WarmWorld]:
    """A pipeline whose first command ran cold, and left an engine."""
    world.use_spark()
    result = WarmWorld(world)
    yield result
    for process in [*result.clients, *result.engines()]:
        process.kill()
        process.wait()


def test_an_engine_becomes_the_next_run(warm: WarmWorld, spark: SparkSession) -> None:
    """The run has the streams, signals and end of its client. Killed with it, it leaves what a kill leaves."""
    world, file = warm.world, str(warm.world.file)
    first = warm.start(file, "--until", "caught-up")
    out, errors = first.communicate(timeout=300)
    assert first.returncode == 0, errors
    assert "stream caught up" in out
    engine = warm.wait_for_engine()

    client = warm.start(file)
    until(lambda: warm.holder().get("pid") == engine.pid, "a run of the engine", 60)
    jvm = psutil.Process(until(lambda: warm.holder().get("jvm"), "its JVM", 60)["pid"])
    assert is_alive(jvm)
    client.kill()
    until(lambda: not is_alive(engine) and not is_alive(jvm), "the end of the engine and of its JVM", 30)

    client = warm.start(file)
    until(lambda: warm.holder().get("pid") not in (None, engine.pid), "the run after the kill", 120)
    client.send_signal(signal.SIGINT)
    out, errors = client.communicate(timeout=300)
    assert client.returncode == 0
    assert "SIGINT, ending after the epoch in flight" in errors
    assert not warm.holder(), "the lease was released"
    world.check(spark)


@pytest.mark.slow
def test_an_engine_reports_failures_and_takes_only_its_own_commands(warm: WarmWorld) -> None:
    file = str(warm.world.file)
    assert warm.start(file, "--until", "caught-up").wait(300) == 0
    engine = warm.wait_for_engine()

    other = warm.start(file, "--until", "caught-up", HEADRACE__LOG_LEVEL_OF_ANOTHER_COMMAND="1")
    other.communicate(timeout=300)
    assert is_alive(engine), "a command with another environment"

    broken = warm.world.folder / "broken.yaml"
    broken.write_text("name: broken\nsources: {}\n")
    client = warm.start("broken.yaml")
    _, errors = client.communicate(timeout=300)
    assert client.returncode == 1
    assert "broken.yaml:2" in errors
    until(lambda: not is_alive(engine), "the end of the engine, which ran the command", 30)


@pytest.mark.slow
def test_an_idle_engine_ends(warm: WarmWorld) -> None:
    file = str(warm.world.file)
    limit = {"HEADRACE__SPARK__WARM_ENGINE_SECS": "1"}
    assert warm.start(file, "--until", "caught-up", **limit).wait(300) == 0
    until(lambda: not warm.engines(), "the end of the engine", 120)

"""Fixtures that every folder of tests shares.

Real servers, started once per session by the code that users run.
"""

from __future__ import annotations

import gc
import os
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import psutil
import pytest
from helpers.depth import choose_sql_engine
from helpers.pipeline_world import World, clickhouse_database, filled_world, postgres_database
from helpers.schema_registry import SchemaRegistry
from helpers.spark_settings import SESSION_SPARK

from headrace import services as local
from headrace.services import Services

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient
    from pyspark.sql import SparkSession


TESTS = Path(__file__).parent
hypothesis.settings.register_profile("headrace", deadline=None)
hypothesis.settings.load_profile("headrace")
"""A deadline per example is an absolute time, which a loaded machine misses."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what a test needs by its fixtures, and the tests of faults/ as samples of a longer suite."""
    for item in items:
        for need in ("spark", "services"):
            if need in getattr(item, "fixturenames", ()):
                item.add_marker(need)
        if item.path.is_relative_to(TESTS / "faults") and item.get_closest_marker("slow") is None:
            item.add_marker("sampled")


def pytest_collection_finish() -> None:
    """Keep the garbage collector away from the collected tests: a twentieth of the time of the unit tests."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session as a run starts it, with everything a connector of the spine needs."""
    from headrace.jobs.spark.session import start_session, stop_session
    from headrace.pipeline.config.settings import Settings

    home = tmp_path_factory.mktemp("spark-home")
    settings = Settings(home=home, spark=SESSION_SPARK)
    session = start_session(settings, ("delta", "kafka", "iceberg"))
    yield session
    stop_session(session)


@pytest.fixture(scope="session")
def services() -> Iterator[Services]:
    """Yield Postgres, Kafka and ClickHouse in a home of this session, and remove them at its end.

    HEADRACE_TEST_SERVICES names a home whose servers are used instead and left running, so that short test
    runs start faster. The home is not in pytest's own folder: as root, Postgres runs as another user, and
    pytest closes its folders to others.
    """
    if shared := os.environ.get("HEADRACE_TEST_SERVICES"):
        yield local.up(home=Path(shared))
        return
    home = Path(tempfile.mkdtemp(prefix="headrace-test-"))
    try:
        yield local.up(home=home)
    finally:
        end(home)


@pytest.fixture(scope="session")
def registry(services: Services) -> Iterator[SchemaRegistry]:
    """Yield a schema registry in the home of the other servers."""
    result = SchemaRegistry(services.home)
    result.start()
    yield result
    if not os.environ.get("HEADRACE_TEST_SERVICES"):
        result.stop()


def end(home: Path) -> None:
    """Stop the servers of a home, prove that no process of it is left, and remove it."""
    local.down(home)
    left = [
        process
        for process in psutil.process_iter(["cmdline"])
        if any(str(home) in part for part in process.info["cmdline"] or [])
    ]
    left = [process for process in left if process.pid != os.getpid()]
    for process in left:
        process.send_signal(signal.SIGKILL)
    shutil.rmtree(home)
    assert not left, f"still there after down: {left}"


@pytest.fixture
def fresh_home() -> Iterator[Path]:
    """A home of one test, for tests that stop or break servers. Whatever runs in it is ended."""
    home = Path(tempfile.mkdtemp(prefix="headrace-test-"))
    try:
        yield home
    finally:
        end(home)


@pytest.fixture
def pg(services: Services) -> Iterator[str]:
    """The conninfo of a Postgres database that only this test has."""
    with postgres_database(services) as conninfo:
        yield conninfo


@pytest.fixture
def ch_db(services: Services) -> Iterator[str]:
    """The name of a ClickHouse database that only this test has.

    `services.clickhouse.client_arguments(database=…)` leads to it.
    """
    with clickhouse_database(services) as name:
        yield name


@pytest.fixture
def sql_engine(request: pytest.FixtureRequest) -> str:
    """What computes the SQL of a world's pipeline."""
    call = getattr(request.node, "callspec", None)
    return choose_sql_engine(request.node.nodeid, call.params.values() if call else ())


@pytest.fixture
def world(services: Services, pg: str, ch_db: str, tmp_path: Path, sql_engine: str) -> Iterator[World]:
    """A pipeline with history, a topic and two sinks, all of this test alone; its file is written."""
    with filled_world(services, tmp_path, ch_db, pg, sql_engine) as made:
        yield made


@pytest.fixture
def empty_world(services: Services, pg: str, ch_db: str, tmp_path: Path, sql_engine: str) -> Iterator[World]:
    """A world without history, topic and pipeline file, for tests that have their own."""
    made = World(services, tmp_path, ch_db, pg, sql_engine=sql_engine)
    yield made
    made.close()


def _wait_for_topic(admin: AdminClient, name: str) -> None:
    """The controller has made it; other brokers learn of it a moment later."""
    from confluent_kafka import KafkaException, TopicCollection

    deadline = time.monotonic() + 30
    while True:
        try:
            admin.describe_topics(TopicCollection([name]), request_timeout=300)[name].result()
        except KafkaException:
            assert time.monotonic() < deadline, f"topic {name} was made and cannot be seen"
            time.sleep(0.02)
        else:
            return


@pytest.fixture
def topic(services: Services) -> Iterator[Callable[..., str]]:
    """`topic(partitions=1, **config)` makes a Kafka topic of this test and returns its name."""
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic
    from helpers.kafka_topics import create_topic

    admin = AdminClient({"bootstrap.servers": services.kafka.brokers})
    made: list[str] = []

    def make(partitions: int = 1, **config: str) -> str:
        name = f"test-{secrets.token_hex(4)}"
        request = NewTopic(
            name,
            num_partitions=partitions,
            replication_factor=1,
            config={k.replace("_", "."): v for k, v in config.items()},
        )
        create_topic(admin, request)
        made.append(name)
        _wait_for_topic(admin, name)
        return name

    yield make
    if made:
        for future in admin.delete_topics(made).values():
            future.result(timeout=300)

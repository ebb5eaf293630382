"""Fixtures that all tests share: one Spark session, and real servers, each for the whole run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session as a run starts it, with everything a connector of the spine needs."""
    from headrace.jobs.session import start_session, stop_session
    from headrace.pipeline.settings import Settings, SparkSettings

    home: Path = tmp_path_factory.mktemp("spark-home")
    settings = Settings(home=home, spark=SparkSettings(master="local[2]", driver_memory="1g"))
    session = start_session(settings, ("delta", "kafka", "iceberg"))
    yield session
    stop_session(session)

"""A Postgres server for the module's tests, and a bench on it for each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from pgkit import Bench, Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def pg_server() -> Iterator[Server]:
    server = Server()
    yield server
    server.remove()


@pytest.fixture
def bench(pg_server: Server, spark: SparkSession) -> Iterator[Bench]:
    with Bench(pg_server.parameters, spark).cleaned() as bench:
        yield bench

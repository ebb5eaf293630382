"""A database with a sink for each test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from helpers.postgres_epochs import Bench
from psycopg.conninfo import conninfo_to_dict

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def bench(pg: str, spark: SparkSession) -> Iterator[Bench]:
    parameters = {name: str(value) for name, value in conninfo_to_dict(pg).items()}
    with Bench(parameters, spark).cleaned() as bench:
        yield bench

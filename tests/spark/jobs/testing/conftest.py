"""A small session for the tests of `headrace test`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from helpers.pipeline_cases import ORDERS, Run, case

from headrace.jobs.testing.runner import CaseOutcome, PipelineTestRunner
from headrace.pipeline.config.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> Iterator[Run]:
    """`run(tests, pipeline=…)`: writes both files and runs the only test."""
    bench = PipelineTestRunner(Settings(home=tmp_path))

    def one(tests: str, pipeline: str = ORDERS) -> CaseOutcome:
        return bench.run(case(tmp_path, tests, pipeline))

    yield one
    bench.close()
    assert spark.range(1).count() == 1, "the bench stopped a session that it did not start"

"""The ledger comes back from a backup, by the commands of docs/guides/production.md.

A backup with all epochs of the targets continues. An older one is refused, and `headrace recover` replaces it.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from helpers.checkout import ROOT
from helpers.pipeline_world import World
from pyspark.sql import SparkSession

from headrace.jobs.checks.audit import audit
from headrace.jobs.run.events import Until
from headrace.jobs.run.repair import rebuild
from headrace.jobs.run.runner import run
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import SinkStateError
from headrace.pipeline.file.loader import PipelineFile, load_pipeline

PAGE = (ROOT / "docs" / "guides" / "production.md").read_text()


@dataclass
class LedgerCase:
    """A world with its ledger in SQLite or in a Postgres database of the name in the docs."""

    world: World
    backend: str
    settings: Settings

    @property
    def file(self) -> PipelineFile:
        return load_pipeline(self.world.file)

    def run(self, spark: SparkSession) -> None:
        assert run(self.file, self.settings, until=Until.CAUGHT_UP, spark=spark).caught_up

    def add_messages(self, seed: int) -> None:
        self.world.produce(list(self.world.changes(random.Random(seed), 50)))

    def execute(self, heading: str) -> None:
        """Run the commands of the docs below a heading, in the folder of the pipeline."""
        section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
        name = {"sqlite": "SQLite:", "postgres": "Postgres:"}[self.backend]
        result = re.search(rf"{name}\n\n```bash[^\n]*\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
        assert result, f"{heading}: no commands after {name}"
        (psql, *_), variables = self.world.services.postgres.psql([])
        path = f"{Path(psql).parent}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-euxc", result[1]],
            cwd=self.world.folder,
            env=os.environ | variables | {"PATH": path},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr


@pytest.fixture(params=["sqlite", "postgres"])
def case(world: World, request: pytest.FixtureRequest) -> Iterator[LedgerCase]:
    world.write_file_without_spark()
    world.enlarge_epochs()
    settings = world.settings()
    if request.param == "sqlite":
        (world.folder / ".headrace").symlink_to("home")
        yield LedgerCase(world, "sqlite", settings)
        return
    state = {
        "backend_type": "postgres",
        "postgres": settings.postgres_sink.model_copy(update={"db": "ledger"}),
    }
    with psycopg.connect(world.conninfo, autocommit=True) as connection:
        connection.execute("CREATE DATABASE ledger")
        yield LedgerCase(
            world,
            "postgres",
            settings.model_copy(update={"state_backend": settings.state_backend.model_copy(update=state)}),
        )
        connection.execute("DROP DATABASE ledger WITH (FORCE)")


def test_a_restored_ledger_continues_or_is_rebuilt(case: LedgerCase, spark: SparkSession) -> None:
    world = case.world
    case.run(spark)
    case.execute("Back up the ledger")
    if case.backend == "sqlite":
        shutil.rmtree(world.ledger.parent)
        world.ledger.parent.mkdir()
    case.execute("Restore the ledger")
    case.add_messages(1)
    case.run(spark)
    world.check_without_spark()

    case.execute("Restore the ledger")  # now it lacks the epochs of these messages
    before = world.in_postgres()
    case.add_messages(2)
    with pytest.raises(SinkStateError, match="headrace recover"):
        case.run(spark)
    assert world.in_postgres() == before
    rebuild(case.file, case.settings, spark=spark)
    case.run(spark)
    world.check_without_spark()
    assert not [check for check in audit(case.file, case.settings, spark=spark) if check.passed is False]
    with pytest.raises(SinkStateError, match="no target is ahead of it"):
        rebuild(case.file, case.settings, spark=spark)

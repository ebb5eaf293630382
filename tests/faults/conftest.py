"""A world per test."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_world import World

from headrace.services import Services


@pytest.fixture
def world(services: Services, pg: str, ch_db: str, tmp_path: Path) -> Iterator[World]:
    """A filled world with its pipeline file written."""
    made = World(services, tmp_path, ch_db, pg)
    made.fill()
    made.write_file()
    yield made
    made.close()
    shutil.rmtree(tmp_path)

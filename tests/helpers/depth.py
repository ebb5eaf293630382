"""How much of a long suite runs: a sample, or all of it in `make test-faults`."""

import os
import zlib
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pytest

FULL = bool(os.environ.get("HEADRACE_TEST_FULL"))


def with_slow(slow: Collection[Any], cells: Iterable[Any]) -> list[Any]:
    """Return parameters, of which `make test-faults` runs the `slow` ones."""
    return [pytest.param(cell, marks=pytest.mark.slow) if cell in slow else cell for cell in cells]


def diagonal(rows: Collection[str], columns: Mapping[str, tuple[Any, ...]]) -> list[Any]:
    """Return each row with the values of each column as parameters: the full matrix.

    `make test` runs a diagonal, in which every row and every column is at least once; `make test-faults` runs all.
    """
    width = min(len(rows), len(columns))
    return [
        pytest.param(
            row,
            *values,
            id=f"{row}-{name}",
            marks=() if at % width == place % width else pytest.mark.slow,
        )
        for at, row in enumerate(rows)
        for place, (name, values) in enumerate(columns.items())
    ]


def choose_sql_engine(node_id: str, parameters: Iterable[Any]) -> str:
    """Return what computes the SQL of a test's pipeline, `arrow` or `spark`.

    By day it is Arrow, as in most pipelines: runs start no JVM. `make test-faults` takes Spark for every second
    test, the same ones each time. A test that kills the JVM needs one.
    """
    if "jvm" in parameters:
        return "spark"
    return "spark" if FULL and zlib.crc32(node_id.encode()) % 2 else "arrow"

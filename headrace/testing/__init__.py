"""Contract checks for a plugin's own tests, on a real Spark session: `from headrace import testing`.

Each takes the headrace.Plugin, which need not be installed, and raises AssertionError with the broken rule.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from headrace.pipeline.plugins.api import Plugin
from headrace.testing.harness import session
from headrace.testing.rows import check_function, check_preprocessor, check_side_output, check_transform
from headrace.testing.sinks import SinkTarget, check_sink
from headrace.testing.sources import check_source

__all__ = [
    "SinkTarget",
    "check_function",
    "check_package",
    "check_preprocessor",
    "check_side_output",
    "check_sink",
    "check_source",
    "check_transform",
    "session",
]


def check_package(plugin: Plugin, test_file: str) -> None:
    """Check that the pyproject.toml above a test has the plugin's entry point, which discovery needs."""
    path = next(
        folder / "pyproject.toml"
        for folder in Path(test_file).resolve().parents
        if (folder / "pyproject.toml").exists()
    )
    points = tomllib.loads(path.read_text(encoding="utf-8"))["project"]["entry-points"]["headrace.plugins"]
    assert plugin.id in points, f"{path} has no entry point `{plugin.id}`, which is the plugin's id"

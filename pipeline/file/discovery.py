"""Pipeline files of folders."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from headrace.pipeline.config.settings import CONFIG_NAMES
from headrace.pipeline.errors import UserError

NOT_PIPELINES = ("defs.yaml", "component.yaml", "dagster.yaml", "workspace.yaml", *CONFIG_NAMES)
TEST_SUFFIXES = (".test.yaml", ".test.yml")
"""The suffix of files that contain only tests."""


def find_pipeline_files(paths: Iterable[Path]) -> list[Path]:
    """Return the pipeline files at `paths`.

    A folder contributes its YAML files, without tests and subfolders.

    Raise UserError for a path that does not exist.
    """
    files: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            files |= dict.fromkeys(sorted(child for child in path.iterdir() if _may_be_pipeline(child)))
        elif path.is_file():
            files[path] = None
        else:
            msg = f"`{path}` is neither a pipeline file nor a folder of them"
            raise UserError(msg)
    return list(files)


def _may_be_pipeline(path: Path) -> bool:
    return path.suffix in (".yaml", ".yml") and not is_test_file(path) and path.name not in NOT_PIPELINES


def is_test_file(path: Path) -> bool:
    """Return whether a file contains only tests, by its name."""
    return path.name.endswith(TEST_SUFFIXES)

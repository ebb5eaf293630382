"""`headrace test`: find the tests of pipelines, and run them with the plugin `headrace.pytest_plugin`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import typer

from headrace.console import stdout_console
from headrace.pipeline.testcases.loader import case_files

NO_TESTS = int(pytest.ExitCode.NO_TESTS_COLLECTED)

_OPTIONS = (
    # Tests of pipelines do not depend on the pytest configuration of their folder, nor on other plugins.
    *("--disable-plugin-autoload", "-p", "headrace.pytest_plugin"),
    *("-c", os.devnull, "--noconftest", "-p", "no:cacheprovider", "-p", "no:warnings"),
    *("--continue-on-collection-errors", "--no-header", "--show-capture=no", "-o", "verbosity_test_cases=1"),
)


def run_tests(
    paths: Sequence[Path],
    expression: str | None,
    *,
    update: bool,
    report: Path | None,
    verbose: bool,
    fail_fast: bool,
) -> None:
    """Run the tests at `paths` that `expression` selects.

    Exit with pytest's code: 1 if a test failed or a file is wrong, 4 for a wrong expression, 5 if there are
    no tests. Raise typer.BadParameter for a path that does not exist.
    """
    files: dict[Path, None] = {}
    for path in paths:
        if not path.exists():
            msg = f"`{path}` is neither a file nor a folder"
            raise typer.BadParameter(msg)
        files |= dict.fromkeys(case_files(path))
    if not files:
        stdout_console().print("no tests found", markup=False)
        raise typer.Exit(NO_TESTS)
    arguments = [*map(str, files), f"--rootdir={Path.cwd()}", *_OPTIONS]
    for option, value in (("-k", expression), ("--junitxml", report)):
        arguments += [option, str(value)] if value is not None else []
    for option, is_set in (("--update-expected", update), ("-v", verbose), ("-x", fail_fast)):
        arguments += [option] if is_set else []
    if code := int(pytest.main(arguments)):
        raise typer.Exit(code)

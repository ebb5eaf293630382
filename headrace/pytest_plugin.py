"""A pytest plugin that collects tests of pipelines: every `*.test.yaml`, named pipeline files with `tests:`.

Imports are deferred until such a file is collected, because every pytest run of the environment loads the
plugin.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from headrace.jobs.testing.runner import CaseOutcome, PipelineTestRunner
    from headrace.pipeline.testcases.loader import Case

_RUNNER = pytest.StashKey["PipelineTestRunner"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that `headrace test --update` sets."""
    group = parser.getgroup("headrace", "tests of pipelines")
    group.addoption(
        "--update-expected",
        action="store_true",
        help="replace the expected rows of failed tests by the actual rows",
    )


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Return a collector for a file with tests of pipelines."""
    if file_path.name.endswith((".test.yaml", ".test.yml")) or _is_named(file_path, parent.config):
        return CaseModule.from_parent(parent, path=file_path)
    return None


def _is_named(path: Path, config: pytest.Config) -> bool:
    """Return whether the command line names this pipeline file, and it has tests."""
    if path.suffix not in (".yaml", ".yml"):
        return False
    named = (
        Path(config.invocation_params.dir, str(argument).split("::")[0]).resolve() for argument in config.args
    )
    if path.resolve() not in named:
        return False
    from headrace.pipeline.testcases.loader import has_tests

    return has_tests(path)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop Spark if a test started it."""
    if (runner := config.stash.get(_RUNNER, None)) is not None:
        runner.close()


def _get_runner(config: pytest.Config) -> PipelineTestRunner:
    """Return the runner of the session. Create it on first use."""
    if (runner := config.stash.get(_RUNNER, None)) is None:
        from headrace.jobs.testing.runner import PipelineTestRunner
        from headrace.pipeline.config.settings import load_settings

        runner = config.stash[_RUNNER] = PipelineTestRunner(load_settings())
    return runner


class CaseFailedError(Exception):
    """A test failed. `updates` are lines about the expected rows that were replaced."""

    def __init__(self, outcome: CaseOutcome, updates: list[str]) -> None:
        super().__init__(outcome.case.name)
        self.outcome = outcome
        self.updates = updates


class CaseModule(pytest.File):
    """A file with tests."""

    def collect(self) -> Iterator[CaseItem]:
        """Yield the tests. A file with mistakes is a collection error that lists all of them."""
        from headrace.pipeline.errors import PipelineFileError
        from headrace.pipeline.testcases.loader import load_cases

        try:
            cases = load_cases(_relative_path(self.path))
        except PipelineFileError as error:
            raise self.CollectError(str(error)) from None
        for case in cases:
            yield CaseItem.from_parent(self, name=case.name, case=case)


class CaseItem(pytest.Item):
    """A test."""

    def __init__(self, *, case: Case, **rest: Any) -> None:
        super().__init__(**rest)
        self.case = case

    def runtest(self) -> None:
        """Run the test. Raise CaseFailedError with the outcome if it fails."""
        outcome = _get_runner(self.config).run(self.case)
        if not outcome.passed:
            raise CaseFailedError(
                outcome, _update_expected(outcome) if self.config.getoption("update_expected") else []
            )

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return the differences instead of a traceback."""
        if not isinstance(excinfo.value, CaseFailedError):
            return super().repr_failure(excinfo, style)
        from headrace.jobs.testing.report import SHOWN, failure

        shown = None if self.config.get_verbosity() > 0 else SHOWN
        return "\n".join([*failure(excinfo.value.outcome, shown=shown), *excinfo.value.updates])

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return the location of the test and its name."""
        line = self.case.place().line
        return self.path, line - 1 if line else None, self.name


def _update_expected(outcome: CaseOutcome) -> list[str]:
    from headrace.jobs.testing.update_snapshots import update
    from headrace.pipeline.errors import HeadraceError

    try:
        return update(outcome)
    except HeadraceError as error:
        return [f"not updated: {line}" for line in str(error).splitlines()[:1]]


def _relative_path(path: Path) -> Path:
    """Return the path relative to the working directory if it is below it."""
    cwd = Path.cwd()
    return path.relative_to(cwd) if path.is_relative_to(cwd) else path

"""`headrace test`: finds tests, runs them in one Spark session, and says what came out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import typer
from rich.console import Console

from headrace.commands.junit import write_report
from headrace.jobs.testing.run import Bench, Outcome
from headrace.jobs.testing.show import SHOWN, failure
from headrace.jobs.testing.update import update
from headrace.pipeline.case_names import Chooser, chooser
from headrace.pipeline.cases import Case, case_files, load_cases
from headrace.pipeline.errors import HeadraceError, PipelineFileError
from headrace.pipeline.settings import load_settings
from headrace.screen import WIDTH, out, show_error, span

NO_TESTS = 5
"""The exit code where there is no test, as pytest has it."""


def run_tests(paths: Sequence[Path], expression: str | None, *, rewrite: bool, report: Path | None, verbose: bool) -> None:
    """Runs the tests at `paths`, those that `expression` chooses.

    Ends with exit code 1 if a test failed or a file is wrong, 5 if there are no tests. Raises typer.BadParameter for a path that is not
    there and for an expression that is none.
    """
    chosen = _chooser(expression)
    cases, wrong = _load(paths)
    cases = [case for case in cases if chosen((case.name, case.path.name))]
    for error in wrong:
        show_error(error)
    if not cases and not wrong:
        out().print("no tests found" if expression is None else f"no test is named by -k {expression!r}", markup=False)
        raise typer.Exit(NO_TESTS)
    outcomes = _run(cases, rewrite=rewrite, verbose=verbose) if cases else []
    if report is not None:
        write_report(report, outcomes, wrong)
    if wrong or not all(outcome.passed for outcome in outcomes):
        raise typer.Exit(1)


def _chooser(expression: str | None) -> Chooser:
    try:
        return chooser(expression) if expression is not None else lambda _: True
    except ValueError as error:
        msg = f"-k {expression!r}: {error}"
        raise typer.BadParameter(msg) from None


def _load(paths: Sequence[Path]) -> tuple[list[Case], list[PipelineFileError]]:
    """All tests, and the files that are wrong."""
    files: dict[Path, None] = {}
    for path in paths:
        if not path.exists():
            msg = f"`{path}` is neither a file nor a folder"
            raise typer.BadParameter(msg)
        files |= dict.fromkeys(case_files(path))
    cases: list[Case] = []
    wrong: list[PipelineFileError] = []
    for file in files:
        try:
            cases += load_cases(file)
        except PipelineFileError as error:
            wrong.append(error)
    return cases, wrong


def _run(cases: Sequence[Case], *, rewrite: bool, verbose: bool) -> list[Outcome]:
    console, started = out(), time.monotonic()
    bench = Bench(load_settings())
    outcomes: list[Outcome] = []
    try:
        with console.status("starting Spark") if console.is_terminal else nullcontext():
            bench.start()
        ready = time.monotonic()
        heading = None
        for case in cases:
            if case.path != heading:
                heading = case.path
                console.print(str(heading), markup=False)
            outcomes.append(bench.run(case))
            _show(console, outcomes[-1], rewrite=rewrite, verbose=verbose)
    finally:
        bench.close()
    failed = sum(not outcome.passed for outcome in outcomes)
    said = ", ".join(f"{number} {what}" for number, what in ((len(outcomes) - failed, "passed"), (failed, "failed")) if number)
    console.print(f"{said} in {span(time.monotonic() - started)}, {span(ready - started)} of it to start Spark")
    return outcomes


def _show(console: Console, outcome: Outcome, *, rewrite: bool, verbose: bool) -> None:
    seconds = span(outcome.seconds)
    word, style = ("passed", "green") if outcome.passed else ("FAILED", "bold red")
    name = outcome.case.name
    room = WIDTH - len("  passed  ") - len(seconds) - 1
    console.print(f"  [{style}]{word}[/]  ", end="", soft_wrap=True)
    console.print(f"{name if len(name) <= room else name[: room - 1] + '…':<{room}} {seconds}", markup=False, soft_wrap=True)
    if verbose and outcome.case.node.description:
        console.print(f"          {outcome.case.node.description}", markup=False)
    for line in failure(outcome, width=WIDTH - 6, shown=None if verbose else SHOWN):
        console.print(f"      {line}", markup=False, soft_wrap=True)
    if rewrite and not outcome.passed:
        try:
            told = update(outcome)
        except HeadraceError as error:
            told = [f"not updated: {line}" for line in str(error).splitlines()[:1]]
        for line in told:
            console.print(f"      {line}", markup=False, soft_wrap=True)

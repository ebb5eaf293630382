"""`headrace validate`, and the dry run of `headrace run`: everything that can be said of a file before it runs."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from headrace import logging_setup
from headrace.console import err, out, print_json, show_error, show_warning
from headrace.pipeline.errors import HeadraceError, InternalError, PipelineFileError, UserError, error_code
from headrace.pipeline.file.json_schema import file_schema
from headrace.pipeline.file.loader import PipelineFile, load_pipeline
from headrace.pipeline.model.graph import key_of
from headrace.pipeline.protocol.epochs import Json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.pipeline.config.settings import Settings


@dataclass(slots=True)
class _Report:
    """What is said of one file."""

    path: Path
    file: PipelineFile | None = None
    errors: list[HeadraceError] = field(default_factory=list)
    warnings: list[UserError] = field(default_factory=list)
    unchecked: dict[str, str] = field(default_factory=dict)

    def as_json(self) -> Json:
        """The reference's answer, and beside it the same in parts, and what was left unchecked."""
        return {
            "success": all(isinstance(error, UserError) for error in self.errors),
            "is_valid": not self.errors,
            "errors": [str(error) for error in self.errors],
            "warnings": [str(warning) for warning in self.warnings],
            "problems": [_parts(problem, "error") for problem in self.errors] + [_parts(problem, "warning") for problem in self.warnings],
            "unchecked": [{"node": node, "reason": reason} for node, reason in self.unchecked.items()],
        }


def validate(paths: Sequence[Path], *, as_json: bool, quick: bool, fix: bool = False) -> None:
    """Checks files, and ends with exit code 1 if one of them is wrong.

    `quick`: only what the files themselves show, without a connection and without Spark. `fix`: sound files are rewritten
    in today's spelling before.
    """
    if fix:
        for path in paths:
            _fix(path)
    reports = [_read(path) for path in paths]
    if not quick:
        _look(reports)
    if as_json:
        print_json(reports[0].as_json() if len(reports) == 1 else [{"file": str(one.path), **one.as_json()} for one in reports])
    else:
        for report in reports:
            _show(report, quick=quick)
    if any(report.errors for report in reports):
        raise typer.Exit(1)


def _fix(path: Path) -> None:
    from headrace.pipeline.file.autofix import fix_file_text

    try:
        text = path.read_text(encoding="utf-8")
        after, said = fix_file_text(text, str(path))
    except (OSError, UnicodeDecodeError, PipelineFileError):
        return  # told by the check that follows
    if said:
        beside = path.with_name(f".{path.name}.fixed")
        beside.write_text(after, encoding="utf-8")
        shutil.copymode(path, beside)
        beside.replace(path)
    for line in said:
        err().print(f"fixed: {path}: {line}", markup=False, soft_wrap=True)


def print_schema() -> None:
    """The JSON Schema of a pipeline file, on standard output."""
    print_json(file_schema())


def _read(path: Path) -> _Report:
    try:
        file = load_pipeline(path)
    except PipelineFileError as error:
        return _Report(path, errors=list(error.problems))
    return _Report(path, file, warnings=list(file.warnings))


def _look(reports: Iterable[_Report]) -> None:
    """Adds what systems and Spark say of the files that are sound by themselves."""
    sound = [(report, report.file) for report in reports if report.file is not None]
    if not sound:
        return
    from headrace.jobs.checks import preflight
    from headrace.pipeline.config.settings import load_settings

    settings = load_settings()

    kinds = preflight.all_node_types(file for _, file in sound)
    with _one_session(settings, kinds) as session:
        for report, file in sound:
            try:
                found = preflight.check_pipeline(file, settings, session)
            except HeadraceError as error:
                report.errors.append(error)
                continue
            except Exception as error:  # noqa: BLE001  a fault of Headrace over one file must not keep the answers about the others
                report.errors.append(_fault(error, settings))
                continue
            report.errors += found.errors
            report.warnings, report.unchecked = found.warnings, found.unchecked
            _look_at_schedule(report, file)


def _fault(error: Exception, settings: Settings) -> InternalError:
    path = logging_setup.report(error, settings.home)
    said = f"{type(error).__name__}: {error}".splitlines()[0]
    return InternalError(said, hint=f"Internal error. Details were written to {path}. Please report it.")


def _look_at_schedule(report: _Report, file: PipelineFile) -> None:
    if file.model.schedule is None:
        return
    try:
        from headrace.orchestration.schedules import check_cron
    except ImportError as error:
        report.unchecked["schedule"] = f"it needs the package `{error.name}`: pip install 'headrace[dagster]'"
        return
    try:
        check_cron(file, file.model.schedule)
    except UserError as error:
        report.errors.append(error)


@contextmanager
def _one_session(settings: Settings, kinds: frozenset[str]) -> Iterator[Any]:
    """A function that starts Spark when it is first called: files without SQL need none."""

    @cache
    def session() -> SparkSession:
        from headrace.jobs.spark.session import start_session

        return start_session(settings, kinds)

    try:
        yield session
    finally:
        if session.cache_info().currsize:
            from headrace.jobs.spark.session import stop_session

            stop_session(session())


def _show(report: _Report, *, quick: bool) -> None:
    if report.errors:
        show_error(*report.errors)
    for warning in report.warnings:
        show_warning(warning)
    for node, reason in report.unchecked.items():
        err().print(f"unchecked: node '{node}': {reason}", markup=False, soft_wrap=True)
    if report.errors or report.file is None:
        return
    model, console = report.file.model, out()
    console.print(f"{report.path}: good{' by itself' if quick else ''}", markup=False, soft_wrap=True)
    console.print(f"  pipeline {model.name}: {_named('source', model.sources)}; {_named('transform', model.transforms)}", soft_wrap=True)
    for name, sink in model.sinks.items():
        key = ", ".join(key_of(model, name))
        console.print(f"  sink {name} ({sink.type}): {f'upsert by {key}' if key else 'append'}", soft_wrap=True)


def _parts(problem: HeadraceError, severity: str) -> Json:
    place = problem.place
    return {
        "severity": severity,
        "code": error_code(problem),
        "message": problem.message,
        "hint": problem.hint,
        "node": problem.node,
        "file": place.file if place else None,
        "line": place.line if place else None,
        "column": place.column if place else None,
    }


def _named(what: str, nodes: dict[str, Any]) -> str:
    names = f" ({', '.join(nodes)})" if nodes else ""
    return f"{len(nodes)} {what}{'' if len(nodes) == 1 else 's'}{names}"

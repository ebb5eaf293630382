"""`headrace validate`, and the dry run of `headrace run`: all checks of a file before it runs."""

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
from headrace.console import print_json, show_error, show_warning, stderr_console, stdout_console
from headrace.pipeline.errors import HeadraceError, InternalError, PipelineFileError, UserError, error_code
from headrace.pipeline.file.json_schema import file_schema
from headrace.pipeline.file.loader import PipelineFile, load_pipeline
from headrace.pipeline.model.graph import has_late_key, key_of
from headrace.pipeline.protocol.epochs import Json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.pipeline.config.settings import Settings


@dataclass(slots=True)
class _FileReport:
    """The result of checking one file."""

    path: Path
    file: PipelineFile | None = None
    errors: list[HeadraceError] = field(default_factory=list)
    warnings: list[UserError] = field(default_factory=list)
    unchecked: dict[str, str] = field(default_factory=dict)

    def as_json(self) -> Json:
        """Return Streamling's format, and in addition the problems as objects and the unchecked nodes."""
        return {
            "success": all(isinstance(error, UserError) for error in self.errors),
            "is_valid": not self.errors,
            "errors": [str(error) for error in self.errors],
            "warnings": [str(warning) for warning in self.warnings],
            "problems": [_problem_json(problem, "error") for problem in self.errors]
            + [_problem_json(problem, "warning") for problem in self.warnings],
            "unchecked": [{"node": node, "reason": reason} for node, reason in self.unchecked.items()],
        }


def validate(paths: Sequence[Path], *, as_json: bool, quick: bool, fix: bool = False) -> None:
    """Check files. Exit with code 1 if one of them is invalid.

    `quick` checks only the files, without a connection and without Spark. `fix` first rewrites valid files
    with current spellings.
    """
    if fix:
        for path in paths:
            _fix_file(path)
    reports = [_read_file(path) for path in paths]
    if not quick:
        _run_preflight(reports)
    if as_json:
        print_json(
            reports[0].as_json()
            if len(reports) == 1
            else [{"file": str(report.path), **report.as_json()} for report in reports]
        )
    else:
        for report in reports:
            _show_report(report, quick=quick)
    if any(report.errors for report in reports):
        raise typer.Exit(1)


def _fix_file(path: Path) -> None:
    from headrace.pipeline.file.autofix import fix_file_text

    try:
        text = path.read_text(encoding="utf-8")
        fixed, changes = fix_file_text(text, str(path))
    except (OSError, UnicodeDecodeError, PipelineFileError):
        return  # the check that follows reports it
    if changes:
        new_path = path.with_name(f".{path.name}.fixed")
        new_path.write_text(fixed, encoding="utf-8")
        shutil.copymode(path, new_path)
        new_path.replace(path)
    for change in changes:
        stderr_console().print(f"fixed: {path}: {change}", markup=False, soft_wrap=True)


def print_schema() -> None:
    """Print the JSON Schema of pipeline files to standard output."""
    print_json(file_schema())


def _read_file(path: Path) -> _FileReport:
    try:
        file = load_pipeline(path)
    except PipelineFileError as error:
        return _FileReport(path, errors=list(error.problems))
    return _FileReport(path, file, warnings=list(file.warnings))


def _run_preflight(reports: Iterable[_FileReport]) -> None:
    """Add the results of systems and Spark for the files without mistakes."""
    valid = [(report, report.file) for report in reports if report.file is not None]
    if not valid:
        return
    from headrace.jobs.checks import preflight
    from headrace.pipeline.config.settings import load_settings

    settings = load_settings()

    node_types = preflight.all_node_types(file for _, file in valid)
    with _shared_session(settings, node_types) as session:
        for report, file in valid:
            try:
                result = preflight.check_pipeline(file, settings, session)
            except HeadraceError as error:
                report.errors.append(error)
                continue
            except Exception as error:  # noqa: BLE001  an internal error in one file must not hide the results of the others
                report.errors.append(_internal_error(error, settings))
                continue
            report.errors += result.errors
            report.warnings, report.unchecked = result.warnings, result.unchecked
            _check_schedule(report, file)


def _internal_error(error: Exception, settings: Settings) -> InternalError:
    path = logging_setup.write_error_report(error, settings.home)
    message = f"{type(error).__name__}: {error}".splitlines()[0]
    return InternalError(message, hint=f"Internal error. Details were written to {path}. Please report it.")


def _check_schedule(report: _FileReport, file: PipelineFile) -> None:
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
def _shared_session(settings: Settings, node_types: frozenset[str]) -> Iterator[Any]:
    """Yield a function that starts Spark on its first call. Files without SQL need no Spark."""

    @cache
    def session() -> SparkSession:
        from headrace.jobs.spark.session import start_session, without_optimizing_compiler

        return start_session(without_optimizing_compiler(settings), node_types)

    try:
        yield session
    finally:
        if session.cache_info().currsize:
            from headrace.jobs.spark.session import stop_session

            stop_session(session())


def _show_report(report: _FileReport, *, quick: bool) -> None:
    if report.errors:
        show_error(*report.errors)
    for warning in report.warnings:
        show_warning(warning)
    for node, reason in report.unchecked.items():
        stderr_console().print(f"unchecked: node '{node}': {reason}", markup=False, soft_wrap=True)
    if report.errors or report.file is None:
        return
    model, console = report.file.model, stdout_console()
    console.print(f"{report.path}: valid{' (file only)' if quick else ''}", markup=False, soft_wrap=True)
    console.print(
        f"  pipeline {model.name}: {_count_nodes('source', model.sources)};"
        f" {_count_nodes('transform', model.transforms)}",
        soft_wrap=True,
    )
    for name, sink in model.sinks.items():
        key = ", ".join(key_of(model, name))
        late = "upsert by the key of the schema" if has_late_key(model, name) else "append"
        console.print(f"  sink {name} ({sink.type}): {f'upsert by {key}' if key else late}", soft_wrap=True)


def _problem_json(problem: HeadraceError, severity: str) -> Json:
    location = problem.place
    return {
        "severity": severity,
        "code": error_code(problem),
        "message": problem.message,
        "hint": problem.hint,
        "node": problem.node,
        "file": location.file if location else None,
        "line": location.line if location else None,
        "column": location.column if location else None,
    }


def _count_nodes(noun: str, nodes: dict[str, Any]) -> str:
    names = f" ({', '.join(nodes)})" if nodes else ""
    return f"{len(nodes)} {noun}{'' if len(nodes) == 1 else 's'}{names}"

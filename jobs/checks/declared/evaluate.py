"""Evaluates the declared checks of a sink where its rows are: one scan for all of them.

Postgres and ClickHouse compute the aggregates themselves, so no row leaves the system except samples. Spark
computes them over the files of Delta and Iceberg tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from headrace.connectors.sink_base import Sink
from headrace.connectors.target_query import QueryResult, TargetQuery
from headrace.jobs.checks.declared.row_change import UnknownRowCountError, read_former_rows
from headrace.jobs.checks.declared.statements import (
    CheckStatements,
    build_statements,
    count_rows_of,
    sample_rows_of,
    scan,
)
from headrace.jobs.run.events import CheckResult
from headrace.jobs.spark.errors import as_headrace_error
from headrace.pipeline.errors import HeadraceError, InternalError, UserError
from headrace.pipeline.file.loader import PipelineFile
from headrace.pipeline.model import graph
from headrace.pipeline.model.checks import SinkCheckConfig
from headrace.pipeline.protocol.epochs import Json
from headrace.pipeline.protocol.ledger import Ledger, PipelineState
from headrace.pipeline.types.durations import spell_duration

_VALUE_CHARACTERS = 80


@dataclass(frozen=True, slots=True)
class DeclaredChecks:
    """The declared checks of a pipeline file. `now` is the time that ages and periods end at."""

    file: PipelineFile
    ledger: Ledger
    state: PipelineState
    now: datetime = field(default_factory=lambda: datetime.now(UTC))

    def evaluate(self, name: str, sink: Sink) -> Iterator[CheckResult]:
        """Yield a result per check of a sink, in the order of the file.

        A check with a mistake fails with the reason. Raise TransientError if the system cannot be reached.
        """
        checks: Mapping[str, SinkCheckConfig] = getattr(self.file.model.sinks[name], "checks", {})
        if not checks:
            return
        with _translate_errors(name):
            query = sink.query_target()
        if query is None:
            for check_name, check in checks.items():
                yield _failed_result(check_name, name, check, "the target does not exist")
            return
        with closing(query):
            yield from _SinkEvaluation(self, name, checks, query).results()


class _SinkEvaluation:
    """The checks of one sink over one snapshot."""

    def __init__(
        self, parent: DeclaredChecks, sink: str, checks: Mapping[str, SinkCheckConfig], query: TargetQuery
    ) -> None:
        self._parent, self._sink, self._checks, self._query = parent, sink, checks, query
        self._rows = 0

    def results(self) -> Iterator[CheckResult]:
        """Yield the results. Only this reads the target."""
        statements, problems = self._build()
        values = self._scan(statements)
        for name, check in self._checks.items():
            if problem := problems.get(name):
                yield self._broken(name, check, problem)
                continue
            try:
                if check.sql is not None:
                    yield self._evaluate_sql(name, check, check.sql)
                else:
                    yield self._evaluate(name, check, statements[name], values(name))
            except HeadraceError as error:
                if error.retriable or isinstance(error, InternalError):
                    raise
                yield self._broken(name, check, error)

    def _build(self) -> tuple[dict[str, CheckStatements], dict[str, UserError]]:
        key = graph.key_of(self._parent.file.model, self._sink)
        statements: dict[str, CheckStatements] = {}
        problems: dict[str, UserError] = {}
        for name, check in self._checks.items():
            if check.sql is not None:
                continue
            try:
                statements[name] = build_statements(check, self._query, key)
            except UserError as error:
                problems[name] = error
        return statements, problems

    def _scan(self, statements: Mapping[str, CheckStatements]) -> Callable[[str], Sequence[Any]]:
        """Read the aggregates of all checks in one pass. Return a function that returns those of a check.

        If the system refuses the statement, each check has a statement of its own, to find the wrong one.
        """
        every = [one for parts in statements.values() for one in parts.aggregates]
        try:
            (result,) = self._fetch(scan(self._query, every)).rows
        except HeadraceError as error:
            if error.retriable or isinstance(error, InternalError) or not every:
                raise
            return lambda name: self._scan_one(statements[name])
        self._rows = int(result[0])
        values, at = {}, 1
        for name, parts in statements.items():
            values[name] = list(result[at : at + len(parts.aggregates)])
            at += len(parts.aggregates)
        return values.__getitem__

    def _scan_one(self, parts: CheckStatements) -> Sequence[Any]:
        ((rows, *values),) = self._fetch(scan(self._query, parts.aggregates)).rows
        self._rows = int(rows)
        return values

    def _evaluate(
        self, name: str, check: SinkCheckConfig, parts: CheckStatements, values: Sequence[Any]
    ) -> CheckResult:
        columns = ", ".join(f"`{column}`" for column, _ in check.columns)
        match check.rule:
            case "not_null":
                count, good, bad = int(values[0]), f"no NULL in {columns}", f"have NULL in {columns}"
            case "unique":
                known, distinct = map(int, values)
                count, good, bad = (
                    known - distinct,
                    f"no repeated value of {columns}",
                    f"repeat a value of {columns}",
                )
            case "range":
                limits = _spell_range(check)
                count, good, bad = (
                    int(values[0]),
                    f"every {columns} is {limits}",
                    f"have {columns} not {limits}",
                )
            case "freshness":
                return self._freshness(name, check, values[0])
            case _:
                return self._row_count(name, check)
        samples = (
            self._samples(f"{parts.violations} LIMIT {check.samples}") if count and check.samples else []
        )
        message = f"{good} ({self._rows:,} rows)" if not count else f"{count:,} of {self._rows:,} rows {bad}"
        return self._result(name, check, not count, message, {"violations": count}, samples)

    def _evaluate_sql(self, name: str, check: SinkCheckConfig, text: str) -> CheckResult:
        ((count,),) = self._fetch(count_rows_of(self._query, text)).rows
        count = int(count)
        samples = (
            self._samples(sample_rows_of(self._query, text, check.samples)) if count and check.samples else []
        )
        rows = f"{count:,} row{'s' if count > 1 else ''}" if count else "no row"
        message = f"the query returns {rows}{', it must return none' if count else ''}"
        return self._result(name, check, not count, message, {"violations": count}, samples)

    def _freshness(self, name: str, check: SinkCheckConfig, newest: Any) -> CheckResult:
        assert check.freshness is not None  # noqa: S101  the rule of the check
        column, limit = check.freshness.column, check.freshness.max_age
        if newest is None:
            return self._result(name, check, False, f"the target has no `{column}`")
        age = timedelta(seconds=round(self._parent.now.timestamp() - float(newest)))
        spelled = "0s" if age <= timedelta() else spell_duration(age)
        message = f"the newest `{column}` is {spelled} old, at most {spell_duration(limit)} is allowed"
        return self._result(name, check, age <= limit, message, {"age_seconds": age.total_seconds()})

    def _row_count(self, name: str, check: SinkCheckConfig) -> CheckResult:
        limits = check.row_count
        assert limits is not None  # noqa: S101  the rule of the check
        rows, problems, numbers = self._rows, [], {}
        if limits.min is not None and rows < limits.min:
            problems.append(f"at least {limits.min:,} are required")
        if limits.max is not None and rows > limits.max:
            problems.append(f"at most {limits.max:,} are allowed")
        note, unknown = "", ""
        if limits.max_change is not None:
            period = spell_duration(limits.within)
            try:
                before = self._former_rows(limits.within)
            except UnknownRowCountError as error:
                unknown = f"the change within {period} is not known: {error}"
            else:
                change = 100 * (rows - before) / before
                numbers = {"rows_before": before, "change_percent": round(change, 3)}
                note = f", {change:+.1f}% within {period}"
                if abs(change) > limits.max_change:
                    problems.append(f"at most {limits.max_change:g}% change is allowed")
        message = f"{rows:,} rows{note}" + "".join(f"; {problem}" for problem in problems)
        if unknown and not problems:
            applies = limits.min is not None or limits.max is not None
            message = f"{message}; {unknown}" if applies else f"not applicable: {unknown}"
            return self._result(name, check, True if applies else None, message, numbers)
        return self._result(name, check, not problems, message, numbers)

    def _former_rows(self, within: timedelta) -> int:
        record = self._query.record
        if self._query.is_shared or record is None:
            why = "other pipelines write the target too" if record else "the sink has no commit record"
            raise UnknownRowCountError(why)
        parent = self._parent
        since = parent.now - within
        before = read_former_rows(parent.ledger, parent.state, self._sink, self._rows, record.epoch, since)
        if before <= 0:
            msg = "the target was empty at its start"
            raise UnknownRowCountError(msg)
        return before

    def _samples(self, text: str) -> list[Json]:
        result = self._fetch(text)
        return [
            {column: self._display(value) for column, value in zip(result.columns, row, strict=True)}
            for row in result.rows
        ]

    def _display(self, value: Any) -> Any:
        """Return a value for people: short, and with `${NAME}` in place of a variable of the file."""
        if value is None or isinstance(value, bool | int | float):
            return value
        text = value.hex() if isinstance(value, bytes | bytearray | memoryview) else str(value)
        text = self._parent.file.hide_variables(text)
        return text if len(text) <= _VALUE_CHARACTERS else f"{text[:_VALUE_CHARACTERS]}…"

    def _fetch(self, text: str) -> QueryResult:
        with _translate_errors(self._sink):
            return self._query.fetch(text)

    def _broken(self, name: str, check: SinkCheckConfig, error: HeadraceError) -> CheckResult:
        """Return the failure of a check that cannot be evaluated because of a mistake in the file."""
        place = self._parent.file.place("sinks", self._sink, "checks", name)
        message = self._parent.file.hide_variables(
            f"the check cannot be evaluated: {error.message} ({place})"
        )
        return _failed_result(name, self._sink, check, message)

    def _result(
        self,
        name: str,
        check: SinkCheckConfig,
        passed: bool | None,
        message: str,
        numbers: Mapping[str, Any] | None = None,
        samples: Sequence[Json] = (),
    ) -> CheckResult:
        shown: Json = {"rows": self._rows, **(numbers or {})} | (
            {"samples": list(samples)} if samples else {}
        )
        return CheckResult(name, self._sink, passed, message, shown, check.severity)


@contextmanager
def _translate_errors(node: str) -> Iterator[None]:
    try:
        yield
    except HeadraceError:
        raise
    except Exception as error:
        raise _explain(error, node) from error


def _explain(error: Exception, node: str) -> HeadraceError:
    from pyspark.errors import AnalysisException, ParseException

    if isinstance(error, AnalysisException | ParseException):
        return UserError(str(error).partition("\n")[0].partition("; line")[0], node=node)
    return as_headrace_error(error, node=node)


def _failed_result(name: str, sink: str, check: SinkCheckConfig, message: str) -> CheckResult:
    return CheckResult(name, sink, False, message, {}, check.severity)


def _spell_range(check: SinkCheckConfig) -> str:
    assert check.range is not None  # noqa: S101  the rule of the check
    low, high = check.range.min, check.range.max
    if low is not None and high is not None:
        return f"from {low} to {high}"
    return f"at least {low}" if high is None else f"at most {high}"

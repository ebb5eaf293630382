"""The check `content_matches`: compares the rows of a sink with the rows that its sources require."""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.connectors import registry
from headrace.connectors.content import TargetContent
from headrace.connectors.frame import DRIVER_BYTES
from headrace.connectors.lazy_session import ensure_session
from headrace.connectors.local_relation import frame_of_table
from headrace.connectors.sink_base import Sink, SinkContext
from headrace.jobs.checks.content.compare import SHOWN, ContentDifference, compare
from headrace.jobs.checks.content.expected import (
    ExpectedRows,
    expected_at_sink,
    expected_by_key,
    passes_key,
    reads_the_clock,
)
from headrace.jobs.checks.content.inputs import SourceRows, SourceRowsReader, create_unfiltered_sources
from headrace.jobs.checks.content.sample import (
    DRIVER_ROWS,
    ExpectedSample,
    compare_sample,
    sample_at_sink,
    sample_by_key,
)
from headrace.jobs.checks.content.scope import AuditScope, find_scope, refusal
from headrace.jobs.planning.compiled_pipeline import CompiledPipeline
from headrace.jobs.planning.planner import PipelinePlanner
from headrace.jobs.run.events import CheckResult
from headrace.jobs.spark.errors import as_headrace_error
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import HeadraceError, InternalError
from headrace.pipeline.file.loader import PipelineFile, from_compiled
from headrace.pipeline.model import graph
from headrace.pipeline.protocol.epochs import Json, SinkKey
from headrace.pipeline.protocol.ledger import Ledger, PipelineState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

NAME = "content_matches"
_GROWTH = 4
_GROWING = tuple(2_000 * _GROWTH**step for step in range(10))
"""The sizes of the samples that a budget in seconds allows one after the other."""


class ContentAudit:
    """Compares the sinks of one pipeline. `budget` limits the rows that are read for a sink; None: no limit.

    `raises`: an internal error is raised. Else it is logged, and the check is not applicable.
    """

    def __init__(
        self,
        file: PipelineFile,
        settings: Settings,
        ledger: Ledger,
        state: PipelineState,
        spark: SparkSession,
        budget: int | None,
        *,
        raises: bool = True,
    ) -> None:
        self._file = file
        self._settings = settings
        self._ledger = ledger
        self._state = state
        self._spark = spark
        self._budget = budget
        self._raises = raises
        self._assemblies: dict[str, CompiledPipeline] = {}

    def check(self, name: str) -> CheckResult:
        """Check one sink. Rows that cannot be read or recomputed give "not applicable", never a pass."""
        if why := refusal(self._file.model, name):
            return _unknown(name, why)
        folder = Path(tempfile.mkdtemp(prefix="headrace-audit-"))
        started = time.monotonic()
        try:
            result = self._compare(name, folder)
        except Exception as error:
            reason = error if isinstance(error, HeadraceError) else as_headrace_error(error, node=name)
            if not isinstance(reason, InternalError):
                return _unknown(name, reason.message)
            if self._raises:
                raise reason from error
            log.exception("event=content_check_failed node=%s", name)
            return _unknown(
                name, f"the comparison failed by an internal error, which the log has: {reason.message}"
            )
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        result.numbers["seconds"] = round(time.monotonic() - started, 1)
        return result

    def check_within(self, name: str, seconds: float) -> CheckResult:
        """Check one sink with samples of growing size, for about the given time.

        The largest conclusive sample decides.
        """
        started, best, before = time.monotonic(), None, ""
        for rows in _GROWING:
            began, self._budget = time.monotonic(), rows
            result = self.check(name)
            again, before = result.message == before, result.message
            best = result if best is None or result.passed is not None else best
            now = time.monotonic()
            larger = (now - began) * _GROWTH
            if (
                again
                or result.passed is False
                or result.numbers.get("complete")
                or now - started + larger > seconds
            ):
                break
        assert best is not None  # noqa: S101  there is a first size
        return best

    def close(self) -> None:
        """Close the resources that were opened."""
        for assembly in self._assemblies.values():
            assembly.close()

    def _compare(self, name: str, folder: Path) -> CheckResult:
        sink, content = self._open(name), None
        try:
            record, row = sink.record(), self._state.sinks.get(name)
            if record is None or row is None or row.state != "joined":
                return _unknown(name, "the sink has no commit record of this pipeline")
            assembly = self._assembly(record.pipeline_hash)
            if name not in assembly.file.model.sinks:
                return _unknown(name, "the file that wrote the sink's last epoch did not have it")
            content = sink.content(assembly.planner.schemas[name], folder, self._budget)
            if content is None:
                return _unknown(name, "this sink cannot be read back")
            if why := self._unreadable(name, sink, content):
                return _unknown(name, why)
            scope = find_scope(
                self._ledger, assembly.file.model, record.key.lane, name, content.record, row.epoch
            )
            return (
                _unknown(name, scope)
                if isinstance(scope, str)
                else self._against(name, assembly, content, scope)
            )
        finally:
            if content is not None:
                content.close()
            sink.close()

    def _unreadable(self, name: str, sink: Sink, content: TargetContent) -> str:
        """Return why the target's rows cannot be compared, or an empty string."""
        if lost := [
            column for column in graph.key_of(self._file.model, name) if column not in content.columns
        ]:
            return f"the key column `{lost[0]}` cannot be read back from the target"
        if refused := sink.count_refused_rows():
            return f"the target refused {refused:,} rows, which the table of errors has"
        own_key = SinkKey(self._state.pipeline, self._file.name, self._state.lane, name)
        return (
            "other pipelines write the target too"
            if any(claim.key != own_key for claim in sink.claims())
            else ""
        )

    def _against(
        self, name: str, assembly: CompiledPipeline, content: TargetContent, scope: AuditScope
    ) -> CheckResult:
        planner, model = assembly.planner, assembly.file.model
        if reads_the_clock(planner, name, scope.last):
            return _unknown(name, "values depend on the time of the epoch that wrote them")
        key = graph.key_of(model, name)
        if not key and not content.is_whole:
            return _unknown(name, self._too_large())
        single = passes_key(planner, name)
        keyed = bool(key) and single is not None
        sources = create_unfiltered_sources(model, self._settings, self._ledger.content, keyed=keyed)
        try:
            reader = SourceRowsReader(planner.spark, model, sources, scope, keyed=keyed, budget=self._budget)
            inputs = [
                reader.read(one, planner.source_schemas[one]) for one in graph.upstream_sources(model, name)
            ]
            if not any(one.pieces for one in inputs):
                return _unknown(
                    name, "; ".join(limit for one in inputs for limit in one.limits) or "nothing was read yet"
                )
            if not key and not (scope.whole and all(one.complete for one in inputs)):
                limits = [*scope.limits, *(limit for one in inputs for limit in one.limits)]
                return _unknown(name, "rows without a key are compared as a whole, and " + "; ".join(limits))
            work = _Work(planner, name, single, inputs, content, scope, key)
            if self._is_small(inputs, content):
                try:
                    return self._in_driver(work)
                except pa.ArrowException:  # a type that Arrow does not compare
                    log.debug("event=sample_compared_by_spark node=%s", name, exc_info=True)
            return self._in_spark(work)
        finally:
            for source in sources.values():
                source.close()

    def _is_small(self, inputs: list[SourceRows], content: TargetContent) -> bool:
        """Return whether both sides fit into the driver."""
        if sum(one.rows for one in inputs) > DRIVER_ROWS or sum(one.size for one in inputs) > DRIVER_BYTES:
            return False
        return content.rows is None or (self._budget is not None and self._budget <= DRIVER_ROWS)

    def _in_driver(self, work: _Work) -> CheckResult:
        # Without a limit Spark computes the SQL, independently of the runs whose SQL Arrow computed.
        by_arrow = self._budget is not None
        planner, last = work.planner, work.scope.last
        if work.single is not None:
            sample = sample_by_key(planner, work.name, work.single, work.inputs[0], last, by_arrow=by_arrow)
        else:
            sample = sample_at_sink(planner, work.name, work.inputs, last, by_arrow=by_arrow)
        result = compare_sample(sample, work.content, work.key, whole=work.scope.whole)
        return _unknown(work.name, self._too_large()) if result is None else work.result(result, sample)

    def _in_spark(self, work: _Work) -> CheckResult:
        content = work.content
        ensure_session(work.planner.spark)
        if not content.is_whole:
            return _unknown(work.name, self._too_large())
        rows = content.rows if content.rows is not None else frame_of_table(work.planner.spark, content.table)
        if work.single is not None:
            expected = expected_by_key(work.planner, work.name, work.single, work.inputs[0], work.scope.last)
        else:
            expected = expected_at_sink(work.planner, work.name, work.inputs, work.scope.last)
        try:
            return work.result(_difference(expected, rows, content.columns, work.scope, work.key), expected)
        finally:
            if expected.cached is not None:
                expected.cached.unpersist(blocking=False)

    def _too_large(self) -> str:
        return f"the target has more than the {self._budget:,} rows of a sample; `--full` reads all"

    def _assembly(self, digest: str) -> CompiledPipeline:
        if digest not in self._assemblies:
            same = digest == self._file.hash
            file = (
                self._file
                if same
                else from_compiled(self._ledger.compiled(digest), self._file.path, self._file)
            )
            self._assemblies[digest] = CompiledPipeline(file, self._settings, self._spark)
        return self._assemblies[digest]

    def _open(self, name: str) -> Sink:
        model = self._file.model
        key = SinkKey(self._state.pipeline, self._file.name, self._state.lane, name)
        extra: dict[str, Any] = {"key": graph.key_of(model, name), "sinks": tuple(model.sinks)}
        return registry.open_sink(
            SinkContext(key, model.sinks[name], self._settings, pa.schema([]), self._spark, extra)
        )


@dataclass(frozen=True, slots=True)
class _Work:
    """One comparison of what was read from the sources and from the target. `single`: see `passes_key`."""

    planner: PipelinePlanner
    name: str
    single: str | None
    inputs: list[SourceRows]
    content: TargetContent
    scope: AuditScope
    key: tuple[str, ...]

    def result(
        self, content_difference: ContentDifference, expected: ExpectedRows | ExpectedSample
    ) -> CheckResult:
        """Return the check result for a difference."""
        return _result(self.name, content_difference, expected, self.content, self.scope, self.inputs)


def _difference(
    expected: ExpectedRows, actual: DataFrame, names: Sequence[str], scope: AuditScope, key: tuple[str, ...]
) -> ContentDifference:
    from pyspark.sql import functions as F  # noqa: N812

    columns = [name for name in expected.columns if name in names]
    decided, wanted = expected.decided, expected.rows
    if decided is None and key and (expected.unclear or not scope.whole):
        decided = expected.keys
    if decided is not None:
        kinds = {field.name: field.dataType for field in decided.schema}
        keys = decided.distinct().toDF(*(f"_hr_k{place}" for place in range(len(key))))
        match = [
            F.col(f"`{name}`").cast(kinds[name]) == F.col(f"_hr_k{place}") for place, name in enumerate(key)
        ]
        actual = actual.join(keys, match, "left_semi")
        wanted = wanted.join(
            keys,
            [F.col(f"`{name}`") == F.col(f"_hr_k{place}") for place, name in enumerate(key)],
            "left_semi",
        )
    return compare(wanted, actual, columns, key)


def _unknown(name: str, why: str) -> CheckResult:
    return CheckResult(NAME, name, None, f"not applicable: {why}")


def _result(
    name: str,
    content_difference: ContentDifference,
    expected: ExpectedRows | ExpectedSample,
    content: TargetContent,
    scope: AuditScope,
    inputs: list[SourceRows],
) -> CheckResult:
    skipped = [column for column in expected.columns if column not in content.columns]
    limits = [*scope.limits, *(limit for one in inputs for limit in one.limits)]
    if expected.unclear:
        limits.append(
            f"{expected.unclear:,} keys have no order: their rows lie in several partitions of the topic, or"
            " follow a delete with a higher version"
        )
    if not content.is_whole:
        limits.append(
            "the target has more rows than the sample may read, so rows without a source were not looked for"
        )
    numbers: Json = {
        "expected": content_difference.expected,
        "rows": content_difference.found,
        "read": sum(one.rows for one in inputs),
        "epoch": scope.last.number,
        "complete": not limits and not skipped,
        "differing": content_difference.differing,
    }
    if limits:
        numbers["not_compared"] = "; ".join(limits)
    if skipped:
        numbers["columns_not_compared"] = ", ".join(skipped)
    what = f"epoch {scope.last.number}"
    if content_difference.buckets:
        numbers["keys"] = list(content_difference.keys)
        shown = "; ".join(content_difference.keys)
        more = (
            f"; and {content_difference.differing - SHOWN:,} more"
            if content_difference.differing > SHOWN
            else ""
        )
        keys = (
            "1 key differs"
            if content_difference.differing == 1
            else f"{content_difference.differing:,} keys differ"
        )
        return CheckResult(
            NAME,
            name,
            False,
            f"{keys} from the sources as of {what}: {shown}{more}",
            numbers,
        )
    if not content_difference.expected and limits:
        return CheckResult(
            NAME, name, None, f"not applicable: no key could be compared; {'; '.join(limits)}", numbers
        )
    whole = (
        ""
        if numbers["complete"]
        else f"; not complete: {numbers.get('not_compared') or numbers.get('columns_not_compared')}"
    )
    return CheckResult(
        NAME,
        name,
        True,
        f"{content_difference.expected:,} rows match the sources as of {what}{whole}",
        numbers,
    )

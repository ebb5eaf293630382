"""A fake run function, so that these tests are about Dagster. Real runs are in test_real_runs.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from helpers.dagster_runs import FLIGHTS, PARTITIONS

from headrace.connectors.lazy_session import ensure_session
from headrace.jobs.run.events import CheckResult, PartitionCompleted, RunResult
from headrace.orchestration.pipelines import Pipeline, read_pipeline
from headrace.pipeline.protocol.epochs import WriteCounts


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its own working folder, so that no ledger, settings or instance of the machine is touched."""
    monkeypatch.chdir(tmp_path)
    for name in ("HEADRACE_HOME", "HEADRACE_PIPELINES", "DAGSTER_HOME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    """Writes a pipeline file."""

    def write(text: str = FLIGHTS, name: str = "flights") -> Path:
        path = tmp_path / "pipelines" / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    return write


@pytest.fixture
def pipeline(written: Callable[..., Path]) -> Pipeline:
    """History in months up to December 2013, then a stream."""
    return read_pipeline(written(FLIGHTS + PARTITIONS))


@dataclass
class StandIn:
    """Answers as the run and the audit would; keeps how it was asked."""

    calls: list[dict[str, Any]] = field(default_factory=list)
    audits: list[Sequence[str] | None] = field(default_factory=list)
    contents: list[Any] = field(default_factory=list)
    sessions: list[Any] = field(default_factory=list)
    failing: set[str] = field(default_factory=set)
    not_applicable: set[str] = field(default_factory=set)
    during: Callable[..., None] | None = None
    observed: dict[Any, Any] = field(default_factory=dict)
    rows: int = 7
    epochs: int = 1

    def run(self, file: Any, _settings: Any, **request: Any) -> RunResult:
        self.calls.append(request)
        for window in request["partitions"] or ():
            request["listener"](PartitionCompleted(window, dict.fromkeys(file.model.sinks, self.rows)))
        if self.during:
            self.during(**request)
        counts = dict.fromkeys(file.model.sinks, WriteCounts(rows=self.rows, inserted=self.rows))
        return RunResult(
            file.name,
            "uuid",
            "completed",
            self.epochs,
            1,
            1,
            counts,
            {},
            history_complete=True,
            caught_up=True,
        )

    def audit(
        self, *_: Any, sinks: Sequence[str] | None = None, content: Any = None, spark: Any = None
    ) -> list[CheckResult]:
        if content is not None:
            ensure_session(spark)  # rows are compared in Spark
        self.audits.append(sinks)
        self.contents.append(content)
        numbers = {"rows": 77, "keys": ["id=5: missing"]}
        return [
            CheckResult(
                name,
                sink,
                None if name in self.not_applicable else name not in self.failing,
                "said so",
                numbers,
            )
            for sink in sinks or ()
            for name in ("exactly_once_epochs", "row_count_matches", "handoff_has_no_gap", "content_matches")
            if name != "content_matches" or content is not None
        ]


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    result = StandIn()
    monkeypatch.setattr("headrace.jobs.run.runner.run", result.run)
    monkeypatch.setattr("headrace.jobs.checks.audit.audit", result.audit)
    monkeypatch.setattr("headrace.orchestration.source_reports.observe_sources", lambda _: result.observed)
    monkeypatch.setattr(
        "headrace.orchestration.spark.start_session", lambda *request: result.sessions.append(request)
    )
    return result

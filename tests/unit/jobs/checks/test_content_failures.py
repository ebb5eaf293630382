"""The result of `content_matches` if the comparison fails."""

from __future__ import annotations

from typing import Any, cast

import pytest

from headrace.jobs.checks.content.audit import ContentAudit
from headrace.jobs.run.events import CheckResult
from headrace.pipeline.errors import HeadraceError, InternalError, TransientError
from headrace.pipeline.file.loader import PipelineFile, load_pipeline

FILE = """\
name: p
sources:
  src: {type: kafka, topic: t, primary_key: id, schema: {id: int64}}
sinks:
  pg: {type: postgres, from: src, table: t}
"""


class Failing(ContentAudit):
    """An audit whose comparison raises `error`."""

    error: Exception

    def _compare(self, name: str, folder: Any) -> Any:
        del name, folder
        raise self.error


def audit_of(file: PipelineFile, error: Exception, *, raises: bool) -> ContentAudit:
    missing = cast("Any", None)
    result = Failing(file, missing, missing, missing, missing, 10, raises=raises)
    result.error = error
    return result


@pytest.fixture
def file(tmp_path: Any) -> PipelineFile:
    path = tmp_path / "p.yaml"
    path.write_text(FILE)
    return load_pipeline(path)


def test_what_cannot_be_read_is_not_applicable(file: PipelineFile) -> None:
    result = audit_of(file, TransientError("the server does not answer"), raises=True).check("pg")
    assert (result.passed, result.message) == (None, "not applicable: the server does not answer")


@pytest.mark.parametrize("error", [ValueError("wrong"), InternalError("wrong")])
def test_an_internal_error_is_raised_or_logged_but_never_green(
    file: PipelineFile, error: Exception, caplog: Any
) -> None:
    with pytest.raises(HeadraceError, match="wrong"):
        audit_of(file, error, raises=True).check("pg")
    result = audit_of(file, error, raises=False).check("pg")
    assert result.passed is None
    assert "wrong" in result.message
    assert "event=content_check_failed node=pg" in caplog.text


class Growing(ContentAudit):
    """An audit that notes the sizes of its samples.

    `results` are their (passed, complete), the last one for all further.
    """

    results: list[tuple[bool | None, bool]]

    def check(self, name: str) -> CheckResult:
        self.sizes = [*getattr(self, "sizes", []), self._budget]
        passed, complete = self.results[min(len(self.sizes), len(self.results)) - 1]
        return CheckResult(
            "content_matches",
            name,
            passed,
            f"sample {min(len(self.sizes), len(self.results))}",
            {"complete": complete},
        )


@pytest.mark.parametrize(
    ("results", "seconds", "sizes", "passed"),
    [
        ([(True, False), (True, True), (True, False)], 1000, [2_000, 8_000], True),
        ([(True, False), (False, False), (True, True)], 1000, [2_000, 8_000], False),
        ([(True, False), (None, False)], 1000, [2_000, 8_000, 32_000], True),
        ([(None, False)], 1000, [2_000, 8_000], None),
        ([(True, False), (True, True)], 0, [2_000], True),
    ],
)
def test_a_budget_in_seconds_grows_samples_until_one_is_complete_or_differs(
    file: PipelineFile,
    results: list[tuple[bool | None, bool]],
    seconds: float,
    sizes: list[int],
    passed: bool | None,
) -> None:
    """A sample that cannot know does not replace one that could.

    One that says the same again is the last.
    """
    missing = cast("Any", None)
    audit = Growing(file, missing, missing, missing, missing, None)
    audit.results = results
    assert audit.check_within("pg", seconds).passed is passed
    assert audit.sizes == sizes

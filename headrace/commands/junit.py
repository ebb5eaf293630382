"""Test results as JUnit XML, which build servers read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from xml.etree import ElementTree as ET

from headrace.jobs.testing.run import Outcome
from headrace.jobs.testing.show import failure
from headrace.pipeline.errors import PipelineFileError

_FORBIDDEN = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 has no way to write."""


def write_report(path: Path, outcomes: Sequence[Outcome], wrong: Sequence[PipelineFileError]) -> None:
    """One suite per file: a failed test is a failure, an unexpected error or a wrong file an error."""
    suites = ET.Element("testsuites", name="headrace")
    for file, group in groupby(outcomes, key=lambda outcome: str(outcome.case.path)):
        _suite(suites, file, list(group))
    for error in wrong:
        file = next((problem.place.file for problem in error.problems if problem.place), "")
        suite = ET.SubElement(suites, "testsuite", name=file, tests="1", failures="0", errors="1", skipped="0", time="0.000")
        case = ET.SubElement(suite, "testcase", classname=file, name="the file", time="0.000")
        _problem(case, "error", str(error.problems[0].message), str(error))
    path.parent.mkdir(parents=True, exist_ok=True)
    ET.indent(suites)
    ET.ElementTree(suites).write(path, encoding="utf-8", xml_declaration=True)


def _suite(suites: ET.Element, file: str, outcomes: list[Outcome]) -> None:
    errors = sum(_is_error(outcome) for outcome in outcomes)
    failed = sum(not outcome.passed for outcome in outcomes)
    suite = ET.SubElement(
        suites,
        "testsuite",
        name=file,
        tests=str(len(outcomes)),
        failures=str(failed - errors),
        errors=str(errors),
        skipped="0",
        time=f"{sum(outcome.seconds for outcome in outcomes):.3f}",
    )
    for outcome in outcomes:
        case = ET.SubElement(suite, "testcase", classname=file, name=_clean(outcome.case.name), time=f"{outcome.seconds:.3f}")
        if lines := failure(outcome, shown=None):
            _problem(case, "error" if _is_error(outcome) else "failure", lines[0], "\n".join(lines))


def _is_error(outcome: Outcome) -> bool:
    return outcome.error is not None and outcome.case.node.expect_error is None


def _problem(case: ET.Element, kind: str, message: str, text: str) -> None:
    ET.SubElement(case, kind, message=_clean(message), type=kind).text = _clean(text)


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("\ufffd", text)

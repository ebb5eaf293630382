"""Why a test failed, in lines for people: at a terminal, in pytest, in a JUnit report."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from headrace.jobs.testing.diff import ChangedRow, NodeDifference
from headrace.jobs.testing.formatting import flow, scalar
from headrace.jobs.testing.runner import CaseOutcome

SHOWN = 20
"""The number of rows to show per node by default."""

LEGEND = "- expected and missing   + came and not expected   ~ came differently"


def failure(outcome: CaseOutcome, *, width: int = 80, shown: int | None = SHOWN) -> list[str]:
    """Return the lines of the report, none for a test that passed. `shown` limits the rows of each node."""
    lines: list[str] = []
    wanted = outcome.case.node.expect_error
    if outcome.unraised is not None:
        lines += _wrap(f"no error came, and one with `{wanted}` was expected", width)
    if outcome.error is not None:
        if wanted is not None:
            lines += _wrap(f"another error came than one with `{wanted}`:", width)
        for problem in getattr(outcome.error, "problems", (outcome.error,)):
            lines += [part for line in str(problem).splitlines() for part in _wrap(line, width)]
    for difference in outcome.differences:
        lines += _difference(difference, width, shown)
    if any(
        difference.missing or difference.extra or difference.changed for difference in outcome.differences
    ):
        lines.append(LEGEND)
    if lines:
        lines.append(f"the test is at {outcome.case.place()}")
    return lines


def heading(difference: NodeDifference) -> str:
    """Return the difference of a node's rows in one line."""
    result, expected = len(difference.found), len(difference.expected)
    if difference.misplaced:
        return f"{difference.node}: {_rows(result)} came as expected, in another order"
    parts = [
        (len(difference.missing), "missing"),
        (len(difference.extra), "not expected"),
        (len(difference.changed), "different"),
    ]
    counts = ", ".join(f"{number} {what}" for number, what in parts if number)
    return f"{difference.node}: {_rows(result)} came, {expected} expected: {counts}"


def _rows(number: int) -> str:
    return f"{number} row{'' if number == 1 else 's'}"


def _difference(difference: NodeDifference, width: int, shown: int | None) -> list[str]:
    entries = list(_entries(difference, width))
    kept = entries if shown is None else entries[:shown]
    lines = [*_wrap(heading(difference), width), *(line for entry in kept for line in entry)]
    if len(kept) < len(entries):
        lines.append(f"  … and {len(entries) - len(kept)} more; -v shows all")
    return lines


def _entries(difference: NodeDifference, width: int) -> Iterator[list[str]]:
    if difference.misplaced:
        for number, (expected, result) in enumerate(
            zip(difference.expected, difference.found, strict=True), 1
        ):
            if expected != result:
                yield [
                    f"  row {number}",
                    *_wrap(flow(expected), width, "    expected "),
                    *_wrap(flow(result), width, "    came     "),
                ]
        return
    for change in difference.changed:
        yield _describe_change(change, difference.key, width)
    for at in difference.missing:
        yield _wrap(flow(difference.expected[at]), width, "  - ")
    for row in difference.extra:
        yield _wrap(flow(row), width, "  + ")


def _describe_change(change: ChangedRow, key: tuple[str, ...], width: int) -> list[str]:
    lines = _wrap(flow({name: change.expected[name] for name in key}), width, "  ~ ")
    for name in change.columns:
        lines += _wrap(
            f"{name}: expected {scalar(change.expected[name])}, came {scalar(change.found[name])}",
            width,
            "      ",
        )
    return lines


def _wrap(text: str, width: int, head: str = "") -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_on_hyphens=False,
        break_long_words=len(head) > 0,
    ) or [head.rstrip()]

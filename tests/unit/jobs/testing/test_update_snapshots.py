"""Updates of expected rows in a file, without other changes."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.pipeline_cases import ORDERS, case, write

from headrace.jobs.testing.diff import compare
from headrace.jobs.testing.expectations import expectation
from headrace.jobs.testing.report import failure
from headrace.jobs.testing.runner import CaseOutcome
from headrace.jobs.testing.update_snapshots import update
from headrace.pipeline.errors import UserError
from headrace.pipeline.testcases.loader import Case, load_cases

SCHEMA = pa.schema({"id": pa.int64(), "v": pa.string(), "w": pa.float64()})


def rows(*triples: tuple[Any, Any, Any]) -> list[dict[str, Any]]:
    return [{"id": one, "v": two, "w": three} for one, two, three in triples]


def outcome(result: Case, came: list[dict[str, Any]], schema: pa.Schema = SCHEMA) -> CaseOutcome:
    both = expectation(result, "priced", schema, ("id",), came)
    difference = compare(
        "priced", both.expected, both.found, both.key, ordered=both.ordered, tolerance=both.tolerance
    )
    return CaseOutcome(result, 0.0, [difference] if difference else [], {"priced": both})


BLOCK = """\
  t: # a test
    expect:
      priced: # what comes
        # the first
        rows:
          # one
          - {id: 1, v: a,   w: 1.50} # stays as it is
          - {id: 2, v: 'b', w: 2} # the second
          - id: 3
            v: "c"
            w: 3
          # four
          - {id: 4, v: d, w: 4}
        tolerance: 0.1 # behind
  other: {expect_error: x}
"""
BLOCK_AFTER = """\
  t: # a test
    expect:
      priced: # what comes
        # the first
        rows:
          # one
          - {id: 1, v: a,   w: 1.50} # stays as it is
          - {id: 2, v: "B, b", w: 2} # the second
          - id: 3
            v: "c"
            w: 3.5
          # four
          - {id: 5, v: null, w: 5.0}
        tolerance: 0.1 # behind
  other: {expect_error: x}
"""


def test_only_what_changed_is_written(tmp_path: Path) -> None:
    path = tmp_path / "orders.test.yaml"
    result = load_cases(write(tmp_path, BLOCK))[0]
    came = rows((1, "a", 1.5), (2, "B, b", 2.0), (3, "c", 3.5), (5, None, 5.0))
    before = path.read_text()
    notes = update(outcome(result, came))
    assert notes == [f"{path}:5:7: `priced` now expects 4 rows"]
    assert path.read_text() == before.replace(BLOCK, BLOCK_AFTER)
    again, _ = load_cases(path)
    assert outcome(again, came).passed


@pytest.mark.parametrize(
    ("before", "came", "after"),
    [
        ("rows: []  # none\n", rows((1, "a", 1.0)), "rows:\n          - {id: 1, v: a, w: 1.0}  # none\n"),
        ("rows:\n        - {id: 1, v: a, w: 1}\n", [], "rows: []\n"),
        ("rows: [{id: 1, v: a, w: 1}]\n", rows((1, "b", 1.0)), "rows:\n          - {id: 1, v: b, w: 1.0}\n"),
        (
            (
                "ordered: true\n        rows:\n          - {v: a, id: 1, w: 1}\n          - {v: b, id: 2, w:"
                " 2}\n"
            ),
            rows((2, "b", 2.0), (1, "a", 1.0)),
            (
                "ordered: true\n        rows:\n          - {v: b, id: 2, w: 2.0}\n          - {v: a, id: 1, w:"
                " 1.0}\n"
            ),
        ),
        (
            "columns: id, v\n        rows:\n          - {id: 1, v: x}",
            rows((1, "true", 1.0), (2, "a: b", 0.0)),
            'columns: id, v\n        rows:\n          - {id: 1, v: "true"}\n          - {id: 2, v: "a: b"}\n',
        ),
        (
            "columns: id, v\n        rows:\n          - {id: 1} # one\n          - {id: 2, v: x}\n",
            rows((1, "z", 1.0), (2, "x", 0.0)),
            "columns: id, v\n        rows:\n          - {id: 1, v: z} # one\n          - {id: 2, v: x}\n",
        ),
    ],
    ids=["from nothing", "to nothing", "on one line", "in order", "with texts", "a value where none was"],
)
def test_the_forms_of_rows(before: str, came: list[Any], after: str, tmp_path: Path) -> None:
    head = "  t:\n    expect:\n      priced:\n        "
    result = case(tmp_path, head + before)
    failed = outcome(result, came)
    assert not failed.passed
    update(failed)
    assert (tmp_path / "orders.test.yaml").read_text() == f"pipeline: orders.yaml\ntests:\n{head}{after}"
    (again,) = load_cases(tmp_path / "orders.test.yaml")
    assert outcome(again, came).passed


def test_rows_inside_of_one_line_stay_there(tmp_path: Path) -> None:
    result = case(tmp_path, "  t: {expect: {priced: {rows: [], columns: id}}}\n")
    update(outcome(result, rows((1, "a", 1.0), (2, "a", 1.0))))
    assert (
        "  t: {expect: {priced: {rows: [{id: 1}, {id: 2}], columns: id}}}\n"
        in (tmp_path / "orders.test.yaml").read_text()
    )


def test_values_of_every_type_read_back_as_what_came(tmp_path: Path) -> None:
    schema = pa.schema(
        {
            "id": pa.int64(),
            "at": pa.timestamp("us", tz="UTC"),
            "local": pa.timestamp("us"),
            "day": pa.date32(),
            "price": pa.decimal128(38, 18),
            "f": pa.float64(),
            "flag": pa.bool_(),
            "raw": pa.binary(),
            "text": pa.string(),
            "tags": pa.list_(pa.string()),
            "inner": pa.struct([("a", pa.int32()), ("b", pa.string())]),
            "counts": pa.map_(pa.string(), pa.int32()),
        }
    )
    moment = datetime(2025, 1, 2, 3, 4, 5, 678901)
    row = {
        "id": 1,
        "at": moment.replace(tzinfo=UTC),
        "local": moment,
        "day": moment.date(),
        "price": Decimal("12345678901234567890.123456789012345678"),
        "f": 1e-7,
        "flag": False,
        "raw": b"\x00\xff",
        "text": 'no: "quotes" # and\nlines',
        "tags": ["yes", "1", None],
        "inner": {"a": -1, "b": "null"},
        "counts": {"x y": 1},
    }
    nothing = dict.fromkeys(schema.names) | {"id": 2, "f": float("nan"), "text": ""}
    for form in ("rows: []", "json: x.ndjson", "parquet: x.parquet"):
        (tmp_path / "x.ndjson").write_text("")
        pq.write_table(pa.table({"id": pa.array([], pa.int64())}), tmp_path / "x.parquet")
        result = case(tmp_path, f"  t:\n    expect:\n      priced:\n        {form}\n")
        update(outcome(result, [row, nothing], schema))
        (again,) = load_cases(tmp_path / "orders.test.yaml")
        assert outcome(again, [row, nothing], schema).passed, form
        assert not outcome(again, [row], schema).passed, form


def test_a_csv_file_keeps_the_order_of_its_columns(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("v,id,w\na,1,1\n")
    result = case(tmp_path, "  t:\n    expect:\n      priced:\n        csv: x.csv\n")
    came = rows((1, "b, c", 1.5), (2, None, 2.0))
    assert update(outcome(result, came)) == [f"{tmp_path}/x.csv: `priced` now expects 2 rows"]
    assert (tmp_path / "x.csv").read_text() == 'v,id,w\n"b, c",1,1.5\n,2,2.0\n'


@pytest.mark.parametrize(
    ("tests", "message"),
    [
        ("  t: {expect_error: x}\n", "expects an error"),
        (
            (
                "  t:\n    given: {orders: {rows: &r [{id: 1}]}}\n    expect: {priced: {columns: id, rows:"
                " *r}}\n"
            ),
            "come from an alias",
        ),
    ],
)
def test_what_is_not_rewritten(tests: str, message: str, tmp_path: Path) -> None:
    result = case(tmp_path, tests)
    before = (tmp_path / "orders.test.yaml").read_text()
    failed = (
        CaseOutcome(result, 0.0, unraised="x") if "error" in tests else outcome(result, rows((2, "a", 1.0)))
    )
    with pytest.raises(UserError, match=message):
        update(failed)
    assert (tmp_path / "orders.test.yaml").read_text() == before


def test_nothing_is_written_that_would_not_read_back_as_what_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = case(tmp_path, "  t:\n    expect:\n      priced:\n        rows: []\n")
    before = (tmp_path / "orders.test.yaml").read_text()
    for wrong in (
        before,
        before.replace("[]", "[{id: 1, v: a, w: 2}]"),
        "tests: {}",
        before.replace("[]", "[{id: x, v: a, w: 1}]"),
    ):
        monkeypatch.setattr("headrace.jobs.testing.update_snapshots.replace_rows", lambda *_, new=wrong: new)
        with pytest.raises(UserError, match="cannot be rewritten where they stand"):
            update(outcome(result, rows((1, "a", 1.0))))
        assert (tmp_path / "orders.test.yaml").read_text() == before


def test_tests_inside_of_a_pipeline_file_are_rewritten_there(tmp_path: Path) -> None:
    path = tmp_path / "orders.yaml"
    path.write_text(f"{ORDERS}tests:\n  t: {{expect: {{priced: {{rows: [], columns: id}}}}}}\n")
    (result,) = load_cases(path)
    update(outcome(result, rows((1, "a", 1.0))))
    assert (
        path.read_text()
        == f"{ORDERS}tests:\n  t: {{expect: {{priced: {{rows: [{{id: 1}}], columns: id}}}}}}\n"
    )


def test_a_failure_is_told_in_eighty_columns(tmp_path: Path) -> None:
    result = case(
        tmp_path,
        "  t:\n    expect:\n      priced:\n        rows:\n"
        + "".join(f"          - {{id: {n}, v: a, w: 1}}\n" for n in range(30)),
    )
    came = rows((0, "b" * 90, 2.0), *((number, "a", 1.0) for number in range(4, 30)), (77, "new", 1.0))
    lines = failure(outcome(result, came))
    assert lines[:2] == [
        "priced: 28 rows came, 30 expected: 3 missing, 1 not expected, 1 different",
        "  ~ {id: 0}",
    ]
    assert "      w: expected 1.0, came 2.0" in lines
    assert [line for line in lines if line.startswith("  - ")] == [
        f"  - {{id: {number}, v: a, w: 1.0}}" for number in (1, 2, 3)
    ]
    assert "  + {id: 77, v: new, w: 1.0}" in lines
    assert lines[-1] == f"the test is at {tmp_path}/orders.test.yaml:3:3"
    assert max(len(line) for line in lines[:-1]) <= 80


def test_a_failure_shows_twenty_rows_unless_all_are_asked_for(tmp_path: Path) -> None:
    result = case(tmp_path, "  t: {expect: {priced: {rows: []}}}\n")
    failed = outcome(result, rows(*((number, "a", 1.0) for number in range(25))))
    assert sum(line.startswith("  + ") for line in failure(failed)) == 20
    assert "  … and 5 more; -v shows all" in failure(failed)
    assert sum(line.startswith("  + ") for line in failure(failed, shown=None)) == 25

"""Scripts and functions as nodes of a pipeline.

Through Spark's workers, by the planner that a run uses, in tests of pipelines too.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from helpers.pipeline_cases import case

from headrace.jobs.checks.preflight import check_pipeline
from headrace.jobs.testing.report import failure
from headrace.jobs.testing.runner import CaseOutcome, PipelineTestRunner
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import UserError
from headrace.pipeline.file.loader import load_pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


PIPELINE = """\
version: 1
name: programs
sources:
  s:
    type: kafka
    topic: t
    primary_key: id
    schema: {id: int64, name: string, price: "decimal(10,2)", at: timestamp, big: u256, raw: binary}
transforms:
  x:
    type: script
    from: s
    language: ts
    timeout: 500ms
    script: |
      interface Row { id: number | bigint; name: string | null }

      function process(input: Row): Row | null {
        if (input.name === 'drop') return null;
        if (input.name === 'boom') throw new Error(`no ${input.id}`);
        if (input.name === 'hang') while (true);
        if (input.name === 'native') new Array(4294967295).join('');
        return { ...input, name: input.name + '!' };
      }
  y:
    type: script
    from: x
    language: javascript
    schema: {id: int64, n: u256, t: timestamp}
    script: |
      const invoke = (r) => [{id: r.id, n: r.big, t: new Date()}, {id: BigInt(r.id) + 100n, t: r.at, _gs_op: 'd'}]
  p:
    type: python
    from: y
    function: programs_of_ours:half
    deterministic: true
    options: {by: 2}
  q:
    type: sql
    sql: SELECT id, n, t FROM p
sinks:
  o: {type: blackhole, from: q, delivery: at_least_once}
"""
MODULE = """
import pyarrow as pa


def half(batch, by):
    keep = [index for index in range(batch.num_rows) if index % by == 0]
    if "13" in batch["n"].to_pylist():
        raise ValueError("thirteen")
    return pa.table(batch.take(keep)).append_column("_gs_row", pa.array(keep))
"""
WIDE = str(2**256 - 1)
GOOD = f"""
  good:
    now: 2024-01-01T00:00:00Z
    given:
      s:
        rows:
          - {{id: 1, name: a, price: "1.50", at: 2013-01-01T00:00:00.123456Z, big: "{WIDE}", raw: ff00}}
          - {{id: 2, name: drop}}
          - {{id: 9007199254740993, name: c, _gs_op: d}}
    expect:
      x:
        rows:
          - {{id: 1, name: a!, price: 1.5, at: 2013-01-01T00:00:00.123456Z, big: "{WIDE}", raw: ff00, _gs_op: i}}
          - {{id: 9007199254740993, name: c!, price: null, at: null, big: null, raw: null, _gs_op: d}}
      y:
        ordered: true
        rows:
          - {{id: 1, n: "{WIDE}", t: 2024-01-01T00:00:00Z, _gs_op: i}}
          - {{id: 101, n: null, t: 2013-01-01T00:00:00.123456Z, _gs_op: d}}
          - {{id: 9007199254740993, n: null, t: 2024-01-01T00:00:00Z, _gs_op: d}}
          - {{id: 9007199254741093, n: null, t: null, _gs_op: d}}
      q:
        rows:
          - {{id: 1, n: "{WIDE}", t: 2024-01-01T00:00:00Z}}
          - {{id: 9007199254740993, n: null, t: 2024-01-01T00:00:00Z}}
"""


@pytest.fixture
def bench(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PipelineTestRunner:
    """Runs tests of pipelines; the workers find the module where the driver does."""
    (tmp_path / "programs_of_ours.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    spark.sparkContext.addPyFile(str(tmp_path / "programs_of_ours.py"))
    return PipelineTestRunner(
        Settings.model_validate({"home": tmp_path, "python_transforms": {"allow": ["programs_of_ours"]}})
    )


def ran(bench: PipelineTestRunner, folder: Path, tests: str, pipeline: str = PIPELINE) -> CaseOutcome:
    """The outcome of the only test."""
    return bench.run(case(folder, tests, pipeline))


def test_rows_go_through_all_of_them_and_keep_their_digits(bench: PipelineTestRunner, tmp_path: Path) -> None:
    outcome = ran(bench, tmp_path, GOOD)
    assert failure(outcome) == []
    assert outcome.passed


@pytest.mark.parametrize(
    ("row", "parts"),
    [
        (
            "{id: 4, name: boom}",
            ["row id 4 (partition 0, offset 1)", "Error: no 4 (line 5 of the script, ", "orders.yaml:20:"],
        ),
        ("{id: 4, name: hang}", ["row id 4 (partition 0, offset 1)", "longer than its `timeout` of 500ms"]),
        (
            "{id: 4, name: native}",
            ["row id 4 (partition 0, offset 1)", "native code, which only the kernel can stop"],
        ),
    ],
)
def test_a_bad_row_ends_the_epoch_with_its_name_and_place(
    bench: PipelineTestRunner, tmp_path: Path, row: str, parts: list[str]
) -> None:
    outcome = ran(
        bench,
        tmp_path,
        f"  bad:\n    given: {{s: {{rows: [{{id: 3, name: a}}, {row}]}}}}\n    expect: {{x: {{rows: []}}}}\n",
    )
    assert isinstance(outcome.error, UserError)
    assert outcome.error.node == "x"
    assert [part for part in parts if part not in str(outcome.error)] == []
    assert "Traceback" not in str(outcome.error)
    assert "org.apache.spark" not in str(outcome.error)


@pytest.mark.parametrize("name", ["boom", "hang"])
def test_rejected_rows_of_a_script_are_apart(bench: PipelineTestRunner, tmp_path: Path, name: str) -> None:
    pipeline = PIPELINE.replace("timeout: 500ms", "timeout: 500ms\n    on_error: dead_letter")
    pipeline += "  bad: {type: blackhole, from: x.errors, delivery: at_least_once}\n"
    tests = f"""
  apart:
    given: {{s: {{rows: [{{id: 3, name: a}}, {{id: 4, name: {name}, price: "1.50", _gs_op: u}}, {{id: 5, name: b}}]}}}}
    expect:
      x: {{columns: [id, name], rows: [{{id: 3, name: a!}}, {{id: 5, name: b!}}]}}
      bad:
        columns: [node, epoch, operation, row]
        rows:
          - node: x
            epoch: 1
            operation: u
            row: '{{"id":4,"name":"{name}","price":1.50,"at":null,"big":null,"raw":null}}'
"""
    outcome = ran(bench, tmp_path, tests, pipeline)
    assert failure(outcome) == []
    assert outcome.passed


def test_rejected_rows_of_a_function_are_apart(bench: PipelineTestRunner, tmp_path: Path) -> None:
    pipeline = PIPELINE.replace("options: {by: 2}", "options: {by: 1}\n    on_error: dead_letter")
    pipeline += "  bad: {type: blackhole, from: p.errors, delivery: at_least_once}\n"
    tests = """
  apart:
    given: {y: {rows: [{id: 3, n: "12"}, {id: 4, n: "13"}, {id: 5, n: "14"}]}}
    expect:
      q: {columns: [id], rows: [{id: 3}, {id: 5}]}
      bad: {columns: [node, row], rows: [{node: p, row: '{"id":4,"n":"13","t":null}'}]}
"""
    outcome = ran(bench, tmp_path, tests, pipeline)
    assert failure(outcome) == []
    assert outcome.passed


def test_a_function_that_fails_is_told_with_its_line(bench: PipelineTestRunner, tmp_path: Path) -> None:
    outcome = ran(
        bench,
        tmp_path,
        '  bad:\n    given: {y: {rows: [{id: 3, n: "13", t: null}]}}\n    expect: {q: {rows: []}}\n',
    )
    assert isinstance(outcome.error, UserError)
    assert outcome.error.node == "p"
    assert "ValueError: thirteen (" in outcome.error.message
    assert "programs_of_ours.py:8)" in outcome.error.message


def test_validate_finds_what_does_not_load_with_its_place_in_the_file(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(PIPELINE.replace("const invoke =", "const invoke = = "))
    result = check_pipeline(load_pipeline(path), Settings(home=tmp_path), lambda: spark).errors
    messages = sorted(str(error) for error in result)
    assert len(messages) == 2, messages
    line = (
        PIPELINE.split("\n").index(next(line for line in PIPELINE.split("\n") if "const invoke" in line)) + 1
    )
    assert messages[0].startswith(f"{path}:{line}:22: node 'y': the script does not load: SyntaxError")
    assert (
        f"{path}:{line + 4}:5: node 'p': the settings do not allow Python from `programs_of_ours`"
        in messages[1]
    )


def test_a_key_that_a_script_makes_need_not_be_there_before(
    bench: PipelineTestRunner, tmp_path: Path
) -> None:
    pipeline = PIPELINE.replace(
        "    schema: {id: int64, n: u256, t: timestamp}",
        "    primary_key: n\n    schema: {id: int64, n: u256, t: timestamp}",
    )
    tests = (
        '  keyed:\n    given: {x: {rows: [{id: 3, big: "4"}]}}\n    expect: {y: {columns: [n], rows:'
        ' [{n: "4"}, {n: null}]}}\n'
    )
    assert ran(bench, tmp_path, tests, pipeline).passed
    lost = PIPELINE.replace("schema: {id: int64, n: u256, t: timestamp}", "schema: {n: u256}").replace(
        "SELECT id, n, t", "SELECT n"
    )
    lost = lost.replace("id: r.id, ", "").replace("id: BigInt(r.id) + 100n, ", "")
    outcome = ran(bench, tmp_path, tests, lost)
    assert "Primary key validation failed for node 'y'" in str(outcome.error)

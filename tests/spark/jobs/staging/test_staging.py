"""Rows of non-deterministic nodes on durable storage.

Whole or not there, the first manifest counts, nothing else is ever read.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from helpers.depth import with_slow
from pyspark.sql import SparkSession

from headrace.connectors.row_errors import explain_failure
from headrace.connectors.spark_types import arrow_schema, spark_schema
from headrace.jobs.run.epoch_writer import EpochWriter
from headrace.jobs.spark.session import spark_conf
from headrace.jobs.staging import folder_files
from headrace.jobs.staging.store import EpochResultStore, ResultStore
from headrace.jobs.staging.stored_results import NodeGraph, StoredResults
from headrace.jobs.staging.task import StoreResultsTask
from headrace.pipeline.config.sections import SparkSettings, StagingSettings
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import PipelineStateError, SettingsError, SinkStateError, UserError
from headrace.pipeline.file.loader import parse_pipeline
from headrace.pipeline.protocol.epochs import EpochPlan, Phase
from headrace.pipeline.sql.system_columns import POS_TYPE
from headrace.pipeline.types.int256 import UINT256

UUID = "0a6c1d2e-0000-4000-8000-000000000001"


def plan(number: int = 7, planned: int = 0) -> EpochPlan:
    return EpochPlan(
        number,
        Phase.LIVE,
        {"s": {"a": 1}},
        {"s": {"a": 2}},
        "hash",
        datetime(2026, 1, 1, 0, 0, planned, tzinfo=UTC),
    )


def lane(path: Path, generation: int = 1, keep: int = 2) -> ResultStore:
    return ResultStore(
        Settings(home=path, staging=StagingSettings(keep_epochs=keep)), UUID, "main", generation
    )


def folder_of(results: EpochResultStore) -> Path:
    return Path(results.folder)


def stages(path: Path, generation: int = 1, number: int = 7) -> EpochResultStore:
    return lane(path, generation).for_epoch(plan(number), "hash")


@pytest.fixture
def random_rows(spark: SparkSession) -> Any:
    """Rows that are others each time they are computed."""
    frame = spark.range(0, 20, 1, 3).selectExpr(
        "id",
        "reflect('java.util.UUID', 'randomUUID') AS `a name, with (odd) chars.`",
        "TIMESTAMP'0001-01-01 00:00:00.123456' AS old",
    )
    return frame.selectExpr("*", "'i' AS _gs_op", f"CAST(struct(0, 0, id, 0) AS {POS_TYPE}) AS _gs_pos")


def rows_of(frame: Any) -> list[dict[str, Any]]:
    return sorted(frame.toArrow().to_pylist(), key=lambda row: row["id"])


def test_staged_rows_are_the_same_in_every_process(tmp_path: Path, random_rows: Any) -> None:
    made = stages(tmp_path).make("node", random_rows)
    first = stages(tmp_path).read("node", random_rows)
    second = stages(tmp_path, generation=2).read("node", random_rows)
    assert rows_of(first.frame) == rows_of(second.frame) != rows_of(random_rows)
    assert (made.rows, first.rows) == (20, 20)
    assert first.frame.columns == random_rows.columns
    assert [field.dataType for field in first.frame.schema] == [
        field.dataType for field in random_rows.schema
    ]


def test_a_wide_number_keeps_its_type(tmp_path: Path, spark: SparkSession) -> None:
    schema = pa.schema([("n", UINT256)])
    frame = spark.createDataFrame([(str(2**255),)], spark_schema(schema))
    stages(tmp_path).make("node", frame)
    result = stages(tmp_path).read("node", frame).frame
    assert arrow_schema(result.schema) == schema
    assert result.collect()[0].n == str(2**255)


@pytest.mark.parametrize(
    "predicate",
    with_slow(
        {"x >= 0", "x IN (0, 7)", "t = 'b'"},
        ("x > 5", "x = double('NaN')", "s.z > 5", "x >= 0", "x = 0", "x IN (0, 7)", "t = 'b'"),
    ),
)
def test_a_filter_behind_a_stage_finds_the_rows_that_it_finds_before_it(
    tmp_path: Path, spark: SparkSession, predicate: str
) -> None:
    rows = (
        "VALUES (1, double('NaN'), 'a'), (2, double('-0.0'), 'b'), (3, double('-0.0'), 'a')"
        if "NaN" in predicate or ">" in predicate
        else "VALUES (1, double('-0.0'), 'b')"
    )
    frame = spark.sql(f"SELECT id, x, named_struct('z', x) AS s, t FROM {rows} AS v(id, x, t)").coalesce(1)
    stages(tmp_path).make("node", frame)
    expected = frame.where(predicate).count()
    assert stages(tmp_path).read("node", frame).frame.where(predicate).count() == expected > 0


def test_no_rows_are_a_stage_too(tmp_path: Path, random_rows: Any) -> None:
    none = random_rows.where("id < 0")
    assert stages(tmp_path).make("node", none).rows == 0
    assert stages(tmp_path).read("node", none).frame.count() == 0


def test_an_attempt_without_a_manifest_is_never_read_and_goes(tmp_path: Path, random_rows: Any) -> None:
    stage = stages(tmp_path)
    dead = folder_of(stage) / "node" / "g1-dead"
    random_rows.write.parquet(f"file://{dead}")
    assert stage.load_manifest("node") is None
    kept = stages(tmp_path, generation=2).make("node", random_rows)
    assert kept.attempt.startswith("g2-")
    assert {path.name for path in dead.parent.iterdir()} == {"manifest.json", kept.attempt}


def test_of_two_writers_the_first_manifest_counts(
    tmp_path: Path, random_rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, early = stages(tmp_path, generation=1), stages(tmp_path, generation=2)
    link = os.link
    overtaken: list[Any] = []

    def overtake(source: Any, target: Any) -> None:
        if not overtaken:
            overtaken.append(None)
            overtaken.append(early.make("node", random_rows))
        link(source, target)

    monkeypatch.setattr(os, "link", overtake)
    assert late.make("node", random_rows) == overtaken[1]
    assert late.load_manifest("node") == overtaken[1]
    assert overtaken[1].generation == 2


def test_a_writer_that_slept_reads_what_was_staged_meanwhile(
    tmp_path: Path, random_rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = stages(tmp_path, generation=1)
    complete = slow._complete
    meanwhile: list[Any] = []

    def asleep(node: str, attempt: str, parts: Any) -> Any:
        meanwhile.append(stages(tmp_path, generation=2).make(node, random_rows))
        return complete(node, attempt, parts)

    monkeypatch.setattr(slow, "_complete", asleep)
    assert slow.make("node", random_rows) == meanwhile[0]
    assert {path.name for path in (folder_of(slow) / "node").iterdir()} == {
        "manifest.json",
        meanwhile[0].attempt,
    }


def test_a_writer_whose_files_were_swept_reads_what_was_staged_meanwhile(
    tmp_path: Path, random_rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = stages(tmp_path, generation=2)
    meanwhile: list[Any] = []

    def swept(node: str, attempt: str, parts: Any) -> Any:
        meanwhile.append(stages(tmp_path, generation=1).make(node, random_rows))
        raise FileNotFoundError(slow.folder / node / attempt / parts[0][0])

    monkeypatch.setattr(slow, "_complete", swept)
    assert slow.make("node", random_rows) == meanwhile[0]


def test_a_fault_behind_the_link_leaves_the_rows_that_count(
    tmp_path: Path, random_rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = stages(tmp_path)

    def broken(_: str) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(stage, "sync_manifest", broken)
        with pytest.raises(UserError, match=r"cannot be stored in .*: Input/output error"):
            stage.make("node", random_rows)
    staging = StoredResults(stages(tmp_path, generation=2), NodeGraph(lambda _: ()), ["node"], dict)
    taken = staging.load_or_compute("node", random_rows)
    assert (len(rows_of(taken.frame)), staging.seconds) == (20, {}), (
        "they are taken, and not computed once more"
    )


def test_a_plan_made_anew_never_meets_the_old_rows(tmp_path: Path, random_rows: Any) -> None:
    lane(tmp_path).for_epoch(plan(planned=1), "hash").make("node", random_rows)
    assert lane(tmp_path).for_epoch(plan(planned=2), "hash").load_manifest("node") is None
    assert lane(tmp_path).for_epoch(plan(planned=1), "another").load_manifest("node") is None


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        pytest.param(lambda part: part.unlink(), "no bytes", marks=pytest.mark.slow),
        (lambda part: part.write_bytes(b"PAR1"), "4 bytes"),
        (lambda part: (part.parent.parent / "manifest.json").write_text('{"format": 9}'), "has format 9"),
        (lambda part: (part.parent.parent / "manifest.json").write_text("{"), "cannot be read"),
    ],
)
def test_a_torn_stage_is_told(
    tmp_path: Path, random_rows: Any, damage: Callable[[Path], None], message: str
) -> None:
    made = stages(tmp_path).make("node", random_rows)
    damage(folder_of(stages(tmp_path)) / "node" / made.attempt / made.files[0][0])
    with pytest.raises(PipelineStateError, match=message):
        stages(tmp_path).load_manifest("node")


@pytest.mark.parametrize("files", ["Missing", "Corrupt"])
def test_spark_may_not_be_told_to_pass_over_files(files: str) -> None:
    conf = {f"spark.sql.files.ignore{files}Files": "true"}
    with pytest.raises(SettingsError, match=f"ignore{files}Files` must be false, found `true`"):
        spark_conf(Settings(spark=SparkSettings(conf=conf)), ())


def test_a_stage_moved_under_another_name_is_told(tmp_path: Path, random_rows: Any) -> None:
    stages(tmp_path).make("node", random_rows)
    (folder_of(stages(tmp_path)) / "node").rename(folder_of(stages(tmp_path)) / "other")
    with pytest.raises(PipelineStateError, match="another epoch or node"):
        stages(tmp_path).load_manifest("other")


def test_a_place_that_takes_nothing_is_told_with_its_setting(tmp_path: Path, random_rows: Any) -> None:
    (tmp_path / "staging").write_text("a file where the folder should be")
    with pytest.raises(UserError, match="cannot be stored in") as caught:
        stages(tmp_path).make("node", random_rows)
    assert "staging.path" in caught.value.hint
    assert caught.value.node == "node"


def test_a_full_disk_is_told_by_the_task_that_meets_it(tmp_path: Path, random_rows: Any) -> None:
    batch = random_rows.select("id").toArrow().to_batches()[0]
    error = explained(StoreResultsTask("node", "/dev/full/x", "/the/root"), batch)
    assert error.message == "results cannot be stored in /the/root: Not a directory"
    assert (type(error), error.node) == (UserError, "node")


def explained(task: StoreResultsTask, batch: pa.RecordBatch) -> Any:
    with pytest.raises(RuntimeError) as caught:
        list(task([batch]))
    return explain_failure(caught.value)


def test_a_folder_that_workers_do_not_share_is_told(
    tmp_path: Path, random_rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "another host"
    elsewhere.mkdir()
    monkeypatch.setattr(
        folder_files, "StoreResultsTask", lambda node, _, root: StoreResultsTask(node, str(elsewhere), root)
    )
    with pytest.raises(UserError, match="and here nothing is there") as caught:
        stages(tmp_path).make("node", random_rows)
    assert "share" in caught.value.hint
    assert stages(tmp_path).load_manifest("node") is None


def test_spans_of_time_are_staged(tmp_path: Path, spark: SparkSession) -> None:
    frame = spark.sql(
        "SELECT INTERVAL '1 02:03:04.5' DAY TO SECOND AS span, map('a', 1) AS m,"
        " array(struct(DATE'1500-01-01' AS d)) AS nested"
    )
    stages(tmp_path).make("node", frame)
    assert stages(tmp_path).read("node", frame).frame.collect() == frame.collect()


def test_a_failing_node_leaves_nothing_behind(tmp_path: Path, random_rows: Any) -> None:
    with pytest.raises(UserError, match=r"(?i)division by zero"):
        stages(tmp_path).make("node", random_rows.selectExpr("1 / (id - 3) AS x"))
    assert list((folder_of(stages(tmp_path)) / "node").iterdir()) == []


def test_the_sweep_keeps_the_last_epochs(tmp_path: Path) -> None:
    result = lane(tmp_path, keep=2)
    for number in range(1, 6):
        folder_of(result.for_epoch(plan(number), "hash")).mkdir(parents=True)
    result.sweep(4)
    left = sorted(int(path.name.split("-")[0]) for path in (tmp_path / "staging" / UUID / "main").iterdir())
    assert left == [3, 4, 5]
    lane(tmp_path, keep=0).sweep(5)
    assert not list((tmp_path / "staging" / UUID / "main").iterdir())


INPUTS = {
    "sink": ("plain",),
    "plain": ("second",),
    "second": ("first",),
    "first": ("source",),
    "early": ("first",),
    "source": (),
    "table": ("early",),
}


ASKS = {"plain": ("table",)}


def staging(path: Path, bound: tuple[str, ...] = ()) -> StoredResults:
    who = NodeGraph(lambda name: INPUTS[name], lambda name: ASKS.get(name, ()))
    return StoredResults(
        stages(path), who, ["first", "second"], lambda: {name: f"{name} holds this epoch" for name in bound}
    )


def test_what_lies_behind_a_stage_is_not_needed_again(tmp_path: Path, random_rows: Any) -> None:
    assert staging(tmp_path).required_nodes(["sink"]) == {"first", "second"}
    stages(tmp_path).make("second", random_rows)
    assert staging(tmp_path).required_nodes(["sink"]) == {"second"}
    assert staging(tmp_path).required_nodes(["sink", "early"]) == {"first", "second"}


def test_rows_that_a_sink_holds_are_never_computed_anew(tmp_path: Path, random_rows: Any) -> None:
    staging(tmp_path).check(["sink"], replayed=False, recompute=False)
    with pytest.raises(SinkStateError, match="stored results of epoch 7 are missing, and early holds"):
        staging(tmp_path, ("early",)).check(["sink"], replayed=False, recompute=False)
    with pytest.raises(SinkStateError, match="--recompute"):
        staging(tmp_path).check(["sink"], replayed=True, recompute=False)
    staging(tmp_path, ("early",)).check(["sink"], replayed=True, recompute=True)
    stages(tmp_path).make("second", random_rows)
    staging(tmp_path, ("early",)).check(["sink"], replayed=False, recompute=False)
    assert (
        json.loads((folder_of(stages(tmp_path)) / "second" / "manifest.json").read_text())["node"] == "second"
    )


def test_who_asked_a_table_holds_the_rows_that_filled_it(tmp_path: Path, random_rows: Any) -> None:
    stages(tmp_path).make("second", random_rows)
    with pytest.raises(SinkStateError, match="plain holds") as caught:
        staging(tmp_path, ("plain",)).check(["early"], replayed=False, recompute=False)
    assert caught.value.node == "first"


class Parts:
    """Stands for a sink, or a table, that may hold a part of an epoch."""

    def __init__(self, *, has: bool) -> None:
        self.has_partial_epoch = self.has_values = lambda _: has
        self.needs_values = lambda _: not has


FILE = """
version: 1
name: p
sources:
  src: {type: kafka, topic: t, schema: {id: int64, name: string}}
transforms:
  asked: {type: sql, sql: "SELECT id, name, rand() AS x FROM src"}
  seen: {type: dynamic_table, backend_type: InMemory, backend_entity_name: seen, sql: SELECT name FROM asked}
sinks:
  parts: {type: blackhole, from: asked}
  whole: {type: blackhole, from: src}
"""


@pytest.mark.parametrize(
    ("sink", "table", "reason"),
    [
        (True, False, "sink parts has a part of this epoch"),
        (False, True, "dynamic table seen has the values of this epoch"),
        (False, False, ""),
    ],
)
def test_a_part_of_an_epoch_is_not_finished_with_other_rows(
    tmp_path: Path, random_rows: Any, sink: bool, table: bool, reason: str
) -> None:
    file = parse_pipeline(FILE)
    planner: Any = SimpleNamespace(file=file, tables={"seen": Parts(has=table)})
    sinks: Any = {"parts": Parts(has=sink), "whole": Parts(has=False)}
    writer = EpochWriter(planner, {}, sinks, stages=lane(tmp_path), pipeline_hash="hash")
    if reason:
        with pytest.raises(
            SinkStateError, match=f"epoch 7 are missing, and {reason} with these results: {tmp_path}"
        ) as caught:
            writer.staging(plan(), ["parts", "whole"])
        assert (caught.value.node, "staging.recompute" in caught.value.hint) == ("asked", True)
    else:
        assert writer.staging(plan(), ["parts", "whole"]) is not None
    stages(tmp_path).make("asked", random_rows)
    assert writer.staging(plan(), ["parts", "whole"]) is not None, "nothing is missing"

"""Plugins that fail or break their contract: the error names the plugin and the place.

Nothing is written.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.depth import FULL
from helpers.plugin_files import install, settings
from pyspark.sql import SparkSession

from headrace.jobs.run.events import Until
from headrace.jobs.run.runner import run
from headrace.pipeline.errors import DataError, HeadraceError, PluginError, TransientError
from headrace.pipeline.file.loader import load_pipeline

DAILY = ("bad.crashes", "bad.lock", "bad.class", "bad.rows", "bad.send", "bad_f")

BAD = """
import threading
import pyarrow as pa
from headrace import *


class Base(ArrowTransform):
    def process(self, batch):
        return batch


def transform(**members):
    return type("Bad", (Base,), {"__module__": __name__, **members})


def crashes(self, batch):
    return {}["missing"]


def says(self, batch):
    raise DataError("row 3 is of no use", hint="Remove it.")


def passes_by(self, batch, epoch):
    raise TransientError("the service is away")


def with_lock(self, context):
    Base.__init__(self, context)
    self.lock = threading.Lock()


def splits_of_sets(self):
    return [{"ids": {1, 2}}]


class Source(ArrowSource):
    def columns(self):
        return pa.schema([("id", pa.int64()), ("word", pa.string())])

    def list_splits(self):
        return [{"rows": 1}]

    def batches(self, split):
        yield pa.RecordBatch.from_pydict({"id": [1], "word": ["a"]})


def source(**members):
    made = type("Bad", (Source,), {"__module__": __name__, **members})
    return made


class Sink(ArrowSink):
    def send(self, batch, epoch):
        pass


def sink(**members):
    return type("Bad", (Sink,), {"__module__": __name__, **members})


def gives(*batches):
    def batches_of(self, split):
        return iter(batches) if batches else None
    return batches_of


PLUGINS = {
    "bad.crashes": Plugin("bad.crashes", "transform", transform(process=crashes)),
    "bad.says": Plugin("bad.says", "transform", transform(process=says)),
    "bad.none": Plugin("bad.none", "transform", transform(process=lambda self, batch: None)),
    "bad.hidden": Plugin("bad.hidden", "transform", transform(process=lambda self, batch: batch.drop_columns(["_gs_pos"]))),
    "bad.column": Plugin("bad.column", "transform", transform(process=lambda self, batch: batch.drop_columns(["word"]))),
    "bad.more": Plugin("bad.more", "transform", transform(process=lambda self, batch: batch.append_column("x", batch.column("id")))),
    "bad.type": Plugin("bad.type", "transform", transform(columns=lambda self, payload: pa.schema([("id", pa.int32()), ("word", pa.string())]))),
    "bad.twice": Plugin("bad.twice", "transform", transform(process=lambda self, batch: batch.take(pa.array([0, 0] * batch.num_rows)))),
    "bad.other": Plugin("bad.other", "transform", transform(process=lambda self, batch: batch.take(pa.array([0] * batch.num_rows)))),
    "bad.op": Plugin("bad.op", "transform", transform(process=lambda self, batch: batch.set_column(
        batch.schema.get_field_index("_gs_op"), "_gs_op", pa.array(["x"] * batch.num_rows)))),
    "bad.lock": Plugin("bad.lock", "transform", transform(__init__=with_lock)),
    "bad.schema": Plugin("bad.schema", "transform", transform(columns=lambda self, payload: None)),
    "bad.wide": Plugin("bad.wide", "transform", transform(columns=lambda self, payload: pa.schema([("id", pa.month_day_nano_interval())]))),
    "bad.class": Plugin("bad.class", "transform", dict),
    "bad.abstract": Plugin("bad.abstract", "transform", ArrowTransform),
    "bad.sets": Plugin("bad.sets", "source", source(list_splits=splits_of_sets)),
    "bad.rows": Plugin("bad.rows", "source", source(batches=gives())),
    "bad.ops": Plugin("bad.ops", "source", source(batches=gives(pa.RecordBatch.from_pydict({"id": [1], "word": ["a"], "_gs_op": ["x"]})))),
    "bad.text": Plugin("bad.text", "source", source(batches=gives(pa.RecordBatch.from_pydict({"id": ["1"], "word": ["a"]})))),
    "bad.send": Plugin("bad.send", "sink", sink(send=lambda self, batch, epoch: 1 / 0)),
    "bad.away": Plugin("bad.away", "sink", sink(send=passes_by)),
    "bad.counts": Plugin("bad.counts", "sink", sink(write=lambda self, plan, frame: 3)),
    "bad_f": Plugin("bad_f", "function", lambda words: pa.array([1]), arguments=("string",), returns="string"),
    "bad_g": Plugin("bad_g", "function", lambda words: pa.array(["a"]), arguments=("string",), returns="string"),
    "bad_h": Plugin("bad_h", "function", lambda words: words.no_such, returns="string"),
    "bad_i": Plugin("bad_i", "function", lambda words: words, arguments=("int64",), returns="int64"),
    "bad_j": Plugin("bad_j", "function", lambda words: words, returns="sting"),
    "bad.side": Plugin("bad.side", "side_output", type("Side", (SideOutput,), {"epoch": lambda self, plan, rows: rows.no_such})),
}
globals().update({name.replace(".", "_"): plugin for name, plugin in PLUGINS.items()})
"""
IDS = [
    "crashes",
    "says",
    "none",
    "hidden",
    "column",
    "more",
    "type",
    "twice",
    "other",
    "op",
    "lock",
    "schema",
    "wide",
    "class",
    "abstract",
    "sets",
    "rows",
    "ops",
    "text",
    "send",
    "away",
    "counts",
    "side",
]
PIPELINE = """\
version: 1
name: bad
sources:
  src: {type: acme.numbers, upto: 7}
transforms:
  mid:
    type: sql
    sql: SELECT * FROM src
sinks:
  out:
    type: blackhole
    from: mid
"""
CONTRACT = "broke its contract: "
CASES = [
    ("bad.crashes", "the plugin `bad.crashes` failed in `process`: KeyError: 'missing'"),
    ("bad.none", CONTRACT + "`process` gave NoneType, and not pyarrow.RecordBatch"),
    ("bad.hidden", CONTRACT + "`process` lost the hidden column `_gs_pos`"),
    ("bad.column", CONTRACT + "`process` gave rows without `word`"),
    ("bad.more", CONTRACT + "`process` gave columns that it did not announce: x"),
    ("bad.type", CONTRACT + "`process` gave column `id` as int64, and announced int32"),
    ("bad.twice", "rows the `_gs_pos` of another\n  Make several rows of one by headrace.fan_out."),
    ("bad.other", "rows the `_gs_pos` of another\n  Make several rows of one by headrace.fan_out."),
    ("bad.op", CONTRACT + "`process` gave an operation other than i, u and d in `_gs_op`"),
    ("bad.lock", "cannot be sent to Spark's workers: TypeError: cannot pickle '_thread.lock' object"),
    ("bad.schema", CONTRACT + "`columns` returned NoneType, and not pyarrow.Schema"),
    ("bad.wide", CONTRACT + "`columns` has a type that Spark does not have"),
    ("bad.class", "the plugin `bad.class` failed in being made: TypeError"),
    ("bad.abstract", "failed in being made: TypeError: Can't instantiate abstract class ArrowTransform"),
    ("bad.sets", CONTRACT + "`create_snapshot` returned what is no JSON"),
    ("bad.rows", CONTRACT + "`batches` returned NoneType, and not batches"),
    ("bad.ops", CONTRACT + "`batches` gave an operation other than i, u and d in `_gs_op`"),
    ("bad.text", CONTRACT + "`batches` gave column `id` as string, and announced int64"),
    ("bad.send", "the plugin `bad.send` failed in `write`: ZeroDivisionError: division by zero"),
    ("bad.counts", CONTRACT + "`write` returned int, and not WriteCounts"),
    ("bad_f", CONTRACT + "the function `bad_f` returned 1 values for"),
    ("bad_g", CONTRACT + "the function `bad_g` returned 1 values for"),
    ("bad_h", "the plugin `bad_h` failed in the function `bad_h`: AttributeError"),
    ("bad_i", "the function `bad_i` takes int64: Failed to parse string: 'w"),
    ("bad_j", CONTRACT + "it declares the type `sting`: "),
]


@pytest.fixture
def bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {f"bad.{name}": f"bad_{name}" for name in IDS} | {
        f"bad_{letter}": f"bad_{letter}" for letter in "fghij"
    }
    monkeypatch.syspath_prepend(str(install(tmp_path / "site", "bad_plugins", BAD, entries)))


def text_with(plugin_id: str) -> tuple[str, str, int]:
    """The pipeline with a plugin at its place, the node, and its line."""
    if plugin_id.startswith("bad_"):
        return PIPELINE.replace("SELECT *", f"SELECT id, {plugin_id}(word) AS w"), "", 0
    if plugin_id in ("bad.sets", "bad.rows", "bad.ops", "bad.text"):
        return PIPELINE.replace("acme.numbers, upto: 7", plugin_id), "src", 4
    if plugin_id in ("bad.send", "bad.counts", "bad.away"):
        return PIPELINE.replace("type: blackhole", f"type: {plugin_id}"), "out", 10
    return (
        PIPELINE.replace("type: sql\n    sql: SELECT * FROM src", f"type: {plugin_id}\n    from: src"),
        "mid",
        6,
    )


def failure(text: str, spark: SparkSession, folder: Path) -> HeadraceError:
    Path("f.yaml").write_text(text)
    with pytest.raises(HeadraceError) as caught:
        run(load_pipeline("f.yaml"), settings(folder), until=Until.HISTORY, spark=spark)
    return caught.value


@pytest.mark.usefixtures("bad")
@pytest.mark.sampled
@pytest.mark.parametrize(
    ("plugin_id", "says"), CASES if FULL else [case for case in CASES if case[0] in DAILY]
)
def test_a_plugin_that_fails_is_named(plugin_id: str, says: str, spark: SparkSession, tmp_path: Path) -> None:
    text, node, line = text_with(plugin_id)
    error = failure(text, spark, tmp_path)
    message = str(error)
    assert isinstance(error, PluginError), message
    assert says in message
    if plugin_id != "bad_i":
        assert "bad-plugins 1.0, bad_plugins:" in message
    if node:
        assert message.startswith(f"f.yaml:{line}:3: node '{node}': ")
    for word in ("Traceback", "Py4J", "org.apache", "Internal error"):
        assert word not in message
    if "failed in `" in says:
        assert "bad_plugins.py, line " in message


@pytest.mark.usefixtures("bad")
def test_what_a_plugin_says_itself_is_kept(spark: SparkSession, tmp_path: Path) -> None:
    text, _, line = text_with("bad.says")
    error = failure(text, spark, tmp_path)
    assert isinstance(error, DataError)
    assert str(error) == f"f.yaml:{line}:3: node 'mid': row 3 is of no use\n  Remove it."


@pytest.mark.usefixtures("bad")
def test_a_failure_that_passes_is_tried_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.jobs.run.pipeline_run.RETRY_FOR", 0.1)
    error = failure(text_with("bad.away")[0], spark, tmp_path)
    assert isinstance(error, TransientError)


@pytest.mark.usefixtures("bad")
def test_a_side_output_that_fails_keeps_the_epoch_from_being_written(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE__PLUGIN__SIDE_OUTPUT_IDS", "bad.side")
    error = failure(PIPELINE, spark, tmp_path)
    assert "node 'src': the plugin `bad.side` failed in `epoch`" in str(error)

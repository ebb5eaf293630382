"""The sinks that store nothing."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from headrace.connectors import registry
from headrace.connectors.console import BlackholeSink, PrintSink
from headrace.connectors.console_config import BlackholeSinkConfig, PrintSinkConfig
from headrace.connectors.frame import EpochFrame
from headrace.connectors.sink_base import Sink, SinkContext
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.model.capabilities import Delivery
from headrace.pipeline.protocol.epochs import CommitRecord, EpochPlan, Phase, SinkKey, WriteCounts
from headrace.pipeline.sql.system_columns import OP, POS, POS_TYPE

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("raw", pa.binary())])
KEY = SinkKey("uuid-1", "flights", "main", "screen")
PLAN = EpochPlan(1, Phase.LIVE, {"s": 0}, {"s": 1}, "hash", datetime.now(UTC))


def context(kind: str, **more: Any) -> SinkContext:
    node = {"print": PrintSinkConfig, "blackhole": BlackholeSinkConfig}[kind].model_validate(
        {"from": "x", **more}
    )
    return SinkContext(KEY, node, Settings(), SCHEMA)


def frame(spark: SparkSession, *ops: str, poison: bool = False) -> EpochFrame:
    rows = [(n, None, b"\x00\xff", op, (0, 0, n, 0)) for n, op in enumerate(ops, 1)]
    result = spark.createDataFrame(
        rows, f"id bigint, name string, raw binary, {OP} string, {POS} {POS_TYPE}"
    ).coalesce(1)
    if poison:
        result = result.selectExpr("if(id > 0, raise_error('computed'), id) id", "name", "raw", OP, POS)
    return EpochFrame(result, SCHEMA, (), len(ops), spark)


def test_print_line(spark: SparkSession) -> None:
    out = io.StringIO()
    sink = PrintSink(context("print"), out)
    assert sink.write(PLAN, frame(spark, "i", "u")) == WriteCounts(2, None, None, None)
    sink.write(PLAN, frame(spark, "d"))
    lines = out.getvalue().splitlines()
    assert [line.split(" {")[0] for line in lines] == [
        "2 -> (sample_every=1) [Insert]",
        "2 -> (sample_every=1) [Update]",
        "3 -> (sample_every=1) [Delete]",
    ]
    assert json.loads(lines[0].split("] ", 1)[1]) == {"id": 1, "name": None, "raw": "00ff", "_gs_op": "i"}


def test_print_shows_every_nth_row_across_epochs(spark: SparkSession) -> None:
    out = io.StringIO()
    sink = PrintSink(context("print", sample_every=3), out)
    assert sink.write(PLAN, frame(spark, *"iiii")).rows == 4
    assert sink.write(PLAN, frame(spark, *"iii")).rows == 3
    shown = [json.loads(line.split("] ", 1)[1])["id"] for line in out.getvalue().splitlines()]
    assert shown == [3, 2]  # rows 3 and 6 of all seven
    assert out.getvalue().splitlines()[-1].startswith("7 -> (sample_every=3) [Insert] {")


def test_print_goes_to_standard_error(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    PrintSink(context("print")).write(PLAN, frame(spark, "i"))
    captured = capsys.readouterr()
    assert "[Insert]" in captured.err
    assert captured.out == ""


def test_blackhole_computes_every_column(spark: SparkSession) -> None:
    sink = BlackholeSink(context("blackhole"))
    assert sink.write(PLAN, frame(spark, "i", "d")) == WriteCounts(2, None, None, None)
    with pytest.raises(Exception, match="computed"):
        sink.write(PLAN, frame(spark, "i", poison=True))


@pytest.mark.parametrize("kind", ["print", "blackhole"])
def test_record_lives_as_long_as_the_sink(kind: str) -> None:
    sink: Sink = registry.open_sink(context(kind))
    sink.prepare(SCHEMA, 1)
    assert sink.record() is None
    joined = sink.register(CommitRecord.for_registration(KEY, 1, 4, {"s": 0}, "hash", 7))
    assert (joined.epoch, joined.baseline) == (4, None)
    assert sink.record() == joined
    assert sink.read_row_count() is None
    assert sink.capabilities.delivery is Delivery.AT_LEAST_ONCE
    assert sink.describe() == {"kind": kind, "asset_key": [kind, "screen"]}

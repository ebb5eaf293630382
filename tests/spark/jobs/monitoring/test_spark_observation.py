"""Metrics that Spark collects from rows.

Numbers, event times of every type, and rows that several queries share.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from headrace.jobs.monitoring.spark_observation import EpochObservation, NodeFigures, observe_frame
from headrace.jobs.monitoring.table_figures import figures_of_table
from headrace.pipeline.model.telemetry import EventTime

LATEST = 1_735_689_600_000
"""2025-01-01, in milliseconds."""


def test_event_times_of_every_type_and_nonsense_is_left_out(spark: SparkSession) -> None:
    frame = spark.sql(
        "select timestamp'2025-01-01 00:00:00Z' as at, timestamp_ntz'2025-01-01 00:00:00' as local,"
        " date'2025-01-01' as day,"
        " 1735689600 as secs, 1735689600000 as millis, 1735689600000000 as micros, 9223372036854775807 as"
        " far, cast(null as date) as never,"
        " 'x' as text union all select timestamp'2024-01-01 00:00:00Z', timestamp_ntz'2024-01-01 00:00:00',"
        " date'2024-01-01', 1, 1, 1,"
        " 9223372036854775807, null, 'y'"
    )
    times = {
        "at": EventTime(column="AT"),
        "local": EventTime(column="local"),
        "day": EventTime(column="day"),
        "secs": EventTime(column="secs", unit="seconds"),
        "millis": EventTime(column="millis", unit="milliseconds"),
        "micros": EventTime(column="micros", unit="microseconds"),
        "far": EventTime(column="far", unit="seconds"),
        "never": EventTime(column="never"),
        "text": EventTime(column="text"),
        "gone": EventTime(column="gone"),
    }
    seen = EpochObservation()
    watched, seen.waiting["n"] = observe_frame(frame, times)
    assert watched.columns == frame.columns
    assert watched.count() == 2
    result = seen.figures(30)["n"]
    assert result.rows == 2
    assert result.latest == dict.fromkeys(("at", "local", "day", "secs", "millis", "micros"), LATEST)


def test_rows_that_two_queries_share_are_counted_once_and_whole(spark: SparkSession) -> None:
    """The first query to end has computed one piece of three: alone it would say 10."""
    seen = EpochObservation()
    source, seen.waiting["src"] = observe_frame(spark.range(0, 30, 1, 3).toDF("id"), {})
    frame, seen.waiting["even"] = observe_frame(source.where("id % 2 = 0"), {})
    frame.persist()
    try:
        seen.share(frame)
        assert frame.limit(1).count() == 1
        assert frame.count() == 15
    finally:
        frame.unpersist()
    assert {node: figures.rows for node, figures in seen.figures(30).items()} == {"src": 30, "even": 15}


def test_a_node_that_no_query_reads_is_not_waited_for_long(spark: SparkSession) -> None:
    seen = EpochObservation()
    _, seen.waiting["src"] = observe_frame(spark.range(3).toDF("id"), {})
    assert seen.figures(0.05) == {}


def test_of_two_words_the_larger_counts() -> None:
    result = NodeFigures(3, {"a": 5}).or_more(NodeFigures(7, {"a": 4, "b": 1}))
    assert result == NodeFigures(7, {"a": 5, "b": 1})


def test_rows_in_the_driver_have_the_same_figures(spark: SparkSession) -> None:
    """Marked rows do not count. Times before 1970 and of the last microsecond are rounded down."""
    position = "named_struct('source', 0, 'part', 0, 'off', id, 'sub', if(id = 1, -1L, 0L)) as _gs_pos"
    frame = spark.sql(
        "select timestampadd(MICROSECOND, -id * 1500001, timestamp'1970-01-01 00:00:00Z') as at,"
        " timestampadd(MICROSECOND, id * 999999, timestamp_ntz'2025-01-01 00:00:00.999999') as local,"
        " date_add(date'1969-12-25', cast(id as int)) as day, cast(id as int) as secs, id * 1700000000123457"
        f" as micros, if(id = 0, null, -id) as some, cast(null as bigint) as never, id * 4e18 as wide, {position}"
        " from range(3)"
    )
    times = {name: EventTime(column=name) for name in ("at", "local", "day", "some", "never", "wide")}
    times |= {"secs": EventTime(column="SECS", unit="seconds")}
    times |= {"micros": EventTime(column="micros", unit="microseconds")}
    seen = EpochObservation()
    watched, seen.waiting["n"] = observe_frame(frame, times)
    assert watched.count() == 3
    expected = seen.figures(30)["n"]
    assert expected.rows == 2
    assert set(expected.latest) == {"at", "local", "day", "some", "secs", "micros"}
    assert figures_of_table(frame.toArrow(), times) == expected
    assert figures_of_table(frame.limit(0).toArrow(), times) == NodeFigures(0, {})

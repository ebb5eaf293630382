"""Metrics without a pipeline: names and labels, both exporters, and unavailable collectors."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from helpers.otlp_collector import Collector
from helpers.ports import free_port
from prometheus_client.parser import text_string_to_metric_families

from headrace.connectors.http import call_metrics
from headrace.jobs.monitoring.catalog import ANSWERS, BY_NAME, DURATIONS, METRICS, MetricType
from headrace.jobs.monitoring.frame_observer import EpochObserver
from headrace.jobs.monitoring.instruments import Meters
from headrace.jobs.monitoring.labels import node_labels
from headrace.jobs.monitoring.monitor import NullMonitor, RunMonitor, open_monitor
from headrace.jobs.monitoring.plugin_metrics import offer
from headrace.jobs.monitoring.spark_observation import EpochObservation, upstream_nodes
from headrace.jobs.staging.determinism import nondeterministic_nodes
from headrace.pipeline.config.monitoring import MetricsSettings
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import TransientError, UserError
from headrace.pipeline.file.loader import parse_pipeline
from headrace.pipeline.plugins.discovery import InstalledPlugin
from headrace.pipeline.plugins.runtime import NoMetrics, PluginContext
from headrace.pipeline.protocol.epochs import EpochPlan, Phase, WriteCounts

FILE = """
version: 1
name: shop
sources:
  src:
    type: hybrid
    primary_key: id
    bounded_sources: [{source_type: clickhouse, table_name: shop.orders}]
    unbounded_source: {source_type: kafka, topic: orders, schema: {id: int64}}
    offset_table: {}
    telemetry: {labels: {team: shop}}
transforms:
  kept: {type: sql, sql: select id from src}
sinks:
  pg: {type: postgres, from: kept, table: orders, telemetry: {labels: {tier: gold}}}
  hole: {type: blackhole, from: kept}
"""


def scraped(meters: Meters) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Samples by name and labels, by Prometheus' own parser."""
    result: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(meters.text()[0].decode()):
        for sample in family.samples:
            result.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return result


@pytest.fixture
def meters() -> Iterator[Meters]:
    made = Meters(MetricsSettings(global_tags="stage:test, team:data"), "shop")
    yield made
    made.close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.shutdown()
    made.server_close()


def test_names_are_of_one_spelling_and_counters_end_in_total() -> None:
    assert len(BY_NAME) == len(METRICS)
    for metric in METRICS:
        assert (metric.kind is MetricType.COUNTER) == metric.name.endswith("_total"), metric.name
        assert (metric.kind is MetricType.HISTOGRAM) <= metric.name.endswith("_milliseconds"), metric.name


def test_labels_say_what_a_node_is_about_and_what_the_file_adds() -> None:
    labels = node_labels(parse_pipeline(FILE, "shop.yaml").model)
    assert labels["src"] == {
        "id": "src",
        "topology_node_type": "source",
        "operator_type": "hybrid",
        "table": "shop.orders",
        "topic": "orders",
        "team": "shop",
    }
    assert labels["kept"] == {"id": "kept", "topology_node_type": "transform", "operator_type": "sql"}
    assert labels["pg"]["table"] == "orders"
    assert labels["pg"]["tier"] == "gold"
    assert all({"id", "topology_node_type", "operator_type"} <= set(result) for result in labels.values())


def test_counters_add_up_gauges_are_set_and_histograms_have_the_bounds_of_the_docs(meters: Meters) -> None:
    meters.add("output_rows_total", 5, {"id": "a"})
    meters.add("output_rows_total", 7, {"id": "a"})
    meters.set("source_lag_rows", 9)
    meters.set("source_lag_rows", 3)
    for milliseconds in (100, 100.5, 400, 4e6, -1):
        meters.record("checkpoint_epoch_duration_milliseconds", milliseconds)
    result = scraped(meters)
    own = (("service_instance_id", "shop"), ("stage", "test"), ("team", "data"))
    assert result["headrace_output_rows_total"] == {(("id", "a"), *own): 12.0}
    assert result["headrace_source_lag_rows"] == {own: 3.0}
    buckets = {
        dict(labels)["le"]: value
        for labels, value in result["headrace_checkpoint_epoch_duration_milliseconds_bucket"].items()
    }
    assert [float(bound) for bound in buckets] == [*map(float, DURATIONS), float("inf")]
    assert (buckets["100"], buckets["250"], buckets["500"], buckets["3600000"], buckets["+Inf"]) == (
        2,
        3,
        4,
        4,
        5,
    )
    assert result["headrace_checkpoint_epoch_duration_milliseconds_count"] == {own: 5.0}
    meters.record("http_request_latency_milliseconds", 12, {"id": "a"})
    answers = {
        dict(labels)["le"]: value
        for labels, value in scraped(meters)["headrace_http_request_latency_milliseconds_bucket"].items()
    }
    assert [float(bound) for bound in answers] == [*map(float, ANSWERS), float("inf")]
    assert (answers["10"], answers["25"], answers["300000"]) == (0, 1, 1)


def test_the_prefix_and_what_is_left_out_are_settings() -> None:
    made = Meters(
        MetricsSettings(
            prefix="streamling", metric_deny_list="^source_lag_rows$, ^streamling_kafka_consumer.messages"
        ),
        "shop",
    )
    made.add("output_rows_total", 1)
    made.set("source_lag_rows", 1)
    made.set("kafka_consumer_messages_lag", 1)
    assert set(scraped(made)) == {"streamling_output_rows_total"}
    made.close()


def test_a_metric_of_another_kind_is_a_mistake(meters: Meters) -> None:
    with pytest.raises(TypeError, match="source_lag_rows is a gauge"):
        meters.add("source_lag_rows", 1)


def test_a_collector_gets_all_of_it_with_the_headers_of_the_settings(collector: Collector) -> None:
    settings = MetricsSettings.model_validate(
        {"ingestion_endpoint": collector.url, "headers": {"x-token": "s3cret"}, "batch_interval_secs": 60}
    )
    made = Meters(settings, "shop", "run-1")
    made.add("output_rows_total", 5, {"id": "a"})
    made.record("checkpoint_epoch_duration_milliseconds", 300)
    made.close()
    path, request = collector.got[0]
    assert path == "/v1/metrics"
    assert {key.lower(): value for key, value in collector.headers[0].items()}["x-token"] == "s3cret"
    (resource,) = request.resource_metrics
    about = {one.key: one.value.string_value for one in resource.resource.attributes}
    assert (about["service.name"], about["service.instance.id"], about["headrace.run_id"]) == (
        "headrace",
        "shop",
        "run-1",
    )
    metrics = {metric.name: metric for scope in resource.scope_metrics for metric in scope.metrics}
    assert set(metrics) == {"headrace_output_rows_total", "headrace_checkpoint_epoch_duration_milliseconds"}
    (point,) = metrics["headrace_output_rows_total"].sum.data_points
    assert (point.as_int, {one.key: one.value.string_value for one in point.attributes}) == (
        5,
        {"id": "a", "service_instance_id": "shop"},
    )
    (histogram,) = metrics["headrace_checkpoint_epoch_duration_milliseconds"].histogram.data_points
    assert list(histogram.explicit_bounds) == list(map(float, DURATIONS))
    assert "s3cret" not in str(request)


def test_batches_go_out_while_the_run_works(collector: Collector) -> None:
    made = Meters(
        MetricsSettings(ingestion_endpoint=f"{collector.url}/own/path", batch_interval_secs=0.05), "shop"
    )
    made.set("epoch", 4)
    assert collector.arrived.wait(30)
    made.close()
    assert collector.got[0][0] == "/own/path"


def test_a_collector_that_is_away_is_said_once_and_disturbs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    with caplog.at_level(logging.DEBUG):
        made = Meters(
            MetricsSettings(
                ingestion_endpoint=f"http://127.0.0.1:{port}/token-in-path", batch_interval_secs=0.05
            ),
            "shop",
        )
        made.add("output_rows_total", 5)
        made.close()
        assert scraped_after_close(made) is None
    messages = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(messages) == 1
    assert messages[0].startswith(f"event=otlp_export_failed endpoint=127.0.0.1:{port} ")
    assert "token-in-path" not in messages[0]


def scraped_after_close(meters: Meters) -> None:
    """A scrape that comes too late gets nothing, and no error."""
    assert isinstance(meters.text()[0], bytes)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ingestion_endpoint": "https://me:s3cret@collector"}, "must not hold credentials"),
        ({"ingestion_endpoint": "https://collector/?api_key=s3cret"}, "must not hold credentials"),
        ({"ingestion_endpoint": "collector:4317"}, "must begin with http:// or https://, or be `none`"),
        ({"global_tags": "team"}, "key:value"),
        ({"global_tags": "9:value"}, "no name of a label"),
        ({"global_tags": "team:a,service_instance_id:b"}, "must have other labels than id, "),
        ({"metric_deny_list": "a,("}, "no regular expression"),
        ({"prefix": "9"}, "pattern"),
    ],
)
def test_wrong_settings_are_told_without_their_secrets(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        MetricsSettings.model_validate(settings)
    assert "s3cret" not in str(raised.value)


def test_nothing_is_watched_unless_settings_ask_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    file = parse_pipeline(FILE, "shop.yaml")
    assert type(open_monitor(file, Settings(), "")) is NullMonitor
    assert (
        type(
            open_monitor(
                file, Settings.model_validate({"open_telemetry_metrics": {"ingestion_endpoint": "none"}}), ""
            )
        )
        is NullMonitor
    )
    monkeypatch.setattr("headrace.jobs.monitoring.monitor.find_spec", lambda _: None)
    assert type(open_monitor(file, Settings(), "")) is NullMonitor
    with pytest.raises(UserError, match="need the package") as raised:
        open_monitor(file, Settings(admin_api_port=0), "")
    assert raised.value.hint == "pip install 'headrace[telemetry]'"


def test_a_failure_shows_until_an_epoch_is_committed() -> None:
    monitor = RunMonitor(parse_pipeline(FILE, "shop.yaml"), Settings(admin_api_port=0), "")
    monitor.record_failure(TransientError("the broker is away", node="src"))
    assert monitor._state.error == {
        "node": "src",
        "message": "the broker is away",
        "internal": False,
        "retriable": True,
    }
    assert monitor._health()["status"] == "failing"
    monitor.record_failure(RuntimeError("password=s3cret"))
    assert monitor._state.error == {
        "node": None,
        "message": "RuntimeError",
        "internal": True,
        "retriable": False,
    }
    result = scraped(monitor._meters)
    assert list(result["headrace_epoch_failing"].values()) == [1.0]
    assert list(result["headrace_checkpoint_epochs_failed_total"].values()) == [2.0]
    monitor.close()


def test_a_look_that_fails_is_nobodys_problem(caplog: pytest.LogCaptureFixture) -> None:
    monitor = RunMonitor(parse_pipeline(FILE, "shop.yaml"), Settings(admin_api_port=0), "")
    monitor.lags({"src": {"0": "no number"}})  # type: ignore[dict-item]
    assert any("event=monitoring_failed step=lags" in record.getMessage() for record in caplog.records)
    monitor.close()


HANDLER = """
version: 1
name: asked
sources:
  src: {type: clickhouse, table_name: shop.orders}
transforms:
  ask: {type: handler, from: src, url: "http://127.0.0.1:9", primary_key: id}
sinks:
  hole: {type: blackhole, from: ask}
"""


def test_an_epoch_that_an_earlier_run_began_is_under_way() -> None:
    monitor = RunMonitor(parse_pipeline(HANDLER, "asked.yaml"), Settings(admin_api_port=0), "")
    plan = EpochPlan(1, Phase.HISTORY, {}, {}, "hash", datetime.now(UTC))
    monitor.record_plan(plan, again=True)
    result = scraped(monitor._meters)
    assert set(result["headrace_checkpoint_epochs_in_flight"].values()) == {1.0}
    assert "headrace_checkpoint_markers_sent_total" not in result, "the run that planned it has counted it"
    assert monitor._health()["phase"] == "history"
    monitor.record_commit(plan, {"hole": WriteCounts(5)}, {"total": 1.0}, None)
    assert set(scraped(monitor._meters)["headrace_checkpoint_epochs_in_flight"].values()) == {0.0}
    monitor.close()


def test_rejected_rows_count_at_their_source() -> None:
    monitor = RunMonitor(parse_pipeline(HANDLER, "asked.yaml"), Settings(admin_api_port=0), "")
    plan = EpochPlan(1, Phase.LIVE, {}, {}, "hash", datetime.now(UTC))
    for rejected in (2, 3):
        monitor.record_commit(plan, {"hole": WriteCounts(5)}, {"total": 1.0}, None, {"src": rejected})
    ((labels, rows),) = scraped(monitor._meters)["headrace_rejected_rows_total"].items()
    assert (dict(labels)["id"], dict(labels)["topology_node_type"], rows) == ("src", "source", 5.0)
    monitor.close()


def test_requests_of_a_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        call_metrics,
        "drain_call_metrics",
        lambda: {"ask": call_metrics.CallMetrics({("success", "2xx"): [20.0, 300.0]}, 1)},
    )
    monitor = RunMonitor(parse_pipeline(HANDLER, "asked.yaml"), Settings(admin_api_port=0), "")
    plan = EpochPlan(1, Phase.LIVE, {}, {}, "hash", datetime.now(UTC))
    monitor.record_commit(plan, {"hole": WriteCounts(5)}, {"total": 1.0, "write hole": 0.5}, None)
    result = scraped(monitor._meters)
    (labels,) = result["headrace_http_requests_total"]
    assert dict(labels) == {
        "id": "ask",
        "topology_node_type": "transform",
        "operator_type": "handler",
        "outcome": "success",
        "status_class": "2xx",
        "service_instance_id": "asked",
    }
    assert result["headrace_http_requests_total"][labels] == 2.0
    assert list(result["headrace_http_retries_total"].values()) == [1.0]
    assert result["headrace_http_request_latency_milliseconds_count"][labels] == 2.0
    assert list(result["headrace_output_rows_total"].values()) == [5.0]
    monitor.close()


def test_rows_from_outside_are_looked_at_only_where_they_were_staged() -> None:
    text = HANDLER.replace("sinks:", "  after: {type: sql, sql: select * from ask}\nsinks:").replace(
        "from: ask}", "from: after}"
    )
    model = parse_pipeline(text, "asked.yaml").model
    every = ("src", "ask", "after")

    def observed_nodes(*staged: str) -> list[str]:
        seen = EpochObservation()
        look = EpochObserver(seen, model, (), every, nondeterministic_nodes(model), {})
        for name in every:
            look(name, cast("Any", name), staged=name in staged)
        return list(seen.frames)

    assert observed_nodes() == ["src"]
    assert observed_nodes("ask") == ["src", "ask", "after"]


def test_no_rows_are_looked_at_of_an_epoch_that_an_earlier_file_began() -> None:
    former = HANDLER.replace("sinks:", "  after: {type: sql, sql: select * from ask}\nsinks:").replace(
        "from: ask}", "from: after}"
    )
    former += "  more: {type: blackhole, from: ask}\n"
    now = parse_pipeline(former.replace("select * from ask", "select * from src"), "asked.yaml")
    monitor = RunMonitor(now, Settings(live_data_inspect_enabled=True), "")
    looked: list[tuple[set[str], set[str]]] = []
    for model in (now.model, parse_pipeline(former, "asked.yaml").model):
        look = monitor.create_observer(model, ["hole"])
        assert look is not None
        for name in ("src", "ask", "after"):
            look(
                name, cast("Any", name)
            )  # `ask` is not staged, since no sink that is left to be written reads it
        looked.append((set(monitor._observation.frames), set(cast("Any", look).counted)))
    assert looked == [({"src", "after"}, {"src", "after"}), (set(), {"src", "ask", "after"})]
    monitor.close()


def test_an_epoch_goes_on_where_spark_cannot_be_asked(caplog: pytest.LogCaptureFixture) -> None:
    model = parse_pipeline(FILE, "shop.yaml").model
    seen = EpochObservation()
    look = EpochObserver(seen, model, ("src",), (), (), {})
    frame = cast("Any", object())
    assert look("src", frame) is frame
    look.share(frame)
    assert (seen.waiting, seen.shared) == ({}, [])
    assert [line for line in caplog.messages if line.startswith("event=rows_not_observed node=src")]


def test_what_is_counted_leads_to_a_sink_that_is_written_or_to_a_table() -> None:
    text = FILE.replace(
        "sinks:",
        "  apart: {type: sql, sql: select id from src}\n  more: {type: sql, sql: select id from"
        " kept}\nsinks:",
    )
    text = text.replace("from: kept}", "from: more}")
    model = parse_pipeline(text + "  last: {type: blackhole, from: apart}\n", "shop.yaml").model
    assert upstream_nodes(model, ["hole"]) == {"src", "kept", "more"}
    assert upstream_nodes(model, ["pg"]) == {"src", "kept"}
    assert upstream_nodes(model, ["last"]) == {"src", "apart"}
    assert upstream_nodes(model, []) == frozenset()
    table = (
        "  seen: {type: dynamic_table, backend_type: InMemory, backend_entity_name: seen, sql: select"
        " cast(id as string) from apart}\n"
    )
    check = "\"select id from kept where dynamic_table_check('seen', cast(id as string))\"}"
    changed = text.replace("sinks:", f"{table}sinks:").replace("select id from kept}", check)
    assert upstream_nodes(parse_pipeline(changed, "shop.yaml").model, ["pg"]) == {"src", "kept", "apart"}


def test_figures_of_plugins_stand_beside_the_others(meters: Meters) -> None:
    result = InstalledPlugin("acme.orders", "acme", "1.0", "acme:plugin")
    before, alone = (
        PluginContext("pg", None, result),
        PluginContext("acme.orders", None, result, labels={"team": "acme"}),
    )
    NoMetrics().counter("rows")
    withdraw = offer(meters, {"pg": {"id": "pg"}})
    before.metrics.counter("rows", 3, table="t")
    before.metrics.counter("rows_total", 2, table="t")
    before.metrics.gauge("depth", 7)
    alone.metrics.histogram("wait_milliseconds", 120)
    with pytest.raises(ValueError, match="`plugin_depth` is a gauge, and cannot be a histogram"):
        before.metrics.histogram("depth", 1)
    with pytest.raises(ValueError, match="cannot be the name of a metric"):
        before.metrics.gauge("no name", 1)
    with pytest.raises(ValueError, match="cannot go down"):
        before.metrics.counter("rows", -1)
    withdraw()
    PluginContext("pg", None, result).metrics.gauge("later", 1)
    samples = scraped(meters)
    own = {"service_instance_id": "shop", "stage": "test"}
    assert samples["headrace_plugin_rows_total"] == {
        tuple(sorted({**own, "team": "data", "id": "pg", "table": "t"}.items())): 5
    }
    assert list(samples["headrace_plugin_depth"].values()) == [7]
    assert samples["headrace_plugin_wait_milliseconds_count"] == {
        tuple(sorted({**own, "team": "acme", "plugin": "acme.orders"}.items())): 1
    }
    assert "headrace_plugin_later" not in samples

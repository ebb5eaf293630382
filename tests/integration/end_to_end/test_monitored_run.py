"""A monitored run on real servers.

What /metrics, the collector, tail and status --watch say is what the ledger says.
"""

from __future__ import annotations

import io
import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from typing import Any

import pytest
from helpers.otlp_collector import Collector
from helpers.pipeline_world import HISTORY, MESSAGES, World, until
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import SparkSession
from rich.console import Console

from headrace.commands import tail as tail_command
from headrace.commands import watch as watch_command
from headrace.connectors.ledger.factory import open_ledger
from headrace.jobs.run.events import Until
from headrace.jobs.run.runner import run
from headrace.pipeline.config.monitoring import InspectSettings, MetricsSettings
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.file.loader import load_pipeline

FILE = """
version: 1
name: {name}
sources:
  src:
    type: hybrid
    primary_key: id
    telemetry: {{event_time: {{column: day}}, labels: {{team: shop}}}}
    bounded_sources: [{{source_type: clickhouse, table_name: {database}.history}}]
    unbounded_source: {{source_type: kafka, topic: {topic}, schema: {{id: int64, day: date32, name: string, amount: int64}}}}
    offset_table: {{}}
transforms:
  shaped: {{type: sql, sql: "select id, day, upper(name) as name, amount * 2 as amount from src"}}
sinks:
  pg: {{type: postgres, from: shaped, table: target}}
  hole: {{type: blackhole, from: shaped}}
epoch: {{interval: 0s}}
"""


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.shutdown()
    made.server_close()


def scrape(address: str) -> dict[tuple[str, str], float]:
    """By name and node (or phase, or partition)."""
    with urllib.request.urlopen(f"{address}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    result = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = sample.labels
            result[
                sample.name,
                labels.get("phase") or labels.get("partition") or labels.get("step") or labels.get("id", ""),
            ] = sample.value
    return result


def written(settings: Settings, name: str) -> dict[str, int]:
    """Rows by sink, of all epochs of the ledger."""
    ledger = open_ledger(settings)
    result: dict[str, int] = {}
    for row in ledger.epochs(name):
        for sink, counts in row.counts.items():
            result[sink] = result.get(sink, 0) + counts.rows
    ledger.close()
    return result


def holder(settings: Settings, name: str) -> dict[str, Any]:
    ledger = open_ledger(settings)
    state = ledger.state(name)
    ledger.close()
    return (state.holder if state else None) or {}


def test_what_is_shown_is_what_happens(
    world: World,
    spark: SparkSession,
    collector: Collector,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    world.file.write_text(FILE.format(name=world.name, database=world.database, topic=world.name))
    file = load_pipeline(world.file)
    settings = world.settings().model_copy(
        update={
            "admin_api_port": 0,
            "live_data_inspect_enabled": True,
            "live_data_inspect": InspectSettings(refresh_in_secs=1.0),
            "open_telemetry_metrics": MetricsSettings(
                ingestion_endpoint=collector.url, batch_interval_secs=0.5, prefix="streamling"
            ),
        }
    )
    for module in (tail_command, watch_command):
        monkeypatch.setattr(module, "load_settings", lambda: settings)
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run, file, settings, until=Until.FOREVER, stop=stop, spark=spark)
        try:
            address = until(
                lambda: running.done() or holder(settings, file.name).get("admin"), "the endpoint", 120
            )
            assert not running.done(), running.result()

            def figure(name: str, of: str = "") -> float | None:
                return scrape(address).get((f"streamling_{name}", of))

            until(lambda: figure("source_lag_rows") == 0, "the end of the topic", 120)
            world.produce(
                [("c", (5_000 + number, date(2024, 3, 30), "new", number), 0) for number in range(20)]
            )
            until(
                lambda: figure("output_rows_total", "src") == HISTORY + MESSAGES + 20,
                "the rows of the source",
            )
            seen = scrape(address)
            rows = written(settings, file.name)
            assert {sink: seen["streamling_output_rows_total", sink] for sink in ("pg", "hole")} == rows
            assert (
                seen["streamling_input_rows_total", "shaped"]
                == seen["streamling_output_rows_total", "shaped"]
                == HISTORY + MESSAGES + 20
            )
            assert seen["streamling_phase", "live"] == 1
            assert seen["streamling_phase", "history"] == 0
            assert [seen["streamling_kafka_consumer_messages_lag", part] for part in ("0", "1")] == [0, 0]
            assert (
                seen["streamling_checkpoint_epochs_succeeded_total", ""] == seen["streamling_epoch", ""] >= 3
            )
            assert (
                seen["streamling_checkpoint_epochs_failed_total", ""]
                == seen["streamling_epoch_failing", ""]
                == 0
            )
            latest = datetime(2024, 3, 30, tzinfo=UTC).timestamp() * 1000
            assert seen["streamling_event_time_watermark_milliseconds", "src"] == latest
            assert seen["streamling_event_time_lag_milliseconds_sum", "src"] > time.time() * 1000 - latest
            for step in ("read", "plan", "write", "ledger"):
                assert seen["streamling_epoch_step_milliseconds_count", step] == seen["streamling_epoch", ""]
            assert (
                seen["streamling_checkpoint_sink_flush_milliseconds_count", "pg"]
                == seen["streamling_epoch", ""]
            )

            look(world, address, capsys)
        finally:
            stop.set()
        result = running.result(60)
    assert not threads("headrace-watch", "headrace-admin")
    assert collector.last("streamling_output_rows_total") == {
        "src": HISTORY + MESSAGES + 20,
        "shaped": HISTORY + MESSAGES + 20,
        **{sink: counts.rows for sink, counts in result.counts.items()},
    }
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(address, timeout=5)
    world.expected |= {
        5_000 + number: (5_000 + number, date(2024, 3, 30), "new", number) for number in range(20)
    }
    assert world.in_postgres() == sorted(
        (key, day, name.upper(), amount * 2) for key, day, name, amount in world.expected.values()
    )


def look(world: World, address: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`tail`, `status --watch`, /health and /admin/error of a run that is well."""
    until(lambda: has_sample(address, "shaped"), "rows to look at")
    capsys.readouterr()
    tail_command.tail(world.file, "shaped", as_json=True, rows=3)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["topology_node_key"] for line in lines] == ["shaped"] * 3
    assert all(list(line["data"]) == ["id", "day", "name", "amount", "_gs_op"] for line in lines)
    assert all(line["data"]["name"] == line["data"]["name"].upper() for line in lines)
    tail_command.tail(world.file, None, as_json=False, rows=46)
    text = capsys.readouterr().out
    assert {"== src", "== shaped", "== pg", "== hole"} <= set(text.splitlines())
    assert max(map(len, text.splitlines())) <= 80

    console = Console(width=80, file=io.StringIO(), force_terminal=True, color_system=None)
    watch_command.watch(world.file, 0.2, refreshes=1, console=console)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert world.name in shown
    assert "live" in shown
    with urllib.request.urlopen(f"{address}/health", timeout=30) as answer:
        assert json.loads(answer.read())["status"] == "ok"
    with urllib.request.urlopen(f"{address}/admin/error", timeout=30) as answer:
        assert answer.status == 204


def has_sample(address: str, node: str) -> bool:
    """Whether a row of the node can be seen at once."""
    with urllib.request.urlopen(f"{address}/admin/live-data?topology_node_keys={node}", timeout=30) as answer:
        return answer.readline().startswith(b"data:")


def threads(*names: str) -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name in names]

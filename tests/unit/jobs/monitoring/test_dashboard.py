"""The dashboard and the metrics page have the exported metrics only."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from helpers.checkout import ROOT
from ruamel.yaml import YAML

from headrace.jobs.monitoring.catalog import BY_NAME, METRICS, MetricType

DASHBOARD: dict[str, Any] = json.loads((ROOT / "docs" / "grafana" / "headrace.json").read_text())
PAGE = (ROOT / "docs" / "reference" / "metrics.md").read_text()
_PARTS = {
    MetricType.HISTOGRAM: ("_bucket", "_sum", "_count"),
    MetricType.COUNTER: ("",),
    MetricType.GAUGE: ("",),
}
EXPORTED = {f"{metric.name}{part}" for metric in METRICS for part in _PARTS[metric.kind]}


def names(expression: str) -> set[str]:
    return set(re.findall(r"\$\{prefix\}_([a-z_]+)", expression))


def test_grafana_can_load_it() -> None:
    assert DASHBOARD["schemaVersion"] >= 36
    assert DASHBOARD["title"]
    assert DASHBOARD["uid"]
    assert "id" not in DASHBOARD  # Grafana gives it one; a foreign id replaces somebody's dashboard
    assert "__inputs" not in DASHBOARD  # such a file cannot be provisioned
    variables = {one["name"]: one for one in DASHBOARD["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    assert variables["prefix"]["query"] == "headrace"
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("panel", DASHBOARD["panels"], ids=lambda panel: panel["title"])
def test_a_panel_asks_for_what_is_exported(panel: dict[str, Any]) -> None:
    assert panel["type"] in ("stat", "timeseries")
    assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert set(panel["gridPos"]) == {"h", "w", "x", "y"}
    assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
    assert panel["targets"]
    assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
    for target in panel["targets"]:
        metrics = names(target["expr"])
        assert metrics
        assert metrics <= EXPORTED, metrics - EXPORTED
        assert target["expr"].count("(") == target["expr"].count(")")
        assert target["expr"].count("{") == target["expr"].count("}")
        assert 'service_instance_id=~"$pipeline"' in target["expr"]


def test_no_two_panels_lie_on_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells


def test_the_dashboard_shows_every_kind_of_thing_that_is_measured() -> None:
    shown = {
        name for panel in DASHBOARD["panels"] for target in panel["targets"] for name in names(target["expr"])
    }
    shown |= names(json.dumps(DASHBOARD["templating"]))
    left_out = {
        metric.name
        for metric in METRICS
        if not {f"{metric.name}{part}" for part in _PARTS[metric.kind]} & shown
    }
    assert left_out == {
        "checkpoint_acks_received_total",
        "checkpoint_finalizers_sent_total",
        "checkpoint_epochs_in_flight",
    }


def test_the_page_has_every_metric_as_it_is() -> None:
    rows = dict(
        re.findall(
            r"^\| `([a-z_]+)` \| (.*) \|$", PAGE.split("## All metrics")[1].split("\n## ")[0], re.MULTILINE
        )
    )
    assert list(rows) == [metric.name for metric in METRICS]
    for name, rest in rows.items():
        metric = BY_NAME[name]
        further = ", ".join(f"`{label}`" for label in metric.labels)
        labels = "of the node" + (f", {further}" if further else "") if metric.node else further
        assert rest == f"{metric.kind} | {labels or chr(0x2013)} | {metric.help}"


def test_containers_mount_what_is_there() -> None:
    compose = YAML(typ="safe").load((ROOT / "docker" / "watch.yaml").read_text())
    for service in compose["services"].values():
        assert ":" in service["image"]
        for volume in service["volumes"]:
            assert (ROOT / "docker" / volume.split(":")[0]).exists(), volume
    for path in (ROOT / "docker" / "grafana").rglob("*.yaml"):
        assert YAML(typ="safe").load(path.read_text())["apiVersion"] == 1
    assert (ROOT / "docker" / "grafana" / "dashboards" / "headrace.yaml").exists()

"""Figures of plugins, among the metrics of the run that they work in."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from headrace.jobs.monitoring.catalog import MetricType
from headrace.pipeline.plugins.runtime import Metrics, provide_metrics

if TYPE_CHECKING:
    from headrace.jobs.monitoring.instruments import Labels, Meters

_NAME = re.compile(r"[a-z][a-z0-9_]*")


class PluginMeters:
    """See `Metrics`.

    A figure `x` becomes the metric `plugin_x`, with the labels of the node, and `plugin` where there is none.
    """

    def __init__(self, meters: Meters, labels: Labels) -> None:
        self._meters = meters
        self._labels = labels

    def counter(self, name: str, value: float = 1, **labels: str) -> None:
        """Increase a counter. Raises ValueError for a negative value or an invalid Prometheus name."""
        if value < 0:
            msg = f"the counter `{name}` cannot go down, and was given {value}"
            raise ValueError(msg)
        self._put(MetricType.COUNTER, f"{name.removesuffix('_total')}_total", value, labels)

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge. Raises ValueError for an invalid Prometheus name."""
        self._put(MetricType.GAUGE, name, value, labels)

    def histogram(self, name: str, value: float, **labels: str) -> None:
        """Record a value in a histogram. Raises ValueError for an invalid Prometheus name."""
        self._put(MetricType.HISTOGRAM, name, value, labels)

    def _put(self, kind: MetricType, name: str, value: float, labels: Labels) -> None:
        if not _NAME.fullmatch(name):
            msg = (
                f"`{name}` cannot be the name of a metric: write small letters, digits and underscores,"
                " and begin with a letter"
            )
            raise ValueError(msg)
        self._meters.put_own(kind, f"plugin_{name}", value, {**labels, **self._labels})


def offer(meters: Meters, nodes: Mapping[str, Labels]) -> Callable[[], None]:
    """Accept metrics of plugins from now on. Call the returned function to stop.

    `nodes` has the labels by node.
    """

    def make(node: str, plugin: str, labels: Mapping[str, str]) -> Metrics:
        return PluginMeters(meters, nodes.get(node) or {**labels, "plugin": plugin})

    return provide_metrics(make)

"""OpenTelemetry's metrics in the text format of Prometheus.

OpenTelemetry's own package for this is a beta and renames metrics; names must be the same in both exporters.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricsData
    from prometheus_client import Metric

_TOTAL = "_total"


def exposition(data: MetricsData | None) -> tuple[bytes, str]:
    """Return the metrics in the Prometheus text format, and their content type."""
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
    from prometheus_client.registry import Collector

    class Once(Collector):
        """The metrics of one response."""

        def collect(self) -> Iterator[Metric]:
            """Its metrics."""
            return families(data)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Once())
    return generate_latest(registry), CONTENT_TYPE_LATEST


def families(data: MetricsData | None) -> Iterator[Metric]:
    """One family per instrument that has a value."""
    for resource in data.resource_metrics if data else ():
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                yield _family(metric)


def _family(metric: Any) -> Metric:
    from opentelemetry.sdk.metrics.export import Histogram, Sum
    from prometheus_client import Metric

    kind = (
        "counter"
        if isinstance(metric.data, Sum)
        else "histogram"
        if isinstance(metric.data, Histogram)
        else "gauge"
    )
    result = Metric(
        metric.name.removesuffix(_TOTAL) if kind == "counter" else metric.name, metric.description or "", kind
    )
    point: Any
    for point in metric.data.data_points:
        labels = {key: str(value) for key, value in sorted(point.attributes.items())}
        if kind == "histogram":
            _histogram(result, metric.name, labels, point)
        else:
            result.add_sample(metric.name, labels, point.value)
    return result


def _histogram(metric: Metric, name: str, labels: dict[str, str], point: Any) -> None:
    """Prometheus' buckets hold all that is at or below their bound."""
    below = 0
    for bound, count in zip([*point.explicit_bounds, float("inf")], point.bucket_counts, strict=True):
        below += count
        shown = "+Inf" if bound == float("inf") else f"{bound:g}" if bound < 1e6 else str(int(bound))
        metric.add_sample(f"{name}_bucket", {**labels, "le": shown}, below)
    metric.add_sample(f"{name}_count", labels, point.count)
    metric.add_sample(f"{name}_sum", labels, point.sum)

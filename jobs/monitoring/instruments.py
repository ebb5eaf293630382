"""The metrics of one run: a set of OpenTelemetry instruments, read by scrapes and pushed to a collector."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from headrace import __version__
from headrace.jobs.monitoring.catalog import BY_NAME, DURATIONS, INSTANCE, METRICS, MetricType
from headrace.jobs.monitoring.prometheus import exposition
from headrace.pipeline.config.monitoring import MetricsSettings
from headrace.pipeline.config.values import is_url

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricExporter

log = logging.getLogger(__name__)

Labels = Mapping[str, str]

_VERBS = {MetricType.COUNTER: "add", MetricType.GAUGE: "set", MetricType.HISTOGRAM: "record"}

_EXPORT_SECONDS = 5
_CLOSE_SECONDS = 5.0
"""A collector that does not answer must not keep a run from its end."""


class Meters:
    """Instruments by their names in `catalog.py`.

    Metrics that the settings deny are not created; writing to them does nothing.

    Thread-safe. Raises nothing if a collector is unreachable.
    """

    def __init__(self, settings: MetricsSettings, instance: str, run_id: str = "") -> None:
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader, PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource

        self._own = {INSTANCE: instance} | settings.tags
        self._scraped = InMemoryMetricReader()
        readers: list[Any] = [self._scraped]
        if (exporter := otlp_exporter(settings)) is not None:
            readers.append(
                PeriodicExportingMetricReader(
                    exporter, export_interval_millis=settings.batch_interval_secs * 1000
                )
            )
        about = {
            "service.name": "headrace",
            "service.version": __version__,
            "service.instance.id": instance,
            "headrace.run_id": run_id,
        }
        resource = Resource.create({key: value for key, value in about.items() if value})
        self._provider = MeterProvider(metric_readers=readers, resource=resource, shutdown_on_exit=False)
        self._settings = settings
        self._instruments = self._make(settings)
        self._kinds: dict[str, MetricType] = {}
        self._lock = threading.Lock()

    def _make(self, settings: MetricsSettings) -> dict[str, Any]:
        wanted = [metric for metric in METRICS if not settings.is_excluded(metric.name)]
        return {
            metric.name: self._instrument(metric.kind, metric.name, metric.help, metric.bounds)
            for metric in wanted
        }

    def _instrument(self, kind: MetricType, name: str, about: str, bounds: Sequence[int] = DURATIONS) -> Any:
        meter = self._provider.get_meter("headrace", __version__)
        name = f"{self._settings.prefix}_{name}"
        if kind is MetricType.COUNTER:
            return meter.create_counter(name, description=about)
        if kind is MetricType.GAUGE:
            return meter.create_gauge(name, description=about)
        return meter.create_histogram(
            name, description=about, explicit_bucket_boundaries_advisory=[float(bound) for bound in bounds]
        )

    def add(self, name: str, value: float, labels: Labels | None = None) -> None:
        """Increment a counter. An increment by zero only makes the series known."""
        self._at(name, MetricType.COUNTER, value, labels)

    def set(self, name: str, value: float, labels: Labels | None = None) -> None:
        """Set a gauge."""
        self._at(name, MetricType.GAUGE, value, labels)

    def record(self, name: str, milliseconds: float, labels: Labels | None = None) -> None:
        """Record a duration in a histogram."""
        self._at(name, MetricType.HISTOGRAM, max(0.0, milliseconds), labels)

    def _at(self, name: str, kind: MetricType, value: float, labels: Labels | None) -> None:
        if BY_NAME[name].kind is not kind:
            msg = f"{name} is a {BY_NAME[name].kind}"
            raise TypeError(msg)
        if (instrument := self._instruments.get(name)) is not None:
            getattr(instrument, _VERBS[kind])(value, {**self._own, **(labels or {})})

    def put_own(self, kind: MetricType, name: str, value: float, labels: Labels) -> None:
        """Record a metric that is not in the catalog. The first call creates it.

        Raises ValueError if it has another type.
        """
        with self._lock:
            if (known := self._kinds.setdefault(name, kind)) is not kind:
                msg = f"the metric `{name}` is a {known}, and cannot be a {kind} as well"
                raise ValueError(msg)
            if name not in self._instruments and not self._settings.is_excluded(name):
                self._instruments[name] = self._instrument(kind, name, "A plugin's own.")
        if (instrument := self._instruments.get(name)) is not None:
            getattr(instrument, _VERBS[kind])(value, {**self._own, **labels})

    def text(self) -> tuple[bytes, str]:
        """Return all metrics in Prometheus text format, and their content type."""
        return exposition(self._scraped.get_metrics_data())

    def close(self) -> None:
        """Send the remaining metrics, within seconds."""
        ending = threading.Thread(target=self._shut_down, name="headrace-metrics-end", daemon=True)
        ending.start()
        ending.join(_CLOSE_SECONDS)

    def _shut_down(self) -> None:
        try:
            self._provider.shutdown(timeout_millis=_CLOSE_SECONDS * 1000)
        except Exception as error:  # noqa: BLE001  metrics are never worth a failed run
            log.debug("event=metrics_not_closed error=%s", type(error).__name__)


def otlp_exporter(settings: MetricsSettings) -> MetricExporter | None:
    """Return the exporter to the collector in the settings, or None if there is none."""
    if not is_url(settings.ingestion_endpoint):
        return None
    from opentelemetry.exporter.otlp.proto.http import metric_exporter

    from headrace.jobs.monitoring.otlp import create_logging_exporter

    url = settings.ingestion_endpoint
    parts = urlsplit(url)
    where = f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)
    url = url if parts.path.strip("/") else f"{url.rstrip('/')}/v1/metrics"
    headers = {key: value.get_secret_value() for key, value in settings.headers.items()}
    return create_logging_exporter(
        metric_exporter.OTLPMetricExporter(endpoint=url, headers=headers or None, timeout=_EXPORT_SECONDS),
        where,
    )

"""An exporter that logs once when its collector becomes unreachable, and once when it is reachable again."""

from __future__ import annotations

import logging
from typing import Any

from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData

log = logging.getLogger(__name__)

_CHATTY = (
    "opentelemetry.exporter.otlp.proto.http.metric_exporter",
    "opentelemetry.sdk.metrics",
    "opentelemetry.exporter.otlp",
)


def create_logging_exporter(exporter: Any, where: str) -> MetricExporter:
    """Wrap an exporter to log its failures itself.

    OpenTelemetry's own log lines, which come with every batch and with stack traces, are switched off.
    """
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return _LoggingExporter(exporter, where)


class _LoggingExporter(MetricExporter):
    """Wraps `inner`. `where` is host and port for messages, because the path of a URL may contain a token."""

    def __init__(self, inner: Any, where: str) -> None:
        super().__init__(
            preferred_temporality=inner._preferred_temporality,  # noqa: SLF001
            preferred_aggregation=inner._preferred_aggregation,  # noqa: SLF001
        )
        self._inner = inner
        self._where = where
        self._away = False

    def export(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        """Send one batch.

        If it fails, the next batch contains its values, because counters are cumulative.
        """
        reason = "it refused"
        try:
            result = self._inner.export(metrics_data, timeout_millis=timeout_millis, **kwargs)
        except Exception as error:  # noqa: BLE001  whatever it is: the pipeline goes on
            result, reason = MetricExportResult.FAILURE, type(error).__name__
        away = result is not MetricExportResult.SUCCESS
        if away and not self._away:
            log.warning(
                "event=otlp_export_failed endpoint=%s error=%s",
                self._where,
                reason,
            )
        elif self._away and not away:
            log.info("event=otlp_export_recovered endpoint=%s", self._where)
        self._away = away
        return result

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Do nothing: this exporter buffers nothing."""
        return self._inner.force_flush(timeout_millis)

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """Close the connection."""
        self._inner.shutdown(timeout_millis=timeout_millis, **kwargs)

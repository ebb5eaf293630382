"""A collector of OTLP metrics over HTTP."""

from __future__ import annotations

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest


class Collector(ThreadingHTTPServer):
    """Takes OTLP over HTTP, and keeps what it was sent."""

    def __init__(self) -> None:
        self.got: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.arrived = threading.Event()

        got, headers, arrived = self.got, self.headers, self.arrived

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                got.append((self.path, ExportMetricsServiceRequest.FromString(body)))
                headers.append(dict(self.headers.items()))
                self.send_response(200)
                self.end_headers()
                arrived.set()

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def last(self, name: str) -> dict[str, float]:
        """A metric's values by node, as they came last."""
        result: dict[str, float] = {}
        for _, request in self.got:
            for resource in request.resource_metrics:
                for scope in resource.scope_metrics:
                    for metric in scope.metrics:
                        for point in (
                            (*metric.sum.data_points, *metric.gauge.data_points)
                            if metric.name == name
                            else ()
                        ):
                            labels = {one.key: one.value.string_value for one in point.attributes}
                            result[labels.get("id", "")] = point.as_int or point.as_double
        return result

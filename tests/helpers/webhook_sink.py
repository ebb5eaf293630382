"""Webhook sinks, and a service that applies each idempotency key once."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from headrace.connectors.sink_base import SinkContext
from headrace.connectors.webhook.config import WebhookSinkConfig
from headrace.connectors.webhook.sink import WebhookSink
from headrace.jobs.staging.pending_calls import PendingCall
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.protocol.epochs import SinkKey
from helpers.web_server import WebRequest

KEY = SinkKey("0" * 32, "hooks", "main", "out")


def webhook_sink(
    spark: SparkSession, url: str, folder: Path, schema: pa.Schema, settings: Any = None, **node: Any
) -> WebhookSink:
    """Return a sink that was not prepared. Its retries are quick. `folder` has its notes of pending calls."""
    retry = {"timeout": "20s", "max_attempts": 4}
    config = WebhookSinkConfig.model_validate({"url": url, "from": "x", "retry": retry} | node)
    made = Settings.model_validate({"home": folder} | (settings or {}))
    extra = {"key": (), "wait": PendingCall(folder, KEY.sink)}
    return WebhookSink(SinkContext(KEY, config, made, schema, spark, extra))


@dataclass
class Receiver:
    """Remembers idempotency keys. A repeated key must have the same body."""

    bodies: dict[str, bytes] = field(default_factory=dict)
    repeated: int = 0

    def __call__(self, request: WebRequest) -> Any:
        """Apply a request unless it was applied before."""
        key = request.headers["idempotency-key"]
        if key in self.bodies:
            assert self.bodies[key] == request.body, key
            self.repeated += 1
        self.bodies.setdefault(key, request.body)
        return []

    def rows(self) -> list[dict[str, Any]]:
        """The rows of all requests, each applied once, by epoch and number."""
        places = sorted(self.bodies, key=lambda key: tuple(map(int, key.split("/")[-2:])))
        return [row for key in places for row in json.loads(self.bodies[key])]

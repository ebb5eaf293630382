"""A service over HTTP as a sink: at least once, with idempotency keys.

The service has no commit record that Headrace could compare, so after a failure the whole epoch is sent
again. The key of a request consists of pipeline, sink, epoch and number of the batch. It is the same at every
attempt, also of a later run, so a service that remembers keys applies every request once.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar, Self

from headrace.connectors.frame import EpochFrame
from headrace.connectors.http.call_metrics import CallCounter, call_accumulator
from headrace.connectors.http.client import HttpCaller, RefusedStatusError, RequestBatch, Service
from headrace.connectors.http.endpoint import resolve_endpoint
from headrace.connectors.json_text import check_keys
from headrace.connectors.kafka.json_decoder import arrives_as
from headrace.connectors.row_errors import translate_row_errors
from headrace.connectors.sink_base import SinkContext
from headrace.connectors.stateless_sink import StatelessSink
from headrace.connectors.webhook.batches import build_requests, halve_request, read_texts
from headrace.connectors.webhook.config import WebhookSinkConfig
from headrace.pipeline.errors import HeadraceError, SchemaError
from headrace.pipeline.model.capabilities import SinkCapabilities
from headrace.pipeline.model.connectors import sink_entries
from headrace.pipeline.model.http import redact_url
from headrace.pipeline.protocol.epochs import EpochPlan, Json

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

_OF_CONTENT = (400, 413, 422)
"""Statuses of a request that is refused for one of its rows, or for its size."""


class WebhookSink(StatelessSink):
    """One service. Delivery is at least once; a request has the same idempotency key at every attempt."""

    capabilities: ClassVar[SinkCapabilities] = sink_entries()["webhook"].capabilities

    def __init__(self, context: SinkContext) -> None:
        """Store the context without calling the service."""
        super().__init__(context)
        self._node: WebhookSinkConfig = context.node
        self._name = context.key.sink
        self._generation = 0
        self._caller: HttpCaller | None = None
        self._sent: tuple[int, dict[str, str]] = (0, {})
        """The epoch, and digests of its requests that the service has accepted, by key."""

    def prepare(self, schema: pa.Schema, generation: int) -> None:
        """Resolve URL and secrets. The service is not called."""
        self.close()
        self._generation = generation
        self._caller = self._open(schema)

    def validate_target(self) -> None:
        """Check columns, URL and secrets. The service is not called, because a call could have effects."""
        self._open(self._context.schema).close()

    def write_rows(self, plan: EpochPlan, frame: EpochFrame) -> int:
        """Send the rows in requests. After a failure in this process, send only what was not accepted."""
        if self._sent[0] != plan.number:
            self._sent = (plan.number, {})
        prefix = f"{self._context.key.text}/{plan.number}"
        texts = read_texts(frame, self._node.payload_version)
        single = self._node.one_row_per_request
        requests = build_requests(texts, self._node.batch_size, prefix, single=single)
        rows = 0
        with _Sender(self._node, self._ready, self._sent[1]) as sender:
            try:
                with translate_row_errors():
                    for count in sender.send_all(requests):
                        rows += count
            finally:
                call_accumulator(frame.spark, self._name).add(sender.counter.calls())
        return rows

    def describe(self) -> Json:
        """Return the type, an asset key of the sink, and the address without secrets."""
        return super().describe() | {"location": redact_url(self._node.url)}

    def close(self) -> None:
        """Close the connections."""
        if self._caller is not None:
            self._caller.close()
            self._caller = None

    @property
    def _ready(self) -> HttpCaller:
        if self._caller is None:
            self._caller = self._open(self._context.schema)
        return self._caller

    def _open(self, schema: pa.Schema) -> HttpCaller:
        for field in schema:
            check_keys(self._name, field)
            if arrives_as(field.type) is None:
                msg = f"column `{field.name}`: JSON cannot carry {field.type}"
                raise SchemaError(msg, hint="Convert it in a transform.", node=self._name)
        node = self._node
        result = resolve_endpoint(self._name, node, self._context.settings)
        retry = node.retry.timeout
        return HttpCaller(
            Service(
                node=self._name,
                url=result.url,
                shown=redact_url(node.url),
                headers=result.headers | {"Headrace-Generation": str(self._generation)},
                secrets=result.secrets,
                timeout=node.timeout.total_seconds(),
                retry_timeout=retry.total_seconds() if isinstance(retry, timedelta) else None,
                max_attempts=node.retry.max_attempts,
                concurrency=node.concurrency,
                circuit_failures=0,
                circuit_reset_after=0,
                wait=self._context.extra.get("wait"),
            )
        )


class _Sender:
    """Sends the requests of one attempt at an epoch, `concurrency` at a time. A context manager."""

    def __init__(self, node: WebhookSinkConfig, caller: HttpCaller, sent: dict[str, str]) -> None:
        self._node = node
        self._caller = caller
        self._sent = sent
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(node.concurrency, thread_name_prefix="webhook")
        self.counter = CallCounter()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def send_all(self, requests: Iterator[RequestBatch]) -> Iterator[int]:
        """Yield the rows of each request that the service accepted."""
        waiting: deque[Future[int]] = deque()
        for request in requests:
            waiting.append(self._pool.submit(self._send, request))
            if len(waiting) >= self._node.concurrency:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def _send(self, request: RequestBatch) -> int:
        """Send a request. Return the rows that the service accepted.

        If the node skips what the service refuses, a request that is refused for its content is sent in
        halves, until the refused rows are by themselves.
        """
        digest = hashlib.sha256(request.body).hexdigest()
        if self._sent.get(request.key) == digest:
            return request.rows.num_rows
        try:
            self._caller.send(request, self._stop, self.counter)
        except HeadraceError as error:
            cause = error.__cause__
            if not self._node.skip_on_error or not isinstance(cause, RefusedStatusError):
                raise
            if cause.status in _OF_CONTENT and request.rows.num_rows > 1:
                return sum(self._send(half) for half in halve_request(request))
            rows = request.rows.num_rows
            log.warning("event=request_skipped key=%s rows=%s error=%s", request.key, rows, error.message)
            return 0
        self._sent[request.key] = digest
        return request.rows.num_rows

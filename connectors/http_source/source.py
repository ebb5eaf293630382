"""Pages of a JSON API as a bounded source."""

from __future__ import annotations

import logging
from collections.abc import Generator
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import urlsplit

import pyarrow as pa

from headrace.connectors.http.call_metrics import CallCounter
from headrace.connectors.http.client import HttpCaller, PageRequest, RefusedStatusError, Service, excerpt
from headrace.connectors.http.decode import AnswerError
from headrace.connectors.http.endpoint import HttpEndpoint, resolve_endpoint
from headrace.connectors.http_source.pages import Page, PageDecoder
from headrace.connectors.http_source.pagination import Pager, next_path
from headrace.connectors.staged.source import StagedSource
from headrace.pipeline.errors import DataError, TargetError, UserError
from headrace.pipeline.model.capabilities import SourceCapabilities
from headrace.pipeline.model.connectors import source_entries
from headrace.pipeline.model.http import redact_url
from headrace.pipeline.protocol.epochs import Json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from headrace.connectors.http_source.config import HttpSourceConfig

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PendingPageLog:
    """Logs that a source waits for its service."""

    node: str

    def note(self, message: str, good_for: float) -> None:
        """Log what the source waits for."""
        del good_for
        log.warning("event=calls_pending node=%s message=%s", self.node, message)

    def over(self) -> None:
        """Do nothing: a log line does not expire."""


class HttpPages(StagedSource):
    """The rows that an API has when the pipeline starts for the first time, page after page."""

    capabilities: ClassVar[SourceCapabilities] = source_entries()["http"].capabilities
    node: HttpSourceConfig

    def check(self, spark: SparkSession, columns: Sequence[str]) -> None:
        """Check variables and secrets, filter and columns. The service is not called."""
        resolve_endpoint(self.name, self.node, self.settings)
        super().check(spark, columns)

    def read_batches(self) -> Generator[pa.Table]:
        """Request the pages one after the other and return their rows.

        Raise TargetError for a refusal, TransientError if `retry` ends, and DataError for an answer that does
        not fit the node.
        """
        schema = self.declared_schema
        endpoint = resolve_endpoint(self.name, self.node, self.settings)
        pager = Pager(self.node, endpoint.url, self.name)
        records = tuple(self.node.records.split(".")) if self.node.records else ()
        decoder = PageDecoder(schema, records, next_path(self.node))
        caller, counter, rows = self._open(endpoint), CallCounter(), 0
        url = pager.first()
        try:
            for number in count(1):
                page = self._request(caller, counter, endpoint, decoder, url, number)
                result = page.rows
                yield pa.table(result.columns, names=schema.names)
                rows += result.rows
                following = pager.next(result.rows, page.next)
                if following is None:
                    log.info("event=pages_read node=%s pages=%d rows=%d", self.name, number, rows)
                    return
                url = following
        finally:
            caller.close()

    def describe(self) -> Json:
        """Return the type, an asset key, and the address without secrets."""
        shown = redact_url(self.node.url)
        return super().describe() | {"location": shown, "scope": [urlsplit(shown).netloc]}

    def _request(
        self,
        caller: HttpCaller,
        counter: CallCounter,
        endpoint: HttpEndpoint,
        decoder: PageDecoder,
        url: str,
        number: int,
    ) -> Page:
        try:
            reply = caller.send(PageRequest(url), self.stop, counter)
        except UserError as error:
            if not isinstance(error.__cause__, RefusedStatusError):
                raise
            msg = f"page {number}: {error.message}"
            raise TargetError(msg, hint=error.hint, node=self.name) from error
        try:
            page = decoder.read(reply.body)
        except AnswerError as error:
            reason = excerpt(str(error).encode(), endpoint.secrets)
            msg = f"page {number} of {redact_url(self.node.url)}: {reason}"
            hint = "Correct `schema`, `records` or `pagination`, or the service."
            raise DataError(msg, hint=hint, node=self.name) from None
        return Page(page.rows, page.next or reply.next_link)

    def _open(self, endpoint: HttpEndpoint) -> HttpCaller:
        node, retry = self.node, self.node.retry.timeout
        return HttpCaller(
            Service(
                node=self.name,
                url=endpoint.url,
                shown=redact_url(node.url),
                headers=endpoint.headers,
                secrets=endpoint.secrets,
                timeout=node.timeout.total_seconds(),
                retry_timeout=retry.total_seconds() if isinstance(retry, timedelta) else None,
                max_attempts=node.retry.max_attempts,
                concurrency=1,
                circuit_failures=0,
                circuit_reset_after=0,
                method="GET",
                wait=PendingPageLog(self.name),
            )
        )

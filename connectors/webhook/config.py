"""The `webhook` sink of a pipeline file."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, PositiveInt

from headrace.pipeline.model.http import RequestConfig
from headrace.pipeline.model.sinks import SinkConfig


class WebhookSinkConfig(RequestConfig, SinkConfig):
    """Changes are sent to a service over HTTP as JSON, in their order, with idempotency keys."""

    keys_with_effect: ClassVar[frozenset[str]] = frozenset({"batch_size"})

    type: Literal["webhook"] = "webhook"
    batch_size: PositiveInt = Field(  # pyright: ignore[reportIncompatibleVariableOverride]
        default=1000, description="Rows in one request, at most."
    )
    concurrency: PositiveInt = Field(
        default=1,
        description="Requests that are under way at a time. With more than one, requests can arrive in"
        " another order.",
    )
    skip_on_error: bool = Field(
        default=False,
        description="Logs and skips a request that the service refuses, instead of stopping: one with"
        " another status than 2xx at the end of `retry`. With 400, 413 or 422, the rows are sent in halves"
        " until only refused rows are skipped. A service that does not answer still stops the run.",
    )

"""The `redis` sink of a pipeline file."""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from headrace.pipeline.config.values import find_redis_url_problem
from headrace.pipeline.model.run_options import Duration
from headrace.pipeline.model.sinks import SinkConfig

OWN_PREFIX = "__headrace"
"""Keys of the server under this prefix belong to Headrace."""


class RedisSinkConfig(SinkConfig):
    """Entries of a Redis or Valkey server: one for each key, upserted and deleted. Needs a primary key."""

    target_keys: ClassVar[tuple[str, ...]] = ("url", "prefix")
    upserts_by_key: ClassVar[bool] = True
    metric_labels: ClassVar[tuple[str, ...]] = ("prefix",)

    type: Literal["redis"] = "redis"
    url: str | None = Field(
        default=None,
        description="Address of the server: `redis://host:6379/0`, or `rediss://` with TLS. Defaults to"
        " `redis_sink.url` of the settings, which also have user and password.",
    )
    prefix: str = Field(description="Beginning of all keys: a row is the entry `<prefix>:<key>`.")
    format: Literal["json", "hash"] = Field(
        default="json",
        description="`json`: an entry is a string with one JSON object. `hash`: an entry is a hash with one"
        " field for each column that is not null.",
    )
    ttl: Duration | None = Field(
        default=None,
        description="Time after which an entry expires if no row of its key is written. Defaults to never."
        " With it, entries are not counted.",
    )

    @field_validator("url")
    @classmethod
    def _check_url(cls, value: str | None) -> str | None:
        if value is not None and (problem := find_redis_url_problem(value)):
            raise ValueError(problem)
        return value

    @field_validator("prefix")
    @classmethod
    def _check_prefix(cls, value: str) -> str:
        if not value or value.endswith(":"):
            msg = "must be a text without `:` at its end, such as `orders`"
            raise ValueError(msg)
        if value.startswith(OWN_PREFIX):
            msg = f"must not begin with `{OWN_PREFIX}`, which Headrace uses for commit records"
            raise ValueError(msg)
        return value

    @field_validator("ttl")
    @classmethod
    def _check_ttl(cls, value: timedelta | None) -> timedelta | None:
        if value is not None and value < timedelta(milliseconds=1):
            msg = "must be at least 1ms"
            raise ValueError(msg)
        return value

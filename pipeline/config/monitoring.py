"""The settings of monitoring: names and labels of metrics, and the rows that `headrace tail` shows."""

from __future__ import annotations

import re
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, field_validator

from headrace.pipeline.config.metric_labels import RESERVED
from headrace.pipeline.config.secrets import Secret
from headrace.pipeline.config.sections import Section
from headrace.pipeline.config.values import is_url, to_lower


class MetricsSettings(Section):
    """Names of metrics, and where they are sent in addition to the endpoint of a run.

    Streamling's keys, and two more.
    """

    ingestion_endpoint: str = Field(
        default="none",
        description="Address for metrics. `/v1/metrics` is added to an address without a path.",
    )
    endpoint_protocol: Annotated[Literal["", "http", "http/protobuf"], BeforeValidator(to_lower)] = Field(
        default="", description="`http/protobuf` is the only one."
    )
    batch_interval_secs: float = Field(default=15.0, gt=0, description="The push interval in seconds.")
    global_tags: str = Field(default="", description="Labels of every metric: `team:shop,stage:live`.")
    metric_deny_list: str = Field(
        default="",
        description="Regular expressions with commas: metrics to omit, by name with or without prefix.",
    )
    headers: dict[str, Secret] = Field(
        default_factory=dict, description="HTTP headers for the collector, such as Authorization."
    )
    prefix: str = Field(
        default="headrace",
        pattern=r"^[a-zA-Z][a-zA-Z0-9_]*$",
        description="Prefix of names. `streamling` fits its dashboards.",
    )

    @field_validator("ingestion_endpoint")
    @classmethod
    def _address(cls, value: str) -> str:
        if not is_url(value) and re.search(r"[:./]", value):
            msg = "must begin with http:// or https://, or be `none`"
            raise ValueError(msg)
        if is_url(value) and ("@" in urlsplit(value).netloc or urlsplit(value).query):
            msg = "must not hold credentials, which would end up in logs; put them under `headers`"
            raise ValueError(msg)
        return value

    @field_validator("global_tags")
    @classmethod
    def _pairs(cls, value: str) -> str:
        for part in filter(None, (part.strip() for part in value.split(","))):
            key, colon, _ = part.partition(":")
            if not colon or not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", key.strip()):
                msg = (
                    f"must be written as key:value,key:value; `{key.strip()}` is not, or is no name of a"
                    " label"
                )
                raise ValueError(msg)
            if key.strip() in RESERVED:
                msg = f"must have other labels than {', '.join(RESERVED)}, which Headrace sets itself"
                raise ValueError(msg)
        return value

    @field_validator("metric_deny_list")
    @classmethod
    def _expressions(cls, value: str) -> str:
        for part in filter(None, (part.strip() for part in value.split(","))):
            try:
                re.compile(part)
            except re.error as error:
                msg = f"`{part}` is no regular expression: {error}"
                raise ValueError(msg) from None
        return value

    @property
    def tags(self) -> dict[str, str]:
        """`global_tags` as a mapping."""
        pairs = (part.partition(":") for part in self.global_tags.split(",") if part.strip())
        return {key.strip(): value.strip() for key, _, value in pairs}

    def is_excluded(self, name: str) -> bool:
        """Return whether a metric is excluded. The exclusion may have the prefix; `name` has none."""
        names = (name, f"{self.prefix}_{name}")
        return any(
            re.search(part.strip(), one)
            for part in self.metric_deny_list.split(",")
            if part.strip()
            for one in names
        )


class InspectSettings(Section):
    """The rows that `headrace tail` shows."""

    records_per_topology_node: int = Field(
        default=15, gt=0, description="Rows that are kept per node and interval."
    )
    refresh_in_secs: float = Field(default=30.0, gt=0, description="The interval in seconds.")

"""The sections of the settings: connections of servers, and one model for each group of options."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, field_validator

from headrace.pipeline.config.metric_labels import RESERVED
from headrace.pipeline.config.secrets import Secret
from headrace.pipeline.config.sources import PartOf
from headrace.pipeline.config.values import is_url, split_list, to_backend_name, to_lower, to_upper


class Section(BaseModel):
    """Unknown keys are mistakes."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)


class PostgresConnection(Section):
    """One Postgres server."""

    host: str = "127.0.0.1"
    port: int = 5432
    user: str = "postgres"
    password: Secret = SecretStr("")
    db: str = "postgres"
    sslmode: str = "prefer"
    statement_timeout_secs: int = Field(default=600, description="0: none.")

    def conninfo(self) -> dict[str, str]:
        """Return keyword arguments for libpq. They contain the password: never log them."""
        found = {
            "host": self.host,
            "port": str(self.port),
            "user": self.user,
            "dbname": self.db,
            "sslmode": self.sslmode,
        }
        return found | ({"password": secret} if (secret := self.password.get_secret_value()) else {})


class TableConnection(PostgresConnection):
    """The Postgres server of dynamic tables, and how they are read there."""

    cache_enabled: bool = Field(
        default=False, description="Whether tables with a `time_column` are kept by the pipeline."
    )
    cache_refresh_debounce_ms: int = Field(
        default=1000, ge=0, description="How often at most a cache reads what is new."
    )
    dt_schema_name: str | None = Field(
        default=None, description="Schema of tables that name none. Defaults to `public`."
    )


class TableBackend(Section):
    """Where dynamic tables lie."""

    path: Path | None = Field(
        default=None,
        description="Folder of in-memory tables on this host. Defaults to `tables` below `home`.",
    )
    max_batch_size: int = Field(default=1000, gt=0, description="Values per question to Postgres.")
    postgres: Annotated[dict[str, Any], PartOf(TableConnection)] = Field(
        default_factory=dict,
        repr=False,
        description="Overrides of postgres_sink for dynamic tables, and how they are read.",
    )


class ClickHouseConnection(Section):
    """One ClickHouse server, by its HTTP interface."""

    url: str = "http://localhost:8123"
    user: str = "default"
    password: Secret = SecretStr("")
    database: str = Field(
        default="",
        description="Database of tables that name none. Defaults to the database of the server's user.",
    )


class KafkaConnection(Section):
    """One Kafka cluster."""

    brokers: str = "localhost:9092"
    security_protocol: Annotated[
        Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"], BeforeValidator(to_upper)
    ] = "PLAINTEXT"
    consumer_group_id: str | None = None
    driver_rows: int = Field(
        default=100_000,
        ge=0,
        description="The driver reads epochs of at most this many messages without a Spark job. 0: none.",
    )
    options: dict[str, Secret] = Field(
        default_factory=dict, description="Further client options by librdkafka's names (sasl.mechanism, …)."
    )


class SqliteBackend(Section):
    """A ledger in a file: one host only."""

    path: Path = Path(".headrace/ledger.db")


class StateBackend(Section):
    """Where the ledger lies."""

    backend_type: Annotated[Literal["sqlite", "postgres"], BeforeValidator(to_backend_name)] = "sqlite"
    sqlite: SqliteBackend = SqliteBackend()
    postgres: PostgresConnection = PostgresConnection()


class IcebergSettings(Section):
    """The hadoop catalog for Iceberg tables."""

    warehouse: str | None = None


class LedgerSettings(Section):
    """How much the ledger keeps."""

    keep_epochs: int | None = Field(
        default=20_000,
        ge=1,
        description="How many committed epochs keep rows of their own, which `replay` needs: by default"
        " those of about 28 hours at one epoch"
        " in 5 seconds, so that a sink can be restored from last night's backup. Older ones are rolled up"
        " into summaries, history once it"
        " is complete. `null`: all.",
    )


class AuditSettings(Section):
    """How much the audit reads by default."""

    sample_rows: int = Field(
        default=10_000,
        ge=1,
        description="How many rows `content_matches` reads of the sources for one sink, after each run in"
        " Dagster and in `audit --content`.",
    )


class StagingSettings(Section):
    """The location of rows that may differ when they are computed again, such as responses of a service."""

    path: Path | None = Field(
        default=None,
        description="Folder for staged rows. Defaults to `staging` below `home`. Runs on several hosts need"
        " a folder that all Spark workers share.",
    )
    keep_epochs: int = Field(
        default=20,
        ge=0,
        description="For how many committed epochs staged rows are kept, so that a replay writes the same"
        " ones.",
    )
    recompute: bool = Field(
        default=False,
        description="Recompute staged rows that are missing, even if a sink already has the original rows.",
    )


class SparkSettings(Section):
    """How Spark is started.

    `conf` overrides everything that Headrace sets, save what its guarantees rest on.
    """

    master: str = "local[*]"
    driver_memory: str = "2g"
    jvm_options: str = Field(
        default="",
        description="Added to the driver JVM's options; -XX:TieredStopAtLevel=1 starts faster and runs"
        " slower.",
    )
    conf: dict[str, str] = Field(default_factory=dict)


class MetricsSettings(Section):
    """Names of metrics, and where they are sent in addition to the endpoint of a run.

    Streamling's keys, and two more.
    """

    ingestion_endpoint: str = Field(
        default="none", description="Where to send OTLP over HTTP; `none`: nowhere."
    )
    endpoint_protocol: Annotated[Literal["", "http", "http/protobuf"], BeforeValidator(to_lower)] = ""
    batch_interval_secs: float = Field(default=15.0, gt=0)
    global_tags: str = Field(default="", description="Labels of every metric: `team:shop,stage:live`.")
    metric_deny_list: str = Field(
        default="", description="Regular expressions with commas between them: metrics that are left out."
    )
    headers: dict[str, Secret] = Field(
        default_factory=dict, description="HTTP headers for the collector, such as Authorization."
    )
    prefix: str = Field(
        default="headrace", pattern=r"^[a-zA-Z][a-zA-Z0-9_]*$", description="What names begin with."
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

    def denied(self, name: str) -> bool:
        """Return whether a metric is excluded. The exclusion may have the prefix; `name` has none."""
        names = (name, f"{self.prefix}_{name}")
        return any(
            re.search(part.strip(), one)
            for part in self.metric_deny_list.split(",")
            if part.strip()
            for one in names
        )


class InspectSettings(Section):
    """How much of the rows on their way can be looked at."""

    records_per_topology_node: int = Field(
        default=15, gt=0, description="Rows kept per node, and shown of it in `refresh_in_secs`."
    )
    refresh_in_secs: float = Field(default=30.0, gt=0)


class PythonTransforms(Section):
    """Which Python a pipeline file may name."""

    allow: Annotated[list[str], BeforeValidator(split_list)] = Field(
        default_factory=list,
        description="Modules, with all below them, whose functions `python` transforms may call: a list, or"
        " a text with commas. Empty: none.",
    )

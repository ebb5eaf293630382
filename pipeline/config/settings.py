"""Settings: embedded defaults < local services < config.yaml < environment.

Variables are `HEADRACE__A__B`, then `STREAMLING__A__B`. `headrace services up` writes the local services to
`<home>/services.json`. A secret is set directly or by reference: `{env: NAME}`, `{file: PATH}`.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
)
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from headrace.pipeline.config.errors import describe_settings_errors
from headrace.pipeline.config.metric_labels import RESERVED
from headrace.pipeline.config.plugins import PluginSettings
from headrace.pipeline.config.secrets import Secret
from headrace.pipeline.config.sources import CONFIG_NAMES, Layer, PartOf, ignored, merged, read_layers
from headrace.pipeline.config.sources import describe_lookup as _looked_at
from headrace.pipeline.config.values import is_url, split_list, to_backend_name, to_lower, to_upper
from headrace.pipeline.errors import SettingsError

__all__ = ["CONFIG_NAMES", "Settings", "describe_setting_lookup", "load_settings"]

log = logging.getLogger(__name__)

_reported: set[str] = set()
"""Settings that this process has reported as ignored."""


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


class Settings(BaseSettings):
    """All settings of one process."""

    model_config = SettingsConfigDict(
        extra="forbid", nested_model_default_partial_update=True, hide_input_in_errors=True
    )

    home: Path = Path(".headrace")
    java_home: Path | None = None
    log_format: Literal["text", "json"] = "text"
    lease_seconds: float = Field(default=15.0, gt=0)
    commit_timeout_seconds: float = Field(
        default=5.0,
        ge=0,
        description="How long a dead run's commit may still land at sinks that cannot fence.",
    )
    enforce_primary_keys: bool = Field(
        default=False,
        description="Whether a source without a key before a sink that could use one is a mistake.",
    )
    state_backend: StateBackend = StateBackend()
    kafka_source: KafkaConnection = KafkaConnection()
    clickhouse_source: ClickHouseConnection = ClickHouseConnection()
    postgres_sink: PostgresConnection = PostgresConnection()
    postgres_sink_connections: dict[str, Annotated[dict[str, Any], PartOf(PostgresConnection)]] = Field(
        default_factory=dict, repr=False, description="Overrides of postgres_sink by sink name."
    )
    http_secret_header: dict[str, str] = Field(
        default_factory=dict,
        description="Headers that nodes name by `secret_name`: the header's name, by the secret's.",
    )
    http_secret_value: dict[str, Secret] = Field(
        default_factory=dict, repr=False, description="The values of these headers."
    )
    dynamic_table_backend: TableBackend = TableBackend()
    iceberg: IcebergSettings = IcebergSettings()
    ledger: LedgerSettings = LedgerSettings()
    audit: AuditSettings = AuditSettings()
    staging: StagingSettings = StagingSettings()
    spark: SparkSettings = SparkSettings()
    open_telemetry_metrics: MetricsSettings = MetricsSettings()
    admin_api_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="Port on which a run serves /metrics and /health over HTTP. 0 is any free port. By"
        " default a run serves neither.",
    )
    admin_api_host: str = Field(default="127.0.0.1", description="The address it listens on.")
    live_data_inspect_enabled: bool = Field(
        default=False, description="Whether rows can be looked at while they pass: `headrace tail`."
    )
    live_data_inspect: InspectSettings = InspectSettings()
    python_transforms: PythonTransforms = PythonTransforms()
    plugin: PluginSettings = PluginSettings()

    def postgres_for(self, sink: str) -> PostgresConnection:
        """Return the connection of one Postgres sink: its overrides over the general section."""
        name = "_".join(part for part in "".join(c if c.isalnum() else " " for c in sink.lower()).split())
        base = self.postgres_sink.model_dump()
        return PostgresConnection.model_validate(base | self.postgres_sink_connections.get(name, {}))

    def http_secret(self, name: str) -> tuple[str, str]:
        """Return the header (name, value) of `secret_name`. Raise SettingsError naming a missing variable."""
        key = "_".join(part for part in re.split(r"[^a-z0-9]+", name.lower()) if part)
        header, value = self.http_secret_header.get(key), self.http_secret_value.get(key)
        for missing, setting in ((header, "http_secret_header"), (value, "http_secret_value")):
            if not missing:
                msg = f"the secret `{name}` has no `{setting}.{key}`"
                hint = (
                    f"Set the environment variable HEADRACE__{setting.upper()}__{key.upper()}, or the"
                    " setting in config.yaml."
                )
                raise SettingsError(msg, hint=hint)
        return str(header), value.get_secret_value() if value else ""

    def postgres_for_tables(self) -> TableConnection:
        """Return the connection of dynamic tables: their section over the general section."""
        return TableConnection.model_validate(
            self.postgres_sink.model_dump() | self.dynamic_table_backend.postgres
        )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources. Values set in code take precedence over all others."""
        del env_settings, dotenv_settings, file_secret_settings
        return (init_settings, _Places(settings_cls))


class _Places(PydanticBaseSettingsSource):
    """All layers as one source."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """Unused: `__call__` returns the whole tree."""
        del field
        return None, field_name, False

    def __call__(self) -> dict[str, Any]:
        """Return the merged tree. Raise SettingsError if a variable does not fit its setting."""
        layers = read_layers(self.settings_cls)
        if lines := [line for layer in layers for line in layer.problems]:
            raise _wrong(lines)
        return merged(layers)


def load_settings(**overrides: Any) -> Settings:
    """Return the settings. Raise SettingsError with each wrong setting and every place searched."""
    layers = [Layer("the caller", overrides, listed=False), *read_layers(Settings)]
    try:
        settings = Settings(**overrides)
    except ValidationError as error:
        raise _wrong(describe_settings_errors(error, Settings, layers)) from None
    if lines := _sink_connections(settings, layers):
        raise _wrong(lines)
    for name, place, instead in ignored(layers):
        if name not in _reported:
            _reported.add(name)
            log.warning("setting=%s place=%s ignored=yes instead=%s", name, place, instead)
    return settings


def describe_setting_lookup(name: str) -> str:
    """Return the places searched for a setting such as `iceberg.warehouse`, in order."""
    return _looked_at(tuple(name.split(".")), read_layers(Settings))


def _wrong(lines: list[str]) -> SettingsError:
    return SettingsError("settings are wrong:\n  " + "\n  ".join(lines))


def _sink_connections(settings: Settings, layers: list[Layer]) -> list[str]:
    """Return the mistakes in connections of single sinks and of dynamic tables before they are opened."""
    lines = []
    for name in settings.postgres_sink_connections:
        try:
            settings.postgres_for(name)
        except ValidationError as error:
            lines += describe_settings_errors(error, Settings, layers, ("postgres_sink_connections", name))
    try:
        settings.postgres_for_tables()
    except ValidationError as error:
        lines += describe_settings_errors(error, Settings, layers, ("dynamic_table_backend", "postgres"))
    return lines

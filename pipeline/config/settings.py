"""Settings: embedded defaults < local services < config.yaml < environment.

Variables are `HEADRACE__A__B`, then `STREAMLING__A__B`. `headrace services up` writes the local services to
`<home>/services.json`. A secret is set directly or by reference: `{env: NAME}`, `{file: PATH}`.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from headrace.pipeline.config.errors import describe_settings_errors
from headrace.pipeline.config.monitoring import InspectSettings, MetricsSettings
from headrace.pipeline.config.plugins import PluginSettings
from headrace.pipeline.config.secrets import Secret
from headrace.pipeline.config.sections import (
    AuditSettings,
    ClickHouseConnection,
    ClickHouseTarget,
    FileSourceAccess,
    IcebergSettings,
    KafkaCluster,
    KafkaConnection,
    LedgerSettings,
    PostgresConnection,
    PostgresServer,
    PythonTransforms,
    RedisConnection,
    SparkSettings,
    StagingSettings,
    StateBackend,
    TableBackend,
    TableConnection,
)
from headrace.pipeline.config.sources import (
    CONFIG_NAMES,
    Layer,
    PartOf,
    find_ignored_settings,
    merge_layers,
    read_layers,
)
from headrace.pipeline.config.sources import describe_lookup as _looked_at
from headrace.pipeline.errors import SettingsError

__all__ = ["CONFIG_NAMES", "Settings", "describe_setting_lookup", "load_settings"]

log = logging.getLogger(__name__)

_reported: set[str] = set()
"""Settings that this process has reported as ignored."""


class Settings(BaseSettings):
    """All settings of one process."""

    model_config = SettingsConfigDict(
        extra="forbid", nested_model_default_partial_update=True, hide_input_in_errors=True
    )

    home: Path = Field(
        default=Path(".headrace"),
        description="Folder of the ledger, logs and local servers. Also `HEADRACE_HOME`.",
    )
    java_home: Path | None = Field(
        default=None, description="A Java 17 or 21. `headrace doctor` prints the default."
    )
    log_format: Literal["text", "json"] = Field(default="text", description="Format of the log.")
    lease_seconds: float = Field(default=15.0, gt=0, description="Time that a silent run keeps its lease.")
    commit_timeout_seconds: float = Field(
        default=5.0,
        ge=0,
        description="Time in which a commit of a dead run can still arrive at sinks that cannot fence.",
    )
    enforce_primary_keys: bool = Field(
        default=False,
        description="Whether a source without a key, before a sink that could use one, is an error.",
    )
    state_backend: StateBackend = StateBackend()
    kafka_source: KafkaConnection = KafkaConnection()
    kafka_sink: KafkaCluster = KafkaCluster()
    clickhouse_source: ClickHouseConnection = ClickHouseConnection()
    clickhouse_sink: ClickHouseTarget = ClickHouseTarget()
    file_source: FileSourceAccess = FileSourceAccess()
    redis_sink: RedisConnection = RedisConnection()
    postgres_source: PostgresServer = PostgresServer()
    postgres_sink: PostgresConnection = PostgresConnection()
    postgres_sink_connections: dict[str, Annotated[dict[str, Any], PartOf(PostgresConnection)]] = Field(
        default_factory=dict,
        repr=False,
        description="The keys of `postgres_sink` for one sink, by its name in lower case, with `_` for other"
        " characters than letters and digits.",
    )
    http_secret_header: dict[str, str] = Field(
        default_factory=dict,
        description="Name of the header that a `handler` calls `secret_name`, by that name.",
    )
    http_secret_value: dict[str, Secret] = Field(
        default_factory=dict, repr=False, description="The values of these headers. All are secrets."
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
        description="Port of the HTTP endpoint with `/metrics` and `/health`. 0: any free port. By default"
        " there is none, unless `live_data_inspect_enabled`.",
    )
    admin_api_host: str = Field(default="127.0.0.1", description="Its address. Every client sees rows.")
    live_data_inspect_enabled: bool = Field(
        default=False, description="Whether `headrace tail` can show rows."
    )
    live_data_inspect: InspectSettings = InspectSettings()
    python_transforms: PythonTransforms = PythonTransforms()
    plugin: PluginSettings = PluginSettings()

    @property
    def staging_folder(self) -> Path:
        """The absolute path of `staging.path`. With a bucket, a folder of this host for everything else."""
        folder = None if self.staging.bucket else self.staging.path
        return Path(folder or self.home / "staging").absolute()

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
        return merge_layers(layers)


def load_settings(**overrides: Any) -> Settings:
    """Return the settings. Raise SettingsError with each wrong setting and every place searched."""
    layers = [Layer("the caller", overrides, listed=False), *read_layers(Settings)]
    try:
        settings = Settings(**overrides)
    except ValidationError as error:
        raise _wrong(describe_settings_errors(error, Settings, layers)) from None
    if lines := _sink_connections(settings, layers):
        raise _wrong(lines)
    for name, place, instead in find_ignored_settings(layers):
        if name not in _reported:
            _reported.add(name)
            log.warning("event=setting_ignored setting=%s location=%s instead=%s", name, place, instead)
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

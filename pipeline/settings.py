"""Settings: embedded defaults < local services < config.yaml < environment.

Environment names are `HEADRACE__A__B`. `STREAMLING__A__B` is read too, below the former. Local services are what
`headrace services up` keeps in `<home>/services.json`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, EnvSettingsSource, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict
from ruamel.yaml import YAML, YAMLError

from headrace.pipeline.errors import SettingsError

CONFIG_NAMES = ("config.yaml", "config.yml", "config.json")


class Section(BaseModel):
    """Unknown keys are mistakes."""

    model_config = ConfigDict(extra="forbid")


class PostgresConnection(Section):
    """One Postgres server."""

    host: str = "127.0.0.1"
    port: int = 5432
    user: str = "postgres"
    password: SecretStr = SecretStr("")
    db: str = "postgres"
    sslmode: str = "prefer"
    statement_timeout_secs: int = Field(default=600, description="0: none.")

    def conninfo(self) -> dict[str, str]:
        """Keyword arguments for libpq. Holds the password: never log it."""
        found = {"host": self.host, "port": str(self.port), "user": self.user, "dbname": self.db, "sslmode": self.sslmode}
        return found | ({"password": secret} if (secret := self.password.get_secret_value()) else {})


class ClickHouseConnection(Section):
    """One ClickHouse server, by its HTTP interface."""

    url: str = "http://localhost:8123"
    user: str = "default"
    password: SecretStr = SecretStr("")


class KafkaConnection(Section):
    """One Kafka cluster."""

    brokers: str = "localhost:9092"
    security_protocol: str = "PLAINTEXT"
    consumer_group_id: str | None = None
    options: dict[str, SecretStr] = Field(
        default_factory=dict, description="Further client options by librdkafka's names (sasl.mechanism, …)."
    )


class SqliteBackend(Section):
    """A ledger in a file: one host only."""

    path: Path = Path(".headrace/ledger.db")


class StateBackend(Section):
    """Where the ledger lies."""

    backend_type: Literal["sqlite", "postgres"] = "sqlite"
    sqlite: SqliteBackend = SqliteBackend()
    postgres: PostgresConnection = PostgresConnection()


class IcebergSettings(Section):
    """The hadoop catalog for Iceberg tables."""

    warehouse: str | None = None


class SparkSettings(Section):
    """How Spark is started. `conf` overrides everything that Headrace sets, save what its guarantees rest on."""

    master: str = "local[*]"
    driver_memory: str = "2g"
    jvm_options: str = Field(
        default="", description="Added to the driver JVM's options; -XX:TieredStopAtLevel=1 starts faster and runs slower."
    )
    conf: dict[str, str] = Field(default_factory=dict)


class Settings(BaseSettings):
    """All settings of one process."""

    model_config = SettingsConfigDict(
        env_prefix="HEADRACE__", env_nested_delimiter="__", extra="forbid", nested_model_default_partial_update=True
    )

    home: Path = Path(".headrace")
    java_home: Path | None = None
    log_format: Literal["text", "json"] = "text"
    lease_seconds: float = Field(default=15.0, gt=0)
    commit_timeout_seconds: float = Field(
        default=5.0, ge=0, description="How long a dead run's commit may still land at sinks that cannot fence."
    )
    state_backend: StateBackend = StateBackend()
    kafka_source: KafkaConnection = KafkaConnection()
    clickhouse_source: ClickHouseConnection = ClickHouseConnection()
    postgres_sink: PostgresConnection = PostgresConnection()
    postgres_sink_connections: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="Overrides of postgres_sink by sink name."
    )
    iceberg: IcebergSettings = IcebergSettings()
    spark: SparkSettings = SparkSettings()

    def postgres_for(self, sink: str) -> PostgresConnection:
        """The connection of one Postgres sink: its overrides over the general block."""
        name = "_".join(part for part in "".join(c if c.isalnum() else " " for c in sink.lower()).split())
        base = self.postgres_sink.model_dump()
        return PostgresConnection.model_validate(base | self.postgres_sink_connections.get(name, {}))

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Strongest first."""
        del dotenv_settings, file_secret_settings
        streamling = EnvSettingsSource(settings_cls, env_prefix="STREAMLING__", env_nested_delimiter="__")
        home = Path(os.environ.get("HEADRACE_HOME") or os.environ.get("HEADRACE__HOME") or ".headrace")
        return (
            init_settings,
            env_settings,
            streamling,
            InitSettingsSource(settings_cls, _config_file()),
            InitSettingsSource(settings_cls, _services_file(home)),
        )


def _config_file() -> dict[str, Any]:
    """The first of config.yaml, config.yml, config.json in the working directory, {} if there is none."""
    for name in CONFIG_NAMES:
        path = Path(name)
        if path.is_file():
            try:
                found = YAML(typ="safe").load(path)
            except YAMLError as error:
                msg = f"{path} is not YAML: {error}"
                raise SettingsError(msg) from error
            return found or {}
    return {}


def _services_file(home: Path) -> dict[str, Any]:
    """Connections of the local servers, and the ledger beside them, as settings."""
    path = home / "services.json"
    found: dict[str, Any] = {"home": str(home), "state_backend": {"sqlite": {"path": str(home / "ledger.db")}}}
    if not path.is_file():
        return found
    services = json.loads(path.read_text()).get("services", {})
    if postgres := services.get("postgres"):
        found["postgres_sink"] = {key: postgres[key] for key in ("host", "port", "user", "password")} | {"db": postgres["dbname"]}
    if clickhouse := services.get("clickhouse"):
        url = f"http://{clickhouse['host']}:{clickhouse['port']}"
        found["clickhouse_source"] = {"url": url, "user": clickhouse["user"], "password": clickhouse["password"]}
    if kafka := services.get("kafka"):
        found["kafka_source"] = {"brokers": f"{kafka['host']}:{kafka['port']}"}
    return found


def load_settings(**overrides: Any) -> Settings:
    """The settings of this process. Raises SettingsError that names each wrong setting and where settings come from."""
    try:
        return Settings(**overrides)
    except ValidationError as error:
        lines = [f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}" for item in error.errors(include_input=False)]
        msg = "settings are wrong:\n  " + "\n  ".join(lines)
        hint = "Looked at, strongest first: HEADRACE__… in the environment, STREAMLING__…, config.yaml, <home>/services.json, defaults."
        raise SettingsError(msg, hint=hint) from None

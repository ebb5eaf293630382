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
from pydantic_settings.exceptions import SettingsError as PydanticSettingsError

from headrace.pipeline.errors import PipelineFileError, SettingsError
from headrace.pipeline.settings_words import in_words, not_a_map, not_json, unknown_variables
from headrace.pipeline.tree import Tree, read_tree

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
    enforce_primary_keys: bool = Field(
        default=False, description="Whether a source without a key before a sink that could use one is a mistake."
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
            InitSettingsSource(settings_cls, _config_tree().value),
            InitSettingsSource(settings_cls, _services_file(home)),
        )


def _config_tree() -> Tree:
    """The first of config.yaml, config.yml, config.json in the working directory; an empty one if there is none.

    Raises SettingsError where it cannot be read as a map. `${VAR}` means nothing here: variables have names of their own.
    """
    path = next((Path(name) for name in CONFIG_NAMES if Path(name).is_file()), None)
    if path is None:
        return Tree("", {})
    hint = "It holds settings such as `postgres_sink: {host: db.internal}`; see docs/your-own-pipeline.md."
    try:
        tree = read_tree(path.read_text(encoding="utf-8"), str(path), fill=False)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        msg = f"{path} cannot be read: {reason}"
        raise SettingsError(msg, hint=hint) from None
    except PipelineFileError as error:
        raise SettingsError(str(error)) from None
    if tree.problems:
        raise SettingsError("\n".join(str(problem) for problem in tree.problems))
    if tree.value is None:
        tree.value = {}
    if not isinstance(tree.value, dict):
        raise SettingsError(not_a_map(path, tree.value), hint=hint)
    return tree


def _services_file(home: Path) -> dict[str, Any]:
    """Connections of the local servers, and the ledger beside them, as settings."""
    path = home / "services.json"
    found: dict[str, Any] = {"home": str(home), "state_backend": {"sqlite": {"path": str(home / "ledger.db")}}}
    if not path.is_file():
        return found
    try:
        services = json.loads(path.read_text()).get("services", {})
        if postgres := services.get("postgres"):
            found["postgres_sink"] = {key: postgres[key] for key in ("host", "port", "user", "password")} | {"db": postgres["dbname"]}
        if clickhouse := services.get("clickhouse"):
            url = f"http://{clickhouse['host']}:{clickhouse['port']}"
            found["clickhouse_source"] = {"url": url, "user": clickhouse["user"], "password": clickhouse["password"]}
        if kafka := services.get("kafka"):
            found["kafka_source"] = {"brokers": f"{kafka['host']}:{kafka['port']}"}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        msg = f"{path} is not what `headrace services up` wrote"
        raise SettingsError(msg, hint="Remove the file and run `headrace services up` again.") from None
    return found


def load_settings(**overrides: Any) -> Settings:
    """The settings of this process. Raises SettingsError that names each wrong setting and where settings come from."""
    hint = "Looked at, strongest first: HEADRACE__… in the environment, STREAMLING__…, config.yaml, <home>/services.json, defaults."
    lines = unknown_variables(Settings)
    try:
        settings = Settings(**overrides)
        lines += _sink_connections(settings)
    except ValidationError as error:
        lines += in_words(error, Settings, _config_tree().places)
    except PydanticSettingsError as error:
        lines.append(not_json(str(error)))
    else:
        if not lines:
            return settings
    raise SettingsError("settings are wrong:\n  " + "\n  ".join(lines), hint=hint)


def _sink_connections(settings: Settings) -> list[str]:
    """What is wrong with connections of single sinks; else it would show when the sink is opened, hours later perhaps."""
    lines = []
    for name in settings.postgres_sink_connections:
        try:
            settings.postgres_for(name)
        except ValidationError as error:
            lines += in_words(error, PostgresConnection, _config_tree().places, ("postgres_sink_connections", name))
    return lines

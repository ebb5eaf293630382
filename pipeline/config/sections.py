"""The sections of the settings: connections of servers, and one model for each group of options."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, NonNegativeInt, SecretStr, field_validator

from headrace.pipeline.config.secrets import Secret
from headrace.pipeline.config.sources import PartOf
from headrace.pipeline.config.values import (
    find_redis_url_problem,
    is_url,
    split_list,
    to_backend_name,
    to_upper,
)


class Section(BaseModel):
    """Unknown keys are mistakes."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)


class PostgresConnection(Section):
    """One Postgres server."""

    host: str = Field(default="127.0.0.1", description="Name or address of the server.")
    port: int = Field(default=5432, description="Port of the server.")
    user: str = Field(default="postgres", description="The role that connects.")
    password: Secret = Field(default=SecretStr(""), description="Its password.")
    db: str = Field(default="postgres", description="The database.")
    sslmode: str = Field(default="prefer", description="libpq's mode of TLS, such as `verify-full`.")
    statement_timeout_secs: int = Field(
        default=600, description="Time limit of a statement in seconds. 0: none."
    )

    def conninfo(self) -> dict[str, str]:
        """Return keyword arguments for libpq. They contain the password: never log them."""
        result = {
            "host": self.host,
            "port": str(self.port),
            "user": self.user,
            "dbname": self.db,
            "sslmode": self.sslmode,
        }
        return result | ({"password": secret} if (secret := self.password.get_secret_value()) else {})


class PostgresServer(PostgresConnection):
    """The Postgres server that sources read from."""

    statement_timeout_secs: int = Field(
        default=0,
        description="Time limit of a statement in seconds. One statement reads a whole table. 0: none.",
    )


class TableConnection(PostgresConnection):
    """The Postgres server of dynamic tables, and how they are read there."""

    cache_enabled: bool = Field(
        default=False, description="Whether the pipeline caches tables with a `time_column`."
    )
    cache_refresh_debounce_ms: int = Field(
        default=1000, ge=0, description="The shortest time in milliseconds between two reads of a cache."
    )
    dt_schema_name: str | None = Field(
        default=None, description="Schema of tables without one. Defaults to `public`."
    )


class TableBackend(Section):
    """The storage of dynamic tables."""

    path: Path | None = Field(
        default=None,
        description="Folder of in-memory tables on this host. Defaults to `tables` below `home`.",
    )
    max_batch_size: int = Field(default=1000, gt=0, description="Values per query to Postgres.")
    postgres: Annotated[dict[str, Any], PartOf(TableConnection)] = Field(
        default_factory=dict,
        repr=False,
        description="Differences for dynamic tables: the keys of `postgres_sink`, and `cache_enabled`,"
        " `cache_refresh_debounce_ms` and `dt_schema_name`.",
    )


class ClickHouseConnection(Section):
    """One ClickHouse server, by its HTTP interface."""

    url: str = Field(default="http://localhost:8123", description="Address of the HTTP interface.")
    user: str = Field(default="default", description="The user that connects.")
    password: Secret = Field(default=SecretStr(""), description="The user's password.")
    database: str = Field(
        default="",
        description="Database of tables without one. Empty: `default`.",
    )


class ClickHouseTarget(ClickHouseConnection):
    """The ClickHouse server that sinks write to."""

    compression: Literal["none", "lz4", "zstd", "gzip"] | None = Field(
        default=None,
        description="Compression of rows on their way. Defaults to `none` on this host and to `zstd`"
        " elsewhere.",
    )
    compression_level: int | None = Field(
        default=None, ge=1, le=9, description="For `zstd` and `gzip`. Defaults to that of the codec."
    )


class RedisConnection(Section):
    """The Redis or Valkey server that sinks write to."""

    url: str = Field(
        default="redis://localhost:6379/0",
        description="Address of the server with the number of the database; `rediss://` uses TLS.",
    )
    user: str = Field(default="", description="The user that connects. Empty: the server's default user.")
    password: Secret = Field(default=SecretStr(""), description="Its password.")
    ca: Path | None = Field(
        default=None,
        description="PEM file with the certificates that sign the server's. Defaults to the system's.",
    )

    @field_validator("url")
    @classmethod
    def _check_url(cls, value: str) -> str:
        if problem := find_redis_url_problem(value):
            raise ValueError(problem)
        return value


class KafkaCluster(Section):
    """One Kafka cluster, and the registry of its Avro schemas."""

    brokers: str = Field(
        default="localhost:9092", description="Addresses with commas: `kafka1:9092,kafka2:9092`."
    )
    security_protocol: Annotated[
        Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"], BeforeValidator(to_upper)
    ] = Field(default="PLAINTEXT", description="Encryption and authentication.")
    options: dict[str, Secret] = Field(
        default_factory=dict,
        description="Other client options by librdkafka's names, such as `sasl.mechanism`. They are secrets.",
    )
    schema_registry_url: str = Field(
        default="http://localhost:18081",
        description="Address of the registry of Avro schemas: Confluent's interface.",
    )
    schema_registry_username: str = Field(
        default="", description="User of the registry. Empty: no authentication."
    )
    schema_registry_password: Secret = Field(default=SecretStr(""), description="Password of the user.")
    schema_registry_ca: Path | None = Field(
        default=None,
        description="PEM file with the certificates that sign the registry's. Defaults to the system's.",
    )

    @field_validator("schema_registry_url")
    @classmethod
    def _registry_address(cls, value: str) -> str:
        if not is_url(value):
            msg = "must begin with http:// or https://"
            raise ValueError(msg)
        if "@" in urlsplit(value).netloc:
            msg = "must not hold credentials, which would end up in logs; set schema_registry_username and"
            msg += " schema_registry_password"
            raise ValueError(msg)
        return value


class KafkaConnection(KafkaCluster):
    """The Kafka cluster that sources read."""

    consumer_group_id: str | None = Field(
        default=None, description="The group whose offsets show the progress. Headrace does not read them."
    )
    driver_rows: int = Field(
        default=2_000_000,
        ge=0,
        description="The driver reads epochs of at most this many messages without a Spark job: of at most"
        " 400,000 if the run uses Spark. 0: none.",
    )


class SqliteBackend(Section):
    """A ledger in a file: one host only."""

    path: Path = Field(
        default=Path(".headrace/ledger.db"), description="The file. Defaults to `ledger.db` below `home`."
    )


class StateBackend(Section):
    """The storage of the ledger."""

    backend_type: Annotated[Literal["sqlite", "postgres"], BeforeValidator(to_backend_name)] = Field(
        default="sqlite", description="`sqlite` serves one host."
    )
    sqlite: SqliteBackend = SqliteBackend()
    postgres: PostgresConnection = PostgresConnection()


class IcebergSettings(Section):
    """The hadoop catalog for Iceberg tables."""

    warehouse: str | None = Field(default=None, description="Folder or address of the warehouse.")


class LedgerSettings(Section):
    """How much the ledger keeps."""

    keep_epochs: int | None = Field(
        default=20_000,
        ge=1,
        description="Committed epochs that stay in the ledger one by one, which `replay` needs. Older ones"
        " are rolled up, history once it is complete. The default is about 28 hours at 5 seconds per epoch."
        " `null`: all.",
    )


class AuditSettings(Section):
    """How much the audit reads by default."""

    sample_rows: int = Field(
        default=10_000,
        ge=1,
        description="Rows of the sources that `content_matches` reads per sink, after each run in Dagster and"
        " in `audit --content`.",
    )


class BucketAccess(Section):
    """Access to a bucket. Amazon's variables and roles apply to what is empty."""

    endpoint: str = Field(default="", description="Address of another server than Amazon's.")
    region: str = Field(default="", description="The region of the bucket.")
    access_key_id: str = Field(default="", description="The key. Empty: Amazon's variables and roles.")
    secret_access_key: Secret = Field(default=SecretStr(""), description="The secret of the key.")

    @field_validator("endpoint")
    @classmethod
    def _is_address(cls, endpoint: str) -> str:
        if endpoint and not is_url(endpoint):
            msg = "must be an address such as http://objects:8333"
            raise ValueError(msg)
        return endpoint


class FileSourceAccess(Section):
    """Access to the buckets of `file` sources. `gs://` and `abfss://` have their provider's own variables."""

    s3: BucketAccess = BucketAccess()


class StagingSettings(Section):
    """The location of rows that may differ when they are computed again, such as responses of a service."""

    path: Path | str | None = Field(
        default=None,
        description="Folder of stored results, or `s3://bucket/folder`. Defaults to `staging` below `home`."
        " Runs on several hosts need a bucket, or a folder that all Spark workers share.",
    )
    s3: BucketAccess = BucketAccess()
    keep_epochs: int = Field(
        default=20,
        ge=0,
        description="Committed epochs whose stored results are kept for a replay.",
    )
    recompute: bool = Field(
        default=False,
        description="Whether missing results are computed again, even if a sink has the original rows.",
    )

    @property
    def bucket(self) -> str:
        """The address of the bucket. Empty if `path` is a folder."""
        return self.path if isinstance(self.path, str) and "://" in self.path else ""

    @field_validator("path")
    @classmethod
    def _is_folder_or_bucket(cls, path: Path | str | None) -> Path | str | None:
        address = path if isinstance(path, str) and "://" in path else ""
        if address and not re.fullmatch(r"s3://[a-z0-9.-]{3,63}(/\S+)?", address):
            msg = "must be a folder or an address such as s3://bucket/folder"
            raise ValueError(msg)
        return path


class SparkSettings(Section):
    """How Spark is started.

    `conf` overrides everything that Headrace sets, save what its guarantees rest on.
    """

    master: str = Field(default="local[*]", description="Spark's master.")
    driver_memory: str = Field(default="2g", description="Heap of the driver.")
    jvm_options: str = Field(
        default="",
        description="Further options of the driver's JVM. `-XX:TieredStopAtLevel=1` starts faster and runs"
        " slower.",
    )
    conf: dict[str, str] = Field(default_factory=dict, description="Further settings of Spark, by name.")
    warm_engine_secs: NonNegativeInt = Field(
        default=0,
        description="Seconds that an idle process with Spark started waits for the next `headrace run` in the"
        " same folder. It takes about 600 MB. 0: none.",
    )


class PythonTransforms(Section):
    """The Python that a pipeline file may name."""

    allow: Annotated[list[str], BeforeValidator(split_list)] = Field(
        default_factory=list,
        description="Modules, with their submodules, whose functions `python` transforms may call: a list, or"
        " a string with commas. Empty: none.",
    )

"""Valid settings: precedence, references to secrets, and Streamling's files."""

from __future__ import annotations

import json
import os
import pickle
import re
from pathlib import Path

import pytest
from helpers.checkout import ROOT
from pydantic import BaseModel

from headrace.pipeline.compat.streamling_settings import IGNORED
from headrace.pipeline.config import settings as module
from headrace.pipeline.config.settings import describe_setting_lookup, load_settings
from headrace.pipeline.errors import SettingsError

SERVICES = {
    "services": {
        "postgres": {"host": "local", "port": 3, "user": "u", "password": "local-word", "dbname": "d"}
    }
}


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.upper().startswith(("HEADRACE", "STREAMLING")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "_reported", set())


def config(text: str) -> None:
    Path("config.yaml").write_text(text)


def test_each_place_goes_before_those_below_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings().postgres_sink.host == "127.0.0.1"
    Path(".headrace").mkdir()
    Path(".headrace/services.json").write_text(json.dumps(SERVICES))
    assert load_settings().postgres_sink.host == "local"
    config("postgres_sink: {host: file}")
    assert load_settings().postgres_sink.host == "file"
    monkeypatch.setenv("STREAMLING__POSTGRES_SINK__HOST", "streamling")
    assert load_settings().postgres_sink.host == "streamling"
    monkeypatch.setenv("headrace__postgres_sink__host", "headrace")
    assert load_settings().postgres_sink.host == "headrace"
    monkeypatch.delenv("headrace__postgres_sink__host")
    monkeypatch.setenv("HEADRACE__POSTGRES_SINK", '{"host": "as JSON"}')
    assert load_settings().postgres_sink.host == "as JSON"
    monkeypatch.setenv("HEADRACE__POSTGRES_SINK__HOST", "by name")
    result = load_settings().postgres_sink
    assert (result.host, result.port, result.password.get_secret_value()) == ("by name", 3, "local-word")


def test_values_that_were_never_set_have_their_types(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE__POSTGRES_SINK__PORT", "99")
    monkeypatch.setenv("HEADRACE__ENFORCE_PRIMARY_KEYS", "true")
    monkeypatch.setenv("HEADRACE__SPARK__CONF", '{"spark.ui.enabled": "true"}')
    monkeypatch.setenv("HEADRACE__POSTGRES_SINK_CONNECTIONS__ORDERS__PASSWORD", "0123")
    config("spark: {conf: {spark.executor.cores: '2'}}")
    settings = load_settings()
    assert settings.postgres_sink.port == 99
    assert settings.enforce_primary_keys is True
    assert settings.spark.conf == {"spark.ui.enabled": "true", "spark.executor.cores": "2"}
    assert settings.postgres_for("Orders").password.get_secret_value() == "0123"


@pytest.fixture
def word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A secret that a file and a variable hold."""
    (tmp_path / "word").write_text("tr0ub4dor\n")
    monkeypatch.setenv("MY_WORD", "tr0ub4dor")
    return "tr0ub4dor"


@pytest.mark.parametrize("reference", ["{env: MY_WORD}", "{file: word}"])
def test_a_secret_by_reference_in_the_config_file(reference: str, word: str) -> None:
    config(
        f"postgres_sink: {{password: {reference}}}\nclickhouse_source: {{password: {reference}}}\n"
        f"kafka_source: {{options: {{sasl.username: me, sasl.password: {reference}}}}}\n"
        f"state_backend: {{postgres: {{password: {reference}}}}}\npostgres_sink_connections: {{orders:"
        f" {{password: {reference}}}}}\n"
    )
    settings = load_settings()
    result = [
        settings.postgres_sink.password,
        settings.clickhouse_source.password,
        settings.kafka_source.options["sasl.password"],
    ]
    result += [settings.state_backend.postgres.password, settings.postgres_for("orders").password]
    assert [secret.get_secret_value() for secret in result] == [word] * 5
    assert settings.kafka_source.options["sasl.username"].get_secret_value() == "me"
    assert word not in repr(settings)
    assert pickle.loads(pickle.dumps(settings)).postgres_for("orders").password.get_secret_value() == word


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("HEADRACE__POSTGRES_SINK__PASSWORD", '{"file": "word"}'),
        ("HEADRACE__POSTGRES_SINK__PASSWORD", '{"env": "MY_WORD"}'),
        ("HEADRACE__POSTGRES_SINK__PASSWORD__FILE", "word"),
        ("STREAMLING__POSTGRES_SINK", '{"password": {"env": "MY_WORD"}}'),
        ("HEADRACE__POSTGRES_SINK_CONNECTIONS", '{"any": {"password": {"file": "word"}}}'),
        ("HEADRACE__POSTGRES_SINK_CONNECTIONS__ANY__PASSWORD", '{"file": "word"}'),
    ],
)
def test_a_secret_by_reference_in_the_environment(
    variable: str, value: str, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    assert load_settings().postgres_for("any").password.get_secret_value() == word


def test_a_reference_of_a_stronger_place_stands_alone(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config(
        "kafka_source: {options: {sasl.password: {env: NOT_SET}, sasl.username: me}}\npostgres_sink:"
        " {password: {file: nowhere}}"
    )
    monkeypatch.setenv("HEADRACE__KAFKA_SOURCE__OPTIONS", '{"sasl.password": {"file": "word"}}')
    monkeypatch.setenv("HEADRACE__POSTGRES_SINK__PASSWORD", "plain")
    settings = load_settings()
    assert {key: value.get_secret_value() for key, value in settings.kafka_source.options.items()} == {
        "sasl.username": "me",
        "sasl.password": word,
    }
    assert settings.postgres_sink.password.get_secret_value() == "plain"


@pytest.mark.parametrize(
    "text",
    ["{", "{not json}", '{"a": 1}', '{"env": "A", "file": "b"}', "  two words ", "pass\\word", "ünïcode"],
)
def test_a_password_may_look_like_anything(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE__POSTGRES_SINK__PASSWORD", text)
    assert load_settings().postgres_sink.password.get_secret_value() == text


def test_a_secret_file_loses_one_line_end_and_nothing_else() -> None:
    config("postgres_sink: {password: {file: word}}")
    for written, secret in (("a b \n\n", "a b \n"), ("ab\r\n", "ab"), ("ab", "ab")):
        Path("word").write_bytes(written.encode())
        assert load_settings().postgres_sink.password.get_secret_value() == secret


def test_a_secret_file_that_cannot_be_read_is_named_without_what_it_holds() -> None:
    config("postgres_sink: {password: {file: word}}")
    Path("word").write_bytes(b"tr0ub4dor \xff")
    with pytest.raises(
        SettingsError, match=r"postgres_sink.password: refers to the file word, which cannot be read: no text"
    ) as caught:
        load_settings()
    assert "tr0ub4dor" not in str(caught.value)


STREAMLING = """
application_id: orders_v2
log_format: json
pipeline_definition_location: ./orders.yaml
record_batch_interval_ms: 100
record_batch_size: 1000
internal_buffer_size: 10
checkpoint_interval_sec: 5
enforce_primary_keys: true
drain_policy: auto
state_backend:
  backend_type: Postgres
  postgres: {host: state, port: 5433, user: graph-node, pass: state-word, db: streamling, sslmode: require, state_schema_name: s}
dynamic_table_backend: {max_batch_size: 10, postgres: {pass: other}}
plugin: {path: /plugins, preprocessor_ids: a, side_output_options: {x: y}}
kafka_source:
  brokers: kafka:9092
  security_protocol: sasl_ssl
  schema_registry_url: http://registry
  consumer_group_id: group
  client_id: mine
  sasl_mechanism: PLAIN
  sasl_username: someone
  sasl_password: kafka-word
  lag_report_interval_ms: 60000
kafka_sink: {brokers: kafka:9093, schema_registry_url: http://registry, sasl_mechanism: PLAIN}
clickhouse_source: {url: http://ch:8123, user: default, password: ch-word, database: shop, page_size: 10, block_range: 5}
clickhouse_sink: {compression: zstd}
print_sink: {sample_every: 1}
postgres_sink: {host: db, port: 5432, user: me, pass: pg-word, db: shop, sslmode: disable, batch_size: 100, statement_timeout_secs: 60}
postgres_sink_connections: {orders_pg: {host: other, pass: one-word}}
open_telemetry_metrics: {ingestion_endpoint: none}
live_data_inspect_enabled: false
"""


@pytest.mark.parametrize("backend", ["InMemory", "in_memory"])
def test_a_ledger_in_memory_is_refused_with_the_reason(backend: str) -> None:
    config(f"state_backend: {{backend_type: {backend}}}\n")
    with pytest.raises(
        SettingsError,
        match=rf"state_backend.backend_type: must be `sqlite` or `postgres`: a ledger in memory \(`{backend}`\)",
    ):
        load_settings()


def test_a_config_file_of_streamling_is_taken_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    config(STREAMLING)
    settings = load_settings()
    ledger, kafka, postgres = settings.state_backend, settings.kafka_source, settings.postgres_sink
    assert (settings.log_format, settings.enforce_primary_keys, ledger.backend_type) == (
        "json",
        True,
        "postgres",
    )
    assert (ledger.postgres.user, ledger.postgres.password.get_secret_value(), ledger.postgres.db) == (
        "graph-node",
        "state-word",
        "streamling",
    )
    assert (kafka.security_protocol, kafka.consumer_group_id) == ("SASL_SSL", "group")
    assert {name: option.get_secret_value() for name, option in kafka.options.items()} == {
        "client.id": "mine",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "someone",
        "sasl.password": "kafka-word",
    }
    assert settings.kafka_sink.brokers == "kafka:9093"
    assert settings.kafka_sink.schema_registry_url == "http://registry"
    assert settings.kafka_sink.options["sasl.mechanism"].get_secret_value() == "PLAIN"
    assert settings.clickhouse_source.database == "shop"
    assert settings.clickhouse_sink.compression == "zstd"
    assert (postgres.password.get_secret_value(), postgres.statement_timeout_secs) == ("pg-word", 60)
    assert settings.postgres_for("Orders-PG").password.get_secret_value() == "one-word"
    assert settings.clickhouse_source.password.get_secret_value() == "ch-word"
    messages = [record.getMessage() for record in caplog.records]
    assert (settings.dynamic_table_backend.max_batch_size, settings.postgres_for_tables().host) == (10, "db")
    assert settings.postgres_for_tables().password.get_secret_value() == "other"
    assert len(messages) == 14
    assert (
        "event=setting_ignored setting=checkpoint_interval_sec location=config.yaml:8:1 instead=Say `epoch: {interval:"
        " 5s}` in the pipeline file."
    ) in messages
    assert any(
        line.startswith(
            "event=setting_ignored setting=state_backend.postgres.state_schema_name location=config.yaml:13:"
        )
        for line in messages
    )
    assert not [line for line in messages if "word" in line]
    load_settings()
    assert len(caplog.records) == len(messages), "logged twice"


def test_a_streamling_environment_is_taken_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in {
        "POSTGRES_SINK__PASS": "pg-word",
        "STATE_BACKEND__BACKEND_TYPE": "Sqlite",
        "KAFKA_SOURCE__SECURITY_PROTOCOL": "ssl",
        "KAFKA_SOURCE__CONSUMER_FETCH_TIMEOUT_SEC": "60",
        "HTTP_SECRET_HEADER__MY_KEY": "X-Key",
        "HTTP_SECRET_VALUE__MY_KEY": "hidden-word",
        "RECORD_BATCH_SIZE": "10",
        "PLUGIN__MYSQL_SINK__PASSWORD": "hidden-word",
        "KAFKA_SOURCE__OF_ANOTHER_RELEASE": "x",
        "POSTGRES_SINK__OF_ANOTHER__RELEASE": "x",
        "SOMETHING": "x",
        "SOMETHING__ELSE": "x",
    }.items():
        monkeypatch.setenv(f"STREAMLING__{name}", value)
    settings = load_settings()
    assert settings.postgres_sink.password.get_secret_value() == "pg-word"
    assert (settings.state_backend.backend_type, settings.kafka_source.security_protocol) == ("sqlite", "SSL")
    assert settings.http_secret("My-Key") == ("X-Key", "hidden-word")
    assert "hidden-word" not in repr(settings)
    messages = {record.getMessage().split(" instead")[0] for record in caplog.records}
    assert messages == {
        (
            "event=setting_ignored setting=kafka_source.consumer_fetch_timeout_sec"
            " location=STREAMLING__KAFKA_SOURCE__CONSUMER_FETCH_TIMEOUT_SEC"
        ),
        "event=setting_ignored setting=record_batch_size location=STREAMLING__RECORD_BATCH_SIZE",
    }
    assert "hidden-word" not in caplog.text


def test_a_setting_of_ours_by_its_own_prefix_goes_before_what_is_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HEADRACE__RECORD_BATCH_SIZE", "10")
    load_settings()
    monkeypatch.setenv("HEADRACE__RECORD_BATCH_SIZ", "10")
    with pytest.raises(SettingsError, match=r"did you mean `record_batch_size`\?"):
        load_settings()


def test_what_is_ignored_says_what_there_is_instead() -> None:
    fields = module.Settings.model_fields
    for name, instead in IGNORED.items():
        assert instead.endswith("."), name
        section, _, key = name.rpartition(".")
        assert (
            section in ("", "state_backend.postgres", "dynamic_table_backend.postgres") or section in fields
        ), name
        assert key not in fields or section, f"{name} is a setting"


def test_the_places_of_a_setting_that_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert describe_setting_lookup("iceberg.warehouse") == (
        "looked at HEADRACE__ICEBERG__WAREHOUSE (not set), STREAMLING__ICEBERG__WAREHOUSE (not set),"
        " config.yaml (not there), "
        ".headrace/services.json (not there), the default (taken)"
    )
    Path("config.json").write_text('{"iceberg": {"warehouse": ""}}')
    monkeypatch.setenv("HEADRACE_HOME", "elsewhere")
    assert describe_setting_lookup("iceberg.warehouse").endswith(
        "config.json:1:14 (taken), elsewhere/services.json (not there)"
    )


def test_yaml_of_the_docs_is_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs/reference/settings.md").read_text()
    blocks = [part.split("```")[0] for part in text.split("```yaml\n")[1:]]
    monkeypatch.setenv("CLICKHOUSE_PASSWORD", "word")
    for block in blocks:
        for name in re.findall(r"/run/secrets/([a-z-]+)", block):
            Path(name).write_text("word\n")
        config(block.replace("/run/secrets/", ""))
        settings = load_settings()
        assert settings.postgres_sink.password.get_secret_value() == "word"
    assert len(blocks) == 1


def test_the_docs_name_every_setting() -> None:
    text = (ROOT / "docs/reference/all-settings.md").read_text()
    for name, field in module.Settings.model_fields.items():
        assert f"`{name}" in text, name
        inner = (
            field.annotation
            if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
            else None
        )
        assert all(
            f"`{key}`" in text or f"{name}.{key}" in text for key in (inner.model_fields if inner else ())
        ), name

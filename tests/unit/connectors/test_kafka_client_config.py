"""One set of options for two Kafka clients."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from pydantic import SecretStr

from headrace.connectors.kafka.client_config import client_options, spark_options
from headrace.connectors.kafka.producer import client_log
from headrace.pipeline.config.sections import KafkaConnection
from headrace.pipeline.errors import SettingsError


def connection(protocol: str = "SASL_SSL", **options: str) -> KafkaConnection:
    named = {key.replace("_", "."): SecretStr(value) for key, value in options.items()}
    return KafkaConnection.model_validate(
        {"brokers": "b:9092", "security_protocol": protocol, "options": named}
    )


def test_plain() -> None:
    plain = connection("plaintext")
    assert client_options(plain) == {"bootstrap.servers": "b:9092", "security.protocol": "plaintext"}
    assert spark_options(plain) == {
        "kafka.bootstrap.servers": "b:9092",
        "kafka.security.protocol": "PLAINTEXT",
    }


@pytest.mark.parametrize(
    ("mechanism", "module"),
    [("PLAIN", "plain.PlainLoginModule"), ("SCRAM-SHA-512", "scram.ScramLoginModule")],
)
def test_login_is_quoted_for_the_jvm(mechanism: str, module: str) -> None:
    kafka = connection(sasl_mechanism=mechanism, sasl_username="me", sasl_password='a"b\\c;')
    assert client_options(kafka)["sasl.password"] == 'a"b\\c;'
    result = spark_options(kafka)
    assert result["kafka.sasl.mechanism"] == mechanism
    jaas = f'org.apache.kafka.common.security.{module} required username="me" password="a\\"b\\\\c;";'
    assert result["kafka.sasl.jaas.config"] == jaas
    assert "kafka.sasl.password" not in result


def test_login_without_counterpart_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"sasl\.mechanism `GSSAPI` cannot be carried over") as caught:
        spark_options(connection(sasl_mechanism="GSSAPI", sasl_password="secret"))
    assert "secret" not in str(caught.value)


def test_options_of_the_jvm_alone_win() -> None:
    kafka = connection(
        sasl_mechanism="GSSAPI", kafka_sasl_jaas_config="theirs", kafka_sasl_mechanism="GSSAPI"
    )
    assert "kafka.sasl.jaas.config" not in client_options(kafka)
    result = spark_options(kafka)
    assert (result["kafka.sasl.mechanism"], result["kafka.sasl.jaas.config"]) == ("GSSAPI", "theirs")


def test_certificates(tmp_path: Path) -> None:
    (tmp_path / "cert").write_text("CERT")
    (tmp_path / "key").write_text("KEY")
    kafka = connection(
        "ssl",
        ssl_ca_location="/ca.pem",
        ssl_certificate_location=str(tmp_path / "cert"),
        ssl_key_location=str(tmp_path / "key"),
        ssl_endpoint_identification_algorithm="none",
    )
    assert spark_options(kafka) == {
        "kafka.bootstrap.servers": "b:9092",
        "kafka.security.protocol": "SSL",
        "kafka.ssl.endpoint.identification.algorithm": "",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": "/ca.pem",
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.certificate.chain": "CERT",
        "kafka.ssl.keystore.key": "KEY",
    }
    with pytest.raises(SettingsError, match=r"ssl\.key\.location `/nowhere` cannot be read: No such file"):
        spark_options(connection("ssl", ssl_key_location="/nowhere"))


def test_attempts_that_librdkafka_repeats_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    for reason in ("Coordinator load in progress: retrying", "Coordinator load in progress"):
        client_log.log(logging.WARNING, "%s [%s] %s", "GETPID", "rdkafka#producer-1", reason)
    assert caplog.messages == ["GETPID [rdkafka#producer-1] Coordinator load in progress"]

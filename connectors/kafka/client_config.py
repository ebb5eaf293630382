"""One set of client options for two clients: librdkafka's names are the user's, the JVM's are derived.

The results hold secrets: never log them.
"""

from __future__ import annotations

from pathlib import Path

from headrace.pipeline.config.sections import KafkaCluster
from headrace.pipeline.errors import SettingsError

_JVM_ONLY = "kafka."
_SAME = (
    "ssl.endpoint.identification.algorithm",
    "client.id",
    "client.rack",
    "ssl.key.password",
    "metadata.max.age.ms",
)
_LOGIN = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def _plain(connection: KafkaCluster) -> dict[str, str]:
    return {key: value.get_secret_value() for key, value in connection.options.items()}


def client_options(connection: KafkaCluster) -> dict[str, str]:
    """Return the librdkafka configuration. Options that start with `kafka.` are only for the JVM."""
    own = {key: value for key, value in _plain(connection).items() if not key.startswith(_JVM_ONLY)}
    return {
        "bootstrap.servers": connection.brokers,
        "security.protocol": connection.security_protocol.lower(),
    } | own


def spark_options(connection: KafkaCluster) -> dict[str, str]:
    """Return the options of Spark's Kafka reader. Raise SettingsError for a login without an equivalent.

    The user's options with the prefix `kafka.` are passed through and take precedence.
    """
    options = _plain(connection)
    result = {
        "bootstrap.servers": connection.brokers,
        "security.protocol": connection.security_protocol.upper(),
    }
    result |= {key: options[key] for key in _SAME if key in options} | _login(options) | _tls(options)
    if result.get("ssl.endpoint.identification.algorithm") == "none":
        result["ssl.endpoint.identification.algorithm"] = ""
    return {f"kafka.{key}": value for key, value in result.items()} | {
        k: v for k, v in options.items() if k.startswith(_JVM_ONLY)
    }


def _login(options: dict[str, str]) -> dict[str, str]:
    mechanism = options.get("sasl.mechanism") or options.get("sasl.mechanisms")
    if mechanism is None or "kafka.sasl.jaas.config" in options:
        return {"sasl.mechanism": mechanism} if mechanism else {}
    if mechanism not in _LOGIN:
        msg = (
            f"kafka_source.options: sasl.mechanism `{mechanism}` cannot be carried over to Spark by"
            f" itself; known: {', '.join(_LOGIN)}"
        )
        raise SettingsError(
            msg, hint="Give the JVM's own settings too: kafka.sasl.mechanism and kafka.sasl.jaas.config."
        )
    user, password = (_quote_text(options.get(key, "")) for key in ("sasl.username", "sasl.password"))
    return {
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f"{_LOGIN[mechanism]} required username={user} password={password};",
    }


def _quote_text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _tls(options: dict[str, str]) -> dict[str, str]:
    """Return the JVM's TLS options from the PEM settings of librdkafka.

    Certificate and key are passed as strings, because the JVM would otherwise need them in one file.
    """
    result: dict[str, str] = {}
    if path := options.get("ssl.ca.location"):
        result |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": path}
    elif pem := options.get("ssl.ca.pem"):
        result |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": pem}
    chain, key = _pem(options, "ssl.certificate"), _pem(options, "ssl.key")
    if chain and key:
        result |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": chain,
            "ssl.keystore.key": key,
        }
    return result


def _pem(options: dict[str, str], name: str) -> str | None:
    if pem := options.get(f"{name}.pem"):
        return pem
    path = options.get(f"{name}.location")
    if path is None:
        return None
    try:
        return Path(path).read_text()
    except OSError as error:
        msg = f"kafka_source.options: {name}.location `{path}` cannot be read: {error.strerror}"
        raise SettingsError(msg) from error

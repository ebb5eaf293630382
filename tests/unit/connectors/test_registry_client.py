"""The client of the schema registry: its errors, its credentials, and that it remembers."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.avro_messages import record
from helpers.web_server import Service, WebRequest, served

from headrace.connectors.kafka.avro.reader_schema import AVRO
from headrace.connectors.kafka.registry_client import SchemaRegistryClient
from headrace.pipeline.config.sections import KafkaCluster, KafkaConnection
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import HeadraceError, SchemaError, SettingsError, TransientError

ROW = {"id": 4, "schema": json.dumps(record(("id", "long")))}
SECRET = "registry-word"


@pytest.fixture
def service() -> Iterator[Service]:
    with served(lambda _: ROW) as result:
        yield result


@pytest.fixture
def client(service: Service) -> Iterator[Callable[..., SchemaRegistryClient]]:
    made: list[SchemaRegistryClient] = []

    def make(**more: Any) -> SchemaRegistryClient:
        url = service.url.removesuffix("/rows") + "/"
        made.append(SchemaRegistryClient("src", KafkaConnection(schema_registry_url=url, **more), AVRO))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_schemas_are_asked_for_once(service: Service, client: Any) -> None:
    registry = client()
    assert registry.latest_id("a b/c-value") == 4
    assert registry.find_schema(4) == registry.find_schema(4)
    assert [requests.path for requests in service.requests] == [
        "/subjects/a%20b%2Fc-value/versions/latest",
        "/schemas/ids/4",
    ]
    assert service.connections == 1


def test_credentials_are_sent_and_never_shown(
    service: Service, client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    registry = client(schema_registry_username="me", schema_registry_password=SECRET)
    assert registry.find_schema(4)
    assert service.requests[0].headers["authorization"].startswith("Basic ")
    service.faults[:] = [401]
    with pytest.raises(SettingsError, match="refuses the credentials") as refused:
        registry.latest_id("t-value")
    assert SECRET not in str(refused.value) + caplog.text + repr(registry._connection)
    client().latest_id("t-value")
    assert "authorization" not in service.requests[-1].headers


def missing(code: int) -> tuple[int, bytes, dict[str, str]]:
    return 404, json.dumps({"error_code": code, "message": "none"}).encode(), {}


@pytest.mark.parametrize(
    ("fault", "kind", "says"),
    [
        (500, TransientError, "answers with HTTP 500"),
        (503, TransientError, "answers with HTTP 503"),
        (429, TransientError, "answers with HTTP 429"),
        ("reset", TransientError, "does not answer"),
        (403, SettingsError, "refuses the credentials"),
        (404, SettingsError, "is not a schema registry"),
        (422, SettingsError, "is not a schema registry"),
        (missing(404), SettingsError, "is not a schema registry"),
        ((200, b"<html>", {}), SettingsError, "is not a schema registry"),
        ((200, b"[1]", {}), SettingsError, "is not a schema registry"),
        (missing(40401), SchemaError, "has no subject `t-value`"),
        ((200, json.dumps(ROW | {"schemaType": "JSON"}).encode(), {}), SchemaError, "schema 4 of .* is JSON, not"),
        ((200, json.dumps(ROW | {"schema": '"int"'}).encode(), {}), SchemaError, "schema 4 of .*: the schema is int"),
    ],
)  # fmt: skip
def test_answers_that_are_none(
    service: Service, client: Any, fault: Any, kind: type[HeadraceError], says: str
) -> None:
    registry = client()
    service.faults.append(fault)
    with pytest.raises(kind, match=says) as refused:
        registry.latest_schema("t-value")
    assert refused.value.node == "src"
    assert registry.latest_schema("t-value").id == 4


def refusal(status: int) -> tuple[int, bytes, dict[str, str]]:
    return status, json.dumps({"error_code": status, "message": "not compatible\nReader: …"}).encode(), {}


@pytest.mark.parametrize(
    ("fault", "kind", "says"),
    [
        (refusal(409), SchemaError, "refuses the schema of `t/a-value`: not compatible$"),
        (refusal(422), SchemaError, "refuses the schema of `t/a-value`: not compatible$"),
        ((409, b"<html>", {}), SchemaError, "refuses the schema of `t/a-value`: $"),
        (403, SettingsError, "refuses the credentials"),
        (500, TransientError, "answers with HTTP 500"),
        ("reset", TransientError, "does not answer"),
        (missing(404), SettingsError, "is not a schema registry"),
    ],
)
def test_a_schema_is_registered_or_refused(
    service: Service, fault: Any, kind: type[HeadraceError], says: str
) -> None:
    cluster = KafkaCluster(schema_registry_url=service.url.removesuffix("/rows"))
    registry = SchemaRegistryClient("out", cluster, AVRO, "kafka_sink")
    service.faults.append(fault)
    with pytest.raises(kind) as refused:
        registry.register("t/a-value", ROW["schema"])
    assert re.search(says, refused.value.message)
    assert refused.value.node == "out"
    if not isinstance(refused.value, SchemaError) and fault != 500:
        assert "kafka_sink.schema_registry_" in str(refused.value.hint)
    assert registry.register("t/a-value", ROW["schema"]) == 4
    assert service.requests[-1].path == "/subjects/t%2Fa-value/versions"
    assert service.requests[-1].rows == {"schema": ROW["schema"]}
    registry.close()


def test_an_unknown_id_is_none_and_asked_for_again(service: Service, client: Any) -> None:
    service.faults.append(missing(40403))
    registry = client()
    assert registry.find_schema(4) is None
    assert registry.find_schema(4) is not None


def test_a_reference_that_is_missing_is_named(service: Service, client: Any) -> None:
    referring = ROW | {"references": [{"name": "x", "subject": "other", "version": 3}]}
    service.faults += [(200, json.dumps(referring).encode(), {}), missing(40402)]
    with pytest.raises(SchemaError, match="has no version 3 of `other`"):
        client().find_schema(4)


def test_a_certificate_that_is_none_is_named(client: Any, tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    with pytest.raises(SettingsError, match=r"schema_registry_ca `.*` cannot be read: No such file"):
        client(schema_registry_ca=path).latest_id("t")
    path.write_text("none")
    with pytest.raises(SettingsError, match="it has no certificates in PEM"):
        client(schema_registry_ca=path).latest_id("t")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("registry:8081", "must begin with http"),
        (f"http://me:{SECRET}@registry", "must not hold credentials"),
    ],
)
def test_an_address_that_cannot_be_used(url: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as refused:
        Settings.model_validate({"kafka_source": {"schema_registry_url": url}})
    assert SECRET not in str(refused.value)


def test_the_answer_decides_by_path() -> None:
    def answer(request: WebRequest) -> Any:
        return ROW if request.path == "/apis/ccompat/v7/schemas/ids/4" else missing(40403)

    with served(answer) as service:
        url = service.url.removesuffix("/rows") + "/apis/ccompat/v7"
        registry = SchemaRegistryClient("src", KafkaConnection(schema_registry_url=url), AVRO)
        assert registry.find_schema(4) is not None
        assert registry.find_schema(5) is None
        registry.close()

"""A client of a schema registry with Confluent's HTTP interface.

Schemas of an id never change, so they are kept for the life of the client. Passwords are in no message.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar
from urllib.parse import quote

from headrace.connectors.certificates import check_authorities
from headrace.pipeline.config.sections import KafkaCluster
from headrace.pipeline.errors import SchemaError, SettingsError, TransientError

if TYPE_CHECKING:
    import httpx

_TIMEOUT_S = 10.0
_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"
_UNAUTHORIZED = (401, 403)
_NOT_FOUND, _TOO_MANY, _SERVER_ERROR = 404, 429, 500
_REFUSED = (409, 422)
_NO_SUBJECT, _NO_VERSION, _NO_SCHEMA = 40401, 40402, 40403


Schema = TypeVar("Schema")


def subject_of(topic: str) -> str:
    """Return the name under which producers register the schemas of a topic's values."""
    return f"{topic}-value"


class SchemaReference(NamedTuple):
    """A schema that another one refers to by a name."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class SchemaLanguage(Generic[Schema]):
    """How the registry and messages call a kind of schemas, and what reads their texts.

    `parse` gets the text and its references, each after those that it needs. It raises SchemaError.
    """

    kind: str
    title: str
    parse: Callable[[str, Sequence[SchemaReference]], Schema]


@dataclass(frozen=True, slots=True)
class RegisteredSchema(Generic[Schema]):
    """A schema and its id in the registry."""

    id: int
    schema: Schema


class SchemaRegistryClient(Generic[Schema]):
    """Reads and registers schemas. The connection opens at the first request; threads may share it."""

    def __init__(
        self,
        node: str,
        connection: KafkaCluster,
        language: SchemaLanguage[Schema],
        setting: str = "kafka_source",
    ) -> None:
        """Store the connection. `setting` is its section in the settings, for messages."""
        self._node = node
        self._language = language
        self._setting = setting
        self._connection = connection
        self._url = connection.schema_registry_url.rstrip("/")
        self._lock = threading.Lock()
        self._client: httpx.Client | None = None
        self._schemas: dict[int, Schema] = {}
        self._registered: dict[tuple[str, str], int] = {}

    @property
    def url(self) -> str:
        """The registry's address, for messages."""
        return self._url

    def latest_id(self, subject: str) -> int:
        """Return the id of the subject's latest version. Raise SchemaError if there is no such subject."""
        return int(self._latest(subject)["id"])

    def check_latest(self, topic: str, schema_id: int | None) -> None:
        """Raise TransientError if the topic's values have a newer schema than the reader schema.

        Called after the end of an epoch is fixed and before it is planned: a message before that end was
        written after its schema was registered, so no message of the epoch has a newer schema.
        """
        latest = self.latest_id(subject_of(topic))
        if latest == schema_id:
            return
        msg = f"topic `{topic}` has schema {latest} now, and this run reads it with schema {schema_id}"
        hint = (
            "Run again: the next run has the columns of the new schema. To go on with the old columns, set"
            " `validate_writer_schema_ordering: false` or `reader_schema_id`."
        )
        raise TransientError(msg, hint=hint, node=self._node)

    def latest_schema(self, subject: str) -> RegisteredSchema[Schema]:
        """Return the schema of the subject's latest version. Raise SchemaError if there is none."""
        result = self._latest(subject)
        return RegisteredSchema(int(result["id"]), self._parse(result, f"schema {result['id']}"))

    def find_schema(self, schema_id: int) -> Schema | None:
        """Return the schema of an id, or None if the registry does not have the id.

        Raise SchemaError if it is in another language or cannot be parsed.
        """
        if schema_id not in self._schemas:
            result = self._get(f"/schemas/ids/{schema_id}", _NO_SCHEMA, _NO_SUBJECT, _NO_VERSION)
            if result is None:
                return None
            self._schemas[schema_id] = self._parse(result, f"schema {schema_id}")
        return self._schemas[schema_id]

    def has_subject(self, subject: str) -> bool:
        """Return whether the subject has a schema."""
        return self._find_latest(subject) is not None

    def register(self, subject: str, schema: str) -> int:
        """Return the id of an Avro schema in a subject, which gets it if it lacks it.

        Registering a schema again changes nothing, and sends nothing for one that this client registered.
        Raise SchemaError if the registry refuses it, as by the compatibility of the subject.
        """
        if (known := self._registered.get((subject, schema))) is not None:
            return known
        path = f"/subjects/{quote(subject, safe='')}/versions"
        response = self._send("POST", path, {"schema": schema})
        if response.status_code in _REFUSED:
            answer = _json(response)
            reason = str(answer.get("message") if isinstance(answer, dict) else "").partition("\n")[0][:300]
            msg = f"the schema registry {self._url} refuses the schema of `{subject}`: {reason}"
            hint = "Write to another topic, or change the columns or the compatibility of the subject."
            raise SchemaError(msg, hint=hint, node=self._node)
        result = int(self._read_answer(response, path, ())["id"])
        self._registered[subject, schema] = result
        return result

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            if self._client is not None:
                self._client.close()
                self._client = None

    def _find_latest(self, subject: str) -> Any:
        return self._get(f"/subjects/{quote(subject, safe='')}/versions/latest", _NO_SUBJECT, _NO_VERSION)

    def _latest(self, subject: str) -> Any:
        result = self._find_latest(subject)
        if result is None:
            msg = f"the schema registry {self._url} has no subject `{subject}`"
            hint = (
                "Register the schema of the topic's values, or set `reader_schema`. Messages in JSON need"
                " `data_format: json` and a `schema`."
            )
            raise SchemaError(msg, hint=hint, node=self._node)
        return result

    def _parse(self, value: Any, what: str) -> Schema:
        kind = value.get("schemaType") or "AVRO"
        if kind != self._language.kind:
            msg = f"{what} of the schema registry {self._url} is {kind}, not {self._language.title}"
            raise SchemaError(msg, node=self._node)
        try:
            return self._language.parse(value["schema"], self._references(value))
        except SchemaError as error:
            msg = f"{what} of the schema registry {self._url}: {error.message}"
            raise SchemaError(msg, hint=error.hint, node=self._node) from None

    def _references(self, value: Any) -> list[SchemaReference]:
        """Return the schemas that a schema refers to, each after those that it needs."""
        schemas: list[SchemaReference] = []
        for one in value.get("references") or ():
            path = f"/subjects/{quote(one['subject'], safe='')}/versions/{one['version']}"
            referenced = self._get(path, _NO_SUBJECT, _NO_VERSION)
            if referenced is None:
                msg = (
                    f"the schema registry {self._url} has no version {one['version']} of `{one['subject']}`,"
                    " which another schema refers to"
                )
                raise SchemaError(msg, node=self._node)
            schemas += [
                *self._references(referenced),
                SchemaReference(one.get("name") or one["subject"], referenced["schema"]),
            ]
        return schemas

    def _get(self, path: str, *absent: int) -> Any:
        """Return the answer, or None if the registry reports one of the codes in `absent`."""
        return self._read_answer(self._send("GET", path), path, absent)

    def _send(self, method: str, path: str, body: Any = None) -> httpx.Response:
        """Return the response. Raise an error if the registry cannot answer, or refuses the credentials."""
        import httpx

        try:
            response = self._connect().request(method, self._url + path, json=body)
        except (httpx.TransportError, httpx.InvalidURL) as error:
            msg = f"the schema registry {self._url} does not answer: {error or type(error).__name__}"
            hint = f"Is it running? Its address is {self._setting}.schema_registry_url."
            raise TransientError(msg, hint=hint, node=self._node) from None
        status = response.status_code
        if status in _UNAUTHORIZED:
            msg = f"the schema registry {self._url} refuses the credentials (HTTP {status})"
            keys = (f"{self._setting}.schema_registry_{name}" for name in ("username", "password"))
            hint = f"Set {' and '.join(keys)}."
            raise SettingsError(msg, hint=hint, node=self._node)
        if status == _TOO_MANY or status >= _SERVER_ERROR:
            msg = f"the schema registry {self._url} answers with HTTP {status}"
            raise TransientError(msg, hint="Its log has the reason.", node=self._node)
        return response

    def _read_answer(self, response: httpx.Response, path: str, absent: Sequence[int]) -> Any:
        status = response.status_code
        answer = _json(response)
        if status == _NOT_FOUND and isinstance(answer, dict) and answer.get("error_code") in absent:
            return None
        if not response.is_success or not isinstance(answer, dict):
            msg = f"{self._url} is not a schema registry: {path} answers with HTTP {status}"
            hint = (
                f"{self._setting}.schema_registry_url must be the address of Confluent's interface, which"
                " for Apicurio ends with /apis/ccompat/v7."
            )
            raise SettingsError(msg, hint=hint, node=self._node)
        return answer

    def _connect(self) -> httpx.Client:
        import httpx

        with self._lock:
            if self._client is None:
                user = self._connection.schema_registry_username
                password = self._connection.schema_registry_password.get_secret_value()
                self._client = httpx.Client(
                    auth=(user, password) if user else None,
                    headers={"Accept": _ACCEPT},
                    timeout=_TIMEOUT_S,
                    verify=self._tls(),
                )
            return self._client

    def _tls(self) -> ssl.SSLContext | bool:
        path = self._connection.schema_registry_ca
        if path is None:
            return True
        return check_authorities(path, f"{self._setting}.schema_registry_ca", self._node)


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return None

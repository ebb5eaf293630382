"""Connections to Redis, and its errors as HeadraceError."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from headrace.connectors.certificates import check_authorities
from headrace.pipeline.errors import HeadraceError, TargetError, TransientError

if TYPE_CHECKING:
    from redis import Redis

    from headrace.pipeline.config.sections import RedisConnection

_CONNECT_TIMEOUT_S = 10
_CA = "redis_sink.ca"
_ANSWER_TIMEOUT_S = 300
"""A script answers when it has finished, and other scripts can be before it."""
_PASSING = ("LOADING", "READONLY", "BUSY", "OOM", "MISCONF", "MASTERDOWN", "NOREPLICAS", "TRYAGAIN")
"""Codes of errors after which the server may accept the command later."""
_CLUSTER = ("MOVED", "ASK", "CROSSSLOT", "CLUSTERDOWN")
_OLDEST = 6
"""The oldest major version whose scripts reach the append-only file as one transaction by default."""


class RedisClient:
    """One server and database. It connects on first use, and again after an error."""

    def __init__(self, connection: RedisConnection, url: str, node: str) -> None:
        self._connection, self._url, self._node = connection, url, node
        self._opened: Redis | None = None

    @property
    def address(self) -> tuple[str, str]:
        """Host with port, and the number of the database."""
        parts = urlsplit(self._url)
        return f"{parts.hostname}:{parts.port or 6379}", parts.path.removeprefix("/") or "0"

    def run(self, *command: bytes | str | int) -> Any:
        """Send one command and return its answer: bytes, a number, a list or None."""
        with translate_errors(self._node, self.address[0]):
            return self._redis.execute_command(*command)

    def read_info(self) -> dict[str, Any]:
        """Return the answer of INFO, by name."""
        with translate_errors(self._node, self.address[0]):
            return self._redis.info()

    def run_packed(self, parts: Sequence[Any]) -> Any:
        """Send one command that is encoded already, as buffers, and return its answer."""
        with translate_errors(self._node, self.address[0]):
            pool = self._redis.connection_pool
            connection: Any = pool.get_connection()
            try:
                connection.send_packed_command(parts)
                return connection.read_response()
            except BaseException:
                connection.disconnect()
                raise
            finally:
                pool.release(connection)

    def close(self) -> None:
        """Close the connections."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    @property
    def _redis(self) -> Redis:
        if self._opened is None:
            self._opened = self._open()
        return self._opened

    def _open(self) -> Redis:
        from redis import Redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        parts, ca = urlsplit(self._url), self._connection.ca
        tls: dict[str, Any] = {}
        if parts.scheme == "rediss":
            trust = ssl.create_default_context() if ca is None else check_authorities(ca, _CA, self._node)
            _check_tls(parts.hostname or "localhost", parts.port or 6379, trust, self._node)
            tls = {"ssl": True} if ca is None else {"ssl": True, "ssl_ca_certs": str(ca)}
        return Redis(
            host=parts.hostname or "localhost",
            port=parts.port or 6379,
            db=int(self.address[1]),
            username=self._connection.user or None,
            password=self._connection.password.get_secret_value() or None,
            socket_connect_timeout=_CONNECT_TIMEOUT_S,
            socket_timeout=_ANSWER_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
            client_name="headrace",
            **tls,
        )


def _check_tls(host: str, port: int, trust: ssl.SSLContext, node: str) -> None:
    """Raise TargetError for a certificate that is refused, and TransientError without an answer in time.

    The client itself would wait as long for a server without TLS as for a script.
    """
    try:
        with (
            socket.create_connection((host, port), _CONNECT_TIMEOUT_S) as plain,
            trust.wrap_socket(plain, server_hostname=host),
        ):
            return
    except ssl.SSLCertVerificationError as error:
        msg = f"the certificate of the Redis server {host}:{port} is refused: {error.verify_message}"
        hint = f"Set {_CA} to a PEM file with the certificates that sign it."
        raise TargetError(msg, hint=hint, node=node) from error
    except OSError as error:
        msg = f"the Redis server {host}:{port} cannot be reached by TLS: {error.strerror or error}"
        raise TransientError(msg, hint="Does it use TLS, and is redis_sink.url right?", node=node) from error


def check_server(client: RedisClient, node: str, *, is_durable: bool) -> None:
    """Raise TargetError for a server that cannot keep the guarantee, and TransientError for a replica.

    With `is_durable`, the server must write an append-only file and must not evict entries.
    """
    info, address = client.read_info(), client.address[0]
    if info.get("cluster_enabled") or info.get("redis_mode") in ("cluster", "sentinel"):
        mode = "a sentinel" if info.get("redis_mode") == "sentinel" else "a node of a cluster"
        msg = f"the Redis server {address} is {mode}, and one script cannot change keys of several nodes"
        raise TargetError(msg, hint="Set `url` to a standalone server.", node=node)
    version = str(info.get("redis_version", "0"))
    if int(version.split(".", maxsplit=1)[0]) < _OLDEST:
        msg = f"the Redis server {address} is version {version}"
        raise TargetError(msg, hint=f"Use Redis {_OLDEST} or newer, or Valkey.", node=node)
    if info.get("role") in ("slave", "replica"):
        msg = f"the Redis server {address} is read-only: a replica, or failing over"
        raise TransientError(msg, node=node)
    if not is_durable:
        return
    hint = "Or set `delivery: at_least_once` at the sink, if rows may be missing after a failure."
    if not info.get("aof_enabled"):
        msg = f"the Redis server {address} keeps no append-only file: a crash loses committed epochs"
        raise TargetError(msg, hint=f"Set `appendonly yes` at the server. {hint}", node=node)
    policy = str(info.get("maxmemory_policy", "noeviction"))
    if policy.startswith("allkeys"):
        msg = f"the Redis server {address} evicts entries when its memory is full: {policy}"
        raise TargetError(msg, hint=f"Set `maxmemory-policy noeviction` at the server. {hint}", node=node)


@contextmanager
def translate_errors(node: str, address: str) -> Iterator[None]:
    """Translate driver errors to TransientError if a retry may help, else to TargetError."""
    from redis.exceptions import RedisError

    try:
        yield
    except RedisError as error:
        raise _translate_error(error, node, address) from error


def _translate_error(error: Exception, node: str, address: str) -> HeadraceError:
    from redis import exceptions as known

    reason = str(error)
    code = reason.split(" ", 1)[0].rstrip(":")
    if isinstance(error, known.AuthenticationError | known.AuthorizationError) or code in (
        "NOAUTH",
        "WRONGPASS",
    ):
        msg = f"the Redis server {address} refuses the user or the password of redis_sink"
        hint = "Set redis_sink.user and .password in config.yaml or the environment."
        return TargetError(msg, hint=hint, node=node)
    if isinstance(error, known.NoPermissionError):
        return TargetError(f"the user of redis_sink has too few rights: {reason}", node=node)
    if isinstance(error, known.AskError | known.ClusterError) or code in _CLUSTER:
        msg = f"the Redis server {address} is a node of a cluster: {reason}"
        return TargetError(msg, hint="Set `url` to a standalone server.", node=node)
    if isinstance(error, known.OutOfMemoryError | known.ReadOnlyError) or code in _PASSING:
        return TransientError(f"the Redis server {address} refuses writes now: {reason}", node=node)
    if isinstance(error, known.ConnectionError | known.TimeoutError):
        msg = f"the Redis server {address} cannot be reached: {reason}"
        return TransientError(msg, hint="Is redis_sink.url right?", node=node)
    return TargetError(f"the Redis server {address} refuses a command: {reason}", node=node)

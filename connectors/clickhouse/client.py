"""Connections to ClickHouse, and its errors as HeadraceError."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pydantic import SecretStr

from headrace.pipeline.config.sections import ClickHouseConnection
from headrace.pipeline.config.settings import describe_setting_lookup
from headrace.pipeline.errors import HeadraceError, SettingsError, TargetError, TransientError

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

UNKNOWN_TABLE, UNKNOWN_DATABASE, ACCESS_DENIED = 60, 81, 497
_LOGIN = frozenset({192, 193, 194, 516})
# Timeouts, network, memory, too many queries, Keeper: the server may accept the query later.
_PASSING = frozenset(
    {
        3,
        159,
        160,
        164,
        173,
        198,
        201,
        202,
        203,
        209,
        210,
        225,
        236,
        241,
        242,
        252,
        279,
        285,
        319,
        425,
        439,
        473,
        529,
        999,
    }
)
_SERVER_TEXT = re.compile(
    r"^.*?DB::Exception: (.*?)(?: \(version [^)]*(?:\([^)]*\))?\))?(?: \(for url [^)]*\))?\s*$", re.DOTALL
)
SOURCE, SINK = "clickhouse_source", "clickhouse_sink"
"""The sections of the settings with a connection."""
READ_TIMEOUT_S = 3600
CONNECT_TIMEOUT_S = 10


def connect(connection: ClickHouseConnection, name: str, section: str = SOURCE) -> Client:
    """Return an open client. Raise SettingsError for a wrong URL, and TransientError without an answer.

    The client has no session id: tasks and threads query at the same time, and a session serves one query at
    a time.
    """
    import clickhouse_connect

    parts = urlsplit(connection.url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        msg = f"{section}.url is not an address such as http://localhost:8123"
        raise SettingsError(
            msg, hint=f"{section}.url: {describe_setting_lookup(f'{section}.url')}", node=name
        )
    with translate_errors(name, section=section):
        return clickhouse_connect.get_client(
            interface=parts.scheme,
            host=parts.hostname,
            port=parts.port or (8443 if parts.scheme == "https" else 8123),
            username=connection.user,
            password=connection.password.get_secret_value(),
            database=connection.database or None,
            autogenerate_session_id=False,
            compress=False,
            connect_timeout=CONNECT_TIMEOUT_S,
            send_receive_timeout=READ_TIMEOUT_S,
            client_name="headrace",
            # The driver's own pool is process-wide and keeps connections of closed clients.
            dedicated_pool=True,
        )


def connect_shared(connection: ClickHouseConnection, name: str, section: str = SOURCE) -> Client:
    """Return this process's client for one server.

    A worker reads or writes many splits, and opening a client costs several requests.
    """
    rest = connection.model_dump_json(include=set(ClickHouseConnection.model_fields) - {"password"})
    return _connect_cached(rest, connection.password.get_secret_value(), name, section)


@lru_cache(maxsize=8)
def _connect_cached(rest: str, password: str, name: str, section: str) -> Client:
    return connect(
        ClickHouseConnection.model_validate_json(rest).model_copy(update={"password": SecretStr(password)}),
        name,
        section,
    )


def arrow_settings(url: str) -> dict[str, str]:
    """Return the settings of a query with an Arrow result. It is compressed only for another host."""
    return {
        "output_format_arrow_string_as_string": "1",
        "output_format_arrow_compression_method": "none" if is_loopback(url) else "lz4_frame",
    }


def is_loopback(url: str) -> bool:
    """Return whether a server is on this host."""
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@contextmanager
def translate_errors(name: str, table: str = "", doing: str = "", section: str = SOURCE) -> Iterator[None]:
    """Translate driver errors to TransientError if a retry may help, else to TargetError."""
    from clickhouse_connect.driver.exceptions import ClickHouseError
    from urllib3.exceptions import HTTPError

    try:
        yield
    except HTTPError as error:
        msg = f"the connection to ClickHouse broke: {_root(error)}"
        raise TransientError(msg, node=name) from error
    except ClickHouseError as error:
        raise _translate_error(error, name, table, doing, section) from error


def _translate_error(error: Exception, name: str, table: str, doing: str, section: str) -> HeadraceError:
    from clickhouse_connect.driver.exceptions import OperationalError

    code = getattr(error, "code", None)
    text = _SERVER_TEXT.sub(r"\1", str(error))
    subject = f"`{table}`" if table else "ClickHouse"
    if code in _LOGIN:
        msg = f"ClickHouse refuses the user or the password of {section}"
        return TargetError(
            msg, hint=f"Set {section}.user and .password in config.yaml or the environment.", node=name
        )
    if code in _PASSING or (code is None and isinstance(error, OperationalError)):
        return TransientError(
            f"ClickHouse cannot be reached or is busy: {text if code else _root(error)}",
            hint=f"Is {section}.url right? Servers for trying things out: headrace services up.",
            node=name,
        )
    if code == ACCESS_DENIED:
        return TargetError(f"{subject}: no right to {doing or 'do this'}: {text}", node=name)
    if code in {UNKNOWN_TABLE, UNKNOWN_DATABASE}:
        return TargetError(f"{subject} does not exist: {text}", node=name)
    return TargetError(f"{subject}: ClickHouse says: {text}", node=name)


def _root(error: BaseException, host: str = "") -> str:
    """Return the innermost message of an HTTP client's error, with the server's address."""
    from urllib3.exceptions import MaxRetryError

    if isinstance(error, MaxRetryError) and error.pool is not None:
        host = f"{error.pool.host}:{getattr(error.pool, 'port', '')}: "
    below = error.__cause__ or getattr(error, "reason", None)
    if isinstance(below, BaseException):
        return _root(below, host)
    return f"{host}{getattr(error, 'strerror', None) or error}"


def missing_table_error(client: Client, database: str, table: str, name: str) -> TargetError:
    """Return the error for a table that does not exist, with the closest names."""
    with translate_errors(name):
        known = [
            f"{row[0]}.{row[1]}"
            for row in client.query(
                "SELECT database, name FROM system.tables WHERE database NOT IN ('system',"
                " 'INFORMATION_SCHEMA', 'information_schema')"
                " AND NOT is_temporary LIMIT 10000"
            ).result_rows
        ]
    wanted = f"{database}.{table}"
    close = (
        difflib.get_close_matches(wanted, known, n=3, cutoff=0.6)
        or [one for one in known if one.partition(".")[2] == table][:3]
    )
    hint = f"Did you mean {' or '.join(close)}?" if close else "Set `table_name` to `database.table`."
    return TargetError(f"table `{wanted}` does not exist in ClickHouse", hint=hint, node=name)

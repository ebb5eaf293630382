"""A local ClickHouse: chdb, the engine as a library, with Headrace's HTTP gateway."""

from __future__ import annotations

import contextlib
import http.client
import os
import secrets
import sys
from typing import Any, ClassVar

from headrace.jobs.spark.ivy import Progress
from headrace.services.base import LocalService
from headrace.services.state import HOST, SINK_DATABASE


class ClickHouse(LocalService):
    """The engine of ClickHouse 26.9 with its HTTP interface, user `default` with a random password."""

    name: ClassVar[str] = "clickhouse"

    @property
    def url(self) -> str:
        """The URL of the HTTP interface."""
        return f"http://{HOST}:{self.port}"

    @property
    def user(self) -> str:
        """The only user."""
        return self._read_entry("user")

    @property
    def username(self) -> str:
        """`user`, under the name that clickhouse-connect uses."""
        return self.user

    @property
    def password(self) -> str:
        """A random password, created at the first start."""
        return self._read_entry("password")

    def client_arguments(self, **overrides: Any) -> dict[str, Any]:
        """Return arguments for `clickhouse_connect.get_client`."""
        return {"host": HOST, "port": self.port, "username": self.user, "password": self.password} | overrides

    def prepare(self, progress: Progress | None) -> None:
        """Create the password. The gateway creates the database of sinks."""
        del progress
        password = self.entry.get("password") or secrets.token_urlsafe(24)
        self.state.update(self.name, user="default", password=password, sink_database=SINK_DATABASE)

    def command(self) -> list[str]:
        """Return the command of the gateway process, the only one that opens the data."""
        return [
            sys.executable,
            "-m",
            "headrace.services.clickhouse_gateway",
            str(self.data),
            HOST,
            str(self.port),
        ]

    def environment(self) -> dict[str, str]:
        """Return the environment with the password and UTC.

        A command line would show the password to every user.
        """
        return os.environ | {"HEADRACE_GATEWAY_PASSWORD": self.password, "TZ": "UTC"}

    def ping(self) -> None:
        """Run SELECT 1 with the password."""
        headers = {"X-ClickHouse-User": self.user, "X-ClickHouse-Key": self.password}
        connection = http.client.HTTPConnection(HOST, self.port, timeout=5.0)
        with contextlib.closing(connection):
            connection.request("POST", "/", body=b"SELECT 1", headers=headers)
            response = connection.getresponse()
            body = response.read()
        if response.status != 200 or body.strip() != b"1":
            msg = f"HTTP {response.status}: {body[:200]!r}"
            raise ConnectionError(msg)

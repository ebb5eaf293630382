"""A local ClickHouse: chdb, which is the engine as a library, behind our HTTP gateway."""

from __future__ import annotations

import contextlib
import http.client
import os
import secrets
import sys
from typing import Any, ClassVar

from headrace.jobs.spark.jars import Progress
from headrace.services.base import LocalService
from headrace.services.state import HOST


class ClickHouse(LocalService):
    """The engine of ClickHouse 26.9 behind its HTTP interface, user `default` with a random password."""

    name: ClassVar[str] = "clickhouse"

    @property
    def url(self) -> str:
        """Of the HTTP interface."""
        return f"http://{HOST}:{self.port}"

    @property
    def user(self) -> str:
        """The only user."""
        return self._kept("user")

    @property
    def username(self) -> str:
        """`user`, by the name that clickhouse-connect gives it."""
        return self.user

    @property
    def password(self) -> str:
        """Random, made at the first start."""
        return self._kept("password")

    def client_arguments(self, **overrides: Any) -> dict[str, Any]:
        """For `clickhouse_connect.get_client`."""
        return {"host": HOST, "port": self.port, "username": self.user, "password": self.password} | overrides

    def prepare(self, progress: Progress | None) -> None:
        """Make the password."""
        del progress
        self.state.update(self.name, user="default", password=self.entry.get("password") or secrets.token_urlsafe(24))

    def command(self) -> list[str]:
        """The gateway process, which alone may open the data."""
        return [sys.executable, "-m", "headrace.services.clickhouse_gateway", str(self.data), HOST, str(self.port)]

    def environment(self) -> dict[str, str]:
        """The password goes by the environment (a command line is everybody's to read); UTC is the server's time zone."""
        return os.environ | {"HEADRACE_GATEWAY_PASSWORD": self.password, "TZ": "UTC"}

    def answers(self) -> None:
        """SELECT 1 with the password."""
        headers = {"X-ClickHouse-User": self.user, "X-ClickHouse-Key": self.password}
        connection = http.client.HTTPConnection(HOST, self.port, timeout=5.0)
        with contextlib.closing(connection):
            connection.request("POST", "/", body=b"SELECT 1", headers=headers)
            answer = connection.getresponse()
            body = answer.read()
        if answer.status != 200 or body.strip() != b"1":
            msg = f"HTTP {answer.status}: {body[:200]!r}"
            raise ConnectionError(msg)

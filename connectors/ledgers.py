"""Where the ledger lies, by the settings."""

from __future__ import annotations

from headrace.pipeline.ledger import Ledger
from headrace.pipeline.settings import Settings


def open_ledger(settings: Settings) -> Ledger:
    """The ledger that the settings name; a SQLite file is made if it is missing."""
    backend = settings.state_backend
    if backend.backend_type == "postgres":
        from psycopg.conninfo import make_conninfo

        from headrace.connectors.postgres.ledger import open_postgres

        return open_postgres(make_conninfo(**backend.postgres.conninfo()))
    from headrace.pipeline.ledger.sqlite import open_sqlite

    return open_sqlite(backend.sqlite.path)

"""The Postgres aggregate sink: rows in a landing table, and their totals in another, exactly once."""

"""The ledger in a database: which one, and its implementation on Postgres."""

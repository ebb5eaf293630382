-- The tables of Dagster are apart from the ledger and the sinks, so that each has backups of its own.
CREATE DATABASE dagster;
CREATE DATABASE ledger;

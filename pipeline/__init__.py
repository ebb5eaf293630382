"""The pure part of Headrace: the pipeline file, settings, errors, types, epochs and the ledger. No Spark, no Dagster, no driver."""

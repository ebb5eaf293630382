"""The pure part of Headrace: pipeline file, settings, errors, types, epochs, ledger.

No Spark, Dagster or driver.
"""

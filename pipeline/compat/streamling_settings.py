"""Streamling's settings without effect in Headrace, with the alternative.

They are accepted, so that its config files work.
"""

from __future__ import annotations

from collections.abc import Mapping

RENAMED: Mapping[str, str] = {"pass": "password"}
"""Streamling's keys of a Postgres connection, with their names here."""

MOVED: Mapping[str, tuple[str, str]] = {
    f"{section}.{name}": ("options", name.replace("_", "."))
    for section in ("kafka_source", "kafka_sink")
    for name in ("sasl_mechanism", "sasl_username", "sasl_password", "client_id")
}
"""Streamling's keys that are in a mapping of the section here, by their dotted names."""

_EPOCH = "`epoch:` in the pipeline file says how large epochs are and how often they come."
_SPARK = "Spark divides the work; see the settings under `spark`."
_POOL = "A run holds few connections and keeps them as long as it needs them."
_PLUGIN = (
    "Plugins are Python packages in the same environment as Headrace; `headrace plugin list` shows them."
)
_LEDGER = "The tables of the ledger are in the schema `headrace`."
_METRICS = "Headrace logs the lag with every epoch; see docs/guides/monitor.md."
_HTTP = "A handler says `batch_size`, `concurrency` and `timeout` in the pipeline file (1000, 4, 30 s)."

_POSTGRES: Mapping[str, str] = {
    "batch_flush_interval": _EPOCH,
    "batch_size": _EPOCH,
    "pool_acquire_timeout_secs": _POOL,
    "pool_idle_timeout_secs": _POOL,
    "pool_max_lifetime_secs": _POOL,
    "max_connections": _POOL,
    "acquire_timeout_secs": _POOL,
    "state_schema_name": _LEDGER,
    "state_table_name": _LEDGER,
}

IGNORED: Mapping[str, str] = {
    "application_id": "A pipeline's identity is the UUID in its ledger; another `home` is another ledger.",
    "pipeline_definition_location": "Name the file at the command line: `headrace run FILE`.",
    "job_mode": "Say `job_mode: true` in the pipeline file, or `headrace run FILE --job-mode`.",
    "drain_policy": "A run that is stopped ends the epoch in flight within 25 s, or gives it up, which is"
    " safe.",
    "num_records_before_stop": "`headrace run FILE --until caught-up` ends by itself.",
    "checkpoint_interval_sec": "Say `epoch: {interval: 5s}` in the pipeline file.",
    "record_batch_interval_ms": _EPOCH,
    "record_batch_size": _EPOCH,
    "internal_buffer_size": _SPARK,
    "backpressure_event_threshold_ms": "An epoch is read when the one before it is written: nothing waits"
    " in between.",
    "external_http_handler": _HTTP,
    "wasm_script": "Scripts run in an engine of Headrace's own (quickjs-ng); no runtime is given to it.",
    "plugin.path": _PLUGIN,
    "plugin.channel_capacity": _PLUGIN,
    "plugin_drain_budget_secs": _PLUGIN,
    "print_sink": "A `print` sink prints what its node in the pipeline file says.",
    "clickhouse_sink.batch_size": _EPOCH,
    "clickhouse_sink.batch_flush_interval": _EPOCH,
    **{f"{section}.lag_report_interval_ms": _METRICS for section in ("kafka_source", "kafka_sink")},
    "kafka_source.consumer_fetch_timeout_sec": "A read without a response is retried, and then reported as"
    " an error.",
    "kafka_source.stall_watchdog_timeout_sec": "A read without a response is retried, and then reported as"
    " an error.",
    "clickhouse_source.page_size": "Splits follow the sorting key; `split_rows` in the pipeline file says"
    " how large they are.",
    "clickhouse_source.sort_key_range": "Splits follow the sorting key; `split_rows` in the pipeline file"
    " says how large they are.",
    "clickhouse_source.block_range": "Splits follow the sorting key; `split_rows` in the pipeline file says"
    " how large they are.",
    "clickhouse_source.query_timeout_sec": "A query may take an hour.",
    **{
        f"{section}.{key}": instead
        for section in ("postgres_sink", "state_backend.postgres", "dynamic_table_backend.postgres")
        for key, instead in _POSTGRES.items()
    },
}
"""The alternative by the setting's dotted name. A section includes all its settings.

Headrace's settings win.
"""

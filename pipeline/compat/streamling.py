"""Keys of Streamling's topology files that Headrace does not support yet, with the alternative.

Such a key is not a typo, so it gets its own message.
"""

from __future__ import annotations

from collections.abc import Mapping

PLUGINS = frozenset({"s3_sink", "mysql_sink", "sqs", "s2_sink", "s2_source", "postgres_cdc_source"})
"""Plugins that are known by name. A type with a dot in it is also a plugin."""

_FLUSH = "Remove it; `epoch:` at the top level says how large epochs are and how often they come."
_SPARK = "Remove it; Spark divides the work by its own settings (`spark.master`)."

KEYS: Mapping[str, str] = {
    "parallelism": _SPARK,
    "batch_size": _FLUSH,
    "batch_flush_interval": _FLUSH,
    "num_records_before_stop": "Remove it; `headrace run FILE --until caught-up` ends by itself.",
}
"""Keys that are not available yet, with the alternative."""


def is_plugin(name: str) -> bool:
    """Return whether a type's name can only be that of a plugin."""
    return name in PLUGINS or "." in name.strip(".")

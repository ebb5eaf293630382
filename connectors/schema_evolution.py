"""Columns that a sink adds to an existing table if `schema_evolution` allows it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.pipeline.model.sinks import KeyedSinkConfig

ADD_COLUMNS_HINT = "set `schema_evolution: add_columns` for missing columns"

log = logging.getLogger(__name__)


def find_new_columns(
    node: KeyedSinkConfig,
    schema: pa.Schema,
    key: Sequence[str],
    existing: Iterable[str],
    fold: Callable[[str], str] = str,
) -> list[pa.Field]:
    """Return the columns of the rows that the table lacks and the sink may add.

    `fold` maps a name to the spelling by which the table compares names. Columns of the key and the version
    are never added, because existing rows would have no value to compare.
    """
    if node.schema_evolution != "add_columns":
        return []
    known = {fold(name) for name in (*existing, *key, *filter(None, [node.version_column]))}
    return [field for field in schema if fold(field.name) not in known]


def log_added_columns(sink: str, target: str, columns: Sequence[pa.Field]) -> None:
    """Log the columns that were added to a table."""
    names = ",".join(field.name for field in columns)
    log.info("event=columns_added node=%s target=%s columns=%s", sink, target, names)

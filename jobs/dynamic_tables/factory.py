"""Opens the dynamic tables of a pipeline, for a run or for a check."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.connectors.postgres_client.session import Address
from headrace.jobs.dynamic_tables.base import DynamicTableBackend
from headrace.jobs.dynamic_tables.lookup_table import LookupTableColumns, ValueTable
from headrace.jobs.dynamic_tables.memory import CommittedTables, MemoryTable
from headrace.jobs.dynamic_tables.postgres import CachedPostgresTableBackend, PostgresTableBackend
from headrace.jobs.dynamic_tables.sqlite_store import ValueStore
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.model import graph
from headrace.pipeline.model.nodes import PipelineModel
from headrace.pipeline.model.transforms import DynamicTableConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENT = "table"
"""The type of the ledger event which records that an in-memory table has stored its first epoch."""


def open_tables(
    model: PipelineModel,
    settings: Settings,
    spark: SparkSession,
    *,
    pipeline: str,
    lane: str,
    known: CommittedTables,
) -> dict[str, DynamicTableBackend]:
    """All tables, each proved.

    Raises SinkStateError, SchemaError, TargetError or TransientError, naming the node.
    """
    result: dict[str, DynamicTableBackend] = {}
    path = store_path(settings, pipeline, lane)
    try:
        for name, node in graph.dynamic_tables(model).items():
            result[name] = (
                MemoryTable(name, node.backend_entity_name, ValueStore(path, known.generation), spark, known)
                if node.in_memory
                else _outside(name, node, settings, spark, pipeline, known.committed)
            )
            result[name].prepare()
    except BaseException:
        for table in result.values():
            table.close()
        raise
    return result


def store_path(settings: Settings, pipeline: str, lane: str) -> Path:
    """Return the file with the values of a pipeline's in-memory tables."""
    return (settings.dynamic_table_backend.path or settings.home / "tables") / pipeline / f"{lane}.db"


def value_tables(
    model: PipelineModel, settings: Settings, pipeline: str = ""
) -> Iterator[tuple[str, ValueTable]]:
    """Yield the dynamic tables in Postgres by name. They are not opened."""
    for name, node in graph.dynamic_tables(model).items():
        if not node.in_memory:
            yield name, _value_table(name, node, settings, pipeline)


def _value_table(name: str, node: DynamicTableConfig, settings: Settings, pipeline: str) -> ValueTable:
    connection = settings.postgres_for_tables()
    application = f"headrace {pipeline[:8]} table {name}".replace("  ", " ")[:60]
    return ValueTable(name, LookupTableColumns.of(node, connection), Address(connection, application, name))


def _outside(
    name: str,
    node: DynamicTableConfig,
    settings: Settings,
    spark: SparkSession,
    pipeline: str,
    committed: int,
) -> DynamicTableBackend:
    table = _value_table(name, node, settings, pipeline)
    if not table.where.cache:
        return PostgresTableBackend(table, settings.dynamic_table_backend.max_batch_size, committed)
    own = node.cache_refresh_debounce_ms
    debounce = settings.postgres_for_tables().cache_refresh_debounce_ms if own is None else own
    return CachedPostgresTableBackend(table, spark, committed, debounce / 1000)

"""The contract of sources."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.connectors import registry
from headrace.connectors.source_base import BoundedSource
from headrace.connectors.stream_base import ReadLimits, UnboundedSource
from headrace.pipeline.model.plugins import PluginSourceConfig
from headrace.pipeline.plugins.api import Plugin
from headrace.pipeline.plugins.discovery import temporary_plugin
from headrace.pipeline.sql.system_columns import OP, POS
from headrace.testing.harness import (
    Row,
    collect_rows,
    drop_system_columns,
    row_position,
    session,
    temporary_settings,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def check_source(plugin: Plugin, options: Mapping[str, Any]) -> list[Row]:
    """Check the contract of a source over its current rows, which must not change. Return them in order."""
    with temporary_plugin(plugin):
        node = PluginSourceConfig.model_validate({"type": plugin.id, **options})
        with temporary_settings() as settings:
            if node.is_unbounded:
                return check_stream(registry.unbounded_source("src", node, settings, 3))
            return check_bounded(registry.bounded_source("src", node, settings, 3))


def check_bounded(source: BoundedSource) -> list[Row]:
    """Check a bounded source, created with ordinal 3, and close it. Return its rows in order."""
    spark = session()
    schema = source.schema(spark)
    snapshot = source.create_snapshot(spark, "token")
    splits = list(source.splits(spark, snapshot, None, None))
    assert splits == list(source.splits(spark, snapshot, None, None)), (
        "`splits` of one snapshot are not the same twice"
    )
    stored = json.loads(json.dumps(splits))
    rows = _read_rows(source.read(spark, snapshot, stored), schema)
    by_one = [row for split in stored for row in _read_rows(source.read(spark, snapshot, [split]), schema)]
    assert _sort_by_position(by_one) == _sort_by_position(rows), (
        "the splits one by one do not give the rows that all of them give together"
    )
    assert _read_rows(source.read(spark, snapshot, stored), schema) == rows, (
        "read again, the splits give other rows, or other positions"
    )
    if len(schema.names) > 1:
        narrow = source.read(spark, snapshot, stored, [schema.names[-1]]).columns
        assert narrow == [schema.names[-1], OP, POS], (
            f"`read` of the column {schema.names[-1]} alone gave {', '.join(narrow)}"
        )
    _check_positions(rows)
    source.close()
    return drop_system_columns(rows)


def check_stream(source: UnboundedSource) -> list[Row]:
    """Check a stream, created with ordinal 3, and close it. Return its rows in order."""
    spark = session()
    schema, begin, end = source.schema(), source.earliest_offsets(), source.end_offsets()
    assert source.next_end_offsets(end, ReadLimits()) == end, "`next_end_offsets` at the end is not the end"
    rows = _read_rows(source.read(spark, begin, end), schema)
    position, parts = begin, []
    while position != end:
        next_position = source.next_end_offsets(json.loads(json.dumps(position)), ReadLimits(rows=3))
        assert next_position != position, (
            f"`next_end_offsets` does not advance from {position}, and the end is {end}"
        )
        parts += _read_rows(source.read(spark, position, next_position), schema)
        position = next_position
    assert _sort_by_position(parts) == _sort_by_position(rows), (
        "read in parts, the range gives other rows or positions"
    )
    assert _read_rows(source.read(spark, begin, end), schema) == rows, (
        "read again, the range gives other rows, or other positions"
    )
    assert not _read_rows(source.read(spark, end, end), schema), "an empty range has rows"
    _check_positions(rows)
    source.close()
    return drop_system_columns(rows)


def _read_rows(frame: DataFrame, schema: pa.Schema) -> list[Row]:
    assert frame.columns == [*schema.names, OP, POS], f"`read` gave the columns {', '.join(frame.columns)}"
    return collect_rows(frame)


def _sort_by_position(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=row_position)


def _check_positions(rows: list[Row]) -> None:
    assert all(row[POS]["source"] == 3 for row in rows), "`_gs_pos.source` is not the context's ordinal"
    assert len({row_position(row) for row in rows}) == len(rows), "two rows have the same `_gs_pos`"
    assert {row[OP] for row in rows} <= {"i", "u", "d"}, "`_gs_op` is i, u or d"

"""The contract of sources."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.connectors import registry
from headrace.connectors.base import OP, POS, BoundedSource, ReadLimits, UnboundedSource
from headrace.pipeline.model.plugins import PluginSourceConfig
from headrace.pipeline.plugins.api import Plugin
from headrace.pipeline.plugins.discovery import temporary_plugin
from headrace.testing.bench import Row, collected, payload, place, session, settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def check_source(plugin: Plugin, options: Mapping[str, Any]) -> list[Row]:
    """The contract of a source, over what is there now; it should hold still meanwhile. Returns its rows in order."""
    with temporary_plugin(plugin):
        node = PluginSourceConfig.model_validate({"type": plugin.id, **options})
        with settings() as found:
            if node.is_unbounded:
                return _check_stream(registry.unbounded_source("src", node, found, 3))
            return _check_bounded(registry.bounded_source("src", node, found, 3))


def _check_bounded(source: BoundedSource) -> list[Row]:
    spark = session()
    schema = source.schema(spark)
    snapshot = source.create_snapshot(spark, "token")
    splits = list(source.splits(spark, snapshot, None, None))
    assert splits == list(source.splits(spark, snapshot, None, None)), "`splits` of one snapshot are not the same twice"
    kept = json.loads(json.dumps(splits))
    rows = _rows(source.read(spark, snapshot, kept), schema)
    by_one = [row for split in kept for row in _rows(source.read(spark, snapshot, [split]), schema)]
    assert _plain(by_one) == _plain(rows), "the splits one by one do not give the rows that all of them give together"
    assert _rows(source.read(spark, snapshot, kept), schema) == rows, "read again, the splits give other rows, or other positions"
    if len(schema.names) > 1:
        narrow = source.read(spark, snapshot, kept, [schema.names[-1]]).columns
        assert narrow == [schema.names[-1], OP, POS], f"`read` of the column {schema.names[-1]} alone gave {', '.join(narrow)}"
    _check_positions(rows)
    source.close()
    return payload(rows)


def _check_stream(source: UnboundedSource) -> list[Row]:
    spark = session()
    schema, begin, end = source.schema(), source.earliest_offsets(), source.end_offsets()
    assert source.next_end_offsets(end, ReadLimits()) == end, "`latest` behind the end is not the end"
    rows = _rows(source.read(spark, begin, end), schema)
    at, pieces = begin, []
    while at != end:
        to = source.next_end_offsets(json.loads(json.dumps(at)), ReadLimits(rows=3))
        assert to != at, f"`latest` does not go on from {at}, and the end is {end}"
        pieces += _rows(source.read(spark, at, to), schema)
        at = to
    assert _plain(pieces) == _plain(rows), "read in pieces, the range gives other rows, or other positions"
    assert _rows(source.read(spark, begin, end), schema) == rows, "read again, the range gives other rows, or other positions"
    assert not _rows(source.read(spark, end, end), schema), "an empty range has rows"
    _check_positions(rows)
    source.close()
    return payload(rows)


def _rows(frame: DataFrame, schema: pa.Schema) -> list[Row]:
    assert frame.columns == [*schema.names, OP, POS], f"`read` gave the columns {', '.join(frame.columns)}"
    return collected(frame)


def _plain(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=place)


def _check_positions(rows: list[Row]) -> None:
    assert all(row[POS]["source"] == 3 for row in rows), "`_gs_pos.source` is not the context's ordinal"
    assert len({place(row) for row in rows}) == len(rows), "two rows have the same `_gs_pos`"
    assert {row[OP] for row in rows} <= {"i", "u", "d"}, "`_gs_op` is i, u or d"

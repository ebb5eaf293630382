"""Estimates the rows and bytes of an epoch, if its sources know them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.jobs.sources.source_batch import SourceBatch
from headrace.pipeline.model.nodes import PipelineModel
from headrace.pipeline.sql import statements


def estimate_bytes(readings: Mapping[str, SourceBatch]) -> int | None:
    """Return about the bytes of what an epoch reads; None where a source does not know."""
    sizes = [reading.size for reading in readings.values() if reading.rows != 0]
    return None if None in sizes else sum(size or 0 for size in sizes)


def estimate_rows(
    model: PipelineModel,
    name: str,
    readings: Mapping[str, SourceBatch],
    staged: Mapping[str, int],
    *,
    one_of_one: bool = False,
) -> int | None:
    """Return an upper bound of the rows of a node: what its sources read, times the number of paths to it.

    None if one row can become any number of rows, in programs and lists, unless `one_of_one` counts those as
    one.
    """
    if name in staged:
        return staged[name]
    if name in readings:
        return readings[name].rows
    if name in model.sinks:
        return estimate_rows(model, model.sinks[name].from_, readings, staged, one_of_one=one_of_one)
    node: Any = model.transforms[name]
    by_sql = node.type == "sql"
    if not one_of_one and (not by_sql or statements.multiplies(node.sql, node=name, dialect=node.dialect)):
        return None
    uses = (
        statements.table_uses(node.sql, node=name, dialect=node.dialect)
        if by_sql
        else dict.fromkeys(node.inputs(name), 1)
    )
    total = 0
    for upstream, times in uses.items():
        rows = estimate_rows(model, upstream, readings, staged, one_of_one=one_of_one)
        if rows is None:
            return None
        total += rows * times
    return total

"""The filter of a stream over rows in the driver, where Arrow computes it as Spark would."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from headrace.jobs.planning.arrow_functions import UnprovenValuesError
from headrace.jobs.planning.arrow_sql import filter_rows
from headrace.jobs.planning.column_checks import has_types
from headrace.jobs.planning.portable_sql import PortableSelect, parse_portable
from headrace.jobs.planning.spark_needs import has_portable_filter
from headrace.jobs.sources.pipeline_source import PipelineSource, stream_node
from headrace.pipeline.sql.filter_marking import Marking
from headrace.pipeline.sql.source_filters import SOURCE, format_filter
from headrace.pipeline.sql.system_columns import OP
from headrace.pipeline.types.int256 import is_wide


class StreamFilter:
    """The filter of a stream whose rows have the payload `columns`."""

    def __init__(self, node: Any, columns: pa.Schema) -> None:
        self._columns = columns
        self._select = _parse(node, columns)

    @property
    def is_portable(self) -> bool:
        """Return whether Arrow can compute the filter, for most values."""
        return self._select is not None

    def compute(self, rows: pa.Table, *, marks: bool) -> pa.Table | None:
        """Return the rows that pass, or None if only Spark can compute the filter.

        With `marks`, mark the others, see `headrace.pipeline.sql.filter_marking`.
        """
        if self._select is None or not has_types(rows, self._columns):
            return None
        try:
            return pa.Table.from_batches(list(filter_rows(rows, self._select, marks=marks)))
        except (pa.ArrowInvalid, UnprovenValuesError):
            return None


def _parse(node: Any, columns: pa.Schema) -> PortableSelect | None:
    names = {name.lower() for name in columns.names}
    if (
        not getattr(node, "filter", None)
        or not has_portable_filter(node)
        or len(names) < len(columns)
        or any(is_wide(field.type) for field in columns)
    ):
        return None
    return parse_portable(
        format_filter(node.filter),
        SOURCE,
        columns.append(pa.field(OP, pa.string())),
        any_year=True,
        guarded=True,
        marking=Marking(frozenset(), marked=False),
    )


def create_stream_filter(source: PipelineSource, *, marks: bool) -> Callable[[pa.Table], pa.Table | None]:
    """Return `PipelineSource.filter_table`. Its first call reads the columns of the stream."""
    node, stream = stream_node(source.node), source.unbounded
    if stream is None or not getattr(node, "filter", None):
        return lambda _: None
    get_filter = functools.cache(lambda: StreamFilter(node, stream.schema()))
    return lambda rows: get_filter().compute(rows, marks=marks)

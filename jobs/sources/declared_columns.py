"""The columns of sources as far as a pipeline file declares them."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.jobs.sources.pipeline_source import PipelineSource
from headrace.pipeline.types.arrow import spark_type


def declared_columns(sources: Mapping[str, PipelineSource]) -> dict[str, dict[str, str]]:
    """Return the sources' columns and Spark SQL types as far as the file declares them.

    Types are empty if the file lists only names. A source without either has no columns here.
    """
    result: dict[str, dict[str, str]] = {}
    for name, source in sources.items():
        is_declared = source.unbounded is None or source.unbounded.has_declared_columns
        payload = source.payload([None] * len(source.bounded)) if is_declared else None
        listed: dict[str, str] = dict.fromkeys(getattr(source.node, "columns", ()), "")
        result[name] = (
            listed if payload is None else {column.name: spark_type(column.type) for column in payload}
        )
    return {name: columns for name, columns in result.items() if columns}

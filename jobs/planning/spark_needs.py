"""Whether a pipeline file needs Spark, as far as the file alone tells."""

from __future__ import annotations

from typing import Any

from headrace.connectors import registry
from headrace.connectors.split_tasks import count_task_threads
from headrace.pipeline.file.loader import PipelineFile
from headrace.pipeline.model.error_outputs import errors_outputs
from headrace.pipeline.model.transforms import SqlTransformConfig
from headrace.pipeline.sql.portable_syntax import has_portable_syntax
from headrace.pipeline.sql.source_filters import parse_filter


def needs_spark(file: PipelineFile, master: str, *, reads_history: bool) -> bool:
    """Return whether a file certainly needs Spark: to check it, or for small epochs and for its history.

    `master` is Spark's: tasks of a cluster leave no values to Spark.

    It does for programs, SQL and filters that are not portable, and connectors that have no other means to
    check.
    """
    guarded = (
        not reads_history
        or count_task_threads(master) > 0
        or not any(source.capabilities.bounded for source in registry.connector_sources(file.model))
    )
    rejecting = {output.node for output in errors_outputs(file.model).values()}
    return (
        any(
            not isinstance(node, SqlTransformConfig)
            or name in rejecting
            or not has_portable_syntax(node.query(name), guarded=guarded)
            for name, node in file.model.transforms.items()
        )
        or not all(map(has_portable_filter, registry.connector_sources(file.model)))
        or not all(able.without_spark for able in registry.connector_capabilities(file.model))
    )


def has_portable_filter(node: Any) -> bool:
    """Return whether a source node has no filter that needs Spark, as far as the file tells."""
    predicate, able = getattr(node, "filter", None), node.capabilities
    if not predicate or able.computes_sql:
        return True
    query = parse_filter(predicate) if able.filters_in_driver else None
    return query is not None and has_portable_syntax(query, guarded=True)

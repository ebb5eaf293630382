"""Whether a pipeline file needs Spark, as far as the file alone tells."""

from __future__ import annotations

from headrace.connectors import registry
from headrace.connectors.split_tasks import count_task_threads
from headrace.pipeline.file.loader import PipelineFile
from headrace.pipeline.model.error_outputs import errors_outputs
from headrace.pipeline.model.transforms import SqlTransformConfig
from headrace.pipeline.sql.portable_syntax import has_portable_syntax


def needs_spark(file: PipelineFile, master: str, *, reads_history: bool) -> bool:
    """Return whether a file certainly needs Spark: to check it, or for small epochs and for its history.

    `master` is Spark's: tasks of a cluster leave no values to Spark.

    It does for programs, SQL that is not portable, filters of most sources, and connectors that have no other
    means to check.
    """
    filtered = (
        getattr(source, "filter", None)
        for source in registry.connector_sources(file.model)
        if not source.capabilities.computes_sql
    )
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
        or any(filtered)
        or not all(able.without_spark for able in registry.connector_capabilities(file.model))
    )

"""The column of a sink that has the values of the column by which history is partitioned."""

from __future__ import annotations

from typing import Any

from headrace.pipeline.model import graph
from headrace.pipeline.model.nodes import PipelineModel
from headrace.pipeline.sql.traces import plain_inputs


def partition_column_at(model: PipelineModel, sink: str, source: str, column: str) -> str | None:
    """Return the name, in lower case, under which a source's column reaches a sink unchanged.

    None if the file does not show one, for example after a program or a UNION ALL.
    """
    node = model.sinks[sink].from_
    names = [column.lower(), *sorted(_selected_names(model) - {column.lower()})]
    return next((name for name in names if _origin(model, node, source, name) == column.lower()), None)


def _selected_names(model: PipelineModel) -> set[str]:
    """Return the names of all columns that SELECT lists name."""
    queries = [node.query(name) for name, node in model.transforms.items() if node.type == "sql"]
    return {
        item.alias_or_name.lower()
        for query in queries
        for item in getattr(query, "expressions", ())
        if not item.is_star
    }


def _origin(model: PipelineModel, node: str, source: str, name: str) -> str | None:
    """Return the column of `source` that a node has unchanged under `name`."""
    if node == source:
        return name
    transform: Any = model.transforms.get(node)
    if transform is None or transform.type != "sql":
        return None
    passed = plain_inputs(transform.query(node), {name})
    upstream = graph.inputs_of(model, node)
    if len(passed) != 1 or len(upstream) != 1:
        return None
    return _origin(model, upstream[0], source, next(iter(passed)))

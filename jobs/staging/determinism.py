"""Finds non-deterministic nodes, whose results are stored before a sink gets any rows."""

from __future__ import annotations

from typing import Any

from headrace.jobs.functions.plugins import find_called_functions
from headrace.pipeline.model import graph
from headrace.pipeline.model.nodes import PipelineModel
from headrace.pipeline.model.plugins import PluginTransformConfig
from headrace.pipeline.plugins.discovery import load
from headrace.pipeline.sql import statements


def nondeterministic_nodes(model: PipelineModel) -> dict[str, str]:
    """Return the transforms whose rows must be stored, in the order of computation, each with the reason."""
    result = {name: nondeterminism_reason(model, name) for name in graph.in_order(model)}
    return {name: why for name, why in result.items() if why}


def nondeterministic_upstream(model: PipelineModel, name: str) -> list[str]:
    """Return the non-deterministic nodes upstream of a node, including itself."""
    wanted = _upstream(model, name)
    return [node for node in nondeterministic_nodes(model) if node in wanted]


def nondeterminism_reason(model: PipelineModel, name: str) -> str:
    """Return why a transform is non-deterministic, or an empty string if it is deterministic.

    The check uses type names only. A dynamic table in memory is no reason: its values are kept by epoch, so
    an epoch always gets the same values.
    """
    node: Any = model.transforms[name]
    marked = getattr(node, "deterministic", None)
    if node.type == "handler":
        return "it calls an HTTP service, whose responses can differ between calls"
    if node.type == "python" and marked is not True:
        return "its code may return other rows in each run (it is not marked `deterministic: true`)"
    if node.type == "script" and marked is False:
        return "it is marked `deterministic: false`"
    tables = graph.dynamic_tables(model)
    if outside := [
        table
        for table in graph.looked_up_tables(model, name)
        if table in tables and not tables[table].in_memory
    ]:
        return f"it looks up the dynamic table `{outside[0]}`, which others may change"
    if isinstance(node, PluginTransformConfig):
        return (
            ""
            if node.plugin.deterministic
            else f"the plugin `{node.type}` declares that it may return other rows in each run"
        )
    calls = (
        [
            *statements.nondeterministic_calls(node.sql, dialect=node.dialect),
            *_of_plugins(node.spark_sql(name)),
        ]
        if node.type == "sql"
        else []
    )
    return f"`{calls[0]}` gives another value each time" if calls else ""


def _of_plugins(text: str) -> list[str]:
    """Return the calls in a statement to plugin functions that are declared non-deterministic."""
    return [
        f"{name}()"
        for name, result in find_called_functions([text]).items()
        if not load(result).deterministic
    ]


def _upstream(model: PipelineModel, name: str) -> set[str]:
    return {name}.union(*(_upstream(model, other) for other in graph.inputs_of(model, name)))

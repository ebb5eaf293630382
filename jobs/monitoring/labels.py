"""The labels of a node's metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.pipeline.model.nodes import PipelineModel

_PARTS = {"sources": "source", "transforms": "transform", "sinks": "sink"}


def node_labels(model: PipelineModel) -> dict[str, dict[str, str]]:
    """By node: id, kind and type, the topic or table, and the labels from the file."""
    result: dict[str, dict[str, str]] = {}
    for part, node_type in _PARTS.items():
        for name, node in getattr(model, part).items():
            labels = node.telemetry.labels if node.telemetry else {}
            own = {"id": name, "topology_node_type": node_type, "operator_type": node.type}
            result[name] = {**labels, **type_tags(node), **own}
    return result


def type_tags(node: Any) -> Mapping[str, str]:
    """Return the labels for a node that depend on its type, such as its topic or table."""
    if node.type == "hybrid":
        tables = ",".join(
            getattr(part, "table_name", None) or getattr(part, "path", None) or ""
            for part in node.bounded_sources
        )
        return {"table": tables, "topic": node.unbounded_source.topic}
    tags = {
        "topic": ("topic",),
        "table": ("table_name", "table"),
        "path": ("path",),
        "language": ("language",),
    }
    texts = {
        tag: next((getattr(node, key) for key in keys if isinstance(getattr(node, key, None), str)), None)
        for tag, keys in tags.items()
    }
    plugin = {"type": node.type} if hasattr(node, "plugin") else {}
    return plugin | {tag: text for tag, text in texts.items() if text}

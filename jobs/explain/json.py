"""An explanation for programs. The shape is documented in docs/guides/explain.md; `version` grows when it changes."""

from __future__ import annotations

from headrace.jobs.explain.model import ExplainedNode, ExplainedTarget, Explanation, HistorySplits, SplitSummary
from headrace.pipeline.lineage.relations import ColumnLineage
from headrace.pipeline.protocol.epochs import Json

VERSION = 1


def document(found: Explanation) -> Json:
    """Everything that is known, as plain JSON values."""
    return {
        "version": VERSION,
        "pipeline": found.name,
        "hash": found.pipeline_hash,
        "offline": found.offline,
        "lanes": [{"name": name, "nodes": list(nodes)} for name, nodes in found.lanes.items()],
        "nodes": [_node(node) for node in found.nodes],
        "edges": [{"from": start, "to": end, "key": list(key)} for start, end, key in found.edges],
        "windows": {"column": found.windows[0], "every": found.windows[1], "keys": list(found.windows[2])} if found.windows else None,
        "splits": _splits(found.splits) if found.splits else None,
        "spark_plan": found.spark_plan,
    }


def _node(node: ExplainedNode) -> Json:
    return {
        "name": node.name,
        "kind": node.kind,
        "type": node.type,
        "inputs": list(node.inputs),
        "asked_by": list(node.asked_by),
        "schema": [{"name": column.name, "type": column.type or None} for column in node.columns],
        "schema_complete": node.complete,
        "key": {"columns": list(node.key), "from": list(node.key_from)},
        "unchecked": list(node.unchecked),
        "lineage": [_derived(name, derived) for name, derived in node.lineage.items()],
        "reads": [
            {"phase": part.phase, "type": part.type, "name": part.name, "pinned": part.pinned, "reason": part.said} for part in node.parts
        ],
        "notes": dict(node.notes),
        "sink": _target(node.target) if node.target else None,
    }


def _derived(name: str, derived: ColumnLineage) -> Json:
    return {
        "column": name,
        "sources": [{"node": origin.node, "column": origin.column} for origin in derived.origins],
        "steps": [{"node": step.node, "column": step.column, "expression": step.expression} for step in derived.steps],
    }


def _target(target: ExplainedTarget) -> Json:
    return {
        "target": target.name or None,
        "created": target.created,
        "writes": target.writes,
        "guarantee": {
            "delivery": target.guarantee.delivery,
            "reason": target.guarantee.reason,
            "provided": list(target.guarantee.provided),
        },
        "order": {"wins": target.order.wins, "guaranteed": target.order.guaranteed, "notes": list(target.order.notes)}
        if target.order
        else None,
        "visible": target.visible,
        "history": {"path": target.route.path, "reason": target.route.reason} if target.route else None,
    }


def _splits(splits: HistorySplits) -> Json:
    return {"pieces": [_pieces(pieces) for pieces in splits.pieces], "unchecked": dict(splits.unchecked)}


def _pieces(pieces: SplitSummary) -> Json:
    return {
        "source": pieces.source,
        "reads": pieces.part,
        "window": pieces.window or None,
        "count": pieces.count,
        "rows": pieces.rows,
        "first": {"id": pieces.first[0], "rows": pieces.first[1]} if pieces.first else None,
        "last": {"id": pieces.last[0], "rows": pieces.last[1]} if pieces.last else None,
    }

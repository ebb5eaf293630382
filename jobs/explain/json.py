"""An explanation for programs.

The shape is documented in docs/guides/explain.md; `version` grows when it changes.
"""

from __future__ import annotations

from headrace.jobs.explain.model import (
    ExplainedNode,
    ExplainedTarget,
    Explanation,
    HistorySplits,
    SplitSummary,
)
from headrace.pipeline.lineage.relations import ColumnLineage
from headrace.pipeline.protocol.epochs import Json

VERSION = 1


def document(explanation: Explanation) -> Json:
    """Everything that is known, as plain JSON values."""
    return {
        "version": VERSION,
        "pipeline": explanation.name,
        "hash": explanation.pipeline_hash,
        "offline": explanation.offline,
        "nodes": [_node(node) for node in explanation.nodes],
        "edges": [{"from": start, "to": end, "key": list(key)} for start, end, key in explanation.edges],
        "partitions": {
            "column": explanation.partitions[0],
            "every": explanation.partitions[1],
            "keys": list(explanation.partitions[2]),
        }
        if explanation.partitions
        else None,
        "splits": _splits(explanation.splits) if explanation.splits else None,
        "spark_plan": explanation.spark_plan,
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
        "lineage": [_derivation(name, derived) for name, derived in node.lineage.items()],
        "reads": [
            {
                "phase": part.phase,
                "type": part.type,
                "name": part.name,
                "snapshot": part.has_snapshot,
                "description": part.description,
            }
            for part in node.parts
        ],
        "notes": dict(node.notes),
        "sink": _target(node.target) if node.target else None,
    }


def _derivation(name: str, derived: ColumnLineage) -> Json:
    return {
        "column": name,
        "sources": [{"node": origin.node, "column": origin.column} for origin in derived.origins],
        "steps": [
            {"node": step.node, "column": step.column, "expression": step.expression}
            for step in derived.steps
        ],
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
        "order": {
            "wins": target.order.wins,
            "guaranteed": target.order.guaranteed,
            "notes": list(target.order.notes),
        }
        if target.order
        else None,
        "visible": target.visible,
        "history": {"path": target.load_path.path, "reason": target.load_path.reason}
        if target.load_path
        else None,
    }


def _splits(splits: HistorySplits) -> Json:
    return {
        "phases": [_split_summary(summary) for summary in splits.summaries],
        "unchecked": dict(splits.unchecked),
    }


def _split_summary(summary: SplitSummary) -> Json:
    return {
        "source": summary.source,
        "reads": summary.part,
        "partition": summary.partition or None,
        "count": summary.count,
        "rows": summary.rows,
        "first": {"id": summary.first[0], "rows": summary.first[1]} if summary.first else None,
        "last": {"id": summary.last[0], "rows": summary.last[1]} if summary.last else None,
    }

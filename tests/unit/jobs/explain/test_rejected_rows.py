"""Rejected rows in an explanation: a node between the source and the sink that reads them."""

from __future__ import annotations

from headrace.jobs.explain.build import explain
from headrace.jobs.explain.mermaid import mermaid
from headrace.jobs.explain.text import text
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.file.loader import parse_pipeline

FILE = """
name: shop
sources:
  orders: {type: kafka, topic: orders, primary_key: id, schema: {id: int64}, on_error: dead_letter}
sinks:
  pg: {type: postgres, from: orders, table: orders}
  bad: {type: postgres, from: orders.errors, table: bad}
"""


def test_rejected_rows_are_a_node() -> None:
    result = explain(parse_pipeline(FILE), Settings(), offline=True)
    nodes = {node.name: node for node in result.nodes}
    assert (nodes["orders.errors"].kind, nodes["orders.errors"].inputs) == ("errors", ("orders",))
    assert nodes["bad"].inputs == ("orders.errors",)
    assert nodes["bad"].key_from == ("orders.errors",)
    assert nodes["bad"].columns == nodes["orders.errors"].columns
    assert nodes["bad"].columns[0].name == "node"
    assert nodes["bad"].target is not None
    assert nodes["bad"].target.load_path is None
    shown = text(result, lineage=True)
    assert "rejected rows\n  orders.errors  errors, reads orders\n" in shown
    assert "guaranteed: the key is the position of the rejected row" in shown
    assert '(["orders.errors<br/>errors"])' in mermaid(result)


def test_rejected_rows_of_a_transform_follow_it() -> None:
    file = FILE.replace("from: orders.errors", "from: priced.errors").replace(
        "from: orders,", "from: priced,"
    )
    file = file.replace(", on_error: dead_letter", "").replace(
        "sinks:",
        "transforms:\n  priced: {type: sql, sql: SELECT id FROM orders, on_error: dead_letter}\nsinks:",
    )
    result = explain(parse_pipeline(file), Settings(), offline=True)
    nodes = {node.name: node for node in result.nodes}
    assert nodes["priced.errors"].inputs == ("priced",)
    assert nodes["bad"].key == ("epoch", "position")
    names = [column.name for column in nodes["bad"].columns]
    assert names == ["node", "reason", "epoch", "operation", "position", "row"]
    assert "  priced.errors  errors, reads priced\n" in text(result)

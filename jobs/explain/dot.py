"""An explanation as a Graphviz document."""

from __future__ import annotations

from headrace.jobs.explain.facts import Explanation, Node
from headrace.jobs.explain.mermaid import label

_SHAPES = {"source": "ellipse", "transform": "box", "table": "folder", "sink": "cylinder"}


def dot(found: Explanation) -> str:
    """The document: one cluster per lane, nodes under their own names."""
    lines = [f"digraph {quoted(found.name)} {{", "  rankdir=LR;", '  node [fontname="sans-serif"];', '  edge [fontname="sans-serif"];']
    for place, (lane, names) in enumerate(found.lanes.items()):
        lines += [f"  subgraph {quoted(f'cluster_{place}')} {{", f"    label={quoted(f'lane {lane}')};"]
        lines += [f"    {_node(node)}" for node in found.nodes if node.name in names]
        lines.append("  }")
    for start, end, key in found.edges:
        lines.append(f"  {quoted(start)} -> {quoted(end)} [label={quoted(', '.join(key) if key else 'no key')}];")
    lines += [f"  {quoted(table)} -> {quoted(asker)} [style=dashed, label=asked];" for table, asker in found.asks]
    return "\n".join([*lines, "}"])


def _node(node: Node) -> str:
    return f"{quoted(node.name)} [shape={_SHAPES[node.kind]}, label={quoted(chr(10).join(label(node)))}];"


def quoted(text: str) -> str:
    """A quoted string of the DOT language. In labels a doubled backslash is one, and a line ends as in C."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\r", "").replace("\n", "\\n")
    return f'"{escaped}"'

"""An explanation as a Mermaid flowchart, as GitHub and many editors draw it."""

from __future__ import annotations

import re

from headrace.jobs.explain.model import ExplainedNode, Explanation

_SHAPES = {
    "source": ("([", "])"),
    "errors": ("([", "])"),
    "transform": ("[", "]"),
    "table": ("[[", "]]"),
    "sink": ("[(", ")]"),
}
_PLAIN = re.compile(r"[^\w .,:/+*()=-]")
"""Characters with a meaning in Mermaid, Markdown or HTML in a label, and other non-alphanumeric ones."""


def mermaid(explanation: Explanation) -> str:
    """Return the Mermaid document. It calls nodes n0, n1, … so that no name is taken for syntax."""
    ids = {node.name: f"n{place}" for place, node in enumerate(explanation.nodes)}
    lines = ["flowchart LR"]
    lines.append(f'  subgraph pipeline["{escape_label(explanation.name)}"]')
    lines += [f"    {_node(node, ids[node.name])}" for node in explanation.nodes]
    lines.append("  end")
    for start, end, key in explanation.edges:
        lines.append(
            f'  {ids[start]} -->|"{escape_label("key " + ", ".join(key) if key else "no key")}"| {ids[end]}'
        )
    lines += [f'  {ids[table]} -.->|"asked"| {ids[asker]}' for table, asker in explanation.asks]
    return "\n".join(lines)


def _node(node: ExplainedNode, name: str) -> str:
    before, after = _SHAPES[node.kind]
    return f'{name}{before}"{"<br/>".join(escape_label(line) for line in label(node))}"{after}'


def label(node: ExplainedNode) -> list[str]:
    """Return the lines of a node's box: its name, its type, and for a sink its guarantee."""
    if node.kind == "source":
        return [
            node.name,
            *(f"{part.type} {part.name}{', snapshot' if part.has_snapshot else ''}" for part in node.parts),
        ]
    if node.target is None:
        return [node.name, node.type.replace("_", " ")]
    target = node.target
    promised = [
        target.guarantee.delivery.replace("_", " "),
        *([f"history {target.load_path.path}"] if target.load_path else []),
    ]
    return [node.name, f"{node.type} {target.name}".rstrip(), ", ".join(promised)]


def escape_label(text: str) -> str:
    """Escape text for a quoted label: special characters become entities, line ends become spaces."""
    return _PLAIN.sub(lambda match: f"#{ord(match[0])};", " ".join(text.split()))

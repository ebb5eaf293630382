"""The graph of a pipeline in a terminal: every producer's rail goes down until its last consumer has taken from it.

A node that alone takes all that its producer gives stands under it. Of several consumers each branches off; where a node
takes from several producers their rails meet above it. Sources, transforms, dynamic tables and sinks have marks of their own.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.jobs.explain.facts import Node

MARKS = {"source": "○", "transform": "□", "table": "◇", "sink": "●"}
_TRACKS = 16
"""More rails side by side than this leave no room for words: then nodes are listed with their inputs."""
_ASCII = str.maketrans("│─├┤┴┼╰╯○□◇●", "|-++++`'o#%*")


def as_ascii(text: str) -> str:
    """The same for terminals without box characters."""
    return text.translate(_ASCII)


def ordered(nodes: Sequence[Node]) -> list[Node]:
    """Each node behind all that it reads, as close behind as can be: a branch is told to its end before the next one."""
    consumers: dict[str, list[Node]] = {node.name: [] for node in nodes}
    for node in nodes:
        for upstream in node.inputs:
            consumers[upstream].append(node)
    done: dict[str, Node] = {}
    stack = [node for node in reversed(nodes) if not node.inputs]
    while stack:
        node = stack.pop()
        if node.name in done or not all(upstream in done for upstream in node.inputs):
            continue
        done[node.name] = node
        stack += reversed(consumers[node.name])
    return list(done.values())


@dataclass(slots=True)
class _Rails:
    """The rails that are open, by track, and how many consumers each producer still has."""

    left: dict[str, int]
    alone: frozenset[str]
    tracks: dict[int, str] = field(default_factory=dict)

    def line(self, marks: Mapping[int, str], dashed: tuple[int, int] = (0, 0)) -> str:
        """One line: `marks` by track, bars where a rail passes by, dashes from the first track of `dashed` to the second."""
        cells = []
        for track in range(max([*self.tracks, *marks, -1]) + 1):
            empty = "─" if dashed[0] < track < dashed[1] else " "
            cells.append(marks.get(track) or ("│" if track in self.tracks else empty))
            cells.append("─" if dashed[0] <= track < dashed[1] else " ")
        return "".join(cells).rstrip()

    def take(self, node: Node) -> list[str]:
        """The lines that lead to the node, its own as the last one. Closes the rails that end there and opens its own."""
        mine = sorted(track for track, name in self.tracks.items() if name in node.inputs)
        for upstream in node.inputs:
            self.left[upstream] -= 1
        ending = [track for track in mine if not self.left[self.tracks[track]]]
        if not mine:
            at = max(self.tracks, default=-1) + 1
            found = [self.line({at: MARKS[node.kind]})]
        elif len(mine) == 1 and self.tracks[mine[0]] in self.alone:
            at = mine[0]
            found = [self.line({}), self.line({at: MARKS[node.kind]})]
        elif len(mine) == 1 or not ending:
            at = max([*(track for track in self.tracks if track not in ending), *mine]) + 1
            corners = dict.fromkeys(mine, "┼") | {mine[0]: "╰" if ending else "├"}
            found = [self.line({**corners, at: MARKS[node.kind]}, (mine[0], at))]
        else:
            at = ending[0]
            found = [self.line(_meeting(mine, ending), (mine[0], mine[-1]))]
        for track in ending:
            del self.tracks[track]
        if len(found) == 1 and len(mine) > 1 and ending:
            found.append(self.line({at: MARKS[node.kind]}))
        if self.left[node.name]:
            self.tracks[at] = node.name
        return found


def _meeting(mine: Sequence[int], ending: Sequence[int]) -> dict[int, str]:
    """Where rails meet: the first that ends goes on to the node, other ending ones turn towards it, the rest goes on as well."""
    marks = {}
    for track in mine:
        on = track == ending[0] or track not in ending
        where = "first" if track == mine[0] else "last" if track == mine[-1] else "between"
        marks[track] = {"first": "├" if on else "╰", "last": "┤" if on else "╯", "between": "┼" if on else "┴"}[where]
    return marks


def draw(nodes: Sequence[Node], labels: Mapping[str, Sequence[str]], width: int) -> list[str]:
    """The lines of the picture, none longer than `width`.

    Args:
        nodes: all nodes.
        labels: what is said of each, its name in the first line.
        width: columns of the terminal.
    """
    consumers = {node.name: sum(node.name in other.inputs for other in nodes) for node in nodes}
    rails = _Rails(dict(consumers), frozenset(name for name, count in consumers.items() if count == 1))
    found: list[str] = []
    for node in ordered(nodes):
        if not node.inputs and found:
            found.append(rails.line({}))  # or it would seem to hang on what stands above it
        *before, own = rails.take(node)
        found += [*before, *_labelled(own, rails.line({}), labels[node.name], width)]
        if max(rails.tracks, default=0) >= _TRACKS:
            return _listed(nodes, labels, width)
    return found


def _labelled(line: str, below: str, label: Sequence[str], width: int) -> list[str]:
    """The node's line with its words, the rest of them beside the rails that go on."""
    indent = len(line) + 2
    found: list[str] = []
    for place, said in enumerate(label):
        lead = f"{line}  " if place == 0 else f"{below:{indent}}"
        rest = f"{below:{indent}}" + ("  " if place == 0 else "")
        found += textwrap.wrap(said, width, initial_indent=lead, subsequent_indent=rest, break_on_hyphens=False, drop_whitespace=True)
    return found


def _listed(nodes: Sequence[Node], labels: Mapping[str, Sequence[str]], width: int) -> list[str]:
    """For graphs that are wider than a terminal."""
    found = []
    for node in ordered(nodes):
        reads = [f"reads {', '.join(node.inputs)}"] if node.inputs else []
        found += _labelled(MARKS[node.kind], "", [*labels[node.name], *reads], width)
    return found

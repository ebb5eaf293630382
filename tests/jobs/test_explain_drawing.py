"""How an explanation is drawn: the picture says what the graph says, and no name breaks a document."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.jobs.explain.document import document
from headrace.jobs.explain.dot import dot
from headrace.jobs.explain.facts import Column, Explanation, Guarantee, Node, Part, Target
from headrace.jobs.explain.formats import Format, render
from headrace.jobs.explain.mermaid import mermaid
from headrace.jobs.explain.rails import MARKS, as_ascii, draw, ordered
from headrace.jobs.explain.text import text
from headrace.jobs.routes import Route
from headrace.pipeline.relations import Derived, Origin, Step

NASTY = [
    'say "hi"',
    "a]b[c",
    "<b>x</b>",
    "`tick`",
    "two\nlines",
    "back\\slash",
    "trailing\\",
    "end",
    "#35;",
    "a;b",
    "é😀",
    "--> |x|",
    "%% no",
    "{x}",
]


def node(name: str, *inputs: str, kind: str = "", key: tuple[str, ...] = ("id",)) -> Node:
    kind = kind or ("transform" if inputs else "source")
    return Node(
        name=name,
        kind=kind,
        type={"source": "kafka", "transform": "sql", "sink": "postgres"}[kind],
        inputs=inputs,
        key=key,
        key_from=(name,) if kind == "source" else ("a",),
        columns=(Column("id", "BIGINT"), Column("x", "")),
        complete=True,
        lineage={"id": Derived((Origin("a", "id"),)), "x": Derived((), (Step("t", "x", "'<x>'"),))},
        parts=(Part("history", "clickhouse", f"db.{name}", pinned=True, said="pinned"),) if kind == "source" else (),
        target=Target(f"public.{name}", True, "appends", Guarantee("exactly_once", "so it is"), "whole epochs", Route("rows", "why not"))
        if kind == "sink"
        else None,
    )


def graph(spoken: str) -> list[Node]:
    """`a; b; t<a,b; k1<t`: sources, transforms and, by a name that begins with k, sinks."""
    found = []
    for one in spoken.split(";"):
        name, _, inputs = one.strip().partition("<")
        reads = [part for part in inputs.split(",") if part]
        found.append(node(name, *reads, kind="sink" if name.startswith("k") else ""))
    return found


def explanation(nodes: list[Node], name: str = "p") -> Explanation:
    return Explanation(name, "abcd", False, tuple(nodes), {"main": tuple(one.name for one in nodes)})


def picture(spoken: str, width: int = 80) -> str:
    nodes = graph(spoken)
    return "\n".join(draw(nodes, {one.name: [one.name] for one in nodes}, width))


@pytest.mark.parametrize(
    ("spoken", "wanted"),
    [
        ("a; t<a; k1<t; k2<t", "○  a\n│\n□  t\n├─●  k1\n╰─●  k2"),
        ("a; b; t<a,b; k<t", "○  a\n│\n│ ○  b\n├─╯\n□  t\n│\n●  k"),
        ("a; b; t<a,b; k1<a; k2<t", "○  a\n├─●  k1\n│\n│ ○  b\n├─╯\n□  t\n│\n●  k2"),
        ("a; k1<a; b; k2<b", "○  a\n│\n●  k1\n\n○  b\n│\n●  k2"),
        ("a; t1<a; t2<a; t3<t1,t2; k<t3", "○  a\n├─□  t1\n╰─│─□  t2\n  ├─╯\n  □  t3\n  │\n  ●  k"),
    ],
)
def test_pictures(spoken: str, wanted: str) -> None:
    assert picture(spoken) == wanted


def traced(lines: list[str]) -> dict[str, set[str]]:
    """The edges that a picture shows, read off it from the top: for each node those whose rails reach it."""
    rails: dict[int, str] = {}
    fresh: tuple[int, str] | None = None
    met: set[str] = set()
    found: dict[str, set[str]] = {}
    for line in lines:
        own = re.search(rf"[{''.join(MARKS.values())}](?: │| )*  (\w+)$", line)
        at = own.start() if own else -1
        grid = line[: own.start(1)].rstrip() if own else line
        if fresh and grid[fresh[0] :][:1] in tuple("│├┤┼┴╰╯"):
            rails[fresh[0]] = fresh[1]
        fresh = None
        joined = {place for place, char in enumerate(grid) if char in "├┤┼┴╰╯"}
        assert joined <= set(rails), "a corner without a rail"
        assert all(place == at or grid[place : place + 1] in tuple("│├┤┼┴╰╯") for place in rails), "a rail breaks off"
        reached = {rails[place] for place in joined}
        if own:
            straight = {rails.pop(at)} if at in rails else set()
            found[own[1]] = met or reached | straight
            met, fresh = set(), (at, own[1])
        else:
            met = reached
        for place in joined:
            if grid[place] in "┴╰╯":
                del rails[place]
    return found


@st.composite
def graphs(draw_: st.DrawFn) -> list[Node]:
    found: list[Node] = []
    for place in range(draw_(st.integers(2, 9))):
        readable = [one.name for one in found if one.kind != "sink"]
        inputs = draw_(st.lists(st.sampled_from(readable), max_size=3, unique=True)) if readable else []
        sink = bool(inputs) and draw_(st.booleans())
        found.append(node(f"{'k' if sink else 'n'}{place}", *(inputs[:1] if sink else inputs), kind="sink" if sink else ""))
    return found


@given(graphs())
def test_the_picture_shows_exactly_the_edges_of_the_graph(nodes: list[Node]) -> None:
    lines = draw(nodes, {one.name: [one.name] for one in nodes}, 80)
    assert traced(lines) == {one.name: set(one.inputs) for one in nodes}
    assert all(len(line) <= 80 for line in lines)


@given(graphs())
def test_a_node_comes_behind_all_that_it_reads(nodes: list[Node]) -> None:
    order = [one.name for one in ordered(nodes)]
    assert sorted(order) == sorted(one.name for one in nodes)
    assert all(order.index(upstream) < order.index(one.name) for one in nodes for upstream in one.inputs)


def test_more_rails_than_a_terminal_has_room_for_become_a_list() -> None:
    names = [f"s{place}" for place in range(30)]
    lines = picture("; ".join([*names, f"t<{','.join(names)}", "k<t"])).splitlines()
    assert lines[0] == "○  s0"
    assert lines[30] == "□  t"
    assert lines[31].startswith("   reads s0, s1, s2")
    assert all(len(line) <= 80 for line in lines)


def test_plain_terminals_get_plain_characters() -> None:
    assert as_ascii(picture("a; t<a; k1<t; k2<t")) == "o  a\n|\n#  t\n+-*  k1\n`-*  k2"
    assert as_ascii("".join("│─├┤┴┼╰╯○□●")).isascii()


@pytest.mark.parametrize("lineage", [False, True])
def test_text_has_eighty_columns_whatever_the_names(lineage: bool) -> None:
    nodes = [node("a" * 60), node("b" * 50), node("t", "a" * 60, "b" * 50), node("k" * 70, "t", kind="sink")]
    said = text(explanation(nodes), lineage=lineage)
    assert max(len(line) for line in said.splitlines()) <= 80
    assert ("no source column" in said) is lineage
    assert ("t.x = '<x>'" in said) is lineage


def nasty_explanation() -> Explanation:
    nodes = [node(name, key=(name,)) for name in NASTY]
    return explanation([*nodes, node("t", *NASTY), node("k", "t", kind="sink")], name='p "q"')


_SHAPE = r'(?:\(\["(?P<source>[^"]*)"\]\)|\[\("(?P<sink>[^"]*)"\)\]|\["(?P<transform>[^"]*)"\])'


def test_mermaid_has_every_node_and_edge_and_nothing_breaks_it() -> None:
    found = nasty_explanation()
    lines = mermaid(found).split("\n")
    assert lines[0] == "flowchart LR"
    assert re.fullmatch(r'  subgraph lane0\["[^"]*"\]', lines[1])
    assert lines[2 + len(found.nodes)] == "  end"
    for one, line in zip(found.nodes, lines[2:], strict=False):
        match = re.fullmatch(rf"    n\d+{_SHAPE}", line)
        assert match, line
        name, *rest = match[one.kind].split("<br/>")
        assert unescaped(name) == " ".join(one.name.split())
        assert not re.search(r"""[<>"`\[\]{}|;#%&\\]""", re.sub(r"#\d+;", "", "".join([name, *rest])))
    edges = lines[3 + len(found.nodes) :]
    assert len(edges) == len(found.edges)
    for (start, end, key), line in zip(found.edges, edges, strict=True):
        match = re.fullmatch(r'  n(\d+) -->\|"([^"]*)"\| n(\d+)', line)
        assert match, line
        assert (found.nodes[int(match[1])].name, found.nodes[int(match[3])].name) == (start, end)
        assert unescaped(match[2]) == f"key {' '.join(key[0].split())}"


def unescaped(said: str) -> str:
    return re.sub(r"#(\d+);", lambda match: chr(int(match[1])), said)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_mermaid_labels_come_back_as_they_were(name: str) -> None:
    (line,) = [line for line in mermaid(explanation([node(name)])).split("\n") if line.startswith("    n0")]
    match = re.fullmatch(rf"    n0{_SHAPE}", line)
    assert match
    assert unescaped(match["source"].split("<br/>")[0]) == " ".join(name.split())
    assert html.unescape(match["source"]) == match["source"]


_TOKEN = re.compile(r'\s*(?:(?P<id>[A-Za-z_]\w*)|"(?P<text>(?:[^"\\]|\\.)*)"|(?P<sign>->|[{}\[\]=;,]))', re.DOTALL)


def tokens(document_: str) -> Iterator[tuple[str, str]]:
    """The tokens of a DOT document; fails on anything else."""
    at = 0
    while document_[at:].strip():
        match = _TOKEN.match(document_, at)
        assert match, document_[at : at + 40]
        kind = match.lastgroup or ""
        yield kind, match[kind]
        at = match.end()


def parsed(document_: str) -> tuple[dict[str, dict[str, str]], list[tuple[str, str, str]]]:
    """Nodes with their attributes, edges with their labels, by the grammar of what is written there."""
    words = list(tokens(document_))
    assert words[0] == ("id", "digraph")
    assert words.count(("sign", "{")) == words.count(("sign", "}"))
    nodes: dict[str, dict[str, str]] = {}
    edges = []
    statements: list[list[tuple[str, str]]] = [[]]
    for kind, word in words[2:]:
        if kind == "sign" and word in "{};":
            statements.append([])
        else:
            statements[-1].append((kind, word))
    for statement in filter(None, statements):
        kinds = [word if kind == "sign" else kind for kind, word in statement]
        head = "".join(kind[0] for kind in kinds)
        values = [word for kind, word in statement if kind != "sign"]
        if head.startswith("t["):
            nodes[values[0]] = dict(zip(values[1::2], values[2::2], strict=True))
        elif head.startswith("t-t["):
            edges.append((values[0], values[1], values[3]))
        else:
            assert values[0] in ("rankdir", "node", "edge", "label", "subgraph"), statement
    return nodes, edges


def test_dot_is_read_back_node_by_node_whatever_the_names() -> None:
    found = nasty_explanation()
    nodes, edges = parsed(dot(found))
    escaped = {one.name: one.name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for one in found.nodes}
    assert set(nodes) == set(escaped.values())
    assert {name: attributes["shape"] for name, attributes in nodes.items() if attributes["shape"] != "ellipse"} == {
        "t": "box",
        "k": "cylinder",
    }
    assert all(attributes["label"].startswith(f"{name}\\n") for name, attributes in nodes.items())
    assert [(start, end) for start, end, _ in edges] == [(escaped[start], escaped[end]) for start, end, _ in found.edges]
    assert "rankdir=LR;" in dot(found)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), min_size=1, max_size=30))
def test_dot_holds_any_name_inside_its_quotes(name: str) -> None:
    nodes, _ = parsed(dot(explanation([node(name)])))
    assert list(nodes) == [name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")]


def test_json_says_all_that_is_known() -> None:
    found = document(explanation(graph("a; t<a; k<t")))
    assert found == json.loads(render(explanation(graph("a; t<a; k<t")), Format.JSON))
    assert list(found) == ["version", "pipeline", "hash", "offline", "lanes", "nodes", "edges", "windows", "splits", "spark_plan"]
    assert found["edges"] == [{"from": "a", "to": "t", "key": ["id"]}, {"from": "t", "to": "k", "key": ["id"]}]
    source, _, sink = found["nodes"]
    assert source["reads"] == [{"phase": "history", "type": "clickhouse", "name": "db.a", "pinned": True, "reason": "pinned"}]
    assert source["schema"] == [{"name": "id", "type": "BIGINT"}, {"name": "x", "type": None}]
    assert sink["sink"] == {
        "target": "public.k",
        "created": True,
        "writes": "appends",
        "guarantee": {"delivery": "exactly_once", "reason": "so it is", "provided": []},
        "visible": "whole epochs",
        "history": {"path": "rows", "reason": "why not"},
    }
    assert sink["lineage"] == [
        {"column": "id", "sources": [{"node": "a", "column": "id"}], "steps": []},
        {"column": "x", "sources": [], "steps": [{"node": "t", "column": "x", "expression": "'<x>'"}]},
    ]


def test_a_dynamic_table_stands_beside_the_stream() -> None:
    table = replace(
        node("t", "a", kind="transform", key=()), kind="table", type="dynamic_table", asked_by=("s",), notes=(("values", "kept"),)
    )
    found = explanation([node("a"), node("s", "a"), table, node("k", "s", kind="sink")])
    lines = text(found).splitlines()
    assert any(line.endswith("◇  t: dynamic table") for line in lines)
    assert "  filled by a, before the same epoch asks" in lines
    assert "  asked by  s" in lines
    assert 'n2[["t<br/>dynamic table"]]' in mermaid(found)
    assert 'n2 -.->|"asked"| n1' in mermaid(found)
    assert '"t" -> "s" [style=dashed, label=asked];' in dot(found)
    told = {one["name"]: one for one in json.loads(json.dumps(document(found)))["nodes"]}
    assert (told["t"]["kind"], told["t"]["asked_by"], told["t"]["inputs"]) == ("table", ["s"], ["a"])
    assert told["s"]["asked_by"] == []
    lonely = replace(table, inputs=(), asked_by=())
    assert "  filled by others" in text(explanation([node("a"), lonely, node("k", "a", kind="sink")])).splitlines()

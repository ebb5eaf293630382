"""Diagrams of an explanation: they match the graph, and no name breaks the document."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.jobs.explain.formats import Format, render
from headrace.jobs.explain.json import document
from headrace.jobs.explain.mermaid import mermaid
from headrace.jobs.explain.model import (
    ExplainedColumn,
    ExplainedNode,
    ExplainedTarget,
    Explanation,
    Guarantee,
    SourcePart,
)
from headrace.jobs.explain.text import text
from headrace.jobs.planning.load_path import LoadPath
from headrace.pipeline.lineage.relations import ColumnLineage, LineageStep, Origin

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


def node(name: str, *inputs: str, kind: str = "", key: tuple[str, ...] = ("id",)) -> ExplainedNode:
    kind = kind or ("transform" if inputs else "source")
    return ExplainedNode(
        name=name,
        kind=kind,
        type={"source": "kafka", "transform": "sql", "sink": "postgres"}[kind],
        inputs=inputs,
        key=key,
        key_from=(name,) if kind == "source" else ("a",),
        columns=(ExplainedColumn("id", "BIGINT"), ExplainedColumn("x", "")),
        complete=True,
        lineage={
            "id": ColumnLineage((Origin("a", "id"),)),
            "x": ColumnLineage((), (LineageStep("t", "x", "'<x>'"),)),
        },
        parts=(SourcePart("history", "clickhouse", f"db.{name}", has_snapshot=True, description="snapshot"),)
        if kind == "source"
        else (),
        target=ExplainedTarget(
            f"public.{name}",
            True,
            "appends",
            Guarantee("exactly_once", "so it is"),
            "whole epochs",
            LoadPath("rows", "why not"),
        )
        if kind == "sink"
        else None,
    )


def graph(spoken: str) -> list[ExplainedNode]:
    """`a; b; t<a,b; k1<t`: sources, transforms and, by a name that begins with k, sinks."""
    result = []
    for one in spoken.split(";"):
        name, _, inputs = one.strip().partition("<")
        reads = [part for part in inputs.split(",") if part]
        result.append(node(name, *reads, kind="sink" if name.startswith("k") else ""))
    return result


def explanation(nodes: list[ExplainedNode], name: str = "p") -> Explanation:
    return Explanation(name, "abcd", False, tuple(nodes))


def test_text_lists_each_node_under_its_kind_with_its_inputs() -> None:
    lines = text(explanation(graph("a; b; t<a,b; k1<t; k2<a"))).splitlines()
    listed = lines[2 : lines.index("source a") - 1]
    assert listed == [
        "sources",
        "  a   clickhouse db.a",
        "      key id",
        "  b   clickhouse db.b",
        "      key id",
        "transforms",
        "  t   sql, reads a, b",
        "sinks",
        "  k1  postgres public.k1, reads t",
        "      exactly once; history rows; appends",
        "  k2  postgres public.k2, reads a",
        "      exactly once; history rows; appends",
    ]


@pytest.mark.parametrize("lineage", [False, True])
def test_text_has_eighty_columns_whatever_the_names(lineage: bool) -> None:
    nodes = [node("a" * 60), node("b" * 50), node("t", "a" * 60, "b" * 50), node("k" * 70, "t", kind="sink")]
    drawing = text(explanation(nodes), lineage=lineage)
    assert max(len(line) for line in drawing.splitlines()) <= 80
    assert ("no source column" in drawing) is lineage
    assert ("t.x = '<x>'" in drawing) is lineage


def nasty_explanation() -> Explanation:
    nodes = [node(name, key=(name,)) for name in NASTY]
    return explanation([*nodes, node("t", *NASTY), node("k", "t", kind="sink")], name='p "q"')


_SHAPE = r'(?:\(\["(?P<source>[^"]*)"\]\)|\[\("(?P<sink>[^"]*)"\)\]|\["(?P<transform>[^"]*)"\])'


def test_mermaid_has_every_node_and_edge_and_nothing_breaks_it() -> None:
    result = nasty_explanation()
    lines = mermaid(result).split("\n")
    assert lines[0] == "flowchart LR"
    assert re.fullmatch(r'  subgraph pipeline\["[^"]*"\]', lines[1])
    assert lines[2 + len(result.nodes)] == "  end"
    for one, line in zip(result.nodes, lines[2:], strict=False):
        match = re.fullmatch(rf"    n\d+{_SHAPE}", line)
        assert match, line
        name, *rest = match[one.kind].split("<br/>")
        assert unescaped(name) == " ".join(one.name.split())
        assert not re.search(r"""[<>"`\[\]{}|;#%&\\]""", re.sub(r"#\d+;", "", "".join([name, *rest])))
    edges = lines[3 + len(result.nodes) :]
    assert len(edges) == len(result.edges)
    for (start, end, key), line in zip(result.edges, edges, strict=True):
        match = re.fullmatch(r'  n(\d+) -->\|"([^"]*)"\| n(\d+)', line)
        assert match, line
        assert (result.nodes[int(match[1])].name, result.nodes[int(match[3])].name) == (start, end)
        assert unescaped(match[2]) == f"key {' '.join(key[0].split())}"


def unescaped(label: str) -> str:
    return re.sub(r"#(\d+);", lambda match: chr(int(match[1])), label)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_mermaid_labels_come_back_as_they_were(name: str) -> None:
    (line,) = [line for line in mermaid(explanation([node(name)])).split("\n") if line.startswith("    n0")]
    match = re.fullmatch(rf"    n0{_SHAPE}", line)
    assert match
    assert unescaped(match["source"].split("<br/>")[0]) == " ".join(name.split())
    assert html.unescape(match["source"]) == match["source"]


def test_json_says_all_that_is_known() -> None:
    result = document(explanation(graph("a; t<a; k<t")))
    assert result == json.loads(render(explanation(graph("a; t<a; k<t")), Format.JSON))
    assert list(result) == [
        "version",
        "pipeline",
        "hash",
        "offline",
        "nodes",
        "edges",
        "partitions",
        "splits",
        "spark_plan",
    ]
    assert result["edges"] == [
        {"from": "a", "to": "t", "key": ["id"]},
        {"from": "t", "to": "k", "key": ["id"]},
    ]
    source, _, sink = result["nodes"]
    assert source["reads"] == [
        {
            "phase": "history",
            "type": "clickhouse",
            "name": "db.a",
            "snapshot": True,
            "description": "snapshot",
        }
    ]
    assert source["schema"] == [{"name": "id", "type": "BIGINT"}, {"name": "x", "type": None}]
    assert sink["sink"] == {
        "target": "public.k",
        "created": True,
        "writes": "appends",
        "guarantee": {"delivery": "exactly_once", "reason": "so it is", "provided": []},
        "order": None,
        "visible": "whole epochs",
        "history": {"path": "rows", "reason": "why not"},
    }
    assert sink["lineage"] == [
        {"column": "id", "sources": [{"node": "a", "column": "id"}], "steps": []},
        {"column": "x", "sources": [], "steps": [{"node": "t", "column": "x", "expression": "'<x>'"}]},
    ]


def test_a_dynamic_table_stands_beside_the_stream() -> None:
    table = replace(
        node("t", "a", kind="transform", key=()),
        kind="table",
        type="dynamic_table",
        asked_by=("s",),
        notes=(("values", "kept"),),
    )
    result = explanation([node("a"), node("s", "a"), table, node("k", "s", kind="sink")])
    lines = text(result).splitlines()
    assert lines[lines.index("dynamic tables") + 1 :][:2] == [
        "  t  dynamic table, reads a",
        "     looked up by s",
    ]
    assert "  filled by  a, before the same epoch asks" in lines
    assert "  asked by   s" in lines
    assert 'n2[["t<br/>dynamic table"]]' in mermaid(result)
    assert 'n2 -.->|"asked"| n1' in mermaid(result)
    nodes = {one["name"]: one for one in json.loads(json.dumps(document(result)))["nodes"]}
    assert (nodes["t"]["kind"], nodes["t"]["asked_by"], nodes["t"]["inputs"]) == ("table", ["s"], ["a"])
    assert nodes["s"]["asked_by"] == []
    lonely = replace(table, inputs=(), asked_by=())
    assert (
        "  filled by  others"
        in text(explanation([node("a"), lonely, node("k", "a", kind="sink")])).splitlines()
    )

"""Any content of a pipeline file gives a pipeline or a mistake with a location."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.checkout import ROOT
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from headrace.pipeline.errors import PipelineFileError
from headrace.pipeline.file.loader import parse_pipeline

EXAMPLE = (ROOT / "examples" / "flights.yaml").read_text()
SMALL = """\
version: 1
name: small
sources:
  events: {type: kafka, topic: t, primary_key: id, schema: {id: int64, at: timestamp}, starting_offsets: "0"}
  table: {type: clickhouse, table_name: d.t, primary_key: [id], columns: "id, at", split_rows: 10}
transforms:
  both: {type: sql, sql: SELECT id, at FROM events UNION ALL SELECT id, at FROM table}
sinks:
  pg: {type: postgres, from: both, table: t, update_where: {at: ">"}, delivery: at_least_once}
  lake: {type: delta, from: both, path: "${LAKE:-x}"}
partitions: {column: at, every: day, start: 2024-01-01, end: 2024-02-01}
schedule: {cron: 0 0 * * *, timezone: UTC}
epoch: {interval: 1h 30m}
"""
FILES = (EXAMPLE, SMALL)
WORDS = [
    *"*,()'\"`.;\\${",
    "SELECT",
    "FROM",
    "WHERE",
    "UNION",
    "ALL",
    "WITH",
    "AS",
    "JOIN",
    "events",
    "table",
    "id",
    "--",
    "/*",
    "1e999",
    "CASE",
    "END",
    "range(5)",
]
ODD = st.one_of(
    st.sampled_from(
        [
            None, True, "", " ", "~", "null", "*", "&a", "!!binary aGk=", "${X", "${NOT_SET_ANYWHERE}",
            "${A:-}", "\t", "\x00", "\ud800", "é\u202e", 0, -1, 2**63, 10**400, 1.5, float("inf"),
            float("nan"), [], {}, [[]], [{}], {"type": {}}, {"type": "sql"}, {"": ""},
            "select", "SELECT", "SELECT 1", "SELECT * FROM", "SELECT (((", ("WITH a AS (SELECT 1) SELECT *"
                                                                           " FROM a"), "99999999999999w",
            "1e999s", "2013-99",
        ]
    ),
    st.text(max_size=20),
    st.integers(),
    st.floats(),
    st.dictionaries(st.text(max_size=5), st.none() | st.text(max_size=5), max_size=3),
)  # fmt: skip
SNIPPETS = st.sampled_from(
    ["\t", "&a ", "*a", "!x ", "!!set ", "? ", "- ", ": ", "'", '"', "|\n", "<<: *a\n", "%YAML 1.1\n---\n", "---\n", "...\n", "\x00",
     "\x85", "\ufeff",
     "[" * 500, "{a: " * 60, "9" * 5000, "2013-99-99", "0x", "=", ".inf", "\\", "#", "${", "}", "\r", "\n\n", "\U0001f600", "\ud800", "@", "`"]
)  # fmt: skip


def reads(text: str) -> None:
    """Good, or mistakes that each have words, a place in the file, and fit to be printed."""
    try:
        file = parse_pipeline(text, "f.yaml")
    except PipelineFileError as error:
        problems = error.problems
    else:
        assert file.hash
        return
    assert problems
    for problem in problems:
        assert problem.message
        assert problem.place is not None
        assert problem.place.file == "f.yaml"
        assert 1 <= (problem.place.line or 0) <= len(text.splitlines()) + 1
        assert "Traceback" not in str(problem)
        str(problem).encode()


def nodes_of(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [path, *(result for key, value in inner for result in nodes_of(value, (*path, key)))]


def flow(tree: Any) -> str:
    """YAML in one line, with text in double quotes, so that any value can be written.

    Keys may come twice.
    """
    if isinstance(tree, dict | Twice):
        return "{" + ", ".join(f"{flow(key)}: {flow(value)}" for key, value in tree.items()) + "}"
    if isinstance(tree, list):
        return "[" + ", ".join(map(flow, tree)) + "]"
    if isinstance(tree, str):
        return (
            '"'
            + "".join(
                char if 32 <= ord(char) < 127 and char not in '"\\' else f"\\U{ord(char):08x}"
                for char in tree
            )
            + '"'
        )
    if isinstance(tree, float):
        return {"inf": ".inf", "-inf": "-.inf", "nan": ".nan"}.get(str(tree), str(tree))
    return (
        {None: "null", True: "true", False: "false"}.get(tree, str(tree))
        if tree is None or isinstance(tree, bool)
        else str(tree)
    )


class Twice:
    """A map in which one key stands twice."""

    def __init__(self, tree: dict[Any, Any], key: Any, value: Any) -> None:
        self._pairs = [*tree.items(), (key, value)]

    def items(self) -> list[tuple[Any, Any]]:
        return self._pairs


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A real file with one to four things dropped, renamed, doubled, moved or replaced."""
    tree: Any = YAML(typ="safe").load(draw(st.sampled_from(FILES)))
    for _ in range(draw(st.integers(1, 4))):
        paths = [path for path in nodes_of(tree) if path]
        if not paths:
            break
        *above, key = draw(st.sampled_from(paths))
        here = tree
        for part in above:
            here = here[part]
        odd = draw(ODD)
        match (
            draw(st.sampled_from(["drop", "rename", "double", "replace", "wrap", "graft"]))
            if isinstance(here, dict)
            else "replace"
        ):
            case "drop":
                del here[key]
            case "rename":
                here[odd if isinstance(odd, str | int) else str(odd)] = here.pop(key)
            case "double" if above:
                outer = tree
                for part in above[:-1]:
                    outer = outer[part]
                outer[above[-1]] = Twice(here, key, odd)
                break
            case "wrap":
                here[key] = [here[key]]
            case "graft":
                inner = tree
                for part in draw(st.sampled_from(paths))[:-1]:
                    inner = inner[part]
                here[key] = YAML(typ="safe").load(flow(inner))
            case _:
                here[key] = odd
    return flow(tree)


@st.composite
def scribbled(draw: st.DrawFn) -> str:
    """A real file's text with pieces cut out, put in, doubled or swapped."""
    text = draw(st.sampled_from(FILES))
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 60)))
        piece = draw(st.one_of(st.just(""), SNIPPETS, st.text(max_size=8), st.just(text[start:end] * 2)))
        text = text[:start] + piece + text[end:]
    return text


MANY = settings(
    max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


@MANY
@given(mutated())
def test_a_changed_file_is_a_pipeline_or_a_list_of_mistakes(text: str) -> None:
    reads(text)


@MANY
@given(scribbled())
def test_a_file_that_was_scribbled_in(text: str) -> None:
    reads(text)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda result: result.decode("latin-1")))
@example("")
@example("\x00")
@example("# nothing")
@example("--- 1\n--- 2\n")
@example("a: &a [*a, *a]")
@example("a: &a {<<: *a}")
@example("<<: 5\n? [x]\n: 1\n")
@example("[" * 3000)
@example("a:\n" + "".join(" " * depth + "a:\n" for depth in range(1, 400)))
@example(
    "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b]\nd: &d"
    " [*c,*c,*c,*c,*c,*c]\ne: [*d,*d,*d,*d,*d,*d,*d]\n"
)
def test_what_was_never_a_pipeline_file(text: str) -> None:
    with pytest.raises(PipelineFileError):
        parse_pipeline(text, "f.yaml")


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.lists(
        st.sampled_from(WORDS),
        max_size=14,
    ).map(" ".join)
    | st.text(max_size=20)
    | st.sampled_from(
        ["(" * 2000, "SELECT " + "-" * 3000 + "1 FROM events", "SELECT " + "NOT " * 3000 + "a FROM events"]
    )
)
def test_any_text_as_sql(sql: str) -> None:
    reads(SMALL.replace("SELECT id, at FROM events UNION ALL SELECT id, at FROM table", flow(sql)))

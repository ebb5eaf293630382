"""The origin of a pipeline's columns, from its SQL."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.lineage.columns import NodeLineage, lineage
from headrace.pipeline.lineage.relations import ColumnLineage
from headrace.pipeline.model.nodes import PipelineModel

SRC = {
    "id": "BIGINT",
    "Name": "STRING",
    "n": "INT",
    "addr": "STRUCT<city: STRING, zip: STRING>",
    "tags": "ARRAY<STRING>",
}
OTHER = {"key": "BIGINT", "label": "STRING"}


def model(*texts: str, **transforms: str) -> PipelineModel:
    """Sources `src` and `other`.

    Transforms t1, t2, … over each other's names, and one sink on the last of them.
    """
    named = {f"t{place}": text for place, text in enumerate(texts, 1)} | transforms
    return PipelineModel.model_validate(
        {
            "name": "p",
            "sources": {
                "src": {"type": "clickhouse", "table_name": "a"},
                "other": {"type": "clickhouse", "table_name": "b"},
            },
            "transforms": {name: {"type": "sql", "sql": text} for name, text in named.items()},
            "sinks": {"out": {"type": "blackhole", "from": list(named)[-1] if named else "src"}},
        }
    )


def node_lineage(*texts: str, known: bool = True, **more: Any) -> NodeLineage:
    schemas = {"src": SRC, "other": OTHER} if known else {}
    return lineage(model(*texts), schemas | more)["out"]


def short(derived: ColumnLineage) -> str:
    """`src.id, src.n | t1.x = id + n`, `-` for no source column."""
    origins = ", ".join(f"{origin.node}.{origin.column}" for origin in derived.origins) or "-"
    return " | ".join(
        [origins, *(f"{step.node}.{step.column} = {step.expression}" for step in derived.steps)]
    )


def columns(*texts: str, **more: Any) -> dict[str, str]:
    return {name: short(derived) for name, derived in node_lineage(*texts, **more).columns.items()}


ALL = {name: f"src.{name}" for name in SRC}
CASES: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "a star": (("SELECT * FROM src",), ALL),
    "a star with the table's name": (("SELECT src.* FROM src",), ALL),
    "a star with an alias": (("SELECT s.* FROM src AS s",), ALL),
    "a star and one more": (("SELECT *, n + 1 AS m FROM src",), ALL | {"m": "src.n | t1.m = n + 1"}),
    "a star without some": (("SELECT * EXCEPT (addr, TAGS, name) FROM src",), {"id": "src.id", "n": "src.n"}),
    "renamed": (("SELECT id AS key FROM src",), {"key": "src.id"}),
    "renamed without AS": (("SELECT id key FROM src",), {"key": "src.id"}),
    "renamed twice": (("SELECT id AS a FROM src", "SELECT a AS b FROM t1"), {"b": "src.id"}),
    "renamed and in brackets": (("SELECT (id) AS a FROM src",), {"a": "src.id"}),
    "exchanged": (("SELECT id AS n, n AS id FROM src",), {"n": "src.id", "id": "src.n"}),
    "names in another case": (("SELECT ID, SRC.NAME AS nm FROM src",), {"ID": "src.id", "nm": "src.Name"}),
    "quoted names": ((("SELECT `name` AS `my name` FROM"
                      " src"), "SELECT `MY NAME` AS x FROM t1"), {"x": "src.Name"}),
    "a literal": (("SELECT id, 'x' AS kind FROM src",), {"id": "src.id", "kind": "- | t1.kind = 'x'"}),
    "a clock": ((("SELECT id, current_timestamp() AS at FROM"
                 " src"),), {"id": "src.id", "at": "- | t1.at = CURRENT_TIMESTAMP()"}),
    "a cast": (("SELECT CAST(id AS STRING) AS id FROM src",), {"id": "src.id | t1.id = CAST(id AS STRING)"}),
    "case": (
        ("SELECT CASE WHEN n > 1 THEN name ELSE 'none' END AS c FROM src",),
        {"c": "src.n, src.Name | t1.c = CASE WHEN n > 1 THEN name ELSE 'none' END"},
    ),
    "where is no lineage": (("SELECT id FROM src WHERE n > 1",), {"id": "src.id"}),
    "a field of a struct": (("SELECT addr.city FROM src",), {"city": "src.addr | t1.city = addr.city"}),
    "a field by the table's name": ((("SELECT src.addr.zip AS z FROM"
                                     " src"),), {"z": "src.addr | t1.z = src.addr.zip"}),
    "a field of an item": (("SELECT tags[0] AS first FROM src",), {"first": "src.tags | t1.first = tags[0]"}),
    "a lambda's names are no columns": (
        ("SELECT transform(tags, n -> upper(n)) AS up FROM src",),
        {"up": "src.tags | t1.up = TRANSFORM(tags, n -> UPPER(n))"},
    ),
    "a lambda may take in a column": (
        ("SELECT transform(tags, x -> concat(x, name)) AS up FROM src",),
        {"up": "src.tags, src.Name | t1.up = TRANSFORM(tags, x -> CONCAT(x, name))"},
    ),
    "an item": ((("SELECT id, explode(tags) AS tag FROM"
                 " src"),), {"id": "src.id", "tag": "src.tags | t1.tag = EXPLODE(tags)"}),
    "an item behind FROM": (
        ("SELECT s.id, upper(u.tag) AS up FROM src AS s, unnest(s.tags) AS u(tag)",),
        {"id": "src.id", "up": "src.tags | t1.tag = EXPLODE(s.tags) | t1.up = UPPER(u.tag)"},
    ),
    "an item and its number": (
        ("SELECT n AS was, tag, no FROM src LATERAL VIEW posexplode(tags) e AS no, tag",),
        {"was": "src.n", "tag": "src.tags | t1.tag ="
                                " POSEXPLODE(tags)", "no": "src.tags | t1.no = POSEXPLODE(tags)"},
    ),
    "a struct of all": (
        ("SELECT struct(*) AS whole FROM other",),
        {"whole": "other.key, other.label | t1.whole = STRUCT(*)"},
    ),
    "an alias further left": (
        ("SELECT n + 1 AS m, m * 2 AS k FROM src",),
        {"m": "src.n | t1.m = n + 1", "k": "src.n | t1.m = n + 1 | t1.k = m * 2"},
    ),
    "a column goes before an alias": ((("SELECT id AS n, n + 1 AS m FROM"
                                       " src"),), {"n": "src.id", "m": "src.n | t1.m = n + 1"}),
    "several in a row": (
        ("SELECT id, n + 1 AS a FROM src", "SELECT *, a * 2 AS b FROM t1", "SELECT b AS c, 'k' AS k FROM t2"),
        {"c": "src.n | t1.a = n + 1 | t2.b = a * 2", "k": "- | t3.k = 'k'"},
    ),
    "a subquery": (
        ("SELECT q.x AS y FROM (SELECT n + 1 AS x, id FROM src) AS q",),
        {"y": "src.n | t1.x = n + 1"},
    ),
    ("a subquery that names its"
    " columns"): (("SELECT a, b FROM (SELECT id, n FROM src) AS q(a, b)",), {"a": "src.id", "b": "src.n"}),
    "WITH": (("WITH c AS (SELECT id AS a FROM src) SELECT a FROM c",), {"a": "src.id"}),
    "WITH that names its columns": ((("WITH c(x, y) AS (SELECT id, n FROM src) SELECT y AS z FROM c AS"
                                     " d"),), {"z": "src.n"}),
    "WITH over WITH": ((("WITH c AS (SELECT id AS a FROM src), d AS (SELECT a AS b FROM c) SELECT * FROM"
                        " d"),), {"b": "src.id"}),
    "WITH inside": ((("SELECT * FROM (WITH c AS (SELECT id FROM src) SELECT * FROM c) AS"
                     " q"),), {"id": "src.id"}),
    "WITH hides a node": ((("WITH other AS (SELECT id AS key FROM src) SELECT key FROM"
                           " other"),), {"key": "src.id"}),
    "UNION ALL goes by place": (
        ("SELECT id, name FROM src UNION ALL SELECT key, label FROM other",),
        {"id": "src.id, other.key", "name": "src.Name, other.label"},
    ),
    "UNION ALL of three": (
        ("SELECT id FROM src UNION ALL SELECT key FROM other UNION ALL SELECT n FROM src",),
        {"id": "src.id, other.key, src.n"},
    ),
    "UNION ALL BY NAME": (
        ("SELECT id AS key, name AS label FROM src UNION ALL BY NAME SELECT label, key FROM other",),
        {"key": "src.id, other.key", "label": "src.Name, other.label"},
    ),
    "UNION ALL of brackets": ((("(SELECT id FROM src) UNION ALL (SELECT key + 1 FROM"
                               " other)"),), {"id": "src.id, other.key | t1.key + 1 = key + 1"}),
    "UNION ALL with a constant branch": (
        ("SELECT id, name FROM src UNION ALL SELECT key, 'b' AS kind FROM other",),
        {"id": "src.id, other.key", "name": "src.Name | t1.kind = 'b'"},
    ),
    "UNION ALL in FROM": (
        ("SELECT k + 1 AS m FROM (SELECT id AS k FROM src UNION ALL SELECT key FROM other) AS u",),
        {"m": "src.id, other.key | t1.m = k + 1"},
    ),
    "two ways from one source": (
        ("SELECT id AS a FROM src", "SELECT n AS b FROM src", "SELECT a FROM t1 UNION ALL SELECT b FROM t2"),
        {"a": "src.id, src.n"},
    ),
    "a function without an alias": (("SELECT upper(name) FROM src",), {"UPPER(name)": "src.Name | t1.UPPER(name) = UPPER(name)"}),
    "a comment": ((("SELECT id /* the key */ AS k, n -- how many\n + 1 AS m FROM"
                   " src"),), {"k": "src.id", "m": "src.n | t1.m = n + 1"}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_columns_and_what_they_come_from(case: str) -> None:
    texts, wanted = CASES[case]
    assert columns(*texts) == wanted
    assert node_lineage(*texts).unknown == ""


OPEN = {
    "named columns": (("SELECT id, n + 1 AS m FROM src",), {"id": "src.id", "m": "src.n | t1.m = n + 1"}, ""),
    "a star": (
        ("SELECT *, n + 1 AS m FROM src",),
        {"m": "src.n | t1.m = n + 1"},
        "the columns of `src` are not known",
    ),
    "through a star": (
        ("SELECT *, 1 AS one FROM src", "SELECT one, Id AS k FROM t1"),
        {"one": "- | t1.one = 1", "k": "src.Id"},
        "",
    ),
    "an alias hides nothing": (
        ("SELECT id AS x, x + 1 AS y FROM src",),
        {"x": "src.id", "y": "src.id | t1.y = x + 1"},
        "",
    ),
    "left out of a star": (
        ("SELECT * EXCEPT (n), 'x' AS n FROM src", "SELECT N AS m FROM t1"),
        {"m": "- | t1.n = 'x'"},
        "",
    ),
    "union of named": (
        ("SELECT id FROM src UNION ALL SELECT key FROM other",),
        {"id": "src.id, other.key"},
        "",
    ),
    "no transform": ((), {}, "the columns of `src` are not known"),
}


@pytest.mark.parametrize("case", OPEN)
def test_sources_whose_columns_are_not_known(case: str) -> None:
    texts, wanted, unknown = OPEN[case]
    result = node_lineage(*texts, known=False)
    assert ({name: short(derived) for name, derived in result.columns.items()}, result.unknown) == (
        wanted,
        unknown,
    )


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        ((("SELECT * FROM src UNION ALL SELECT * FROM"
          " other"),), "transform `t1`: UNION ALL takes columns by their place, and the columns of `src`"),
        (("SELECT gone FROM other", "SELECT gone AS g FROM t1"), ("transform `t1`: no column `gone` is there"
                                                                 " to read")),
        (("SELECT a FROM (SELECT * FROM src) AS q(a)",), "transform `t1`: it names 1 columns by their place"),
        (("SELECT inline(x) FROM src",), ("transform `t1`: how many columns one of its items stands for is"
                                         " not known")),
        (("SELECT id FROM src UNION ALL SELECT * FROM other",), "UNION ALL takes columns by their place"),
        ((("SELECT id FROM src LATERAL VIEW explode(tags)"
          " e"),), "what the columns of `EXPLODE(tags)` are called is not in the SQL"),
        ((("SELECT e.* FROM src LATERAL VIEW explode(tags) e AS"
          " x"),), "`e.*` with the items of a list is not analyzed"),
    ],
)  # fmt: skip
def test_what_cannot_be_told_says_why(texts: tuple[str, ...], reason: str) -> None:
    known = {"other": OTHER} if "gone" in texts[0] else {}
    result = lineage(model(*texts), known)["out"]
    assert result.columns == {}
    assert reason in result.unknown


def test_types_are_told_where_the_sources_have_some() -> None:
    result = node_lineage("SELECT ID, Name, CAST(n AS BIGINT) AS wide, n > 1 AS many, addr FROM src")
    assert result.types == {
        "ID": "BIGINT",
        "Name": "STRING",
        "wide": "BIGINT",
        "many": "BOOLEAN",
        "addr": "STRUCT<city: STRING, zip: STRING>",
    }
    poor = lineage(model("SELECT key FROM other"), {"other": {"key": "", "label": "STRING"}})["out"]
    assert poor.types == {"key": ""}


def test_spark_s_own_names_and_types_count_where_they_are_known() -> None:
    result = node_lineage(
        "SELECT cast(n as bigint), addr.*, id FROM src",
        t1={"CAST(n AS BIGINT)": "BIGINT", "city": "STRING", "zip": "STRING", "id": "BIGINT"},
    )
    assert {name: short(derived) for name, derived in result.columns.items()} == {
        "CAST(n AS BIGINT)": "src.n | t1.CAST(n AS BIGINT) = CAST(n AS BIGINT)",
        "city": "src.addr | t1.city = addr.*",
        "zip": "src.addr | t1.zip = addr.*",
        "id": "src.id",
    }
    assert list(result.types.values()) == ["BIGINT", "STRING", "STRING", "BIGINT"]
    assert node_lineage("SELECT id FROM src", t1={"id": "BIGINT", "n": "INT"}).unknown.endswith(
        "it has other columns than its SELECT list says"
    )


def test_a_sink_has_the_columns_of_what_it_reads_and_so_has_every_node() -> None:
    result = lineage(
        model(
            "SELECT id AS k FROM src",
            "SELECT key FROM other",
            "SELECT k FROM t1 UNION ALL SELECT key FROM t2",
        ),
        {"src": SRC, "other": OTHER},
    )
    assert list(result) == ["src", "other", "t1", "t2", "t3", "out"]
    assert result["out"] == result["t3"]
    assert {name: short(derived) for name, derived in result["src"].columns.items()} == ALL


def test_a_name_with_a_dot() -> None:
    spoken = {
        "name": "p",
        "sources": {"raw.orders": {"type": "kafka", "topic": "o", "schema": {"id": "int64"}}},
        "transforms": {
            "t": {"type": "sql", "sql": "SELECT raw.orders.id AS a, orders.id AS b, id AS c FROM raw.orders"}
        },
        "sinks": {"out": {"type": "blackhole", "from": "t"}},
    }
    result = lineage(PipelineModel.model_validate(spoken), {"raw.orders": {"id": "BIGINT"}})["out"]
    assert {name: short(derived) for name, derived in result.columns.items()} == dict.fromkeys(
        "abc", "raw.orders.id"
    )


NAMES = st.sampled_from(["a", "B", "c d", "select", "ü"])

FRAMES = [
    "SELECT {0} FROM {1}",
    "WITH w AS (SELECT * FROM {1}) SELECT {0} FROM w",
    "SELECT {0} FROM (SELECT * FROM {1}) AS q",
    "SELECT {0} FROM {1} UNION ALL SELECT {0} FROM {1}",
]


@st.composite
def chains(draw: st.DrawFn) -> tuple[list[str], list[str], dict[str, str]]:
    """Source columns, transforms that rename, compute and reorder, and by last name the source column that each comes from."""
    source = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    comes = {name: name for name in source}
    texts = []
    for place in range(draw(st.integers(1, 5))):
        kept = draw(st.lists(st.sampled_from(list(comes)), min_size=1, max_size=4))
        names = draw(
            st.lists(
                st.sampled_from(["x", "Y y", "from", "é", "z9"]),
                min_size=len(kept),
                max_size=len(kept),
                unique=True,
            )
        )
        items = [
            f"`{old}` AS `{new}`" if draw(st.booleans()) else f"upper(`{old.upper()}`) AS `{new}`"
            for old, new in zip(kept, names, strict=True)
        ]
        read = "src" if place == 0 else f"t{place}"
        texts.append(draw(st.sampled_from(FRAMES)).format(", ".join(items), read))
        comes = {new: comes[old] for old, new in zip(kept, names, strict=True)}
    return source, texts, comes


@given(chains())
def test_every_column_has_an_entry_and_a_renamed_one_its_true_source(
    chain: tuple[list[str], list[str], dict[str, str]],
) -> None:
    source, texts, comes = chain
    result = lineage(model(*texts), {"src": dict.fromkeys(source, "STRING")})["out"]
    assert result.unknown == ""
    assert {
        name: [(origin.node, origin.column) for origin in derived.origins]
        for name, derived in result.columns.items()
    } == {name: [("src", column)] for name, column in comes.items()}

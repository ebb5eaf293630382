"""The results of `headrace explain`, with and without servers, with and without Spark."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from helpers.checkout import ROOT

from headrace.jobs.explain import schemas
from headrace.jobs.explain.build import explain
from headrace.jobs.explain.mermaid import mermaid
from headrace.jobs.explain.model import ExplainedNode, Explanation
from headrace.jobs.explain.text import text
from headrace.pipeline.config.sections import ClickHouseConnection
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import SchemaError, ServiceError
from headrace.pipeline.file.loader import load_pipeline, parse_pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOBODY = "http://127.0.0.1:1"
"""A port at which nobody answers."""

TOPIC = "{type: kafka, topic: shop.orders, primary_key: id, schema: {id: int64, name: string, cents: int32}}"
TABLE = "{type: clickhouse, table_name: shop.archive, primary_key: id}"
LISTED = "{type: clickhouse, table_name: shop.archive, primary_key: id, columns: [id, name]}"


def pipeline_text(
    sources: str,
    transforms: str = "{}",
    sinks: str = "{out: {type: postgres, from: src, table: t}}",
    more: str = "",
) -> str:
    return f"name: p\nsources: {sources}\ntransforms: {transforms}\nsinks: {sinks}\n{more}"


def explained_nodes(written: str, tmp_path: Path, **options: Any) -> dict[str, ExplainedNode]:
    result = explain(parse_pipeline(written), settings(tmp_path), **options)
    return {node.name: node for node in result.nodes}


def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path, clickhouse_source=ClickHouseConnection(url=NOBODY))


def columns(node: ExplainedNode) -> dict[str, str]:
    return {column.name: column.type for column in node.columns}


@pytest.fixture
def no_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        pytest.fail("a JVM was started")

    monkeypatch.setattr(schemas, "start_session", refuse)


@pytest.mark.usefixtures("no_jvm")
class TestWithoutSpark:
    @pytest.mark.parametrize("offline", [False, True])
    def test_a_topic_is_known_from_the_file(self, offline: bool, tmp_path: Path) -> None:
        nodes = explained_nodes(
            pipeline_text(f"{{src: {TOPIC}}}"), tmp_path, offline=offline, spark_plan=True
        )
        assert (
            columns(nodes["src"])
            == columns(nodes["out"])
            == {"id": "BIGINT", "name": "STRING", "cents": "INT"}
        )
        assert [node.unchecked for node in nodes.values()] == [(), ()]

    def test_sql_that_arrow_computes(self, tmp_path: Path) -> None:
        sql = "{small: {type: sql, sql: 'SELECT id, upper(name) AS name FROM src WHERE cents < 9'}}"
        written = pipeline_text(f"{{src: {TOPIC}}}", sql, "{out: {type: postgres, from: small, table: t}}")
        nodes = explained_nodes(written, tmp_path, offline=True)
        assert columns(nodes["small"]) == {"id": "BIGINT", "name": "STRING"}
        assert nodes["small"].notes == (("computed", "by Arrow for rows in the driver, else by Spark"),)

    def test_filters_show_no_value_of_a_variable(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HIDDEN", "c4n4ry")
        monkeypatch.setenv("ONE", "1")
        topic = TOPIC.replace(
            "type: kafka,", """type: kafka, filter: "name <> '${HIDDEN}' and cents > 10 and id <> ${ONE}","""
        )
        target = explained_nodes(pipeline_text(f"{{src: {topic}}}"), tmp_path, offline=True)["out"].target
        assert target
        assert "src (filter name <> '${HIDDEN}' and cents > 10 and id <> ${ONE})" in target.writes

    @pytest.mark.parametrize(
        ("offline", "reason"),
        [(True, r"not asked, --offline"), (False, r".*(refused|answer|reach|connect).*")],
    )
    def test_a_table_that_cannot_be_asked_is_unchecked_with_the_reason(
        self, offline: bool, reason: str, tmp_path: Path
    ) -> None:
        nodes = explained_nodes(pipeline_text(f"{{src: {TABLE}}}"), tmp_path, offline=offline)
        (unchecked,) = nodes["src"].unchecked
        assert re.fullmatch(f"columns of clickhouse shop.archive: {reason}", unchecked, re.IGNORECASE)
        assert (nodes["src"].columns, nodes["src"].complete) == ((), False)
        assert nodes["out"].unchecked == (
            "columns and types: those of `src` are not checked",
            "lineage: the columns of `src` are not known",
        )
        target = nodes["out"].target
        assert target
        assert target.load_path
        assert (target.load_path.path, target.load_path.reason) == (
            "unchecked",
            "the columns of `src` are not known",
        )

    def test_columns_that_the_file_lists_are_known_by_name(self, tmp_path: Path) -> None:
        nodes = explained_nodes(pipeline_text(f"{{src: {LISTED}}}"), tmp_path, offline=True)
        assert columns(nodes["src"]) == columns(nodes["out"]) == {"id": "", "name": ""}
        assert nodes["src"].complete
        assert [origin.column for origin in nodes["out"].lineage["name"].origins] == ["name"]

    def test_keys_say_where_they_come_from(self, tmp_path: Path) -> None:
        sinks = "{out: {type: blackhole, from: src}, other: {type: blackhole, from: src, primary_key: name}}"
        nodes = explained_nodes(pipeline_text(f"{{src: {TOPIC}}}", sinks=sinks), tmp_path)
        assert {name: (node.key, node.key_from) for name, node in nodes.items()} == {
            "src": (("id",), ("src",)),
            "out": (("id",), ("src",)),
            "other": (("name",), ("other",)),
        }

    def test_without_java_columns_are_told_by_the_sql_alone(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        def none(*_: object) -> None:
            msg = "no Java was found"
            raise ServiceError(msg)

        monkeypatch.setattr(schemas, "start_session", none)
        transforms = "{t: {type: sql, sql: 'SELECT id, initcap(name) AS up FROM src'}}"
        nodes = explained_nodes(
            pipeline_text(f"{{src: {TOPIC}}}", transforms, "{out: {type: postgres, from: t, table: t}}"),
            tmp_path,
        )
        assert nodes["t"].unchecked == ("SQL and types: no Java was found",)
        assert list(columns(nodes["out"])) == ["id", "up"]
        assert nodes["out"].complete
        assert [step.expression for step in nodes["out"].lineage["up"].steps] == ["INITCAP(name)"]


HYBRID = """\
name: p
sources:
  src:
    type: hybrid
    {key}
    bounded_sources: [{{source_type: clickhouse, table_name: a.b{snapshot}}}]
    unbounded_source: {{source_type: kafka, topic: b, schema: {{id: int64, at: timestamp}}}}
    {cut}
sinks:
  out: {sink}
"""
PG = "{type: postgres, from: src, table: t}"


@pytest.mark.usefixtures("no_jvm")
@pytest.mark.parametrize(
    ("changes", "delivery", "reason", "provided"),
    [
        ({"cut": "offset_table: {}"}, "exactly_once", "one atomic act", ()),
        ({"cut": "offset_table: {}", "snapshot": ", snapshot: none"}, "exactly_once", "", ("`a.b` holds still until its history is written",)),
        ({"cut": "handoff_lag: 2h"}, "exactly_once", "", (("history lags its topic by less than the"
                                                          " overlap"),)),
        ({"cut": "cursor: {column: at, allowed_lateness:"
                 " 5m}", "key": ""}, "exactly_once", "", ("rows arrive within 5m of `at`",)),
        ({"sink": "{type: postgres, from: src, table: t, delivery:"
                  " at_least_once}"}, "at_least_once", "as the file asks for", ()),
        ({"sink": "{type: print, from: src}"}, "at_least_once", "keeps no record", ()),
    ],
)  # fmt: skip
def test_the_guarantee_and_what_it_rests_on(
    changes: dict[str, str], delivery: str, reason: str, provided: tuple[str, ...], tmp_path: Path
) -> None:
    values = {"key": "primary_key: id", "snapshot": "", "cut": "offset_table: {}", "sink": PG} | changes
    written = HYBRID.format_map(values)
    target = explained_nodes(written, tmp_path, offline=True)["out"].target
    assert target
    assert target.guarantee.delivery == delivery
    assert reason in target.guarantee.reason
    assert len(target.guarantee.provided) == len(provided)
    assert all(
        result.startswith(wanted) for result, wanted in zip(target.guarantee.provided, provided, strict=True)
    )
    assert target.writes == (
        "nothing is kept" if not target.name else "upserts and deletes by id" if values["key"] else "appends"
    )


@pytest.mark.usefixtures("no_jvm")
@pytest.mark.parametrize(("snapshot", "has_snapshot"), [("", True), (", snapshot: none", False)])
def test_each_part_of_a_history_states_its_snapshot(
    snapshot: str, has_snapshot: bool, tmp_path: Path
) -> None:
    written = HYBRID.format(key="primary_key: id", snapshot=snapshot, cut="offset_table: {}", sink=PG)
    parts = explained_nodes(written, tmp_path, offline=True)["src"].parts
    assert [(part.phase, part.type, part.name, part.has_snapshot) for part in parts] == [
        ("history", "clickhouse", "a.b", has_snapshot),
        ("stream", "kafka", "b", None),
    ]


FAN = """\
name: fan
sources:
  orders: {type: kafka, topic: o, primary_key: id, schema: {id: int64, name: string, cents: int32}}
  old: {type: clickhouse, table_name: shop.old, primary_key: id, snapshot: none}
transforms:
  euros: {type: sql, sql: "SELECT id, cents / 100 AS euros, addr.city FROM (SELECT *, named_struct('city', name) AS addr FROM orders) AS o"}
  all_of_them: {type: sql, sql: "SELECT id, euros FROM euros UNION ALL SELECT id, rand() FROM old"}
sinks:
  one: {type: delta, from: euros, path: lake/one}
  two: {type: postgres, from: all_of_them, table: two}
"""


class TestWithSpark:
    def test_what_does_not_need_a_server_is_analysed_and_the_rest_says_why_not(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        nodes = explained_nodes(FAN, tmp_path, offline=True, spark=spark)
        assert (
            columns(nodes["euros"])
            == columns(nodes["one"])
            == {"id": "BIGINT", "euros": "DOUBLE", "city": "STRING"}
        )
        assert {name: node.unchecked for name, node in nodes.items()} == {
            "orders": (),
            "old": ("columns of clickhouse shop.old: not asked, --offline",),
            "euros": (),
            "all_of_them": ("SQL and types: the columns of `old` are not known",),
            "one": (),
            "two": ("columns and types: those of `all_of_them` are not checked",),
        }
        assert list(columns(nodes["two"])) == ["id", "euros"]
        assert [(origin.node, origin.column) for origin in nodes["two"].lineage["euros"].origins] == [
            ("orders", "cents")
        ]
        assert nodes["one"].target
        assert nodes["one"].target.load_path is None
        assert nodes["all_of_them"].notes == (
            ("staged", "once per epoch, before a sink gets a row: `rand` gives another value each time"),
        )
        assert nodes["two"].target
        assert nodes["two"].target.guarantee.provided == (
            "`shop.old` holds still until its history is written",
            (
                "`staging.path` is a folder that every host which runs this pipeline sees: rows of"
                " `all_of_them` are staged there"
            ),
        )

    def test_sql_that_only_spark_computes(self, spark: SparkSession, tmp_path: Path) -> None:
        sql = "{found: {type: sql, sql: \"SELECT id, regexp_replace(name, 'a', 'b') AS name FROM src\"}}"
        written = pipeline_text(f"{{src: {TOPIC}}}", sql, "{out: {type: postgres, from: found, table: t}}")
        nodes = explained_nodes(written, tmp_path, offline=True, spark=spark)
        assert nodes["found"].notes == (("computed", "by Spark"),)

    def test_sql_that_does_not_fit_is_an_error_at_its_line(self, spark: SparkSession, tmp_path: Path) -> None:
        with pytest.raises(SchemaError, match="there is no column `pence`") as caught:
            explained_nodes(FAN.replace("cents / 100", "pence / 100"), tmp_path, offline=True, spark=spark)
        assert caught.value.node == "euros"
        assert caught.value.place
        assert caught.value.place.line == 6

    def test_a_key_that_the_sql_drops_is_an_error_at_its_line(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        with pytest.raises(SchemaError, match=r'columns \["id"\] not found in schema') as caught:
            explained_nodes(
                FAN.replace("SELECT id, cents", "SELECT cents"), tmp_path, offline=True, spark=spark
            )
        assert caught.value.place
        assert caught.value.place.line == 6

    def test_the_plan_of_spark_is_there_if_asked_for(self, spark: SparkSession, tmp_path: Path) -> None:
        result = explain(parse_pipeline(FAN), settings(tmp_path), offline=True, spark_plan=True, spark=spark)
        assert "== euros ==" in (result.spark_plan or "")
        assert "Analyzed Logical Plan" in text(result)

    def test_the_example_reads_well(self, flights: Explanation) -> None:
        shown = text(flights, lineage=True)
        assert max(len(line) for line in shown.splitlines()) <= 80
        for wanted in (
            "\n  buckets        sql, reads clean\nsinks\n  flights_pg     postgres",
            "\n  flights_delta  delta flights, reads buckets",
            "exactly once",
            "partitions 11 by time_hour, 2013-01-01 to 2013-11-01",
            "key        time_hour, carrier, flight; from flights",
            "history    unchecked: the columns of the history of `flights` are not known",
            "unchecked  columns of clickhouse flights.history: not asked, --offline",
            "columns    the 11 of buckets",
            "clean.dep_delay = CAST(NULLIF(TRIM(dep_delay), 'NA') AS INT)",
        ):
            assert wanted in re.sub(r"\n {13}(?=\S)", " ", shown), wanted

    def test_the_picture_in_the_documentation_is_what_the_command_draws(self, flights: Explanation) -> None:
        page = (ROOT / "docs" / "guides" / "explain.md").read_text()
        (drawn,) = re.findall(r"^```mermaid\n(.*?)\n```$", page, re.MULTILINE | re.DOTALL)
        assert drawn == mermaid(flights)
        (shown,) = re.findall(r"^```text\n(sources.*?)\n```$", page, re.MULTILINE | re.DOTALL)
        assert f"\n{shown}\n" in text(flights)


@pytest.fixture
def flights(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Explanation:
    monkeypatch.delenv("FLIGHTS_DELTA", raising=False)
    return explain(
        load_pipeline(ROOT / "examples" / "flights.yaml"), Settings(home=tmp_path), offline=True, spark=spark
    )

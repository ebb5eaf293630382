"""Dynamic tables in a pipeline file: valid ones, mistakes, warnings."""

from __future__ import annotations

import pytest

from headrace.pipeline.errors import PipelineFileError
from headrace.pipeline.file.loader import from_compiled, parse_pipeline
from headrace.pipeline.lineage.columns import lineage
from headrace.pipeline.model import graph

FILE = """\
name: wallets
sources:
  src: {{type: kafka, topic: moves, schema: {{id: int64, wallet: string}}, primary_key: id}}
  other: {{type: kafka, topic: other, schema: {{id: int64, wallet: string}}, primary_key: id}}
transforms:
  known: {table}
  hits: {{type: sql, sql: "{sql}"}}
  rest: {{type: sql, sql: "SELECT id, wallet FROM other"}}
sinks:
  out: {{type: print, from: hits}}
  rest_out: {{type: print, from: rest}}
"""
TABLE = (
    '{type: dynamic_table, backend_type: InMemory, backend_entity_name: known, sql: "SELECT'
    ' lower(wallet) FROM src WHERE id > 0"}'
)
ASK = "SELECT id, wallet FROM src WHERE dynamic_table_check('known', wallet)"


def parsed(table: str = TABLE, sql: str = ASK):
    return parse_pipeline(FILE.format(table=table, sql=sql), "w.yaml")


def refused(table: str = TABLE, sql: str = ASK) -> str:
    with pytest.raises(PipelineFileError) as caught:
        parsed(table, sql)
    return str(caught.value)


def test_a_table_has_no_rows_to_read_and_comes_before_who_asks_it():
    file = parsed()
    assert not file.warnings
    assert graph.in_order(file.model) == ["hits", "rest"]
    assert graph.steps(file.model) == ["known", "hits", "rest"]
    assert graph.inputs_of(file.model, "known") == ("src",)
    assert graph.inputs_of(file.model, "hits") == ("src",)
    assert graph.looked_up_tables(file.model, "hits") == ("known",)
    again = from_compiled(file.compiled())
    assert again.hash == file.hash


def test_lineage_leads_through_a_check_and_into_the_table():
    nodes = lineage(
        parsed(sql="SELECT id, dynamic_table_check('known', upper(wallet)) AS yes FROM src").model, {}
    )
    assert [(origin.node, origin.column) for origin in nodes["hits"].columns["yes"].origins] == [
        ("src", "wallet")
    ]
    assert [(origin.node, origin.column) for origin in nodes["known"].columns["value"].origins] == [
        ("src", "wallet")
    ]


@pytest.mark.parametrize("backend", ["InMemory", "in_memory", "IN-MEMORY", "in memory", "inmemory"])
def test_a_backend_is_read_without_case_and_signs(backend):
    assert (
        graph.dynamic_tables(parsed(TABLE.replace("InMemory", f"'{backend}'")).model)["known"].backend_type
        == "InMemory"
    )
    assert (
        graph.dynamic_tables(parsed(TABLE.replace("InMemory", "post-GRES")).model)["known"].backend_type
        == "Postgres"
    )


def test_another_backend_is_refused_in_streamlings_words():
    assert "invalid dynamic table backend_type 'Redis' (expected 'Postgres' or 'InMemory')" in refused(
        TABLE.replace("InMemory", "Redis")
    )


def test_a_table_has_no_primary_key():
    assert "unknown key `primary_key`" in refused(TABLE.replace("type: d", "primary_key: id, type: d"))


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        (
            "SELECT wallet FROM src JOIN other USING (id)",
            "only Projection and Filter SQL queries are supported for dynamic tables",
        ),
        (
            "SELECT max(wallet) FROM src",
            "only Projection and Filter SQL queries are supported for dynamic tables",
        ),
        (
            "SELECT DISTINCT wallet FROM src",
            "only Projection and Filter SQL queries are supported for dynamic tables",
        ),
        (
            "SELECT wallet FROM src ORDER BY id",
            "only Projection and Filter SQL queries are supported for dynamic tables",
        ),
        (
            "SELECT wallet FROM src LIMIT 3",
            "only Projection and Filter SQL queries are supported for dynamic tables",
        ),
        (
            "SELECT wallet FROM src UNION ALL SELECT wallet FROM other",
            "only Projection and Filter SQL queries are supported",
        ),
        (
            "SELECT w FROM (SELECT wallet AS w FROM src) s",
            "only Projection and Filter SQL queries are supported for dynamic tables",
        ),
        (
            "WITH s AS (SELECT wallet FROM src) SELECT wallet FROM s",
            "only Projection and Filter SQL queries are supported",
        ),
        (
            "SELECT id, wallet FROM src",
            "only one projection expression is supported for dynamic tables, and there are 2",
        ),
        (
            "SELECT * FROM src",
            "only one projection expression is supported for dynamic tables, and there is a `*`",
        ),
        ("SELECT wallet FROM nowhere", "reads `nowhere`, which is no source or transform"),
        ("SELECT wallet FROM hits", "transforms read each other in a circle: hits -> known -> hits"),
        ("SELECT wallet FROM src WHERE dynamic_table_check('known', wallet)", "in a circle: known -> known"),
    ],
)
def test_sql_that_cannot_fill_a_table(sql, message):
    result = refused(TABLE.replace("SELECT lower(wallet) FROM src WHERE id > 0", sql))
    assert message in result or (
        message.startswith("transforms read") and "known -> hits -> known" in result
    ), result
    assert "w.yaml:" in result


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        (
            "SELECT id FROM src WHERE dynamic_table_check('knwon', wallet)",
            (
                "dynamic table 'knwon' is used in SQL transform but not defined in pipeline topology; did you"
                " mean `known`?"
            ),
        ),
        (
            "SELECT id FROM other WHERE dynamic_table_check('known', wallet)",
            "dynamic table 'known' uses source 'src' but SQL transform uses source 'other'; ",
        ),
        (
            "SELECT id FROM src WHERE dynamic_table_check(wallet, wallet)",
            "as a literal text, and is given `wallet`",
        ),
        ("SELECT id FROM src WHERE dynamic_table_check('known')", "two arguments, and is given 1"),
        ("SELECT value FROM known", "reads `known`, which is a dynamic table: no rows leave it"),
    ],
)
def test_calls_that_mean_no_table(sql, message):
    result = refused(sql=sql)
    assert message in result, result
    assert "node 'hits'" in result


def test_a_sink_cannot_read_a_table():
    text = FILE.format(table=TABLE, sql=ASK).replace("from: rest}", "from: known}")
    with pytest.raises(PipelineFileError, match="reads `known`, which is a dynamic table: no rows leave it"):
        parse_pipeline(text, "w.yaml")


def test_a_table_that_others_fill_is_asked_from_any_source():
    outside = "{type: dynamic_table, backend_type: Postgres, backend_entity_name: lists.known}"
    text = FILE.format(table=outside, sql=ASK)
    both = text.replace(
        "SELECT id, wallet FROM other", "SELECT id FROM other WHERE dynamic_table_check('known', wallet)"
    )
    assert not parse_pipeline(both, "w.yaml").warnings


@pytest.mark.parametrize(
    ("name", "schema", "message"),
    [
        ("shop.lists.known", None, "`shop.lists.known` is no name of a table"),
        ("lists.", None, "`lists.` is no name of a table"),
        (
            "lists.known",
            "other",
            "the table's schema is `other` by `schema`, and `lists` by `backend_entity_name`",
        ),
        ("lists.known", "lists", ""),
        ("known", "lists", ""),
    ],
)
def test_a_table_in_postgres_has_one_schema(name, schema, message):
    table = (
        f"{{type: dynamic_table, backend_type: Postgres, backend_entity_name:"
        f" {name}{f', schema: {schema}' if schema else ''}}}"
    )
    if message:
        assert f"w.yaml:6:56: node 'known': {message}" in refused(table)
    else:
        assert parsed(table)


def test_two_names_for_the_same_values_in_memory_are_refused():
    text = FILE.format(table=TABLE + "\n  twin: " + TABLE, sql=ASK)
    with pytest.raises(PipelineFileError, match="holds the same values in memory as `known`"):
        parse_pipeline(text, "w.yaml")


def test_keys_that_do_nothing_get_a_word():
    useless = TABLE.replace(
        "type: d",
        "column: v, cache: true, time_column: at, schema: s, telemetry: {event_time: {column: at}}, type: d",
    )
    messages = {warning.message for warning in parsed(useless).warnings}
    assert messages == {
        f"`{key}` has no effect" for key in ("schema", "column", "time_column", "cache", "event_time")
    }
    lonely = "{type: dynamic_table, backend_type: InMemory, backend_entity_name: known}"
    messages = [warning.message for warning in parsed(lonely, "SELECT id FROM src").warnings]
    assert sorted(messages) == ["no SQL asks it", "nothing fills it: every check is false"]
    uncached = "{type: dynamic_table, backend_type: Postgres, backend_entity_name: known, cache: true}"
    assert [warning.message for warning in parsed(uncached).warnings] == [
        "`cache` has no effect without `time_column`"
    ]

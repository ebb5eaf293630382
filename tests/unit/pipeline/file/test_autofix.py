"""`validate --fix`: current spelling, the same pipeline, no other change."""

from __future__ import annotations

import pytest

from headrace.pipeline.errors import PipelineFileError
from headrace.pipeline.file.autofix import fix_file_text
from headrace.pipeline.file.loader import parse_pipeline

OLD = """\
# from the old system
definition:
  sources:
    blocks: # the feed
      type: kafka
      topic: "chain.blocks"
      schema: {id: int64,  at: timestamp}
      primary_key: id
      parallelism: 2
      # how often
      batch_flush_interval: 1s
  transforms: {}

  sinks:
    # where it goes
    out:
        type: postgres
        from: blocks
        table: 'blocks' # quoted
        deduplicate: false
        telemetry: {labels: {team: data}}
"""


def test_another_tools_spelling_becomes_ours() -> None:
    text, notes = fix_file_text(OLD, "feed.yaml")
    assert notes == [
        "took off `definition:` round the file",
        "node 'blocks': removed `parallelism`, which has no effect",
        "node 'blocks': removed `batch_flush_interval`, which has no effect",
        "node 'out': removed `deduplicate`, which has no effect",
        "added `version: 1`",
        "added `name: feed`",
    ]
    assert parse_pipeline(text, "feed.yaml").hash == parse_pipeline(OLD, "feed.yaml").hash
    assert parse_pipeline(text, "feed.yaml").warnings == ()
    for kept in (
        "# from the old system",
        "# the feed",
        "# where it goes",
        "# quoted",
        '"chain.blocks"',
        "'blocks'",
    ):
        assert kept in text
    assert fix_file_text(text, "feed.yaml") == (text, [])


def test_a_file_in_todays_spelling_is_left_alone_to_the_byte() -> None:
    text = (
        "version: 1\nname: a\nsources:\n    s:   {type: kafka, topic: t, schema: {id: int64}}\nsinks: {"
        " p: {type: print, from: s} }"
    )
    assert fix_file_text(text, "a.yaml") == (text, [])


def test_lists_keep_their_indentation() -> None:
    text = """\
name: a
sources:
  s:
    type: hybrid
    primary_key: id
    bounded_sources:
      - source_type: clickhouse
        table_name: t
    unbounded_source: {source_type: kafka, topic: t, schema: {id: int64}}
sinks:
  p:
    type: print
    from: s
"""
    assert fix_file_text(text, "a.yaml") == (f"version: 1\n{text}", ["added `version: 1`"])


def test_mistakes_are_for_people() -> None:
    with pytest.raises(PipelineFileError):
        fix_file_text(OLD.replace("blocks: #", "block: #"), "feed.yaml")


THEIRS = """\
# orders, as the old system has them
sources:
  orders: {type: kafka, topic: orders, schema: {id: int64, name: string, xs: string}, primary_key: id}

transforms:
  # only some
  clean:
    type: sql   # a projection
    # the pattern is Postgres'
    sql: |
      -- names of people
      SELECT id, name
      FROM orders WHERE name ~ '^[A-Z]'
  chosen: {type: sql, sql: "SELECT id, xs[-1] AS c FROM orders WHERE name ~ 'x'"}
  plain: {type: sql, sql: 'SELECT id FROM orders'}
  said: {type: sql, dialect: postgres, sql: "SELECT id FROM orders WHERE name ~ 'x'"}
sinks:
  out: {type: print, from: clean} # to look at
  two: {type: blackhole, from: chosen}
  three: {type: blackhole, from: plain}
  four: {type: blackhole, from: said}
version: 1
name: orders
"""


def test_sql_that_only_another_dialect_can_read_gets_its_name() -> None:
    text, notes = fix_file_text(THEIRS, "orders.yaml")
    assert notes == [
        (
            "node 'clean': added `dialect: datafusion`, since Spark cannot read its SQL (postgres would read"
            " the same)"
        ),
        "node 'chosen': added `dialect: datafusion`, since Spark cannot read its SQL",
    ]
    added = THEIRS.replace("    sql: |\n", "    dialect: datafusion\n    sql: |\n")
    assert text == added.replace("chosen: {type: sql, ", "chosen: {type: sql, dialect: datafusion, ")
    assert fix_file_text(text, "orders.yaml") == (text, [])


def test_a_dialect_is_added_beside_other_spellings() -> None:
    old = OLD.replace(
        "  transforms: {}\n",
        "  transforms:\n    some: {type: sql, sql: \"SELECT id FROM blocks WHERE at::text ~ 'x'\"}\n",
    ).replace("from: blocks", "from: some")
    text, notes = fix_file_text(old, "feed.yaml")
    assert notes[:2] == [
        (
            "node 'some': added `dialect: datafusion`, since Spark cannot read its SQL (postgres would read the"
            " same)"
        ),
        "took off `definition:` round the file",
    ]
    assert "some: {type: sql, dialect: datafusion, sql:" in text


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT id ^ 2 AS x FROM orders WHERE name ~ 'x'",  # bitwise xor in DataFusion, power in Postgres
        "SELECT id FROM orders WHERE name ~ 'x' AND",
        "SELECT count(*) FROM orders WHERE name ~ 'x'",
    ],
)
def test_what_has_several_meanings_or_none_is_for_people(statement: str) -> None:
    with pytest.raises(PipelineFileError):
        fix_file_text(
            THEIRS.replace("SELECT id FROM orders'", f"{statement.replace(chr(39), chr(39) * 2)}'"),
            "orders.yaml",
        )


@pytest.mark.parametrize(
    "text", ["a: [", "- a\n", "transforms: 5\n", "transforms: {a: 5, b: {sql: 7}}\n", ""]
)
def test_what_is_no_pipeline_is_for_people(text: str) -> None:
    with pytest.raises(PipelineFileError):
        fix_file_text(text, "a.yaml")

"""`validate --fix`: today's spelling, the same pipeline, and nothing else touched."""

from __future__ import annotations

import pytest

from headrace.pipeline.errors import PipelineFileError
from headrace.pipeline.file import parse_pipeline
from headrace.pipeline.fix import fixed

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
    text, said = fixed(OLD, "feed.yaml")
    assert said == [
        "took off `definition:` round the file",
        "node 'blocks': removed `parallelism`, which has no effect",
        "node 'blocks': removed `batch_flush_interval`, which has no effect",
        "node 'out': removed `deduplicate`, which has no effect",
        "added `version: 1`",
        "added `name: feed`",
    ]
    assert parse_pipeline(text, "feed.yaml").hash == parse_pipeline(OLD, "feed.yaml").hash
    assert parse_pipeline(text, "feed.yaml").warnings == ()
    for kept in ("# from the old system", "# the feed", "# where it goes", "# quoted", '"chain.blocks"', "'blocks'"):
        assert kept in text
    assert fixed(text, "feed.yaml") == (text, [])


def test_a_file_in_todays_spelling_is_left_alone_to_the_byte() -> None:
    text = "version: 1\nname: a\nsources:\n    s:   {type: kafka, topic: t, schema: {id: int64}}\nsinks: { p: {type: print, from: s} }"
    assert fixed(text, "a.yaml") == (text, [])


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
    assert fixed(text, "a.yaml") == (f"version: 1\n{text}", ["added `version: 1`"])


def test_mistakes_are_for_people() -> None:
    with pytest.raises(PipelineFileError):
        fixed(OLD.replace("blocks: #", "block: #"), "feed.yaml")

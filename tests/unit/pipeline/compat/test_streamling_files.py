"""Keys of Streamling's topology files.

Taken as it is, with a word where it does nothing here.
"""

from __future__ import annotations

import pytest

from headrace.pipeline.errors import UserError
from headrace.pipeline.file.loader import load_pipeline, parse_pipeline

TOPOLOGY = """\
sources:
  blocks:
    type: kafka
    topic: chain.blocks
    data_format: json
    schema: {id: int64, at: timestamp}
    primary_key: id
    parallelism: 2
    batch_flush_interval: 1s
    telemetry: {event_time: {column: at, unit: milliseconds}, labels: {team: data}}
transforms: {}
sinks:
  out:
    type: postgres
    from: blocks
    schema: public
    table: blocks
    parallelism: 2
    batch_size: 100
    batch_flush_interval: 500ms
    deduplicate: true
"""


def line(warning: UserError) -> int:
    assert warning.place
    assert warning.place.line
    return warning.place.line


def _indented(text: str) -> str:
    return "".join(f"  {line}" for line in text.splitlines(keepends=True))


def test_a_topology_file_is_read_as_it_is(tmp_path):
    (tmp_path / "block-feed.v2.yaml").write_text(TOPOLOGY)
    file = load_pipeline(tmp_path / "block-feed.v2.yaml")
    assert file.name == "block-feed"
    assert [(w.node, line(w), w.message) for w in file.warnings] == [
        ("blocks", 8, "`parallelism` has no effect"),
        ("blocks", 9, "`batch_flush_interval` has no effect"),
        ("out", 18, "`parallelism` has no effect"),
        ("out", 19, "`batch_size` has no effect"),
        ("out", 20, "`batch_flush_interval` has no effect"),
    ]
    assert all(warning.hint for warning in file.warnings)


def test_keys_without_effect_do_not_change_what_the_ledger_compares():
    plain = parse_pipeline(TOPOLOGY, "t.yaml")
    changed = (
        TOPOLOGY.replace("parallelism: 2", "parallelism: 7")
        .replace("team: data", "team: other")
        .replace("batch_size: 100", "batch_size: 9")
    )
    assert parse_pipeline(changed, "t.yaml").hash == plain.hash
    assert parse_pipeline(TOPOLOGY.replace("table: blocks", "table: other"), "t.yaml").hash != plain.hash


def test_a_definition_around_the_file_is_taken_off():
    wrapped = parse_pipeline(f"definition:\n{_indented(TOPOLOGY)}", "t.yaml")
    plain = parse_pipeline(TOPOLOGY, "t.yaml")
    assert wrapped.hash == plain.hash
    assert wrapped.place("sinks", "out", "table").line == 18
    assert [line(warning) for warning in wrapped.warnings] == [
        line(warning) + 1 for warning in plain.warnings
    ]


@pytest.mark.parametrize(
    ("shown", "name"),
    [
        ("a/orders.yaml", "orders"),
        ("Größe & mehr.yml", "Gr_e_mehr"),
        ("2024.yaml", "pipeline_2024"),
        ("---.yaml", "pipeline_---"),
        ("ü.yaml", "pipeline"),
    ],
)
def test_a_file_without_a_name_is_named_after_itself(shown, name):
    assert parse_pipeline(TOPOLOGY, shown).name == name
    assert parse_pipeline(f"name: own\n{TOPOLOGY}", shown).name == "own"


def test_a_source_without_a_key_before_a_sink_that_could_use_one():
    result = parse_pipeline(TOPOLOGY.replace("    primary_key: id\n", ""), "t.yaml").warnings
    assert next(str(warning) for warning in result).startswith(
        "t.yaml:2:3: node 'blocks': Can't determine primary key for source 'blocks'!"
    )
    own = TOPOLOGY.replace("    primary_key: id\n", "").replace(
        "table: blocks", "table: blocks\n    primary_key: id"
    )
    assert not any("primary key" in warning.message for warning in parse_pipeline(own, "t.yaml").warnings)
    printed = (
        TOPOLOGY.replace("    primary_key: id\n", "").split("  out:")[0]
        + "  out: {type: print, from: blocks}\n"
    )
    assert not any("primary key" in warning.message for warning in parse_pipeline(printed, "t.yaml").warnings)

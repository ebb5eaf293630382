"""Which files certainly need Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.jobs.planning.portable_functions import _MICROSECONDS
from headrace.jobs.planning.portable_sql import _SelectParser
from headrace.jobs.planning.spark_needs import needs_spark
from headrace.pipeline.file.loader import parse_pipeline
from headrace.pipeline.sql.portable_syntax import GUARDED_CALLS, GUARDED_VALUES, VALUES

KAFKA = "type: kafka, topic: t, primary_key: id, schema: {id: int64, v: string}"
CLICKHOUSE = "type: clickhouse, table_name: t, primary_key: id"
PLAIN = "SELECT id, v FROM src WHERE id > 3"
MAPPED = "SELECT id, upper(v) AS v FROM src"
POSTGRES = "postgres, table: x"
FILE = """
name: p
sources: {{src: {{{source}}}}}
transforms: {{t: {{type: sql, sql: "{sql}"{more}}}}}
sinks:
  out: {{from: t, type: {sink}}}
"""


def test_syntax_and_parser_have_the_same_expressions() -> None:
    def expressions(*, guarded: bool) -> set[type]:
        parser = _SelectParser("t", pa.schema([]), any_year=False, integers=False, guarded=guarded)
        return set(parser._rules)

    assert expressions(guarded=False) == {*VALUES}
    assert expressions(guarded=True) == {*VALUES, *GUARDED_VALUES}
    assert set(_MICROSECONDS) == GUARDED_CALLS


@pytest.mark.parametrize(
    ("source", "sql", "sink", "reads_history", "needed"),
    [
        (KAFKA, PLAIN, POSTGRES, True, False),
        (KAFKA, MAPPED, POSTGRES, True, False),
        (CLICKHOUSE, PLAIN, POSTGRES, True, False),
        (CLICKHOUSE, MAPPED, POSTGRES, True, False),
        (KAFKA, "SELECT id, initcap(v) AS v FROM src", POSTGRES, False, True),
        (KAFKA, "SELECT id FROM src UNION ALL SELECT id FROM src", POSTGRES, False, True),
        (KAFKA, PLAIN, "iceberg, table_name: a.b", False, True),
        (KAFKA + ", filter: id > 3", PLAIN, POSTGRES, False, False),
        (KAFKA + ", filter: initcap(v) = 'A'", PLAIN, POSTGRES, False, True),
        (KAFKA + ", filter: id > 3) or (id < 1", PLAIN, POSTGRES, False, True),
        (CLICKHOUSE + ", filter: cityHash64(v) > 1", PLAIN, POSTGRES, True, False),
        ("type: delta, path: /t, filter: id > 3", PLAIN, POSTGRES, True, True),
    ],
)
def test_needs_of_files(source: str, sql: str, sink: str, reads_history: bool, needed: bool) -> None:
    file = parse_pipeline(FILE.format(source=source, sql=sql, sink=sink, more=""), "f.yaml")
    assert needs_spark(file, "local[2]", reads_history=reads_history) is needed


def test_tasks_of_a_cluster_leave_no_values_to_spark() -> None:
    file = parse_pipeline(FILE.format(source=CLICKHOUSE, sql=MAPPED, sink=POSTGRES, more=""), "f.yaml")
    assert needs_spark(file, "spark://host:7077", reads_history=True)
    assert not needs_spark(file, "spark://host:7077", reads_history=False)


def test_a_transform_with_dead_letters_needs_spark() -> None:
    text = FILE.format(source=KAFKA, sql=PLAIN, sink=POSTGRES, more=", on_error: dead_letter")
    file = parse_pipeline(text + "  bad: {type: postgres, table: bad, from: t.errors}\n", "f.yaml")
    assert needs_spark(file, "local[2]", reads_history=False)

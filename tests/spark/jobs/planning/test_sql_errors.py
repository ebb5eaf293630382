"""Translation of the analyzer's errors: a name, a line of the SQL, a suggestion."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headrace.jobs.spark.analysis_errors import explain_analysis_error


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (
            "SELECT idd FROM t",
            "there is no column `idd`; did you mean `id`?",
            "Line 1 of the SQL: SELECT idd FROM t\nThere are: id, at, st, name.",
        ),
        (
            "SELECT id,\n  t.nam\nFROM t",
            "there is no column `t.nam`; did you mean `name`?",
            "Line 2 of the SQL: t.nam\nThere are: at, name, id, st.",
        ),
        (
            "SELECT id FROM t WHERE nothing = 1",
            "there is no column `nothing`",
            "Line 1 of the SQL: SELECT id FROM t WHERE nothing = 1\nThere are: at, id, st, name.",
        ),
        (
            "SELECT st.b FROM t",
            "there is no field `b`",
            "Line 1 of the SQL: SELECT st.b FROM t\nThere are: a.",
        ),
        (
            "SELECT lengthh(name) FROM t",
            "there is no function `lengthh`; did you mean `length`?",
            "Line 1 of the SQL: SELECT lengthh(name) FROM t",
        ),
        (
            "SELECT id FROM t WHERE name",
            (
                'Cannot resolve "name" due to data type mismatch: Filter expression "name" of type "STRING" is'
                " not a boolean."
            ),
            "--- SQL ---\nSELECT id FROM t WHERE name",
        ),
        (
            "SELECT CAST(at AS INT array) FROM t",
            "Syntax error at or near 'array'.",
            "--- SQL ---\nSELECT CAST(at AS INT array) FROM t",
        ),
    ],
)
def test_an_error_of_the_analyzer(spark: SparkSession, text: str, message: str, hint: str) -> None:
    session = spark.newSession()
    session.sql(
        "SELECT 1 AS id, 'x' AS name, named_struct('a', 1) AS st, timestamp'2024-01-01' AS at"
    ).createOrReplaceTempView("hr_t_0")
    with pytest.raises(PySparkException) as caught:
        session.sql(text.replace("FROM t", "FROM hr_t_0 AS t"))
    assert explain_analysis_error(caught.value, text) == (message, hint)

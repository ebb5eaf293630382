"""Every example and every edge case of the registry, on Spark, as the page of functions shows them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING

import pytest

from headrace.jobs.failures import as_headrace_error
from headrace.jobs.functions import provide
from headrace.pipeline import sql
from headrace.pipeline.errors import DataError, UserError
from headrace.pipeline.functions import Function, Group, Where, distinct

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
NOW = datetime(2025, 3, 4, 5, 6, 7, 890000, UTC)
FUNCTIONS = sorted(distinct(), key=lambda one: (one.group, one.name))
PLAIN = {"ConstantFolding", "ConvertToLocalRelation", "NullPropagation"}


def _text(function: Function, call: str) -> str:
    dialect = "datafusion" if function.where is Where.DATAFUSION else "spark"
    return sql.with_hidden(f"SELECT CAST({call} AS STRING) AS v FROM one", (), now=NOW, node="shown", dialect=dialect)


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """Nothing is computed before rows are read: what runs is what runs over columns."""
    made = spark.newSession()
    rules = "org.apache.spark.sql.catalyst.optimizer"
    made.conf.set("spark.sql.optimizer.excludedRules", ",".join(f"{rules}.{rule}" for rule in sorted(PLAIN)))
    made.sql("SELECT named_struct('source', 0, 'part', 1, 'off', 2L, 'sub', 0L) AS _gs_pos").createOrReplaceTempView("one")
    yield made
    made.catalog.dropTempView("one")


@pytest.mark.parametrize("group", [group for group in Group if any(one.group is group for one in FUNCTIONS)])
def test_examples_and_edge_cases(session: SparkSession, group: Group) -> None:
    shown = [(function, call, result) for function in FUNCTIONS if function.group is group for call, result in function.examples]
    found: list[str] = []
    for start in range(0, len(shown), 40):
        part = shown[start : start + 40]
        texts = [_text(function, call) for function, call, _ in part]
        columns = [text.removeprefix("SELECT ").removesuffix(" AS v FROM one") + f" AS c{place}" for place, text in enumerate(texts)]
        whole = f"SELECT {', '.join(columns)} FROM one"
        provide(session, whole)
        row = session.sql(whole).collect()[0]
        found += ["NULL" if value is None else value for value in row]
    wrong = [f"{call}: {value!r}, not {result!r}" for (_, call, result), value in zip(shown, found, strict=True) if value != result]
    assert not wrong, "\n".join(wrong)


FAILING = [(function, call, said) for function in FUNCTIONS for call, said in function.errors]


@pytest.mark.parametrize(("function", "call", "said"), [one for one in FAILING if not one[0].arrow or one == next(o for o in FAILING if o[0].group == one[0].group and o[0].arrow)], ids=lambda one: one if isinstance(one, str) and "(" in one else "")
def test_errors_reach_the_user(session: SparkSession, function: Function, call: str, said: str) -> None:
    try:
        text = _text(function, call)
    except UserError as error:
        assert said in str(error)
        return
    provide(session, text)
    with pytest.raises(Exception) as caught:
        session.sql(text).collect()
    error = as_headrace_error(caught.value)
    assert isinstance(error, DataError)
    assert said in error.message
    assert error.node == "shown"
    assert "Traceback" not in str(error)

"""Every example and edge case of the function registry, on Spark."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, cast

import pytest
import sqlglot
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from headrace.jobs.functions import provide
from headrace.jobs.spark.errors import as_headrace_error
from headrace.pipeline.errors import DataError, UserError
from headrace.pipeline.functions import DialectScope, Function, Group, distinct, parsed_names
from headrace.pipeline.sql import statements

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from sqlglot import exp

NOW = datetime(2025, 3, 4, 5, 6, 7, 890000, UTC)
FUNCTIONS = sorted(distinct(), key=lambda one: (one.group, one.name))
AT_ONCE = 12
"""Calls in one statement: more of them make code that takes long to compile."""
PLAIN = {"ConstantFolding", "ConvertToLocalRelation", "NullPropagation"}


class _DataFusion(statements.DIALECT):
    """Spark's syntax with the names of the other dialect."""

    class Parser(statements.DIALECT.Parser):
        FUNCTIONS: ClassVar[dict[str, Any]] = {
            **statements.DIALECT.Parser.FUNCTIONS,
            **parsed_names("datafusion"),
        }


def _text(function: Function, call: str) -> str:
    dialect = _DataFusion if function.where is DialectScope.DATAFUSION else statements.DIALECT
    query = sqlglot.parse_one(f"SELECT CAST({call} AS STRING) AS v FROM one", dialect=dialect)
    return statements.compile_statement(cast("exp.Query", query), (), now=NOW, node="shown")


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """Nothing is computed before rows are read: what runs is what runs over columns."""
    made = spark.newSession()
    rules = "org.apache.spark.sql.catalyst.optimizer"
    made.conf.set("spark.sql.optimizer.excludedRules", ",".join(f"{rules}.{rule}" for rule in sorted(PLAIN)))
    made.sql(
        "SELECT named_struct('source', 0, 'part', 1, 'off', 2L, 'sub', 0L) AS _gs_pos"
    ).createOrReplaceTempView("one")
    yield made
    made.catalog.dropTempView("one")


@pytest.mark.parametrize("group", [group for group in Group if any(one.group is group for one in FUNCTIONS)])
def test_examples_and_edge_cases(session: SparkSession, group: Group) -> None:
    shown = [
        (function, call, result)
        for function in FUNCTIONS
        if function.group is group
        for call, result in function.examples
    ]
    actual: list[str] = []
    for start in range(0, len(shown), AT_ONCE):
        part = shown[start : start + AT_ONCE]
        texts = [_text(function, call) for function, call, _ in part]
        columns = [
            text.removeprefix("SELECT ").removesuffix(" AS v FROM one") + f" AS c{place}"
            for place, text in enumerate(texts)
        ]
        whole = f"SELECT {', '.join(columns)} FROM one"
        provide(session, whole)
        row = session.sql(whole).collect()[0]
        actual += ["NULL" if value is None else value for value in row]
    wrong = [
        f"{call}: {value!r}, not {result!r}"
        for (_, call, result), value in zip(shown, actual, strict=True)
        if value != result
    ]
    assert not wrong, "\n".join(wrong)


ARROW_ONCE = {one.group: one.name for one in FUNCTIONS if one.arrow and one.errors}
FAILING = [
    pytest.param(function, call, message, id=call[:60])
    for function in FUNCTIONS
    for call, message in function.errors
    if not function.arrow or ARROW_ONCE[function.group] == function.name
]
"""Those of Arrow functions are tested without Spark; one of a group shows that they come through."""


@pytest.mark.parametrize(("function", "call", "message"), FAILING)
def test_errors_reach_the_user(session: SparkSession, function: Function, call: str, message: str) -> None:
    with pytest.raises((UserError, PySparkException, Py4JError)) as caught:  # noqa: PT012  where it fails depends on the function
        text = _text(function, call)
        provide(session, text)
        session.sql(text).collect()
    error = as_headrace_error(caught.value)
    assert type(error) in (UserError, DataError)
    assert message in error.message
    assert error.node == "shown"
    assert "Traceback" not in str(error)

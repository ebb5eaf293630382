"""JSON paths in a thousand difficult documents, compared with Python's parser."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest

from headrace.pipeline.sql import statements

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEXTS = (
    "",
    "null",
    "{",
    "[",
    "{}",
    "[]",
    '{"a":1}',
    '["a"]',
    "it's",
    "\\",
    'x"y',
    "{x}",
    "[1]",
    "nullx",
    " {",
)
PATHS: dict[str, tuple[str | int, ...]] = {
    "$": (),
    "$.v": ("v",),
    "$.v[0]": ("v", 0),
    "$.w.a": ("w", "a"),
    "$[1]": (1,),
}
FUNCTIONS = ("json_value", "json_query", "json_exists")


def _value(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.choices(("text", "null", "scalar", "list", "object"), (4, 1, 1, 2, 2))[0]
    match kind:
        case "text":
            return chance.choice(TEXTS)
        case "list" if depth < 3:
            return [_value(chance, depth + 1) for _ in range(chance.randint(0, 3))]
        case "object" if depth < 3:
            return {chance.choice("abc"): _value(chance, depth + 1) for _ in range(chance.randint(0, 3))}
        case "null":
            return None
    return chance.choice((1, True, False, 10**20))


def _document(chance: random.Random) -> tuple[Any, str]:
    value = {"v": _value(chance), "w": _value(chance)} if chance.random() < 0.8 else _value(chance)
    text = json.dumps(value, indent=chance.choice((None, None, 1)))
    return value, text.replace('"{', '"\\u007b') if chance.random() < 0.2 else text


def _at(value: Any, path: tuple[str | int, ...]) -> Any:
    for step in path:
        match value, step:
            case list(), int() if step < len(value):
                value = value[step]
            case dict(), str():
                value = value.get(step)
            case _:
                return None
    return value


def _wanted(value: Any) -> tuple[str | None, Any, bool]:
    inner = value if isinstance(value, (dict, list)) else None
    scalar = (
        None if inner is not None or value is None else value if isinstance(value, str) else json.dumps(value)
    )
    return scalar, inner, value is not None


@pytest.mark.parametrize(
    "around",
    [pytest.param("{}", marks=pytest.mark.slow), "CASE WHEN n >= 0 THEN {} END"],
    ids=["a column", "under a condition"],
)
def test_lookups_find_what_python_finds(spark: SparkSession, around: str) -> None:
    chance = random.Random(around)
    documents = [_document(chance) for _ in range(1000)]
    table = spark.createDataFrame(
        [(place, text) for place, (_, text) in enumerate(documents)], "n LONG, doc STRING"
    )
    table.createOrReplaceTempView("documents")
    assert len({text for _, text in documents}) > 500
    for path, steps in PATHS.items():
        columns = ", ".join(around.format(f"{name}(doc, '{path}')") for name in FUNCTIONS)
        rows = spark.sql(
            statements.compile_statement(statements.parse(f"SELECT n, {columns} FROM documents"), ())
        ).collect()
        for row in rows:
            value, text = documents[row[0]]
            result = (row[1], json.loads(row[2]) if row[2] is not None else None, row[3])
            assert result == _wanted(_at(value, steps)), f"{path} of {text}"

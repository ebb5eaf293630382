"""The python source: what its function returns, and what is refused."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from headrace.connectors.python.config import PythonSourceConfig
from headrace.connectors.python.source import PythonRowSource
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import DataError, HeadraceError, SchemaError, UserError

MODULE = """
import sys

import pyarrow as pa

BATCH = pa.record_batch({"id": pa.array([1, 2], pa.int32()), "v": ["a", None], "more": [[1], [2]]})


def one_batch():
    return BATCH


def a_table(first=0):
    return pa.table({"v": ["x"], "id": [first]})


def a_list():
    return [BATCH, pa.Table.from_batches([BATCH])]


def batches(count):
    for _ in range(count):
        yield BATCH


def nothing():
    return iter(())


def none():
    return None


def yields_none():
    yield BATCH
    yield None


def rows():
    yield {"id": 1}


def lacks_column():
    yield pa.table({"id": [1]})


def column_twice():
    yield pa.table([[1], [2], ["a"]], names=["id", "id", "v"])


def wrong_type():
    yield BATCH
    yield pa.table({"id": ["x"], "v": ["a"]})


def loses_digits():
    yield pa.table({"id": [1.5], "v": ["a"]})


def fails():
    yield BATCH
    raise ValueError("no such year")


def exits():
    sys.exit(3)
"""


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "trial_rows.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("trial_rows", None)


def read(function: str, schema: dict[str, str] | None = None, **options: Any) -> list[dict[str, Any]]:
    made = {"function": function, "schema": schema or {"id": "int64", "v": "string"}, "options": options}
    settings = Settings.model_validate({"python_transforms": {"allow": ["trial_rows"]}})
    source = PythonRowSource(PythonSourceConfig.model_validate(made), settings, 3, "src")
    return [row for table in source.read_batches() for row in table.to_pylist()]


TWO = [{"id": 1, "v": "a"}, {"id": 2, "v": None}]


@pytest.mark.parametrize(
    ("name", "options", "rows"),
    [
        ("one_batch", {}, TWO),
        ("a_table", {"first": 7}, [{"id": 7, "v": "x"}]),
        ("a_list", {}, [*TWO, *TWO]),
        ("batches", {"count": 3}, [*TWO, *TWO, *TWO]),
        ("nothing", {}, []),
    ],
)
def test_what_a_function_returns_are_the_rows(
    name: str, options: dict[str, Any], rows: list[dict[str, Any]]
) -> None:
    assert read(f"trial_rows:{name}", **options) == rows


def test_values_are_cast_to_the_declared_types() -> None:
    assert read("trial_rows:a_table", {"id": "decimal(21, 2)"}, first=5) == [{"id": Decimal("5.00")}]
    assert read("trial_rows:one_batch", {"v": "string"}) == [{"v": "a"}, {"v": None}]


REFUSED: list[tuple[str, type[HeadraceError], list[str]]] = [
    ("none", SchemaError, ["returned NoneType"]),
    ("yields_none", SchemaError, ["returned NoneType"]),
    ("rows", SchemaError, ["returned dict"]),
    ("lacks_column", SchemaError, ["returned no column `v`", "it returned id."]),
    ("column_twice", SchemaError, ["returned `id` twice"]),
    ("wrong_type", DataError, ["column `id` of `trial_rows:wrong_type` is string and must be int64"]),
    ("loses_digits", DataError, ["column `id`", "truncated"]),
    ("fails", DataError, ["failed after 2 rows: ValueError: no such year", "trial_rows.py:62"]),
    ("exits", DataError, ["failed after 0 rows: SystemExit: 3", "trial_rows.py:66"]),
    ("batches", UserError, ["cannot be called with these `options`", "count"]),
    ("absent", UserError, ["no function `absent`"]),
]


@pytest.mark.parametrize(("name", "kind", "parts"), REFUSED, ids=[name for name, *_ in REFUSED])
def test_a_function_that_does_not_give_rows_is_an_error(
    name: str, kind: type[HeadraceError], parts: list[str]
) -> None:
    with pytest.raises(kind) as caught:
        read(f"trial_rows:{name}")
    assert caught.value.node == "src"
    text = f"{caught.value} {caught.value.hint}"
    assert [part for part in parts if part not in text] == [], text


def test_a_module_that_the_settings_do_not_allow_is_not_imported(tmp_path: Path) -> None:
    (tmp_path / "other_rows.py").write_text("raise SystemExit('imported')\n")
    with pytest.raises(UserError, match="do not allow Python from `other_rows`"):
        read("other_rows:make")
    assert "other_rows" not in sys.modules

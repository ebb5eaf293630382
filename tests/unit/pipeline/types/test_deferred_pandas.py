"""pyarrow does without pandas until something imports it, and knows its types from then on."""

from __future__ import annotations

import subprocess
import sys

import pytest

BEFORE = """
import sys
import pyarrow as pa
import headrace.pipeline.types.arrow
assert pa.array([1, None]).to_pylist() == [1, None]
assert pa.RecordBatch.from_pylist([{"a": 1}]).to_pylist() == [{"a": 1}]
assert pa.scalar("x").as_py() == "x"
assert "pandas" not in sys.modules
"""


def run(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", BEFORE + code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("statement", ["import pandas as pd", "from pandas import api; import pandas as pd"])
def test_a_series_is_one_after_the_import_of_pandas(statement: str) -> None:
    run(
        statement
        + """
assert pa.array(pd.Series([1.5, float("nan")])).null_count == 1
assert pa.array(pd.Categorical(["a", "b", "a"])).type == pa.dictionary(pa.int8(), pa.large_string())
assert pa.Table.from_pandas(pd.DataFrame({"a": [1, 2]}))["a"].to_pylist() == [1, 2]
assert type(pd.__spec__.loader).__module__.startswith(("importlib", "_frozen_importlib"))
assert not any("deferred_pandas" in type(finder).__module__ for finder in sys.meta_path)
"""
    )


def test_pyarrow_imports_pandas_where_a_frame_is_made() -> None:
    run('assert list(pa.table({"a": [1, 2]}).to_pandas()["a"]) == [1, 2]')


def test_two_threads_import_it_at_once() -> None:
    run(
        """
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
with ThreadPoolExecutor(4) as pool:
    found = list(pool.map(lambda _: import_module("pandas"), range(4)))
assert len(set(map(id, found))) == 1
assert pa.array(found[0].Series([1.5, float("nan")])).null_count == 1
"""
    )


def test_pandas_that_is_imported_before_stays_known() -> None:
    code = "import pandas as pd\n" + BEFORE.replace('assert "pandas" not in sys.modules', "")
    code += 'assert pa.array(pd.Series([1.5, float("nan")])).null_count == 1\n'
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

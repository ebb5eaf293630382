"""The JVM of a Dagster run dies: one failure names that, and nothing is tried again with its session."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.checkout import ROOT
from helpers.depth import with_slow


@pytest.mark.parametrize("point", with_slow({"checks"}, ["run", "checks"]))
def test_a_dead_jvm_is_one_failure_that_names_it(written, tmp_path: Path, point: str) -> None:
    script = ROOT / "tests/helpers/dead_jvm_job.py"
    done = subprocess.run(
        [sys.executable, script, written(), tmp_path, point], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer = json.loads((tmp_path / "answer.json").read_text())
    assert answer["said"] is not None, answer
    assert "Spark's JVM was ended by signal 9" in answer["said"]
    assert "spark.driver_memory" in answer["said"]
    assert "Connection" not in answer["said"]
    assert answer["calls"] == (["run"] if point == "run" else ["run", "checks"])
    assert (answer["sessions"], answer["retries"], answer["failures"]) == (1, 0, 1)

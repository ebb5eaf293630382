"""The commands of the Dagster guide, run as written, leave runs that `headrace ui` in that folder shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.checkout import ROOT
from helpers.dagster_ui import dagster_ui
from helpers.pipeline_world import World

GUIDE = ROOT / "docs/guides/dagster.md"
_BLOCK = re.compile(r"^```bash[^\n]*\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_LAUNCHES = re.compile(r"\b(?:dg launch|dagster (?:asset|job)|headrace\.orchestration\.materialize)\b")
FLIGHTS = """\
name: flights
sources:
  flights: {type: file, primary_key: id, path: data/flights, format: csv, mode: bounded, schema: {id: int64, day: date32}}
sinks:
  flights_pg: {type: postgres, from: flights, table: flights}
  lake: {type: delta, from: flights, path: lake/flights}
partitions: {column: day, every: month, start: 2013-01, end: 2013-12}
"""
MONTHS = [f"2013-{month:02d}-01" for month in range(1, 12)]
_RUNS = """{ runsOrError { ... on Runs { results {
  jobName status assetSelection { path } stats { ... on RunStatsSnapshot { materializations } } } } } }"""
_PARTITIONS = """query($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode {
  partitionStats { numMaterialized numPartitions } } } }"""


def commands() -> list[str]:
    """The blocks of the guide that launch something."""
    result = [match["text"] for match in _BLOCK.finditer(GUIDE.read_text())]
    return [text for text in result if _LAUNCHES.search(text)]


@pytest.fixture
def folder(world: World) -> Path:
    """A folder as a user has it: pipelines/, data/, and nothing of Dagster."""
    (world.folder / "pipelines").mkdir()
    (world.folder / "pipelines" / "flights.yaml").write_text(FLIGHTS)
    data = world.folder / "data" / "flights"
    data.mkdir(parents=True)
    rows = "".join(f"{number},{month}\n" for number, month in enumerate(MONTHS))
    (data / "flights.csv").write_text(f"id,day\n{rows}")
    return world.folder


def test_docs_commands_begin_with_dg_launch() -> None:
    result = commands()
    assert len(result) >= 3
    assert "dg launch" in result[0]
    assert "DAGSTER_HOME" in result[0]
    assert not [text for text in result if "dagster asset" in text], "Dagster calls it superseded"


# Three runs in processes of their own, and the web server: 150 s on the CI machine.
@pytest.mark.timeout(1500)
def test_docs_commands_leave_runs_that_the_pages_show(world: World, folder: Path) -> None:
    environment = {key: value for key, value in world.env().items() if key != "DAGSTER_HOME"}
    script = "\n".join(commands())
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-x", "-c", script],
        cwd=folder,
        env=environment | {"PATH": f"{Path(sys.executable).parent}:{environment['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    with dagster_ui(folder, environment) as pages:
        runs = pages.ask(_RUNS)["runsOrError"]["results"]
        assert [run["status"] for run in runs] == ["SUCCESS"] * len(commands())
        assert {run["jobName"] for run in runs} == {"__ASSET_JOB", "flights_operate"}
        for key in (["postgres", "public", "flights"], ["delta", "flights"]):
            stats = pages.ask(_PARTITIONS, key={"path": key})["assetNodeOrError"]["partitionStats"]
            assert stats == {"numMaterialized": 3, "numPartitions": 11}

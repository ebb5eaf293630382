"""A person's way through the pages: backfill, stream, Terminate, a failed check and its repair."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from helpers.dagster_ui import DagsterUi, dagster_ui
from helpers.pipeline_world import HISTORY, World, until
from playwright.sync_api import Page, expect, sync_playwright

PARTITIONS = """query($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode {
  partitionStats { numMaterialized numPartitions } } } }"""
CHECKS = """query($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode {
  assetChecksOrError { ... on AssetChecks { checks { name executionForLatestMaterialization { status } } } } } } }"""
RUNS = "{ runsOrError { ... on Runs { results { runId jobName status } } } }"
TICKS = """query($name: String!) { instigationStateOrError(instigationSelector: {name: $name,
  repositoryName: "__repository__", repositoryLocationName: "headrace"}) { ... on InstigationState {
  ticks(limit: 20) { status skipReason } } } }"""
TARGET = ["postgres", "public", "target"]


@pytest.fixture
def ui(world: World) -> Iterator[DagsterUi]:
    """`headrace ui` over the pipeline of the world."""
    with dagster_ui(world.folder, world.env() | {"HEADRACE_PIPELINES": str(world.file)}) as services:
        yield services


@pytest.fixture
def page() -> Iterator[Page]:
    """A page of Chromium."""
    names = ("chromium", "chromium-browser", "google-chrome")
    browser = next(filter(None, map(shutil.which, names)), None)
    assert browser, f"none of {', '.join(names)} is on the path: install the package `chromium`"
    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        result = opened.new_page(viewport={"width": 1280, "height": 800})
        result.set_default_timeout(30_000)
        yield result
        opened.close()


class Person:
    """Looks at the pages, and keeps a picture of each step."""

    def __init__(self, ui: DagsterUi, page: Page, pictures: Path) -> None:
        self.ui, self.page, self.pictures = ui, page, pictures

    def open(self, path: str) -> None:
        """Open a page by its path."""
        self.page.goto(f"http://127.0.0.1:{self.ui.port}{path}")

    def click(self, name: str, *, exact: bool = False) -> None:
        """Click the first button with this name."""
        self.page.get_by_role("button", name=name, exact=exact).first.click()

    def picture(self, name: str, *texts: str) -> None:
        """Wait for texts on the page, then keep a picture."""
        for text in texts:
            expect(self.page.get_by_text(text).first).to_be_visible(timeout=60_000)
        self.page.wait_for_timeout(1500)  # animations
        self.page.screenshot(path=self.pictures / f"{name}.png")

    def failed_checks(self) -> list[str]:
        """The checks of the target whose newest result is a failure."""
        node = self.ui.ask(CHECKS, key={"path": TARGET})["assetNodeOrError"]
        checks = node["assetChecksOrError"]["checks"]
        return [
            check["name"]
            for check in checks
            if (check["executionForLatestMaterialization"] or {}).get("status")
            in ("FAILED", "EXECUTION_FAILED")
        ]

    def runs(self, job: str, status: str) -> list[str]:
        """The runs of a job with a status."""
        runs = self.ui.ask(RUNS)["runsOrError"]["results"]
        return [run["runId"] for run in runs if (run["jobName"], run["status"]) == (job, status)]


@pytest.mark.timeout(1800)
def test_a_person_loads_history_ends_the_stream_and_repairs_a_table(
    ui: DagsterUi, page: Page, world: World, tmp_path: Path
) -> None:
    pictures = Path(os.environ.get("HEADRACE_TEST_PICTURES") or tmp_path)
    person = Person(ui, page, pictures)
    person.open("/asset-groups")
    person.picture("graph", "lake", "target", "history", world.name)

    person.click("Materialize all")
    person.click("All", exact=True)
    person.picture("backfill", "Launch backfill")
    person.click("Launch backfill")

    def partitions() -> dict[str, int]:
        return ui.ask(PARTITIONS, key={"path": TARGET})["assetNodeOrError"]["partitionStats"]

    # The supervisor starts the stream when the history is complete. It fills the last partition.
    until(lambda: partitions() == {"numMaterialized": 3, "numPartitions": 3}, "all partitions", 400)
    (stream,) = until(lambda: person.runs(f"{world.name}_stream", "STARTED"), "the stream", 120)
    person.open("/assets/postgres/public/target?view=partitions")
    person.picture("partitions", "Materialized (3)", "Failed (0)")

    person.open(f"/runs/{stream}")
    person.picture("stream", "Launched by", f"{world.name}_stream_op")
    person.click("Terminate")
    person.click("Terminate 1 run")
    until(lambda: ui.status(stream) == "CANCELED", "the end of the stream", 120)
    person.open(f"/runs/{stream}")
    person.picture("terminated", "Canceled")

    with psycopg.connect(world.conninfo) as connection:
        connection.execute("DELETE FROM target WHERE id = (SELECT min(id) FROM target)")
    person.open("/assets/postgres/public/target?view=checks")
    person.click("Execute all")
    until(lambda: {"content_matches", "row_count_matches"} <= set(person.failed_checks()), "red checks", 300)
    person.open("/assets/postgres/public/target?view=checks&checkDetail=content_matches")

    person.picture("check", "id=0: missing", "what to do")


SCHEDULED = """
name: {name}
sources: {{src: {{type: clickhouse, table_name: {database}.history, columns: [id, day, name, amount]}}}}
sinks: {{pg: {{type: postgres, from: src, table: target, primary_key: id}}}}
partitions: {{column: day, every: month, start: 2024-01, end: open, any_order: true}}
schedule: {{cron: "* * * * *"}}
"""


@pytest.mark.timeout(1800)
def test_a_person_looks_at_a_scheduled_run(world: World, page: Page, tmp_path: Path) -> None:
    """`headrace ui` turns the schedule on. A tick starts one run of all partitions, the next tick none."""
    world.file.write_text(SCHEDULED.format(name=world.name, database=world.database))
    pictures = Path(os.environ.get("HEADRACE_TEST_PICTURES") or tmp_path)
    schedule, job = f"{world.name}_schedule", f"{world.name}_history"
    with dagster_ui(world.folder, world.env() | {"HEADRACE_PIPELINES": str(world.file)}) as services:
        person = Person(services, page, pictures)
        person.open("/automation")
        person.picture("automation", schedule, "Scheduled Every minute")
        (run,) = until(lambda: person.runs(job, "SUCCESS"), "the scheduled run", 300)
        person.open(f"/runs/{run}")
        person.picture("scheduled-run", schedule, "Success")
        listed = services.ask(PARTITIONS, key={"path": TARGET})["assetNodeOrError"]["partitionStats"]
        assert listed["numMaterialized"] == listed["numPartitions"]

        def reasons() -> list[str]:
            ticks = services.ask(TICKS, name=schedule)["instigationStateOrError"]["ticks"]
            return [tick["skipReason"] for tick in ticks if tick["status"] == "SKIPPED"]

        done = "all partitions up to"
        until(lambda: any(done in (reason or "") for reason in reasons()), "a tick without work", 200)
        person.open(f"/automation/schedules/headrace/{schedule}")
        person.picture("ticks", schedule)
        assert person.runs(job, "SUCCESS") == [run]
    with psycopg.connect(world.conninfo) as connection:
        assert connection.execute("SELECT count(*) FROM target").fetchone() == (HISTORY,)

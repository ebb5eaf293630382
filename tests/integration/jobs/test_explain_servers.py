"""`headrace explain` with real servers.

What it foresees is what a run does, and it leaves nothing behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import clickhouse_connect
from helpers.pipeline_world import World

from headrace.connectors.ledger.factory import open_ledger
from headrace.jobs.explain.build import explain
from headrace.jobs.explain.text import text
from headrace.jobs.run.events import Until
from headrace.jobs.run.runner import run
from headrace.pipeline.file.loader import load_pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def tables(world: World) -> list[str]:
    with clickhouse_connect.get_client(
        **world.services.clickhouse.client_arguments(database=world.database)
    ) as client:
        return [
            row[0]
            for row in client.query(
                "SELECT name FROM system.tables WHERE database = currentDatabase() ORDER BY name"
            ).result_rows
        ]


def test_the_listed_splits_are_those_that_a_run_reads_and_no_snapshot_is_created(
    world: World, spark: SparkSession
) -> None:
    world.write_file_without_spark()
    file, settings = load_pipeline(world.file), world.settings()
    before = tables(world)
    result = explain(file, settings, splits=True, spark=spark)
    assert tables(world) == before
    assert result.splits
    assert not result.splits.unchecked
    assert all(not node.unchecked and node.complete for node in result.nodes)
    assert run(file, settings, until=Until.HISTORY, spark=spark).history_complete
    ledger = open_ledger(settings)
    try:
        pages = [event["data"] for event in ledger.events(file.name) if event["kind"] == "splits"]
    finally:
        ledger.close()
    assert {
        (page["source"], page["window"], len(page["splits"]), sum(split["rows"] for split in page["splits"]))
        for page in pages
    } == {
        (summary.source, summary.partition, summary.count, summary.rows)
        for summary in result.splits.summaries
    }
    assert "no snapshot was created" in text(result)

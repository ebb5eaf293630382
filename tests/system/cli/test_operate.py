"""`headrace restart`, `rebuild`, `prune`, `compact` and `vacuum` on real servers, with kills inside."""

from __future__ import annotations

import psycopg
import pytest
from helpers.cli_commands import run_commands
from helpers.pipeline_world import World, until
from helpers.world_commands import Commands
from pyspark.sql import SparkSession

from headrace.pipeline.protocol.ledger import PipelineState


def execute(world: World, *arguments: str) -> tuple[int, str]:
    code, out, errors = Commands(world).run(*arguments)
    return code, out + errors


def state(world: World) -> PipelineState:
    result = Commands(world).state()
    assert result
    return result


def remove_row(world: World) -> None:
    with psycopg.connect(world.conninfo) as connection:
        connection.execute("DELETE FROM target WHERE id = (SELECT min(id) FROM target)")


def test_operations_report_their_changes_before_they_make_them(world: World) -> None:
    file = str(world.file)
    world.write_file_without_spark()
    assert world.run()["caught_up"]
    before, rows = state(world), world.in_postgres()
    operations = (("restart", file), ("rebuild", file, "--sink", "pg"), ("prune", file, "--keep", "1"))
    unconfirmed = operations[-1]
    dry_runs = [(*operation, "--dry-run") for operation in operations]
    answers = run_commands([*dry_runs, unconfirmed], cwd=world.folder, env=world.env())
    for dry_run in dry_runs:
        text = answers[dry_run].out + answers[dry_run].errors
        assert answers[dry_run].code == 0, text
        assert "No run is active." in text
        assert "Nothing was changed (--dry-run)." in text
    assert answers[unconfirmed].code == 1
    assert "Add --yes to confirm" in answers[unconfirmed].errors
    after = state(world)
    assert (after.committed, after.kept_from) == (before.committed, before.kept_from)
    assert world.in_postgres() == rows
    code, text = execute(world, *unconfirmed, "--yes")
    assert code == 0, text
    assert f"{before.committed - before.kept_from} epochs are rolled up." in text
    assert state(world).kept_from == before.committed


# test_operations has the same story through Dagster, daily.
@pytest.mark.slow
def test_the_files_of_a_lake_are_compacted_and_removed(world: World, spark: SparkSession) -> None:
    file = str(world.file)
    world.run_here(spark)
    before = {path.name for path in world.lake.glob("*.parquet")}
    code, text = execute(world, "compact", file, "--sink", "pg", "--yes")
    assert code == 1
    assert "Only tables of these types have files to maintain: delta, iceberg." in text
    code, text = execute(world, "compact", file, "--yes")
    assert code == 0, text
    assert "would be rewritten into 1." in text
    assert "No run is active." in text
    assert ", and has 1 file (" in text
    assert len({path.name for path in world.lake.glob("*.parquet")} - before) == 1
    code, text = execute(world, "vacuum", file, "--older-than", "200", "--dry-run")
    assert code == 0, text
    assert "0 files (0.000 MB) would be removed, which no version of the last 200 hours needs." in text
    assert "Nothing was changed (--dry-run)." in text
    assert before <= {path.name for path in world.lake.glob("*.parquet")}
    world.check(spark)


def test_operations_rebuild_a_sink_after_a_kill(world: World) -> None:
    file = str(world.file)
    world.write_file_without_spark()
    assert world.run()["caught_up"]
    remove_row(world)
    process = Commands(world).start("rebuild", file, "--sink", "pg", "--yes")

    def has_begun() -> bool:
        assert process.poll() is None, process.communicate()
        return state(world).sinks["pg"].state == "replaying"

    until(has_begun, "the rebuild", seconds=300)
    process.kill()
    process.wait()
    until(
        lambda: execute(world, "rebuild", file, "--sink", "pg", "--yes")[0] == 0, "the rebuild", seconds=300
    )
    world.check_without_spark()

"""A request for a refresh whose owner dies: the next owner finishes what has begun, or begins again."""

from __future__ import annotations

from datetime import date

import psycopg
import pytest
from helpers.pipeline_world import World, until
from helpers.revised_history import JANUARY, allow_any_order, ask, revise, untouched_keys
from helpers.world_commands import Commands
from pyspark.sql import SparkSession

from headrace.pipeline.errors import HeadraceError
from headrace.pipeline.protocol.ledger import RefreshState

pytestmark = pytest.mark.sampled


@pytest.mark.parametrize(
    ("point", "nth", "snapshots"),
    [
        pytest.param("refresh-begun", 1, 2, marks=pytest.mark.slow),
        pytest.param("planned", 2, 1, marks=pytest.mark.slow),
        pytest.param("committed", 2, 1, marks=pytest.mark.slow),
        pytest.param("planned", 3, 1, marks=pytest.mark.slow),
        ("sinks-written", 3, 1),
        pytest.param("refresh-ending", 1, 1, marks=pytest.mark.slow),
    ],
)
def test_a_stream_that_dies_in_a_refresh(
    world: World,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    nth: int,
    snapshots: int,
) -> None:
    """The process that requested the refresh has ended. Rows that history gets after its snapshot stay out.

    The first epoch of the stream is one message, the second refers to the snapshot, the third has January.
    `snapshots` is 2 if no epoch referred to the first one.
    """
    world.write_file_without_spark()
    allow_any_order(world)
    commands = Commands(world)
    assert world.run_here(spark).caught_up
    keys = untouched_keys(world)
    revise(world, keys)
    world.produce([("d", world.expected[keys[50]], keys[50] % 2)])
    del world.expected[keys[50]]
    before = commands.epoch()
    monkeypatch.setenv("HEADRACE_TEST_UNTIL", "forever")
    process = world.start(point, nth, "group")
    until(lambda: commands.epoch() > before, "the stream")
    with commands.ledger() as ledger:
        number = ledger.request_refresh(world.name, [JANUARY], by="a test").number
    out, _ = process.communicate(timeout=300)
    assert "now: " in out, (world.folder / "run.log").read_text()[-3000:]

    if snapshots == 1:
        ask(world, "ALTER TABLE history UPDATE name = 'after the snapshot' WHERE 1")
    assert world.run_here(spark).caught_up
    assert world.in_postgres() == sorted(world.expected.values())
    with commands.ledger() as ledger:
        result = ledger.refresh_request(world.name, number)
    assert result is not None
    assert result.state is RefreshState.DONE
    assert (result.first_epoch, result.last_epoch, commands.epoch()) == (before + 2, before + 3, before + 3)


def test_a_refresh_that_a_sink_refuses_is_refused_by_the_next_run_which_goes_on(
    world: World, spark: SparkSession
) -> None:
    """The sink keeps the rows of the partition, and messages that arrive meanwhile are written."""
    world.write_file_without_spark()
    allow_any_order(world)
    commands = Commands(world)
    assert world.run_here(spark).caught_up
    keys, former = untouched_keys(world), dict(world.expected)
    revise(world, keys)
    with psycopg.connect(world.conninfo) as connection:
        connection.execute("ALTER TABLE target ADD CONSTRAINT no_fixed CHECK (name <> 'fixed')")
    with commands.ledger() as ledger:
        number = ledger.request_refresh(world.name, [JANUARY], by="a test").number
    with pytest.raises(HeadraceError, match="no_fixed"):
        world.run_here(spark)
    state = commands.state()
    assert state
    assert state.open_plan

    message = (keys[60], date(2024, 3, 2), "newer", 1)
    world.produce([("u", message, keys[60] % 2)])
    world.expected[keys[60]] = former[keys[60]] = message
    assert world.run_here(spark).caught_up
    assert world.in_postgres() == sorted(former.values())
    with commands.ledger() as ledger:
        result = ledger.refresh_request(world.name, number)
    assert result
    assert result.state is RefreshState.REFUSED
    assert f"epoch {state.open_plan.number} failed: pg: " in result.message
    assert "no_fixed" in result.message

    with psycopg.connect(world.conninfo) as connection:
        connection.execute("ALTER TABLE target DROP CONSTRAINT no_fixed")
    with commands.ledger() as ledger:
        ledger.request_refresh(world.name, [JANUARY], by="a test")
    assert world.run_here(spark).caught_up
    assert world.in_postgres() == sorted(world.expected.values())
    code, out, err = commands.run("audit", str(world.file))
    assert code == 0, out + err

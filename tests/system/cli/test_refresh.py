"""`headrace run --refresh` next to a running stream: the stream executes the request, then goes on."""

from __future__ import annotations

import json
import signal

import pytest
from helpers.pipeline_world import World, leftovers, paused, until
from helpers.revised_history import (
    JANUARY,
    allow_any_order,
    ask,
    produce,
    revise,
    start_stream,
    untouched_keys,
    wait_for_rows,
)
from helpers.world_commands import Commands

from headrace.pipeline.protocol.ledger import RefreshState


@pytest.fixture
def commands(world: World) -> Commands:
    world.write_file_without_spark()
    allow_any_order(world)
    return Commands(world)


def refresh(commands: Commands) -> tuple[str, ...]:
    return "run", str(commands.world.file), "--refresh", "--partition", JANUARY


def test_a_running_stream_refreshes_partitions_that_another_process_requests(
    commands: Commands, world: World
) -> None:
    process = start_stream(commands)
    keys = untouched_keys(world)
    revise(world, keys)
    with paused(process):  # it cannot read the request
        command = commands.start(*refresh(commands))
        until(commands.pending_refreshes, "the request")
        text, document = commands.run_all(("status", str(world.file)), ("status", str(world.file), "--json"))
        assert f"refresh of {JANUARY} by " in text[1]
        assert ": queued\n" in text[1]
        ((pending,),) = (pipeline["refreshes"] for pipeline in json.loads(document[1]))
        assert (pending["number"], pending["partitions"]) == (1, [JANUARY])
        command.send_signal(signal.SIGINT)
        out, err = command.communicate(timeout=60)
        assert (command.returncode, out) == (0, ""), err
        assert f"the refresh of {JANUARY} is queued for the run (host " in err
        assert "the request stays" in err
        assert [one.number for one in commands.pending_refreshes()] == [1]
    until(lambda: not commands.pending_refreshes(), "the refresh", seconds=120)
    wait_for_rows(world, process)

    ask(world, f"ALTER TABLE history UPDATE name = 'twice' WHERE id = {keys[45]}")
    world.expected[keys[45]] = (keys[45], world.expected[keys[45]][1], "twice", keys[45] * 3)
    before = commands.epoch()
    code, out, err = commands.run(*refresh(commands))
    assert code == 0, err
    assert out == f"{world.name}: refreshed {JANUARY}, epochs {before + 1} to {before + 2}\n"
    wait_for_rows(world, process)
    produce(world, keys[0], "newer")
    wait_for_rows(world, process)
    status, audit, stop = commands.run_all(
        ("status", str(world.file), "--json"), ("audit", str(world.file)), ("stop", str(world.file))
    )
    assert [pipeline["refreshes"] for pipeline in json.loads(status[1])] == [[]]
    assert audit[0] == 0, audit
    assert stop[0] == 0
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert f"{world.name}: refreshing {JANUARY} by " in err
    assert leftovers(world) == []


def test_a_refusal_is_the_result_of_the_request_and_the_stream_goes_on(
    commands: Commands, world: World
) -> None:
    """February comes after January, so a key with rows in both would keep the row of January."""
    world.write_file_without_spark()
    process = commands.start_run(idle=True)
    code, out, err = commands.run(*refresh(commands))
    assert (code, out) == (1, "")
    reason = f"partition {JANUARY} cannot be loaded after 2024-02-01"
    assert f"error[HR200]: the refresh of {JANUARY} was refused: {reason}" in err
    assert "set `any_order: true` in `partitions`" in err
    with commands.ledger() as ledger:
        result = ledger.refresh_request(world.name, 1)
    assert result is not None
    assert (result.state, result.first_epoch) == (RefreshState.REFUSED, None)
    produce(world, 1, "newer")
    wait_for_rows(world, process)
    assert commands.run("stop", str(world.file))[0] == 0
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert f"refused to refresh {JANUARY} by " in err
    world.check_without_spark()


@pytest.mark.slow  # a kill of the stream during the refresh has a daily test
def test_a_command_that_waits_takes_over_from_a_stream_that_dies(commands: Commands, world: World) -> None:
    process = start_stream(commands)
    revise(world, untouched_keys(world))
    with paused(process):
        command = commands.start(*refresh(commands))
        until(commands.pending_refreshes, "the request")
        process.kill()
    out, err = command.communicate(timeout=300)
    assert command.returncode == 0, err
    assert "History complete." in out
    assert commands.pending_refreshes() == []
    assert world.in_postgres() == sorted(world.expected.values())
    assert leftovers(world) == []

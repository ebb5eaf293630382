"""`headrace stop`, `pause` and `resume` on real servers, with kills around the request."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.forked_process import run_command
from helpers.pipeline_world import World, leftovers, paused, until
from helpers.world_commands import Commands


@pytest.fixture
def commands(world: World) -> Commands:
    world.write_file_without_spark()
    return Commands(world)


def test_stop_ends_the_present_run_and_pause_keeps_the_next_ones_away(
    commands: Commands, world: World
) -> None:
    file = str(world.file)
    assert commands.run_all(("stop", file), ("resume", file)) == [
        (0, f"{world.name} has not been started yet\n", ""),
        (0, f"{world.name} is not paused\n", ""),
    ]
    assert not world.ledger.exists()

    process = commands.start_run()
    code, out, err = commands.run("stop", file, "--reason", "deploy")
    assert code == 0, err
    assert "waiting for the run (host " in err
    assert out == f"{world.name}: stopped after epoch {commands.epoch()}\n"
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert f"{world.name}: stopped by a request, epoch" in out
    assert "stop requested by " in err
    assert ": deploy" in err
    assert commands.status()["request"]["reason"] == "deploy"
    assert leftovers(world) == []
    assert commands.run("stop", file) == (0, f"{world.name}: no run is active\n", "")

    world.produce(list(world.changes(random.Random(5), 50)))
    process = commands.start_run()  # the stop was not for this one
    code, out, _ = commands.run("pause", file, "--reason", "new schema")
    assert code == 0
    assert f"{world.name}: paused by " in out
    assert process.wait(timeout=300) == 0
    ended = commands.epoch()
    run, status, stop, repair = commands.run_all(
        ("run", file), ("status", file), ("stop", file), ("replay", file, "--sink", "pg", "--from", "1")
    )
    assert run[0] == 1
    assert f"error[HR205]: pipeline '{world.name}' is paused by " in run[2]
    assert f"headrace resume {file}" in run[2]
    assert "paused by " in status[1]
    assert "no run is active; it is paused by " in stop[1]
    assert repair[0] == 0, "a repair is no run"
    assert commands.epoch() == ended

    resume, run = commands.run_all(("resume", file), ("run", file, "--until", "caught-up"))
    assert "resumed. It was paused by " in resume[1]
    assert run[0] == 0
    world.check_without_spark()
    assert leftovers(world) == []


@pytest.mark.slow  # kills at every point of a run have daily tests
def test_kills_around_a_request(commands: Commands, world: World) -> None:
    file = str(world.file)
    process = commands.start_run(idle=True, HEADRACE__LEASE_SECONDS="600")
    with paused(process):  # it cannot read the request
        command = commands.start("stop", file)
        until(lambda: requested(commands), "the request")
        command.kill()  # the request stays
        code, _, err = commands.run("stop", file, "--timeout", "0")
        assert code == 1
        assert f"error[HR200]: the run of `{world.name}` has not ended within" in err
        process.kill()
    process.wait()
    assert "no run is active; the process of the last one has died" in commands.run("stop", file)[1]

    world.produce(list(world.changes(random.Random(5), 50)))
    process = commands.start_run(idle=True)  # the request was for the one before
    with paused(process):
        until(lambda: (state := commands.state()) and state.holder is None, "the end of the lease")
        code, out, _ = commands.run("stop", file)
        assert (code, "the lease has expired" in out) == (0, True)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "stopped by a request" in out

    command = commands.start("pause", file)
    command.kill()  # before or after its request
    command.wait()
    commands.run("resume", file)
    assert commands.run("run", file, "--until", "caught-up")[0] == 0
    world.check_without_spark()


def requested(commands: Commands) -> bool:
    state = commands.state()
    return bool(state and state.request and state.request.generation == state.generation)


@pytest.mark.parametrize("command", ["stop", "pause", "resume"])
def test_a_ledger_that_cannot_be_reached_is_one_error(
    command: str, written_file: Callable[[], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HEADRACE__STATE_BACKEND__BACKEND_TYPE", "postgres")
    monkeypatch.setenv("HEADRACE__STATE_BACKEND__POSTGRES__HOST", "127.0.0.1")
    monkeypatch.setenv("HEADRACE__STATE_BACKEND__POSTGRES__PORT", "1")
    done = run_command(command, str(written_file()), env=os.environ, cwd=tmp_path)
    assert done.returncode == 1
    assert "error[HR300]: the Postgres ledger cannot be used just now" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def written_file(tmp_path: Path) -> Callable[[], Path]:
    def write() -> Path:
        path = tmp_path / "pipeline.yaml"
        path.write_text(
            "name: small\nsources: {s: {type: kafka, topic: t, schema: {id: int64}}}\n"
            "sinks: {o: {type: print, from: s}}\n"
        )
        return path

    return write

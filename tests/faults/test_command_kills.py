"""Kill -9 at every durable write of a repair command: the next command or run finishes what it began."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import pytest
from helpers.depth import FULL
from helpers.forked_process import run_function
from helpers.pipeline_world import World
from helpers.world_commands import Commands

from headrace.jobs.checks.audit import audit
from headrace.pipeline.file.loader import load_pipeline
from headrace.pipeline.protocol.epochs import Phase

MOST_COMMITS = 60


def first_stream_epoch(world: World) -> int:
    with Commands(world).ledger() as ledger:
        return next(
            row.plan.number for row in ledger.epochs(world.name) if row.plan.phase is not Phase.HISTORY
        )


def lose_ledger(world: World) -> None:
    for suffix in ("", "-wal", "-shm"):
        world.ledger.with_name(world.ledger.name + suffix).unlink(missing_ok=True)


def build_command(world: World, command: str) -> list[str]:
    """Return the command with the file and its options."""
    options: Mapping[str, Sequence[str]] = {
        "rebuild": ("--sink", "pg", "--yes"),
        "accept-target": ("--sink", "pg"),
        "replay": ("--sink", "pg", "--from", "1"),
        "prune": ("--keep", "1", "--yes"),
        "recover": (),
    }
    if command == "rewind":
        return ["rewind", str(world.file), "--to", str(first_stream_epoch(world)), "--yes"]
    if command.startswith("reset"):
        return [*command.split(), str(world.file), "--yes"]
    return [command, str(world.file), *options[command]]


PREPARATIONS: Mapping[str, Callable[[World], None]] = {"recover": lose_ledger}
DONE_BEFORE = "no target is ahead of it"
"""A repeated `recover` is refused if the killed one had written the ledger."""
REPEATED = ("rebuild", "replay", "recover")
"""Commands that the user repeats after a kill. A run finishes the others, or they had no effect yet."""


def kill(world: World, nth: int, when: str, command: list[str]) -> bool:
    """Run a command that dies at its nth commit. Return False if it had fewer commits."""
    arguments = [str(nth), when, *command]
    done = run_function("helpers.command_driver:main", arguments, env=world.env(), cwd=world.folder)
    last = (done.stdout.splitlines() or [""])[-1]
    assert last in ("killed", "finished"), done.stdout + done.stderr
    return last == "killed"


def check(world: World) -> None:
    """Every row is in the target once, and the audit agrees with it."""
    assert world.in_postgres() == sorted(world.expected.values())
    failed = [one for one in audit(load_pipeline(world.file), world.settings()) if one.passed is False]
    assert failed == []


COMMANDS = (
    "reset --empty-targets",
    "reset --keep-targets",
    "rewind",
    "rebuild",
    "replay",
    "accept-target",
    "prune",
    "recover",
)
DAILY = (COMMANDS[0], "after")
"""Of this one two of the commits. `make test-faults` kills all commands."""
STEPS = {"before": 4, "after": 1}
"""The commits from one kill to the next. A kill before a commit leaves what a kill after the last one leaves."""


@pytest.mark.parametrize(
    ("command", "when"),
    [
        pytest.param(*case, marks=() if case == DAILY else pytest.mark.slow)
        for case in itertools.product(COMMANDS, ("before", "after"))
    ],
)
def test_a_killed_command_is_finished_by_the_next(world: World, command: str, when: str) -> None:
    world.write_file_without_spark()
    assert world.run()["caught_up"]
    for nth in range(1, MOST_COMMITS, STEPS[when]) if FULL else (3, 12):
        PREPARATIONS.get(command, lambda _: None)(world)
        call = build_command(world, command)
        if not kill(world, nth, when, call):
            assert nth > 1, "the command wrote nothing"
            assert FULL, "the command has fewer commits than the daily test needs"
            break
        if command in REPEATED:
            code, out, err = Commands(world).run(*call)
            assert code == 0 or DONE_BEFORE in err, out + err
        assert world.run()["caught_up"]
        check(world)
    else:
        assert not FULL, f"the command has more than {MOST_COMMITS} commits"
    assert world.run()["caught_up"]
    check(world)

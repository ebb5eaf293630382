"""Changes of the history of a world, which a refresh of January brings to the sinks."""

from __future__ import annotations

from datetime import date, timedelta

import clickhouse_connect

from helpers.forked_process import ForkedProcess
from helpers.pipeline_world import World, until
from helpers.world_commands import Commands

NEW = 9_000
JANUARY = "2024-01-01"


def allow_any_order(world: World) -> None:
    """Let partitions be loaded in any order, so that January can be refreshed, with large epochs of the stream."""
    text = world.file.read_text()
    for old, new in {
        "history_end: 2024-03-01": "history_end: 2024-03-01, any_order: true",
        "stream_rows: 250": "stream_rows: 2000",
    }.items():
        assert old in text
        text = text.replace(old, new)
    world.file.write_text(text)


def ask(world: World, *statements: str) -> None:
    arguments = world.services.clickhouse.client_arguments(database=world.database)
    with clickhouse_connect.get_client(**arguments) as client:
        for statement in statements:
            client.command(statement, settings={"mutations_sync": 1})


def revise(world: World, untouched: list[int]) -> None:
    """Change history: rows that the stream left alone, which the sinks must get, and rows that it changed.

    `untouched` are keys of January that no message has.
    """
    changed, removed = untouched[:20], untouched[20:40]
    january = {key for key in range(3_000) if key % 60 < 31}
    live = sorted(january - set(untouched))[:40]
    ask(
        world,
        f"ALTER TABLE history UPDATE name = 'fixed', amount = 77 WHERE id IN {(*changed, *live[:20])}",
        f"ALTER TABLE history DELETE WHERE id IN {(*removed, *live[20:])}",
        f"INSERT INTO history (id, day, name, amount) VALUES ({NEW}, '2024-01-05', 'late', 1)",
    )
    for key in changed:
        world.expected[key] = (key, world.expected[key][1], "fixed", 77)
    for key in removed:
        del world.expected[key]
    world.expected[NEW] = (NEW, date(2024, 1, 5), "late", 1)


def untouched_keys(world: World) -> list[int]:
    """Return the keys of January that are as history had them, and that the topic does not have."""
    start = date(2024, 1, 1)
    return [
        key
        for key, row in world.expected.items()
        if row == (key, start + timedelta(days=key % 60), f"n{key}", key * 3)
        and key % 60 < 31
        and key < 2_900
    ]


def start_stream(commands: Commands, lease_seconds: int = 600) -> ForkedProcess:
    """Start a run that keeps its lease while it is paused, and hardly writes the ledger. It has caught up."""
    process = commands.start("run", str(commands.world.file), HEADRACE__LEASE_SECONDS=str(lease_seconds))
    until(lambda: commands.world.count_rows() > 0, "the first rows", seconds=120)
    wait_for_rows(commands.world, process)
    until(lambda: (state := commands.state()) and state.open_plan is None, "the last commit", seconds=60)
    return process


def produce(world: World, key: int, name: str) -> None:
    row = (key, date(2024, 3, 2), name, 1)
    world.produce([("u", row, key % 2)])
    world.expected[key] = row


def wait_for_rows(world: World, process: ForkedProcess) -> None:
    """Wait until the stream, which runs, has written exactly the expected rows."""

    def is_written() -> bool:
        assert process.poll() is None, process.communicate()
        return world.in_postgres() == sorted(world.expected.values())

    until(is_written, "the rows", seconds=120)

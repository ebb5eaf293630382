"""Kills at random times, for sinks that tests/faults/test_random.py does not write to.

Files are in tests/faults/test_file_kills.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from faults import test_aggregate_kills as aggregate
from faults import test_clickhouse_kills as clickhouse
from faults import test_webhook_kills as webhook
from helpers.appended_rows import expected_appends, expected_rows
from helpers.depth import FULL
from helpers.pipeline_world import World
from helpers.random_kills import create_dice, kill_driver_or_group, kill_runs

KILLS = 15 if FULL else 2

pytestmark = pytest.mark.slow


@contextmanager
def keyed_table(world: World) -> Iterator[Callable[[], None]]:
    """A ClickHouse table with a key, read with FINAL."""
    clickhouse.with_table(world)

    def check() -> None:
        assert clickhouse.rows(world) == expected_rows(world)

    yield check


@contextmanager
def appended_table(world: World) -> Iterator[Callable[[], None]]:
    """A ClickHouse table without a key, of which an epoch is attached in several steps."""
    clickhouse.with_table(world, keyed=False)

    def check() -> None:
        assert clickhouse.rows(world, final=False) == expected_appends(world)

    yield check


@contextmanager
def totals(world: World) -> Iterator[Callable[[], None]]:
    """Totals in Postgres."""
    aggregate.with_totals(world)
    yield lambda: aggregate.check(world)


@contextmanager
def service(world: World) -> Iterator[Callable[[], None]]:
    """A service that remembers idempotency keys."""
    with webhook.hooked(world) as (_, receiver):
        yield lambda: webhook.check(world, receiver)


TARGETS = [keyed_table, appended_table, totals, service]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("target", TARGETS, ids=[target.__name__ for target in TARGETS])
def test_random_kills_of_a_sink(
    world: World, target: Callable[[World], AbstractContextManager[Callable[[], None]]]
) -> None:
    with target(world) as check:
        kill_runs(world, create_dice(), KILLS, kill_driver_or_group)
        check()

"""`headrace test` and the sink agree about the rows of a table, for any split into epochs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.pipeline_world import postgres_database
from helpers.postgres_epochs import Bench, plan

from headrace.jobs.testing.sink_state import apply_to_target
from headrace.services import Services

STEPS = 24
OPTIONS: list[dict[str, Any]] = [
    {},
    {"on_conflict": "nothing"},
    *({"update_where": {"v": op}} for op in (">", ">=", "<", "<=")),
]


@pytest.fixture(scope="module")
def pg(services: Services) -> Iterator[str]:
    """Yield a database for all tests here: each has a schema of its own."""
    with postgres_database(services) as conninfo:
        yield conninfo


@pytest.mark.parametrize(
    ("options", "cut"),
    [
        pytest.param(options, cut, marks=pytest.mark.slow if options and cut == 1 else ())
        for options in OPTIONS
        for cut in (1, 5, STEPS)
    ],
    ids=str,
)
def test_a_test_says_what_the_table_holds(bench: Bench, options: dict[str, Any], cut: int) -> None:
    draw = random.Random(f"{options} {cut}")
    steps = [(draw.choice("iuud"), draw.randrange(4), str(draw.randrange(9))) for _ in range(STEPS)]
    sink = bench.joined(**options)
    for number, at in enumerate(range(0, STEPS, cut), start=1):
        sink.write(plan(number), bench.frame(steps[at : at + cut]))
    rows = apply_to_target(
        "out",
        sink._context.node,
        ("id",),
        [{"id": key, "v": value, "_gs_op": op} for op, key, value in steps],
    )
    assert sorted((row["id"], row["v"]) for row in rows) == bench.rows()
    assert rows

"""Processes that die while they use a dynamic table.

What history brought is still there for the stream, and no sink sees otherwise.
"""

from __future__ import annotations

import pytest
from helpers.pipeline_world import HISTORY, World
from pyspark.sql import SparkSession

from headrace.jobs.run.repair import replay
from headrace.pipeline.file.loader import load_pipeline

# Epochs as in test_kills: 1 to 4 history, which alone fills the table, 5 to 8 stream. (backend, point, nth,
# who dies)
STEPS = [
    ("InMemory", "memory-filling", 3, "driver"),
    ("InMemory", "memory-filled", 1, "driver"),
    ("InMemory", "memory-filled", 6, "group"),
    ("InMemory", "postgres-only", 2, "group"),
    ("InMemory", "delta-only", 6, "driver"),
    ("InMemory", "sinks-written", 4, "group"),
    ("InMemory", "postgres-only", 7, "jvm"),
    ("Postgres", "outside-filled", 2, "driver"),
    ("Postgres", "staged", 3, "group"),
    ("Postgres", "postgres-only", 6, "group"),
]


@pytest.mark.slow  # test_transforms is the daily sample
@pytest.mark.parametrize(("backend", "point", "nth", "who"), STEPS)
def test_what_was_marked_stays_marked(
    world: World, spark: SparkSession, backend: str, point: str, nth: int, who: str
) -> None:
    marked = (
        f"\n  marked: {{type: dynamic_table, backend_type: {backend}, backend_entity_name: marked,"
        " sql: \"select cast(id as string) from src where name like 'n%' and amount % 2 = 0\"}"
    )
    text = world.file.read_text().replace(
        'from src"}', f"from src where dynamic_table_check('marked', cast(id as string))\"}}{marked}"
    )
    world.file.write_text(text)
    world.expected = {key: row for key, row in world.expected.items() if key < HISTORY and key % 2 == 0}
    assert world.crash(point, nth, who) != 0
    assert world.run_here(spark).caught_up
    world.check(spark)
    replay(load_pipeline(world.file), world.settings(), sink="pg", from_epoch=1, spark=spark)
    world.check(spark)

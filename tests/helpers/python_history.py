"""The history of a world from a function, in place of its ClickHouse table."""

from __future__ import annotations

import pytest

from helpers.pipeline_world import FROM_TOPIC, HISTORY, World

MODULE = '''\
from datetime import date, timedelta

import pyarrow as pa


def make_rows(history, from_topic):
    """Yield the history. Its last rows came from the topic."""
    first = history - from_topic
    for start in range(0, history, 500):
        keys = list(range(start, min(start + 500, history)))
        yield pa.table(
            {
                "id": keys,
                "day": [date(2024, 1, 1) + timedelta(days=key % 60) for key in keys],
                "name": [f"n{key}" for key in keys],
                "amount": [key * 3 for key in keys],
                "_kafka_partition": pa.array([0 if key >= first else None for key in keys], pa.int32()),
                "_kafka_offset": pa.array([key - first if key >= first else None for key in keys], pa.int64()),
            }
        )
'''
PIPELINE = """
name: {name}
sources:
  src:
    type: hybrid
    primary_key: id
    bounded_sources:
      - source_type: python
        function: world_history:make_rows
        options: {{history: {history}, from_topic: {from_topic}}}
        schema: {{id: int64, day: date32, name: string, amount: int64, _kafka_partition: int32, _kafka_offset: int64}}
    unbounded_source: {{source_type: kafka, topic: {name}, schema: {{id: int64, day: date32, name: string, amount: int64}}}}
    offset_table: {{}}
sinks: {{pg: {{type: postgres, from: src, table: target}}}}
epoch: {{interval: 0s, stream_rows: 250, history_rows: 1000}}
"""


def write_python_history(world: World, patch: pytest.MonkeyPatch) -> None:
    """Write the function and a pipeline file with it. Let this process and runs of the world call it."""
    (world.folder / "world_history.py").write_text(MODULE)
    patch.syspath_prepend(str(world.folder))
    patch.setenv("PYTHONPATH", str(world.folder), prepend=":")
    patch.setenv("HEADRACE__PYTHON_TRANSFORMS__ALLOW", "world_history")
    world.file.write_text(PIPELINE.format(name=world.name, history=HISTORY, from_topic=FROM_TOPIC))

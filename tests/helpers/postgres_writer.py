"""A process that writes epochs of 100 rows through the driver until it is killed: `postgres_writer.py JSON`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.connectors.postgres.load import NewKeyLoad, write_table
from headrace.connectors.postgres.sink import PostgresSink

sys.path.insert(0, str(Path(__file__).parents[1]))  # tests start this file by its path
from helpers.postgres_epochs import SCHEMA, Bench, plan

EACH = 100


def rows(number: int) -> pa.Table:
    """The rows of one epoch as they leave Spark."""
    ids = range(number * EACH, (number + 1) * EACH)
    zero = pa.array([0] * EACH, pa.int32())
    place = {
        "_gs_source": zero,
        "_gs_part": zero,
        "_gs_off": pa.array(ids, pa.int64()),
        "_gs_sub": zero.cast(pa.int64()),
    }
    return pa.table(
        {"id": pa.array(ids, pa.int64()), "v": [f"v{at}" for at in ids], "_gs_op": ["i"] * EACH, **place}
    )


def write_next(sink: PostgresSink) -> int:
    """Writes the epoch behind the record's; returns its number."""
    record = sink.record()
    assert record is not None
    number = record.epoch + 1
    write_table(
        sink._connections.loader, sink._store, sink._loading, plan(number), rows(number), NewKeyLoad()
    )
    return number


def main(options: dict[str, Any]) -> None:
    """Takes over with the given generation, then writes, and says so in a file after each epoch."""
    bench = Bench(options["parameters"], None, options["schema"], options["pipeline"])
    sink = bench.joined(SCHEMA, options["generation"], key=())
    while True:
        number = write_next(sink)
        Path(options["progress"]).write_text(str(number))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

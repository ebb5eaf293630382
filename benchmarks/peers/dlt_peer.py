"""dlt: Arrow tables from a resource, CSV with COPY into Postgres, delta-rs into the lake."""

# The packages are in the environment of `make bench-peers` only.
# pyright: reportMissingImports=false

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.peers.task import PeerTask, parse_messages, print_step, read_batches, read_messages, read_task


def read_history(task: PeerTask) -> Iterator[Any]:
    """Yield the table's rows."""
    import pyarrow as pa

    for batch in read_batches(task):
        yield pa.Table.from_batches([batch])


def read_topic(task: PeerTask) -> Iterator[Any]:
    """Yield the topic's messages with their number, by which dlt finds the newest of a key."""
    import pyarrow as pa

    begin = 0
    for values, _ in read_messages(task, task.target):
        table = parse_messages(values)
        numbers = pa.array(range(begin, begin + len(table)), pa.int64())
        begin += len(table)
        yield table.append_column("n", numbers) if task.scenario == "B" else table


def main() -> None:
    """Run one pipeline, which extracts, normalizes and loads."""
    os.environ["RUNTIME__DLTHUB_TELEMETRY"] = "false"
    os.environ["DATA_WRITER__DISABLE_COMPRESSION"] = "true"
    import dlt

    task = read_task()
    lake = Path(task.lake).parent
    destination: Any = (
        dlt.destinations.postgres(task.postgres_uri)
        if task.scenario in "AB"
        else dlt.destinations.filesystem(f"file://{lake.parent}")
    )
    pipeline = dlt.pipeline(
        task.target,
        pipelines_dir=task.state,
        destination=destination,
        dataset_name="public" if task.scenario in "AB" else lake.name,
    )
    resource = dlt.resource(
        read_history(task) if task.scenario in "AD" else read_topic(task),
        name=task.target,
        primary_key="id" if task.scenario in "AB" else None,
        write_disposition="merge" if task.scenario == "B" else "append",
        columns={"n": {"dedup_sort": "desc"}} if task.scenario == "B" else None,
        table_format="delta" if task.scenario in "CD" else None,
    )
    print_step("ready")
    pipeline.run(resource, loader_file_format="csv" if task.scenario in "AB" else "parquet")
    print_step("end")


if __name__ == "__main__":
    main()

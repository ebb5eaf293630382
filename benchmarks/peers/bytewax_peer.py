"""Bytewax: its Kafka source, and a sink that writes batches. It has no source for ClickHouse."""

# The packages are in the environment of `make bench-peers` only.
# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import bytewax.operators as op
from adbc_driver_postgresql import dbapi
from bytewax.connectors.kafka import KafkaSource
from bytewax.dataflow import Dataflow
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.run import cli_main
from deltalake import write_deltalake

from benchmarks.peers.bare import create_stage, merge_messages
from benchmarks.peers.task import BATCH, PeerTask, parse_messages, print_step, read_task


class MessagePartition(StatelessSinkPartition[bytes]):
    """Collects messages and writes them a batch at a time."""

    def __init__(self, write: Callable[[list[bytes]], None]) -> None:
        self._write = write
        self._values: list[bytes] = []

    def write_batch(self, items: list[bytes]) -> None:
        """Collect messages. Write a full batch."""
        self._values += items
        if len(self._values) >= BATCH:
            self.close()

    def close(self) -> None:
        """Write what was collected."""
        if self._values:
            self._write(self._values)
            self._values = []


def open_writer(task: PeerTask) -> Callable[[list[bytes]], None]:
    """Return a function that writes messages to the scenario's target."""
    if task.scenario == "B":
        connection = dbapi.connect(task.postgres_uri)
        create_stage(connection, task.target)
        return partial(merge_messages, connection, task.target)
    return lambda values: write_deltalake(task.lake, parse_messages(values), mode="append")


class BatchSink(DynamicSink[bytes]):
    """A sink of the scenario."""

    def __init__(self, task: PeerTask) -> None:
        self.task = task

    def build(self, step_id: str, worker_index: int, worker_count: int) -> StatelessSinkPartition[bytes]:
        """Return the sink's only partition."""
        del step_id, worker_index, worker_count
        return MessagePartition(open_writer(self.task))


def build_flow(task: PeerTask) -> Dataflow:
    """Return the flow from the topic to the sink."""
    flow = Dataflow("peer")
    source: Any = KafkaSource([task.brokers], [task.topic], tail=False, batch_size=10_000)
    messages = op.input("topic", flow, source)
    values = op.map("value", messages, lambda message: message.value)
    op.output("sink", values, BatchSink(task))
    return flow


if __name__ == "__main__":
    task_ = read_task()
    recovery = Path(task_.state) / "recovery"
    if not recovery.exists():
        recovery.mkdir(parents=True)
        init_db_dir(recovery, 1)
    print_step("ready")
    cli_main(
        build_flow(task_),
        epoch_interval=timedelta(seconds=1),
        recovery_config=RecoveryConfig(str(recovery)),
    )
    print_step("end")

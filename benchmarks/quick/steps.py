"""The steps of `make bench-quick`: none of them starts Spark.

What counts is the processor time of this process, and of several epochs the least: other work on the machine
changes the time that passes far more. Waits and the work of the servers do not count; `make bench` measures them.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from time import process_time
from typing import Any

from adbc_driver_postgresql import dbapi

from benchmarks.kit import HISTORY, STREAM, BenchmarkRunner, random_name
from benchmarks.peers import bare
from benchmarks.peers.task import parse_messages, read_messages
from benchmarks.quick.comparison import RatioStep
from headrace.connectors.kafka.arrow_decoder import ArrowMessageDecoder
from headrace.connectors.kafka.message_batch import MessageBatch

HISTORY_ROWS = 300_000
LARGE_EPOCH, LARGE_EPOCHS = 50_000, 4
SMALL_EPOCH, SMALL_EPOCHS = 1_000, 25
WARMING = 5
"""Small epochs of a run that do not count. Of large ones the first does not."""
DECODED, DECODES = 20_000, 25


def create_steps(runner: BenchmarkRunner) -> list[RatioStep]:
    """Create the data, and return all steps."""
    table = runner.create_table(HISTORY_ROWS)
    messages = LARGE_EPOCH * LARGE_EPOCHS
    topic = runner.create_topic(messages, messages // 5)
    small_topic = runner.create_topic(SMALL_EPOCH * SMALL_EPOCHS, SMALL_EPOCH * SMALL_EPOCHS // 3)
    return [
        decode_step(),
        small_epoch_step(runner, small_topic),
        RatioStep(
            "upsert",
            f"epoch of {LARGE_EPOCH:,} messages, Kafka to Postgres by key",
            lambda: min(_run_stream(runner, topic, LARGE_EPOCH)),
            lambda: min(_upsert_bare(runner, topic, LARGE_EPOCH)),
        ),
        RatioStep(
            "history",
            f"{HISTORY_ROWS:,} rows, ClickHouse to Postgres, direct route",
            lambda: _run_history(runner, table),
            lambda: _copy_bare(runner, table),
        ),
    ]


def decode_step(messages: int = DECODED) -> RatioStep:
    """Return the step that needs no server: JSON messages to checked columns, compared with Arrow's parser."""
    values: list[bytes | None] = [
        f'{{"id":{at},"name":"n{at}","amount":{at / 7}}}'.encode() for at in range(messages)
    ]
    same: list[Any] = [None] * messages
    batch = MessageBatch(values, [0] * messages, list(range(messages)), [0] * messages, same, same)
    plain = [value for value in values if value is not None]
    decoder = ArrowMessageDecoder({"id": "int64", "name": "string", "amount": "float64"}, 0, metadata=False)
    return RatioStep(
        "decode",
        f"{messages:,} JSON messages to columns",
        lambda: _least_processor_time(lambda: decoder.decode(batch)),
        lambda: _least_processor_time(lambda: parse_messages(plain)),
    )


def small_epoch_step(runner: BenchmarkRunner, topic: str) -> RatioStep:
    """Return the step of small epochs, compared with a merge of as many messages without a ledger."""
    return RatioStep(
        "epoch",
        f"epoch of {SMALL_EPOCH:,} messages, Kafka to Postgres by key",
        lambda: min(_run_stream(runner, topic, SMALL_EPOCH)[WARMING:]),
        lambda: min(_upsert_bare(runner, topic, SMALL_EPOCH)[WARMING:]),
    )


def _least_processor_time(work: Callable[[], object]) -> float:
    return min(_measure(work) for _ in range(DECODES))


def _measure(work: Callable[[], object]) -> float:
    """Return the processor time of all threads of this process during the work, in seconds."""
    began = process_time()
    work()
    return process_time() - began


def _run_stream(runner: BenchmarkRunner, topic: str, rows: int) -> list[float]:
    """Run a topic into a new table. Return the processor time of each epoch but the first."""
    name = random_name()
    commits: list[float] = []
    runner.run_pipeline(
        STREAM.format(name=name, topic=topic, target=name, rows=rows),
        on_commit=lambda: commits.append(process_time()),
    )
    return [after - before for before, after in pairwise(commits)]


def _upsert_bare(runner: BenchmarkRunner, topic: str, batch: int) -> list[float]:
    """Merge a topic into a new table. Return the processor time of each batch but the first, with its reading."""
    task = runner.create_task("B", 0, topic=topic, target=random_name())
    commits: list[float] = []
    with dbapi.connect(task.postgres_uri) as connection:
        bare.create_stage(connection, task.target)
        for values, consumer in read_messages(task, task.target, batch):
            bare.merge_messages(connection, task.target, values)
            consumer.commit(asynchronous=False)
            commits.append(process_time())
    return [after - before for before, after in pairwise(commits)]


def _run_history(runner: BenchmarkRunner, table: str) -> float:
    name = random_name()
    text = HISTORY.format(name=name, table=table, transforms="", last="src", target=name)
    seconds = _measure(lambda: runner.run_pipeline(text))
    assert runner.count_rows(name) == HISTORY_ROWS
    return seconds


def _copy_bare(runner: BenchmarkRunner, table: str) -> float:
    """Return the processor time of a copy in this process."""
    task = runner.create_task("A", HISTORY_ROWS, table=table, target=random_name())
    return _measure(lambda: (bare.create_history_table(task), bare.copy_range(task, 0, HISTORY_ROWS)))

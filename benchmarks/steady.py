"""Steady streams: small upserts into two sinks, and the latency of rows at a fixed rate."""

from __future__ import annotations

import secrets
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

import numpy as np
from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.kit import STREAM, BenchmarkRunner, format_rate
from headrace.jobs.run.events import EpochCommitted, Event, Until
from headrace.jobs.run.runner import run
from headrace.pipeline.file.loader import parse_pipeline

_KEYS = 300_000
_EPOCH = 5_000
_EPOCHS = 40
BOTH = STREAM.replace("sinks:", "sinks:\n  lake: {{type: delta, from: src, path: '{folder}/{target}'}}")
_RATE = 10_000
_SECONDS = 20
_BURST = 100
"""Rows that are sent together."""
_PARTITIONS = 4


def upsert_both(runner: BenchmarkRunner, rows: int) -> list[str]:
    """Measure upserts of 5,000 rows into Postgres and Delta together. Both have 300,000 rows."""
    del rows
    topic = runner.create_topic(_KEYS, _KEYS)
    target = f"both_{topic}"
    pipeline = partial(BOTH.format, name=target, target=target, topic=topic, folder=runner.folder)
    _, first = runner.run_pipeline(pipeline(rows=_KEYS))
    _send_updates(runner, topic, _EPOCH * _EPOCHS)
    _, epochs = runner.run_pipeline(pipeline(rows=_EPOCH))
    assert runner.count_rows(target) == _KEYS
    times = sorted(event.steps["total"] for event in epochs[1:])
    load = sum(event.steps["total"] for event in first)
    runner.add_figure("upsert both", "first 300,000 rows into Postgres and Delta", format_rate(_KEYS, load))
    median = statistics.median(times)
    runner.add_figure(
        "upsert both", f"median of epochs of {_EPOCH:,} updates", f"{median * 1000:.0f} ms", "1.00"
    )
    runner.add_figure(
        "upsert both", "slowest epoch", f"{times[-1] * 1000:.0f} ms", f"{times[-1] / median:.2f}"
    )
    return []


def _send_updates(runner: BenchmarkRunner, topic: str, messages: int) -> None:
    """Send updates of keys that are spread over the whole table."""
    producer = Producer(
        {"bootstrap.servers": runner.services.kafka.brokers, "queue.buffering.max.messages": 0}
    )
    for number in range(messages):
        key = number * 7919 % _KEYS
        producer.produce(
            topic, f'{{"id":{key},"name":"u{number}","amount":{number / 3}}}', partition=key % _PARTITIONS
        )
    producer.flush()


def latency(runner: BenchmarkRunner, rows: int) -> list[str]:
    """Measure the time from the send of a row to the commit of its epoch, at 10,000 rows/s into Postgres.

    The first quarter, in which the run starts, does not count.
    """
    del rows
    topic = f"pace_{secrets.token_hex(4)}"
    runner.create_empty_topic(topic, _PARTITIONS)
    text = STREAM.format(name=topic, topic=topic, target=topic, rows=100_000)
    commits: list[tuple[float, list[int]]] = []
    stop = threading.Event()

    def note_commit(event: Event) -> None:
        if isinstance(event, EpochCommitted):
            offsets = event.plan.end["src"]["stream"]["offsets"]
            commits.append((time.time(), [offsets.get(str(part), 0) for part in range(_PARTITIONS)]))

    brokers = runner.services.kafka.brokers
    # In a process of its own: a producer here would share its turns with the run.
    producer = get_context("spawn").Process(target=_send_at_rate, args=(brokers, topic))
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(
            run, parse_pipeline(text), runner.settings(), until=Until.FOREVER, stop=stop, listener=note_commit
        )
        try:
            producer.start()
            producer.join()
            while runner.count_rows(topic) < _RATE * _SECONDS:
                time.sleep(0.1)
        finally:
            stop.set()
        running.result()
    assert runner.count_rows(topic) == _RATE * _SECONDS
    waited = _measure_rows(commits, _read_send_times(brokers, topic))
    median, high = np.percentile(waited, [50, 99])
    runner.add_figure("latency", "at 10,000 rows/s into Postgres, median", f"{median * 1000:.0f} ms", "1.00")
    runner.add_figure("latency", "99th percentile", f"{high * 1000:.0f} ms", f"{high / median:.2f}")
    return []


def _send_at_rate(brokers: str, topic: str) -> None:
    """Send rows at a fixed rate."""
    producer = Producer({"bootstrap.servers": brokers, "linger.ms": 5})
    began = time.monotonic()
    for number in range(_RATE * _SECONDS):
        if number % _BURST == 0:
            time.sleep(max(0.0, began + number / _RATE - time.monotonic()))
            producer.poll(0)
        payload = f'{{"id":{number},"name":"n{number}","amount":1.5}}'
        producer.produce(topic, payload, partition=number % _PARTITIONS)
    producer.flush()


def _read_send_times(brokers: str, topic: str) -> list[list[float]]:
    """Return the producer's timestamp of each row by partition, in the order of offsets."""
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": topic})
    consumer.assign([TopicPartition(topic, part, 0) for part in range(_PARTITIONS)])
    sent: list[list[float]] = [[] for _ in range(_PARTITIONS)]
    while sum(map(len, sent)) < _RATE * _SECONDS:
        for message in consumer.consume(10_000, 1.0):
            sent[message.partition() or 0].append(message.timestamp()[1] / 1000)
    consumer.close()
    return sent


def _measure_rows(commits: list[tuple[float, list[int]]], sent: list[list[float]]) -> np.ndarray[Any, Any]:
    """Return the seconds from the send of each row to the commit of its epoch."""
    at = np.array([moment for moment, _ in commits])
    waited: list[np.ndarray[Any, Any]] = []
    for part, times in enumerate(sent):
        ends = np.array([offsets[part] for _, offsets in commits])
        epochs = np.searchsorted(ends, np.arange(len(times)), side="right")
        waited.append((at[epochs] - np.array(times))[len(times) // 4 :])
    return np.concatenate(waited)

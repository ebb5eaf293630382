"""Twenty streams that wait for messages, in one process: memory, and processor time while nothing comes."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from pathlib import Path

import psutil

from benchmarks.kit import STREAM, BenchmarkRunner, random_name, read_clock, tree_size

PIPELINES = 20
MESSAGES = 100
GATE_GIB = 2.5
IDLE_SECONDS = 20.0


def streams(runner: BenchmarkRunner, rows: int) -> list[str]:
    """Run a folder of streams from Kafka to Postgres until all have their rows, then watch them idle."""
    del rows
    folder = runner.folder / f"streams_{secrets.token_hex(4)}"
    folder.mkdir()
    names = [random_name() for _ in range(PIPELINES)]
    for name in names:
        topic = runner.create_topic(MESSAGES, MESSAGES)
        (folder / f"{name}.yaml").write_text(STREAM.format(name=name, topic=topic, target=name, rows=1000))
    began = read_clock()
    process = _start(runner, folder)
    try:
        while not all(runner.has_table(name) and runner.count_rows(name) == MESSAGES for name in names):
            assert process.poll() is None
            time.sleep(0.5)
        loaded = read_clock() - began
        time.sleep(5)
        before, began = _processor_seconds(process.pid), read_clock()
        time.sleep(IDLE_SECONDS)
        share = (_processor_seconds(process.pid) - before) / (read_clock() - began)
        size = tree_size(process.pid) / 2**30
    finally:
        process.terminate()
        process.wait()
    runner.add_figure("streams", f"{PIPELINES} streams in one process, all rows of each", f"{loaded:.1f} s")
    runner.add_figure("streams", "process tree while idle", f"{size:.2f} GiB")
    runner.add_figure("streams", "of one core while idle", f"{share:.0%}")
    return [f"{PIPELINES} idle streams take {size:.2f} GiB, allowed {GATE_GIB}"] if size > GATE_GIB else []


def _start(runner: BenchmarkRunner, folder: Path) -> subprocess.Popen[str]:
    values = {
        "HEADRACE_HOME": str(runner.folder),
        "HEADRACE__KAFKA_SOURCE__BROKERS": runner.services.kafka.brokers,
        **{
            f"HEADRACE__POSTGRES_SINK__{key.upper()}": str(value)
            for key, value in runner.postgres_settings().items()
        },
    }
    return subprocess.Popen(
        [sys.executable, "-m", "headrace", "run", str(folder)],
        env=os.environ | values,
        stdout=subprocess.DEVNULL,
        stderr=(folder / "log").open("w"),
        text=True,
    )


def _processor_seconds(pid: int) -> float:
    top = psutil.Process(pid)
    times = [process.cpu_times() for process in [top, *top.children(recursive=True)]]
    return sum(one.user + one.system for one in times)

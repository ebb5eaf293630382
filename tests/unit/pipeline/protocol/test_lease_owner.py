"""Ending the JVM of a former lease owner: only that process, only on this host, never our own."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator

import psutil
import pytest

from headrace.pipeline.protocol.ledger import describe_owner, describe_process
from headrace.pipeline.protocol.ledger.owner import end_jvm

HERE = socket.gethostname()


@pytest.fixture
def jvm() -> Iterator[subprocess.Popen]:
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def test_it_is_killed_and_waited_for(jvm):
    assert end_jvm({"host": HERE, "pid": 1, "jvm": describe_process(jvm.pid)})
    assert psutil.Process(jvm.pid).status() == psutil.STATUS_ZOMBIE, (
        "dead, and not yet reaped by us, its parent"
    )


@pytest.mark.parametrize(
    ("change", "dead"),
    [
        ({"host": "elsewhere"}, False),
        ({"pid": os.getpid()}, False),
        ({"jvm": {"pid": 0, "create_time": 1.0}}, True),
    ],
)
def test_others_are_left_alone(jvm, change, dead):
    named = describe_process(jvm.pid)
    holder = {"host": HERE, "pid": 1, "jvm": named} | change
    if "jvm" in change:
        holder["jvm"] = named | {
            "create_time": named["create_time"] - 60
        }  # its pid was given to another process
    assert end_jvm(holder) is dead
    assert jvm.poll() is None


def test_a_holder_without_a_jvm_needs_no_killing():
    assert end_jvm({"host": HERE, "pid": 1})


def test_a_holder_describes_this_process():
    holder = describe_owner("run-1", "cli", file="orders.yaml")
    assert (holder["pid"], holder["host"], holder["run_id"], holder["launched_by"], holder["file"]) == (
        os.getpid(),
        HERE,
        "run-1",
        "cli",
        "orders.yaml",
    )
    assert psutil.Process().create_time() == holder["create_time"]

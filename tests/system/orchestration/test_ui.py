"""Dagster's web server as a process: it starts, and nothing is left when it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

from headrace.orchestration.ui import serve
from headrace.pipeline.errors import ServiceError


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ask(port: int, query: str) -> dict:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/graphql",
        json.dumps({"query": query}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)["data"]


def family(pid: int) -> list[psutil.Process]:
    parent = psutil.Process(pid)
    return [parent, *parent.children(recursive=True)]


def test_up_and_away_without_a_trace(written, own_home: Path):
    written()
    port = free_port()
    code = (
        "from pathlib import Path; from headrace.orchestration.ui import serve; serve(Path('home'),"
        f" port={port})"
    )
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("HEADRACE", "DAGSTER"))
    }
    process = subprocess.Popen([sys.executable, "-c", code], cwd=own_home, env=environment)
    everybody = []
    try:
        deadline = time.monotonic() + 150
        while True:
            assert process.poll() is None
            assert time.monotonic() < deadline, "the pages did not come up"
            try:
                found = ask(
                    port,
                    "{repositoriesOrError{... on RepositoryConnection{nodes{location{name} jobs{name}}}}}",
                )
                break
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(0.5)
        (repository,) = found["repositoriesOrError"]["nodes"]
        assert repository["location"]["name"] == "headrace"
        assert {"flights_history", "flights_stream"} <= {job["name"] for job in repository["jobs"]}
        everybody = family(process.pid)
        assert len(everybody) >= 4
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=90) == 0
        assert [one for one in everybody if one.is_running() and one.status() != psutil.STATUS_ZOMBIE] == []
    finally:
        for one in [*everybody, *(family(process.pid) if process.poll() is None else [])]:
            if one.is_running():
                one.kill()
    assert (own_home / ".dagster" / "dagster.yaml").read_text().startswith("# Dagster's instance")


def test_a_port_that_is_taken_is_named(own_home: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ServiceError, match=f"cannot listen on 127.0.0.1:{port}"):
            serve(own_home, port=port)

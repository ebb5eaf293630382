"""Dagster's web server as a process: it starts, and nothing is left when it ends."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import pytest
from helpers.dagster_ui import dagster_ui, is_alive

from headrace.orchestration.ui import serve
from headrace.pipeline.errors import ServiceError


def test_up_and_away_without_a_trace(written, own_home: Path):
    written()
    with dagster_ui(own_home, {}) as services:
        repository = services.repository()
        assert repository
        assert repository["location"]["name"] == "headrace"
        assert {"flights_history", "flights_stream"} <= {job["name"] for job in repository["jobs"]}
        processes = services.processes()
        assert len(processes) >= 4
        services.process.send_signal(signal.SIGTERM)
        assert services.process.wait(timeout=90) == 0
        assert [process for process in processes if is_alive(process)] == []
    assert (own_home / ".dagster" / "dagster.yaml").read_text().startswith("# Dagster's instance")


def test_a_port_that_is_taken_is_named(own_home: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ServiceError, match=f"cannot listen on 127.0.0.1:{port}"):
            serve(own_home, port=port)

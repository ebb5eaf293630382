"""Dagster's web server, daemon and code server as `headrace ui` starts them, driven as the pages do it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from helpers.pipeline_world import until
from helpers.ports import free_port

_LAUNCH = """mutation($params: ExecutionParams!) { launchRun(executionParams: $params) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }"""
_TERMINATE = """mutation($run: String!, $policy: TerminateRunPolicy) {
  terminateRun(runId: $run, terminatePolicy: $policy) {
    __typename ... on TerminateRunFailure { message } ... on PythonError { message } } }"""
_STATUS = "query($run: ID!) { runOrError(runId: $run) { ... on Run { status } } }"
_TICKS = """query($sensor: SensorSelector!) { sensorOrError(sensorSelector: $sensor) {
  ... on Sensor { sensorState { ticks(limit: 1) { skipReason } } } } }"""
_REPOSITORIES = """{ repositoriesOrError { ... on RepositoryConnection {
  nodes { name location { name } jobs { name } } } } }"""


def family(pid: int) -> list[psutil.Process]:
    """The process and all its descendants."""
    parent = psutil.Process(pid)
    return [parent, *parent.children(recursive=True)]


def is_alive(process: psutil.Process) -> bool:
    """Whether the process runs. A zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def command_line(process: psutil.Process) -> list[str]:
    """The arguments of a process. Empty if it ended, or is a zombie."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


class DagsterUi:
    """The processes of `headrace ui` in a folder."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.port = free_port()
        code = (
            "import os; from pathlib import Path; from headrace.orchestration.ui import serve;"
            f" serve(Path(os.environ.get('HEADRACE_HOME', 'home')), port={self.port})"
        )
        self.log = folder / "ui.log"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=folder,
            env=environment,
            stdout=self.log.open("w"),
            stderr=subprocess.STDOUT,
        )
        self.seen: set[psutil.Process] = set()

    def ask(self, query: str, **variables: Any) -> dict[str, Any]:
        """The data of a GraphQL query."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/graphql",
            json.dumps({"query": query, "variables": variables}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["data"]

    def repository(self) -> dict[str, Any] | None:
        """The one repository, None until the pages are up."""
        assert self.process.poll() is None, self.log.read_text()[-3000:]
        try:
            nodes = self.ask(_REPOSITORIES)["repositoriesOrError"].get("nodes")
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return None
        return nodes[0] if nodes else None

    def processes(self) -> list[psutil.Process]:
        """All processes of the services and their runs. The call remembers them for the end."""
        result = family(self.process.pid)
        self.seen |= set(result)
        return result

    def code_servers(self) -> list[psutil.Process]:
        """The processes that answer for the definitions. Runs are their children."""
        return [process for process in self.processes() if {"api", "grpc"} <= set(command_line(process))]

    def launch(
        self, job: str, config: Mapping[str, Any] | None = None, tags: Mapping[str, str] | None = None
    ) -> str:
        """Launch a job as the pages do. The run's id."""
        repository = self.repository()
        assert repository
        selector = {
            "repositoryLocationName": repository["location"]["name"],
            "repositoryName": repository["name"],
            "jobName": job,
        }
        metadata = {"tags": [{"key": key, "value": value} for key, value in (tags or {}).items()]}
        params = {"selector": selector, "runConfigData": config or {}, "executionMetadata": metadata}
        result = self.ask(_LAUNCH, params=params)["launchRun"]
        assert result["__typename"] == "LaunchRunSuccess", result
        return result["run"]["runId"]

    def terminate(self, run: str, policy: str = "SAFE_TERMINATE") -> dict[str, Any]:
        """Click Terminate. The answer of the server, which can be an error if the code server is dead."""
        try:
            return self.ask(_TERMINATE, run=run, policy=policy)["terminateRun"]
        except urllib.error.HTTPError as error:
            return json.load(error)

    def status(self, run: str) -> str:
        """The run's status."""
        return self.ask(_STATUS, run=run)["runOrError"]["status"]

    def newest_tick(self, sensor: str) -> str:
        """The skip reason of the newest tick of a sensor."""
        repository = self.repository()
        assert repository
        selector = {
            "repositoryLocationName": repository["location"]["name"],
            "repositoryName": repository["name"],
            "sensorName": sensor,
        }
        ticks = self.ask(_TICKS, sensor=selector)["sensorOrError"]["sensorState"]["ticks"]
        return (ticks[0]["skipReason"] or "") if ticks else ""

    def close(self) -> None:
        """No process of the services or their runs outlives this."""
        if self.process.poll() is None:
            self.processes()
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=90)
            except subprocess.TimeoutExpired:
                self.seen |= set(family(self.process.pid))
                self.process.kill()
        for process in self.seen:
            if is_alive(process):
                process.kill()
        self.process.wait()


@contextmanager
def dagster_ui(folder: Path, environment: Mapping[str, str]) -> Iterator[DagsterUi]:
    """The services in a folder, up."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("HEADRACE", "DAGSTER"))}
    services = DagsterUi(folder, clean | dict(environment))
    try:
        until(services.repository, "the pages", seconds=300)
        yield services
    finally:
        services.close()

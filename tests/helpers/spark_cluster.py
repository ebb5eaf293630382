"""A Spark standalone cluster on loopback: one master and two workers, as pip's pyspark brings them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from pyspark.find_spark_home import _find_spark_home

from headrace.jobs.spark.java import find_java
from helpers.pipeline_world import World, postgres_ledger, until
from helpers.ports import free_port

EXECUTOR = "CoarseGrainedExecutorBackend"


@dataclass
class SparkCluster:
    """The processes of a cluster, with their logs in `folder`."""

    folder: Path
    port: int
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """The value of `spark.master`."""
        return f"spark://127.0.0.1:{self.port}"

    def start_master(self) -> None:
        """Start the master, also in place of a killed one. Wait until it listens."""
        ports = ["--port", str(self.port), "--webui-port", str(free_port())]
        self._start("master", "org.apache.spark.deploy.master.Master", ["--host", "127.0.0.1", *ports])
        until(self._listens, "the master to listen", 120)

    def start_worker(self, name: str) -> None:
        """Start a worker with one core."""
        ports = ["--port", str(free_port()), "--webui-port", str(free_port())]
        size = ["--cores", "1", "--memory", "1g", "--work-dir", str(self.folder / name)]
        self._start(
            name,
            "org.apache.spark.deploy.worker.Worker",
            ["--host", "127.0.0.1", *ports, *size, self.address],
        )

    def executors(self) -> list[psutil.Process]:
        """The executors of all workers."""
        result: list[psutil.Process] = []
        for process in psutil.process_iter(["cmdline"]):
            line = process.info["cmdline"] or []
            if any(EXECUTOR in part for part in line) and any(str(self.folder) in part for part in line):
                result.append(process)
        return result

    def worker_of(self, executor: psutil.Process) -> str:
        """The name of the worker that started an executor."""
        return next(name for name, process in self.processes.items() if process.pid == executor.ppid())

    def kill(self, name: str) -> None:
        """Kill the master or a worker with signal 9."""
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def close(self) -> None:
        """End every process of the cluster."""
        for name in list(self.processes):
            self.kill(name)
        for process in self.executors():
            process.kill()

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def _start(self, name: str, main: str, arguments: list[str]) -> None:
        command = [str(Path(_find_spark_home()) / "bin" / "spark-class"), main, *arguments]
        environment = os.environ | {
            "JAVA_HOME": str(find_java(None).home),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1",
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        log = (self.folder / f"{name}.log").open("ab")
        # The shell script replaces itself by Java, so the pid is that of the JVM.
        self.processes[name] = subprocess.Popen(command, env=environment, stdout=log, stderr=log)


def unread_bytes(process: psutil.Process) -> int:
    """Return how much the sockets of a process have received that it has not read, as while it is stopped."""
    inodes = set()
    for link in Path(f"/proc/{process.pid}/fd").iterdir():
        with suppress(OSError):
            inodes.add(str(link.readlink()))
    tables = "".join(Path(f"/proc/{process.pid}/net/{name}").read_text() for name in ("tcp", "tcp6"))
    rows = [line.split() for line in tables.splitlines()]
    return sum(int(row[4].split(":")[1], 16) for row in rows if f"socket:[{row[9]}]" in inodes)


@contextmanager
def spark_cluster(folder: Path) -> Iterator[SparkCluster]:
    """Yield a cluster with two workers; end its processes afterwards."""
    folder.mkdir()
    cluster = SparkCluster(folder, free_port())
    try:
        cluster.start_master()
        for name in ("worker-1", "worker-2"):
            cluster.start_worker(name)
        yield cluster
    finally:
        cluster.close()


class ClusterWorld(World):
    """A world whose runs use a cluster and a ledger in Postgres. Each run has the home that is set now."""

    cluster: SparkCluster
    host: str = "host-1"

    def env(self) -> dict[str, str]:
        """The environment of a run on the host of this name, with an empty disk at first."""
        conf = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "512m",
            # Part of the command line, by which the executors of this cluster are found.
            "spark.executor.extraJavaOptions": (
                f"-XX:TieredStopAtLevel=1 -Dheadrace.cluster={self.cluster.folder}"
            ),
            "spark.sql.shuffle.partitions": "2",
        }
        return (
            super().env()
            | postgres_ledger(self.conninfo)
            | {
                "HEADRACE_HOME": str(self.folder / self.host),
                "HEADRACE__SPARK__MASTER": self.cluster.address,
                "HEADRACE__SPARK__CONF": json.dumps(conf),
            }
        )

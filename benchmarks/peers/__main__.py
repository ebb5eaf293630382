"""`python -m benchmarks.peers PYTHON [--rows N] [--only A …]`: the same work by Headrace and by other tools.

PYTHON is the interpreter with the packages of `requirements.txt`. Without `--only`, write docs/internals/peers.md.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import psycopg
from deltalake import DeltaTable, QueryBuilder
from psycopg import sql

from benchmarks.kit import BenchmarkRunner, open_runner, tree_size
from benchmarks.peers.page import PAGE, PeerFigure, PeerOutcome, format_page
from benchmarks.peers.task import PeerTask
from headrace.jobs.spark.jars import ensure_jars
from headrace.jobs.spark.java import find_java

ROOT = Path(__file__).parents[2]
ROUNDS = 3
PEERS = {
    "A": ("bare", "dlt", "spark_by_hand"),
    "B": ("bare", "dlt", "bytewax", "spark_by_hand"),
    "C": ("bare", "dlt", "bytewax", "spark_by_hand"),
    "D": ("bare", "dlt", "spark_by_hand"),
    "B5": ("bare", "dlt", "bytewax"),
    "C5": ("bare", "dlt", "bytewax"),
}
"""The tools of each scenario. B5 and C5 are B and C with five times as many messages, and without a crash."""
SOURCES = {
    "table": "{{type: clickhouse, table_name: {table}{key}}}",
    "topic": "{{type: kafka, topic: {topic}{key}, schema: {{id: int64, name: string, amount: float64}}}}",
}
SINKS = {
    "postgres": "{{type: postgres, from: src, table: {target}}}",
    "delta": "{{type: delta, from: src, path: {lake}}}",
}
PIPELINE = "name: {target}\nsources:\n  src: {source}\nsinks:\n  out: {sink}\n"


@dataclass
class Comparison:
    """Runs scenarios with each tool on the same servers."""

    runner: BenchmarkRunner
    python: Path
    rows: int

    def create_task(self, scenario: str) -> PeerTask:
        """Return a task with sources that exist. `with_target` gives each run a target of its own."""
        jars = [str(path) for path in ensure_jars().spark]
        if scenario in "AD":
            table = self.runner.create_table(self.rows)
            return self.runner.create_task(scenario, self.rows, table=table, jars=jars)
        messages = self.rows if scenario.endswith("5") else self.rows // 5
        topic = self.runner.create_topic(messages, messages // 5)
        return self.runner.create_task(scenario[0], messages, topic=topic, jars=jars)

    def with_target(self, task: PeerTask) -> PeerTask:
        """Return the task with a new target and an empty folder for state."""
        name = f"peer_{secrets.token_hex(4)}"
        state = self.runner.folder / "state" / name
        state.mkdir(parents=True)
        return replace(
            task, target=name, lake=str(self.runner.folder / f"lake_{name}" / name), state=str(state)
        )

    def start(self, peer: str, task: PeerTask) -> subprocess.Popen[str]:
        """Start a process of a tool, in a session of its own."""
        environment = {**os.environ, "JAVA_HOME": str(find_java().home), "PYSPARK_PYTHON": sys.executable}
        if peer == "headrace":
            text = PIPELINE.format(
                target=task.target,
                source=SOURCES["table" if task.table else "topic"].format(
                    **asdict(task), key=", primary_key: id" if task.scenario in "AB" else ""
                ),
                sink=SINKS["postgres" if task.scenario in "AB" else "delta"].format(**asdict(task)),
            )
            environment |= self.runner.child_environment(text)
            command = [sys.executable, "-m", "benchmarks.child"]
        else:
            python = sys.executable if peer == "spark_by_hand" else str(self.python)
            module = peer if peer in ("bare", "spark_by_hand") else f"{peer}_peer"
            command = [python, "-m", f"benchmarks.peers.{module}", json.dumps(asdict(task))]
        log = (Path(task.state) / "log").open("a")
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )

    def measure(self, peer: str, task: PeerTask) -> PeerFigure:
        """Run a tool once, and verify its result. Raise RuntimeError if it is wrong."""
        task = self.with_target(task)
        began = time.time()
        process = self.start(peer, task)
        usage = ProcessUsage(process.pid)
        while process.poll() is None:
            usage.sample()
            time.sleep(0.2)
        whole = time.time() - began
        assert process.stdout
        steps = {step["step"]: step["at"] for line in process.stdout if (step := read_step(line))}
        outcome = self.verify(task)
        if process.returncode or outcome != self.expected(task):
            log = (Path(task.state) / "log").read_text()[-3000:]
            msg = f"{peer} {task.scenario}: exit {process.returncode}, {outcome} of {self.expected(task)}\n{log}"
            raise RuntimeError(msg)
        ready = steps.get("ready", steps.get("lane open", 0.0))
        work = steps["end"] - ready
        self.drop(task)
        return PeerFigure(peer, task.rows, whole, work, usage.cpu, usage.peak / 2**30)

    def crash(self, peer: str, task: PeerTask, after: float) -> PeerOutcome:
        """Kill a tool `after` these seconds, start it again, and compare the rows."""
        task = self.with_target(task)
        process = self.start(peer, task)
        try:
            process.wait(timeout=after)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
        time.sleep(1)
        again = self.start(peer, task)
        again.communicate(timeout=900)
        rows, keys, _ = self.verify(task)
        expected_rows, expected_keys, _ = self.expected(task)
        self.drop(task)
        return PeerOutcome(
            peer,
            again.returncode,
            lost=max(expected_keys - keys, 0) if task.scenario != "C" else max(expected_rows - rows, 0),
            doubled=max(rows - expected_rows, 0),
        )

    def expected(self, task: PeerTask) -> tuple[int, int, int]:
        """Return the rows, the keys and the sum of the ids that a correct target has."""
        if task.scenario in "AD":
            return task.rows, task.rows, task.rows * (task.rows - 1) // 2
        keys = task.rows // 5
        copies = 1 if task.scenario == "B" else 5
        return keys * copies, keys, copies * keys * (keys - 1) // 2

    def verify(self, task: PeerTask) -> tuple[int, int, int]:
        """Return the rows, the keys and the sum of the ids of the target. Zeros if there is none."""
        query = "SELECT count(*), count(DISTINCT id), coalesce(sum(id), 0) FROM {}"
        if task.scenario in "CD":
            if not DeltaTable.is_deltatable(task.lake):
                return 0, 0, 0
            table = DeltaTable(task.lake)
            batches = QueryBuilder().register("target", table).execute(query.format("target"))
            (row,) = batches.read_all().to_struct_array().to_pylist()
            return tuple(int(value) for value in row.values())  # pyright: ignore[reportReturnType]
        if not self.runner.has_table(task.target):
            return 0, 0, 0
        with psycopg.connect(self.runner.services.postgres.conninfo()) as connection:
            text = sql.SQL(query).format(sql.Identifier(task.target))
            return tuple(int(value) for value in connection.execute(text).fetchall()[0])  # pyright: ignore[reportReturnType]

    def drop(self, task: PeerTask) -> None:
        """Remove the target, so that later runs find the same servers."""
        shutil.rmtree(Path(task.lake).parent, ignore_errors=True)
        with psycopg.connect(self.runner.services.postgres.conninfo()) as connection:
            for name in (task.target, f"{task.target}_stage"):
                connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(name)))


class ProcessUsage:
    """Processor seconds and the largest size of a process with its descendants, by samples."""

    def __init__(self, pid: int) -> None:
        self.pid, self.peak = pid, 0
        self._seconds: dict[int, float] = {}

    @property
    def cpu(self) -> float:
        """Seconds of all processes that were seen."""
        return sum(self._seconds.values())

    def sample(self) -> None:
        """Read the processes that exist now."""
        try:
            top = psutil.Process(self.pid)
            for process in [top, *top.children(recursive=True)]:
                times = process.cpu_times()
                self._seconds[process.pid] = times.user + times.system
            self.peak = max(self.peak, tree_size(self.pid))
        except psutil.Error:
            return


def read_step(line: str) -> Mapping[str, Any] | None:
    """Return a step from a line of output. None for other lines."""
    return json.loads(line) if line.startswith('{"step"') else None


def main() -> int:
    """Run all scenarios with all tools, in rounds, so that a slow minute of the machine hits all alike."""
    parser = argparse.ArgumentParser(prog="benchmarks.peers")
    parser.add_argument("python", type=Path)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", nargs="*", choices=list(PEERS), default=[])
    arguments = parser.parse_args()
    results: dict[str, tuple[list[PeerFigure], list[PeerOutcome]]] = {}
    with tempfile.TemporaryDirectory(prefix="headrace-peers-") as folder, open_runner(Path(folder)) as runner:
        comparison = Comparison(runner, arguments.python.absolute(), arguments.rows)
        for scenario in arguments.only or PEERS:
            task = comparison.create_task(scenario)
            peers = ("headrace", *PEERS[scenario])
            runs = [comparison.measure(peer, task) for _ in range(arguments.rounds) for peer in peers]
            figures = [middle_figure([run for run in runs if run.peer == peer]) for peer in peers]
            for figure in figures:
                print(scenario, figure.line(), flush=True)
            outcomes = []
            for figure in figures if len(scenario) == 1 else ():
                outcomes.append(comparison.crash(figure.peer, task, figure.whole - figure.work / 2))
                print(scenario, outcomes[-1], flush=True)
            results[scenario] = figures, outcomes
    if not arguments.only:
        PAGE.write_text(format_page(results, arguments.rounds))
    return 0


def middle_figure(runs: list[PeerFigure]) -> PeerFigure:
    """Return the run with the median time of the whole command."""
    median = statistics.median_low([run.whole for run in runs])
    return next(run for run in runs if run.whole == median)


if __name__ == "__main__":
    sys.exit(main())

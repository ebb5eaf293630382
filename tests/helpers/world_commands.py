"""Commands for the pipeline of a world, and runs that the test starts and stops."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.pipeline.protocol.ledger import Ledger, PipelineState, RefreshRequest, open_sqlite
from helpers.cli_commands import run_commands
from helpers.forked_process import COMMAND, ForkedProcess
from helpers.pipeline_world import World, until


class Commands:
    """Commands for the pipeline of a world."""

    def __init__(self, world: World) -> None:
        self.world = world

    def start(self, *arguments: str, **environment: str) -> ForkedProcess:
        process = ForkedProcess(COMMAND, arguments, env=self.world.env() | environment, cwd=self.world.folder)
        self.world.processes.append(process)
        return process

    def run(self, *arguments: str) -> tuple[int, str, str]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=300)
        assert "Traceback" not in out + err
        return process.wait(), out, err

    def run_all(self, *commands: tuple[str, ...]) -> list[tuple[int, str, str]]:
        """Run different commands one after the other, in one process, whose imports take a second."""
        answers = run_commands(commands, cwd=self.world.folder, env=self.world.env())
        assert not [answer for answer in answers.values() if "Traceback" in answer.out + answer.errors]
        return [(answer.code, answer.out, answer.errors) for answer in answers.values()]

    def start_run(self, *, idle: bool = False, **environment: str) -> ForkedProcess:
        """A run, once it has committed an epoch of its own, or is `idle`: then it hardly writes the ledger."""
        process = self.start("run", str(self.world.file), **environment)

        def has_begun() -> bool:
            assert process.poll() is None, process.communicate()
            state = self.state()
            if state is None or state.holder is None or state.holder["pid"] != process.pid:
                return False
            return state.progress.get("backlog") == 0 if idle else "epoch" in state.progress

        until(has_begun, "the run", seconds=300)
        return process

    @contextmanager
    def ledger(self) -> Iterator[Ledger]:
        ledger = open_sqlite(self.world.ledger)
        try:
            yield ledger
        finally:
            ledger.close()

    def state(self) -> PipelineState | None:
        if not self.world.ledger.exists():
            return None
        with self.ledger() as ledger:
            return ledger.state(self.world.name)

    def pending_refreshes(self) -> list[RefreshRequest]:
        with self.ledger() as ledger:
            return ledger.pending_refreshes(self.world.name)

    def epoch(self) -> int:
        state = self.state()
        assert state
        return state.committed

    def status(self) -> dict:
        (status,) = json.loads(self.run("status", str(self.world.file), "--json")[1])
        return status
